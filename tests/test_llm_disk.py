"""Texts that outlive their process: bit for bit what they were, for this model alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.cli import CLI, environment

from edgerun import LLM, Completion, SamplingParams
from edgerun.errors import RequestError
from edgerun.kv_disk import folder, parse_limit

PARAMS = SamplingParams(temperature=1.1, seed=5, max_tokens=20, ignore_eos=True, logprobs=5)
PROMPT = np.random.default_rng(8).integers(3, 270, 600).tolist()
FULL = 576  # tokens of the pages before the last token's


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=3, n_ctx=2048)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


def ask(path: Path, **options: Any) -> Completion:
    options = {"backend": "cpu", "threads": 1, "kv_disk": "64M", **options}
    with LLM(path, **options) as llm:
        return llm.generate(PROMPT, PARAMS)


def cached(c: Completion) -> int:
    return c.usage.cached_tokens


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "f32", "q4r:force"])
def test_the_same_bits_cold_warm_and_after_a_restart(path: Path, kv_type: str) -> None:
    with LLM(path, backend="cpu", threads=1, kv_type=kv_type, kv_disk="64M") as llm:
        cold, warm = llm.generate(PROMPT, PARAMS), llm.generate(PROMPT, PARAMS)
    again = ask(path, kv_type=kv_type)
    assert [cached(c) for c in (cold, warm, again)] == [0, 599, FULL]
    assert cold.token_ids == warm.token_ids == again.token_ids
    assert cold.logprobs == warm.logprobs == again.logprobs  # floats: exact


def test_the_reference_backend_keeps_its_own(path: Path) -> None:
    ask(path)
    assert cached(ask(path, backend="reference")) == 0
    assert cached(ask(path, backend="reference")) == FULL


def test_nothing_is_shared_with_another_model_or_kv_type(path: Path, tmp_path: Path) -> None:
    ask(path)
    assert cached(ask(path, kv_type="q8_0")) == 0
    assert cached(ask(path, kv_type="q4r:force")) == 0
    other = gb.random_model(tmp_path / "other.gguf", seed=4, n_ctx=2048)
    assert cached(ask(other)) == 0
    moved = Path(shutil.copy2(path, tmp_path / "moved.gguf"))
    assert cached(ask(moved)) == FULL  # wherever it lies
    raw = bytearray(moved.read_bytes())
    raw[-3] ^= 1
    moved.write_bytes(raw)
    assert cached(ask(moved)) == 0


def test_a_longer_conversation_goes_on_behind_what_is_there(path: Path) -> None:
    first = ask(path)
    longer = [*PROMPT, *first.token_ids, 5, 6, 7]
    with LLM(path, backend="cpu", threads=1, kv_disk="64M") as llm:
        assert llm.generate(longer, PARAMS).usage.cached_tokens == 608
        assert llm.metrics().cached_tokens == 608


def test_off_writes_nothing(path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(path, backend="cpu", threads=1) as llm:  # an application chooses for its users
        llm.generate(PROMPT, PARAMS)
    ask(path, kv_disk="off")
    monkeypatch.setenv("EDGERUN_KV_DISK", "off")
    ask(path, kv_disk="auto")
    assert not home.exists()
    monkeypatch.delenv("EDGERUN_KV_DISK")
    ask(path, kv_disk="auto")
    assert cached(ask(path, kv_disk="auto")) == FULL
    assert folder().is_relative_to(home)


def test_the_command_line(path: Path, home: Path, cli: CLI) -> None:
    words = ("run", "--raw", "-m", path, "--backend", "cpu", "-n", "1", "ab " * 400)
    assert cli(*words).status == 0  # the tests' environment says off
    assert cli(*words, "--kv-disk", "off").status == 0
    assert not home.exists()
    assert cli(*words, "--kv-disk", "64M").status == 0
    assert list(folder().glob("*/*.kv"))
    usage = json.loads(cli(*words, "--kv-disk", "64M", "--json").out)["usage"]
    assert usage["cached_tokens"] > usage["prompt_tokens"] - 34
    bad = cli(*words, "--kv-disk", "much")
    assert bad.status != 0
    assert "kv_disk must be a size such as 2G, or off, not 'much'" in bad.err


def test_the_variable_is_named_if_it_is_wrong(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGERUN_KV_DISK", "much")
    with pytest.raises(RequestError, match="EDGERUN_KV_DISK must be a size"):
        LLM(path, backend="cpu", kv_disk="auto")


def test_the_bound_holds(path: Path) -> None:
    ask(path)
    whole = sum(p.stat().st_size for p in folder().glob("*/*.kv"))
    again = ask(path, kv_disk=whole // 2)
    assert sum(p.stat().st_size for p in folder().glob("*/*.kv")) <= whole // 2
    assert 0 < cached(again) < FULL


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_harms_nothing(path: Path, home: Path) -> None:
    home.mkdir(mode=0o500)
    assert len(ask(path).token_ids) == 20


def test_a_folder_that_is_a_file_harms_nothing(
    path: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home.write_text("in the way")
    assert len(ask(path).token_ids) == 20
    assert [r.levelname for r in caplog.records] == ["WARNING"]


_CHILD = """
import sys
from edgerun import LLM
ids = [3 + (i * i) % 250 for i in range(600)]
with LLM(sys.argv[1], backend="cpu", threads=1, kv_disk="4M") as llm:
    for k in range(4):
        c = llm.generate(ids[100 * k:] + [9] * k, max_tokens=4, temperature=0)
        print(c.token_ids)
"""


def test_processes_at_once_say_the_same(path: Path) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(path)], env=environment(), stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    said = [c.communicate(timeout=60)[0] for c in children]
    assert said[0] == said[1]
    assert len(said[0].splitlines()) == 4
    assert not list(folder().glob("*/*.part"))
    after = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)],
        env=environment(),
        capture_output=True,
        timeout=60,
    )
    assert after.stdout == said[0]


@pytest.mark.parametrize(
    ("choice", "limit"),
    [("2G", 2 << 30), ("1.5 GiB", 3 << 29), ("500m", 500 << 20), ("8kB", 8000),
     ("2 gib", 2 << 30), ("1GB", 10**9), ("9b", 9), (77, 77),
     ("77", 77), (0, 0), ("off", 0), ("OFF", 0), ("auto", None)],
)  # fmt: skip
def test_sizes(choice: int | str, limit: int | None) -> None:
    assert parse_limit(choice) == limit


@pytest.mark.parametrize("choice", ["", "lots", "-1", -1, "2 X", True, "1e9", "nan", "9" * 999])
def test_no_sizes(choice: int | str) -> None:
    with pytest.raises(RequestError, match="kv_disk must be a size"):
        LLM("whatever", kv_disk=choice)
