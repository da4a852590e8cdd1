"""benchmarks/apple.py, as far as it runs without a Mac."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from helpers.paths import FIXTURES

pytest.importorskip("mlx.core", reason="MLX is not installed")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("apple", BENCHMARKS / "apple.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_wrong_is_said(apple: ModuleType, tmp_path: Path) -> None:
    """Fixtures that agree, and one whose logits are another's."""
    for name in ("llama", "qwen2"):
        for suffix in (".npz", ".gguf"):
            shutil.copy(FIXTURES / "arch" / f"{name}{suffix}", tmp_path)
    failures: list[str] = []
    rows = apple.check(failures, tmp_path)
    assert [(r["fixture"], r["exact"]) for r in rows] == [
        ("llama", False), ("llama", True), ("qwen2", False), ("qwen2", True),
    ]  # fmt: skip
    assert not failures
    assert all(r["same_bits"] for r in rows if r["exact"])
    known = dict(np.load(tmp_path / "llama.npz"))
    np.savez(tmp_path / "llama.npz", ids=known["ids"], logits=known["logits"] * 1.1)
    apple.check(failures, tmp_path)
    assert len(failures) == 2
    assert "llama" in failures[0]


def test_what_is_timed(apple: ModuleType) -> None:
    path = FIXTURES / "arch" / "llama.gguf"
    row = apple.ours(path, False, 1, (40, 3, 2))
    timed = {name for name, value in row.items() if name != "engine" and value > 0}
    assert timed == {
        "prefill 40", "decode 3", "2 sequences", "decode 3 ahead", "2 sequences ahead", "memory",
    }  # fmt: skip


def test_it_needs_metal(apple: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["apple.py"])
    monkeypatch.setattr(apple.mx.metal, "is_available", lambda: False)
    assert apple.main() == 2
    assert "--device cpu" in capsys.readouterr().err
