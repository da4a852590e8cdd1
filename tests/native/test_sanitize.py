"""What tests/dev/sanitize.py takes for a race."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "dev"))
import sanitize


def report(first: str, second: str, title: str = "data race") -> str:
    """As TSan writes it; ``first`` and ``second`` are "write commit_chunk" and the like."""

    def side(what: str, frame: str) -> str:
        frames = ("copy", f"{frame} kernels_cpu/src/step.cpp:59", "er::Relay::work")
        lines = [f"    #{i} {f} (libedgerun_cpu.so+0x{i})\n" for i, f in enumerate(frames)]
        return f"  {what} of size 8 at 0x7f9e06167060 by main thread:\n{''.join(lines)}\n"

    (a, f), (b, g) = (s.split() for s in (first, second))
    return (
        f"==================\nWARNING: ThreadSanitizer: {title} (pid=1)\n"
        f"{side(a.capitalize(), f)}{side(f'Previous {b}', g)}"
        "SUMMARY: ThreadSanitizer: data race step.cpp:99 in copy\n==================\n"
    )


@pytest.mark.parametrize(
    "sides",
    [("write commit_chunk", "read compute_chunk"), ("read compute_chunk", "write commit_chunk")],
)
def test_late_readers_are_none(sides: tuple[str, str]) -> None:
    assert sanitize.races(report(*sides)) == Counter()


@pytest.mark.parametrize(
    "sides",
    [
        ("write commit_chunk", "write commit_chunk"),
        ("write commit_chunk", "write compute_chunk"),
        ("write compute_chunk", "read compute_chunk"),
        ("write commit_chunk", "read run_step"),
        ("write publish", "read compute_chunk"),
    ],
)
def test_others_are(sides: tuple[str, str]) -> None:
    text = report(*sides)
    assert sanitize.races(text * 2) == {"data race step.cpp:99 in copy": 2}
    assert sanitize.races(text.replace("libedgerun_cpu", "libopenblas")) == {}


def test_of_a_lock_or_freed_memory_every_report_counts() -> None:
    sides = ("write commit_chunk", "read compute_chunk")
    assert sanitize.races(report(*sides, title="heap-use-after-free")).total() == 1
