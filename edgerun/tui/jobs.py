"""Long work on threads that nobody has to wait for: loads, pulls, looking through folders."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from edgerun.tui.partner import Progress

__all__ = ["GivenUp", "Job"]

T = TypeVar("T")

#: Seconds between two reports of progress at least: more nobody can see.
_EVERY = 0.05


class GivenUp(BaseException):
    """Unwinds a job that nobody wants any more; no ``except Exception`` on its way stops it."""


class Job(Generic[T]):
    """``work(job)`` on a daemon thread of its own, which does not hold up the end of the process.

    ``undo`` takes what the work returns after it was given up. Belongs to the running event loop.
    """

    def __init__(
        self,
        work: Callable[[Job[T]], T],
        progress: Progress | None = None,
        undo: Callable[[T], None] | None = None,
        name: str = "edgerun-job",
    ) -> None:
        self._work, self._progress, self._undo = work, progress, undo
        self._loop = asyncio.get_running_loop()
        self._result: asyncio.Future[T] = self._loop.create_future()
        self._given_up = False
        self._told = 0.0
        #: Set once the thread has done everything, whatever came of it.
        self.ended = asyncio.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def result(self) -> T:
        """What the work returns or raises; cancelling the task that waits gives the job up."""
        try:
            return await asyncio.shield(self._result)
        except asyncio.CancelledError:
            self.give_up()
            raise

    def give_up(self) -> None:
        """End the work at its next report of progress; its result is undone."""
        self._given_up = True

    # -- on the job's thread ------------------------------------------------------------------

    def check(self) -> None:
        """Raise :class:`GivenUp` if the job was given up."""
        if self._given_up:
            raise GivenUp

    def tell(self, stage: str, done: int, total: int | None) -> None:
        """Report progress, not too often."""
        self.check()
        now = time.monotonic()
        if self._progress is not None and (now - self._told >= _EVERY or done == total):
            self._told = now
            self.call(self._show, stage, done, total)

    def call(self, function: Callable[..., None], *args: object) -> None:
        """Call ``function`` on the loop, if that still runs."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def _run(self) -> None:
        try:
            value = self._work(self)
        except BaseException as e:  # whoever waits for the result handles it
            self.call(self._settle, None, e)
            return
        if self._given_up and self._undo is not None:
            with contextlib.suppress(Exception):
                self._undo(value)
            self.call(self._settle, None, GivenUp())
            return
        self.call(self._settle, value, None)

    # -- on the loop --------------------------------------------------------------------------

    def _show(self, stage: str, done: int, total: int | None) -> None:
        if self._progress is not None and not self._given_up:
            self._progress(stage, done, total)

    def _settle(self, value: T | None, error: BaseException | None) -> None:
        self.ended.set()
        if self._result.done():
            return
        if isinstance(error, Exception):
            self._result.set_exception(error)
            self._result.exception()  # nobody may be waiting: no complaint about that
        elif error is not None:
            self._result.cancel()
        elif self._given_up and self._undo is not None:  # given up on the way here
            Job(lambda _: self._undo(value), name="edgerun-undo")  # type: ignore[misc,arg-type]
            self._result.cancel()
        else:
            self._result.set_result(value)  # type: ignore[arg-type]
