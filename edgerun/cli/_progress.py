"""What commands show on a terminal's stderr while a model is fetched or loaded."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from edgerun.errors import printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

    from edgerun.catalog import Progress

__all__ = ["load_progress", "pull_progress"]

#: Loads that take less than this, in seconds, show nothing.
_PATIENCE = 0.4


@contextlib.contextmanager
def pull_progress(label: str) -> Iterator[Progress]:
    """A callback that draws a bar on stderr from its first call on; off a terminal, one line.

    rich is imported by that first call: a model that is already here costs nothing.
    """
    bar: RichProgress | None = None
    said = False

    def report(done: int, total: int | None) -> None:
        nonlocal bar, said
        if not sys.stderr.isatty():
            if not said:
                print(f"pulling {printable(label)}", file=sys.stderr, flush=True)
            said = True
            return
        if bar is None:
            bar = _bar()
            bar.add_task("pulling " + printable(label, 60).replace("[", "\\["), total=total)
            bar.start()
        bar.update(bar.task_ids[0], completed=done, total=total)

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def _bar() -> RichProgress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


@contextlib.contextmanager
def load_progress() -> Iterator[Callable[[int, int], None]]:
    """A callback for ``LLM(progress=...)`` that rewrites one line."""
    start = time.perf_counter()
    shown = False

    def report(done: int, total: int) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.perf_counter() - start > _PATIENCE and total:
            shown = True
            print(f"\rloading {done * 100 // total:3d} %", end="", file=sys.stderr, flush=True)

    try:
        yield report
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
