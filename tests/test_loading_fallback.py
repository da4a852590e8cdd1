"""Files that edgerun does not run itself: who runs them, what that takes, and what is said."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from helpers import foreign
from helpers.cli import CLI
from helpers.gguf_build import random_model
from helpers.paths import FIXTURES

from edgerun import LLM
from edgerun.backends import llama_cpp_library as library
from edgerun.backends.llama_cpp_library import Slots, plan_slots, token_bytes
from edgerun.backends.reference import ReferenceBackend
from edgerun.errors import BackendUnavailableError, OutOfMemoryError, UnsupportedModelError
from edgerun.loading import load, open_model

WAY_OUT = r"pip install 'edgerun\[llama-cpp\]'"


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> CLI:
    return CLI(capsys, monkeypatch)


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "installed", lambda: False)
    monkeypatch.setattr(library, "library", library.library.__wrapped__)
    monkeypatch.setattr("edgerun.backends.llama_cpp.library", library.library)


@pytest.mark.usefixtures("missing")
def test_without_the_package_the_error_names_it(tmp_path: Path, cli: CLI) -> None:
    path = foreign.internlm2(tmp_path / "m.gguf")
    with pytest.raises(UnsupportedModelError, match=f"'internlm2' is not supported.*{WAY_OUT}"):
        LLM(path)
    moe = random_model(tmp_path / "moe.gguf", "qwen2", extra={"qwen2.expert_count": 8})
    with pytest.raises(UnsupportedModelError, match=f"experts is not supported.*{WAY_OUT}"):
        LLM(moe)
    with pytest.raises(BackendUnavailableError, match=f"not installed: {WAY_OUT}"):
        LLM(path, backend="llama_cpp")
    found = {b["name"]: b for b in json.loads(cli("doctor", "--json").out)["backends"]}
    assert found["llama_cpp"]["available"] is False
    assert "pip install" in found["llama_cpp"]["reason"]


def test_a_named_backend_does_not_fall_back(tmp_path: Path) -> None:
    path = foreign.internlm2(tmp_path / "m.gguf")
    for name in ("cpu", "reference"):
        with pytest.raises(UnsupportedModelError, match="'internlm2' is not supported") as e:
            LLM(path, backend=name)
        assert "pip install" not in str(e.value)


def test_a_tokenizer_nobody_has_is_no_reason_to_fall_back(tmp_path: Path) -> None:
    path = random_model(tmp_path / "m.gguf", extra={"tokenizer.ggml.model": "nonsense"})
    with pytest.raises(UnsupportedModelError, match="nonsense") as e:
        LLM(path)
    assert "llama.cpp" not in str(e.value)


@pytest.mark.parametrize("broken", [OSError("libllama.so: no such file"), None])
def test_a_package_that_does_not_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Exception | None
) -> None:
    """One that does not load, and one from before the calls that are used."""
    old = types.ModuleType("llama_cpp")
    old.__version__ = "0.2.1"  # type: ignore[attr-defined]
    old.llama_context_params = types.SimpleNamespace(_fields_=[])  # type: ignore[attr-defined]

    def load(name: str) -> types.ModuleType:
        if broken is not None:
            raise broken
        return old

    monkeypatch.setattr(library, "installed", lambda: True)
    monkeypatch.setattr(library, "importlib", types.SimpleNamespace(import_module=load))
    why = "libllama.so: no such file" if broken else "0.2.1 is too old: pip install"
    with pytest.raises(BackendUnavailableError, match=why):
        library.library.__wrapped__()


def test_doctor_tells_what_the_fallback_is(cli: CLI) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    found = {b["name"]: b for b in json.loads(cli("doctor", "--json").out)["backends"]}
    assert found["llama_cpp"]["available"] is True
    assert found["llama_cpp"]["facts"]["version"] == llama_cpp.__version__
    plain = cli("doctor").out
    assert f"ok  llama_cpp  version {llama_cpp.__version__}" in plain
    assert "fallback for architectures" in plain


@pytest.mark.parametrize("here", [True, False])
def test_show_tells_who_runs_a_file(
    tmp_path: Path, cli: CLI, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    monkeypatch.setattr(library, "installed", lambda: here)
    dense = random_model(tmp_path / "dense.gguf")
    moe = random_model(tmp_path / "moe.gguf", "qwen2", extra={"qwen2.expert_count": 8})
    for path, why in (
        (foreign.internlm2(tmp_path / "m.gguf"), "'internlm2' is not supported"),
        (moe, "experts is not supported"),
    ):
        found = json.loads(cli("show", str(path), "--json").out)["fallback"]
        assert found["backend"] == "llama_cpp"
        assert found["available"] is here
        assert why in found["reason"]
        assert ("pip install" in str(found["install"])) != here
        plain = " ".join(cli("show", str(path)).out.split())
        assert "runs on a fallback, llama.cpp" in plain
        assert ("pip install" in plain) != here
    assert json.loads(cli("show", str(dense), "--json").out)["fallback"] is None
    assert "fallback" not in cli("show", str(dense)).out


class _Plain(ReferenceBackend):
    """A GPU's backend that has no kernels for what only some models need."""

    name = "cuda"
    features = frozenset()


def test_a_backend_refuses_what_it_has_no_kernels_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edgerun.loading._first_that_works", lambda threads, exact: _Plain())
    path = FIXTURES / "arch" / "gpt_oss.gguf"
    why = "cuda backend has no kernels for mixtures of experts and attention sinks, which gpt-oss"
    with pytest.raises(UnsupportedModelError, match=f"{why} needs: choose the backend cpu"):
        load(path, _Plain(), 64)
    with pytest.raises(UnsupportedModelError, match="mixtures of experts, which qwen3moe needs"):
        load(FIXTURES / "arch" / "qwen3moe.gguf", _Plain(), 64)
    model = open_model(path, "auto", 1, 64)
    assert model.backend.name == "cpu"
    assert "gpt_oss.gguf runs on the CPU: the cuda backend has no kernels" in caplog.text
    model.backend.close()


def test_run_says_so_on_stderr(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    import subprocess

    path = foreign.internlm2(tmp_path / "m.gguf")
    for backend, said in (("auto", True), ("llama_cpp", False)):
        done = subprocess.run(
            [sys.executable, "-m", "edgerun", "run", "--raw", "-m", str(path), "-n", "3", "-q",
             "--ctx", "64", "--backend", backend, "the"],
            capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert ("runs on a fallback, llama.cpp" in done.stderr) == said
        assert len(done.stderr.splitlines()) == said


# -- policy --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n_ctx", "trained", "free", "expected"),
    [
        (None, 4096, 10**9, Slots(8, 4096)),
        (None, 131072, 10**9, Slots(4, 8192)),
        (None, 4096, 200_000 + 2 * 50 * 8000, Slots(4, 2000)),
        (None, 100, 10**9, Slots(16, 100)),
        (512, 4096, 10**9, Slots(16, 512)),
        (100_000, 4096, 10**9, Slots(4, 100_000)),
        (9_000, 4096, 200_000 + 2 * 50 * 20_000, Slots(2, 9_000)),
    ],
)
def test_slots(n_ctx: int | None, trained: int, free: int, expected: Slots) -> None:
    """50 bytes a token, 200 kB of weights."""
    assert plan_slots(n_ctx, trained, 50, free, 200_000) == expected


@pytest.mark.parametrize("n_ctx", [None, 512])
def test_no_slot(n_ctx: int | None) -> None:
    with pytest.raises(OutOfMemoryError, match="512 tokens of context"):
        plan_slots(n_ctx, 4096, 50, 200_000 + 2 * 511 * 50, 200_000)


def test_token_bytes() -> None:
    meta = {"general.architecture": "a", "a.block_count": 4, "a.embedding_length": 64}
    meta |= {"a.attention.head_count": 8}
    assert token_bytes(meta, "f16") == 4 * 8 * (8 + 8) * 2
    assert token_bytes(meta | {"a.attention.head_count_kv": 2}, "f32") == 4 * 2 * 16 * 4
    layers = np.array([0, 2, 0, 2])
    wide = {"a.attention.head_count_kv": layers, "a.attention.key_length": 24}
    assert token_bytes(meta | wide, "f16") == 4 * (24 + 8) * 2
    assert token_bytes(meta | wide, "q8_0") == 4 * (24 + 8) * 34 // 32
    assert token_bytes({}, "f16") >= 1
