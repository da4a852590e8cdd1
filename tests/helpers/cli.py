"""Run ``edgerun`` commands: in this process, or as a user's shell does."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from edgerun.cli import main
from helpers.paths import ROOT

EDGERUN = [sys.executable, "-m", "edgerun"]


class Result(NamedTuple):
    status: int
    out: str
    err: str


class CLI:
    """``cli("run", "-m", path, "Hi", stdin="...")`` in this process; argparse's exits count too."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._patch = patch

    def __call__(self, *args: str | Path, stdin: str | bytes = "") -> Result:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        self._patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        try:
            status = main([str(a) for a in args])
        except SystemExit as e:
            status = int(e.code or 0)
        return Result(status, *self._capsys.readouterr())


def environment(**more: str) -> dict[str, str]:
    """The environment for a subprocess of this source tree."""
    found = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([str(ROOT), *([found] if found else [])])
    return {**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": "utf-8", **more}


def one_line_error(result: Result) -> str:
    """The message of a command that failed as it should: one clean line, nothing on stdout."""
    assert result.status == 1
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.endswith("\n")
    assert result.err[:-1].isprintable()
    return result.err[:-1]
