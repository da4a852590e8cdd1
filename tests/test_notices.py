"""Told once."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.cli import environment

from edgerun.errors import BackendUnavailableError
from edgerun.loading import open_backend
from edgerun.notices import first_time


def test_a_text_is_new_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "home"))
    assert first_time("a driver is here")
    assert first_time("something else")
    assert not first_time("a driver is here")
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "other"))
    assert first_time("a driver is here")


def test_where_nothing_can_be_kept_it_is_always_new(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path / "file"))
    assert first_time("a driver is here")
    assert first_time("a driver is here")


def test_auto_says_once_what_a_gpu_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path))
    monkeypatch.delenv("EDGERUN_ISA", raising=False)
    monkeypatch.setattr("edgerun.loading.nvidia_driver", lambda: True)
    reason = "a driver is here, but not cuda: pip install 'edgerun[cuda]'"

    def missing() -> None:
        raise BackendUnavailableError(reason)

    monkeypatch.setattr("edgerun.backends.cuda.open_device", missing)
    said = []
    for _ in range(3):
        caplog.clear()
        caplog.set_level(logging.WARNING)
        backend = open_backend("auto", threads=1)
        said.append([r.getMessage() for r in caplog.records])
        assert backend.name == "cpu"
        backend.close()
        if len(said) == 2:  # something else is wrong now
            reason = "the NVIDIA driver finds no GPU"
    assert said == [
        ["backend cuda is not available: a driver is here, but not cuda: pip install "
         "'edgerun[cuda]'"],
        [],
        ["backend cuda is not available: the NVIDIA driver finds no GPU"],
    ]  # fmt: skip
    with pytest.raises(BackendUnavailableError, match="finds no GPU"):
        open_backend("cuda")  # who asks for it is told every time


def test_a_library_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    """In a process of its own, which has loaded none yet."""
    code = "from edgerun.loading import open_backend; open_backend('auto')"
    env = environment(EDGERUN_CPU_LIB=str(tmp_path / "none.so"))
    env.pop("EDGERUN_ISA", None)
    run = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
    )
    assert run.returncode == 1
    assert run.stderr.count("EDGERUN_CPU_LIB names") == 1
    assert "BackendUnavailableError" in run.stderr
