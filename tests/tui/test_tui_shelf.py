"""The models there are to choose from, and whether they fit."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from helpers import gguf_build as gb

from edgerun import catalog
from edgerun.llm import LLM
from edgerun.tui import shelf
from edgerun.tui.partner import Choice
from edgerun.tui.shelf import Facts, Shelf, read_facts, verdict

GB = 10**9
Memory = namedtuple("Memory", "total available")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, store and current folder."""
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("home", "here", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "home"))
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: Memory(16 * GB, 8 * GB))


def choices(**options: Any) -> dict[str, Choice]:
    return {c.name: c for c in Shelf().choices(None, options)}


@pytest.mark.usefixtures("memory")
def test_the_catalogue_is_there_before_anything_is_pulled(place: Path) -> None:
    found = choices()
    assert list(found) == list(catalog.load_catalog())
    tiny = found["smollm2-135m"]
    assert (tiny.pulled, tiny.fits, tiny.tight, tiny.source) == (False, True, False, "catalogue")
    assert (tiny.size, tiny.quant, tiny.n_ctx) == (98362432, "Q4_1", 8192)
    assert "default" in tiny.notes
    large = found["mistral-small3.2-24b"]
    assert large.fits is False
    assert large.why == "needs 15.4 GB, 8.00 GB are free"
    assert large.runs


@pytest.mark.usefixtures("memory")
def test_files_that_lie_here_are_found(place: Path) -> None:
    (place / "bait.gguf").write_bytes(b"not ours")
    here = place / "here"
    gb.random_model(here / "Mine-Q8_0.gguf", seed=1, n_ctx=256)
    shutil.copy(here / "Mine-Q8_0.gguf", here / "mmproj-mine.gguf")
    shutil.copy(here / "Mine-Q8_0.gguf", here / "half-00001-of-00002.gguf")
    (here / "broken.GGUF").write_bytes(b"GGUF")
    hub = place / "home/.cache/huggingface/hub/models--a--b/snapshots/0123"
    hub.mkdir(parents=True)
    shutil.copy(here / "Mine-Q8_0.gguf", hub / "other-IQ4_XS.gguf")
    (hub / "again-IQ4_XS.gguf").symlink_to(hub / "other-IQ4_XS.gguf")
    files = {n: c for n, c in choices().items() if c.source == "file"}
    assert {c.quant for c in files.values() if c.runs} == {"Q8_0", "IQ4_XS"}
    assert len(files) == 3
    mine = files["Mine-Q8_0"]
    assert mine.target == str(here / "Mine-Q8_0.gguf")
    assert (mine.pulled, mine.fits, mine.n_ctx) == (True, True, 256)
    assert mine.size == (here / "Mine-Q8_0.gguf").stat().st_size
    broken = files["broken"]
    assert (broken.runs, broken.fits) == (False, False)
    assert "\n" not in broken.why
    with LLM(mine.target, backend="cpu", threads=1) as llm:
        assert llm.n_ctx == 256


@pytest.mark.usefixtures("memory")
def test_a_pulled_model_is_here_and_not_twice(place: Path) -> None:
    (place / "data/models.toml").write_text(f'[own]\nsource = "{place / "here/own-F32.gguf"}"\n')
    gb.random_model(place / "here/own-F32.gguf", seed=1, n_ctx=256)
    found = choices()
    assert found["own"].pulled
    assert found["own"].quant == "F32"
    assert [c for c in found.values() if c.source == "file"] == []
    (place / "data/models/smollm2-135m").mkdir(parents=True)
    (place / "data/models/smollm2-135m/x.part").write_bytes(b"x" * 1000)
    assert choices()["smollm2-135m"].partial == 1000


@pytest.mark.usefixtures("memory")
def test_heads_are_read_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = gb.random_model(place / "here/a.gguf", seed=1)
    read: list[Path] = []
    real = read_facts
    monkeypatch.setattr(shelf, "read_facts", lambda p, k: (read.append(p), real(p, k))[1])
    one = Shelf()
    one.choices(None, {})
    one.choices(None, {})
    assert read == [path]
    gb.random_model(path, seed=1, n_ctx=64)
    assert {c.n_ctx for c in one.choices(None, {}) if c.source == "file"} == {64}


def test_the_memory_of_the_loaded_model_will_be_free(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = gb.random_model(place / "here/a.gguf", seed=1)
    with LLM(path, backend="cpu", threads=1) as llm:
        backend = llm.model.backend
        now = backend.memory()
        monkeypatch.setattr(backend, "memory", lambda: type(now)(total=8 * GB, free=2 * GB))
        monkeypatch.setattr(llm.model, "size", 4 * GB)
        found = {c.name: c for c in Shelf().choices(llm.model, {})}
    assert found["qwen3-4b"].fits  # 2.5 GB, and 6 will be free


def test_verdicts_follow_the_plan() -> None:
    facts = Facts(4 * GB, token_bytes=100_000, n_ctx=32768)
    assert verdict(facts, 32 * GB, 20 * GB, None) == (True, "", False)
    fits, why, tight = verdict(facts, 8 * GB, 6 * GB, None)
    assert (fits, why, tight) == (True, "context 7k", False)  # half of 1.5 GB that is left
    assert verdict(facts, 8 * GB, 4_900_000_000, None) == (True, "context 1k", True)
    assert verdict(facts, 8 * GB, 4 * GB, None)[0] is False
    assert verdict(facts, 32 * GB, 7 * GB, 30_000) == (
        False, "needs 9.00 GB, 7.00 GB are free", False,
    )  # fmt: skip
    assert verdict(Facts(GB), 8 * GB, 4 * GB, None) == (True, "", False)
    assert verdict(Facts(5 * GB), 8 * GB, 4 * GB, None)[0] is False


def test_quantization_in_names() -> None:
    names = {
        "Qwen3-4B-Q4_K_M.gguf": "Q4_K_M", "x.q8_0.gguf": "Q8_0", "model-f16.gguf": "F16",
        "a-UD-Q2_K_XL-00001-of-00002.gguf": "UD-Q2_K_XL", "b-IQ4_NL.gguf": "IQ4_NL",
        "gpt-oss-20b-mxfp4.gguf": "MXFP4", "quiet.gguf": "", "Q.gguf": "",
    }  # fmt: skip
    assert {n: shelf._quant(n) for n in names} == names
