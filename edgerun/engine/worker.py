"""The engine's thread: requests come in from any thread, steps run on this one."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgerun.engine.engine import Engine
from edgerun.engine.metrics import Metrics
from edgerun.engine.sequence import Sequence
from edgerun.errors import ClosedError

if TYPE_CHECKING:
    from edgerun.engine.embedding import Embedding

__all__ = ["Worker", "check_process"]

log = logging.getLogger(__name__)


def check_process(process: int) -> None:
    """Raise ClosedError in a process forked from ``process``: it has none of its threads, and would
    wait for them for ever."""
    if os.getpid() != process:
        raise ClosedError(
            f"this model was loaded in process {process}, from which this one was forked without "
            "its threads: load it here, or start processes with multiprocessing's spawn"
        )


class Worker:
    """Owns the thread that steps an :class:`Engine`. It sleeps while there is nothing to do.

    ``at_end`` is the last thing the thread calls: it may free what the engine computes with.
    """

    def __init__(self, engine: Engine, at_end: Callable[[], None] | None = None) -> None:
        self._engine = engine
        self._at_end = at_end
        self._new: list[Sequence] = []
        self._embeddings: list[Embedding] = []
        self._wake = threading.Condition()
        self._closed = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._loop, name="edgerun-engine", daemon=True)
        self._thread.start()

    def submit(self, *sequences: Sequence) -> None:
        """Queue sequences; they arrive together.

        Raises:
            ClosedError: the worker was closed, or is another process's.
        """
        check_process(self._process)
        with self._wake:
            if self._closed:
                raise ClosedError("this model is closed")
            self._new += sequences
            self._wake.notify()

    def embed(self, embedding: Embedding) -> None:
        """Queue texts to be embedded.

        Raises:
            ClosedError: the worker was closed, or is another process's.
        """
        check_process(self._process)
        with self._wake:
            if self._closed:
                raise ClosedError("this model is closed")
            self._embeddings.append(embedding)
            self._wake.notify()

    def cancel(self, *sequences: Sequence) -> None:
        """End sequences before the next step; harmless if they have already ended.

        Takes no lock, since finalizers call it from any thread at any time; the engine's thread
        does not sleep while a sequence is under way.
        """
        for s in sequences:
            s.cancelled = True

    def metrics(self) -> Metrics:
        """What the engine has done and is doing; from any thread, also after the end."""
        return self._engine.metrics(waiting=len(self._new))

    def close(self) -> None:
        """Fail what is running with ClosedError, stop the thread and wait for it.

        On the engine's own thread (a finalizer may run there) it cannot wait: the thread stops,
        and calls ``at_end``, when its step is over. In a process forked from the thread's there is
        nothing to end, and nobody lets go of the lock.
        """
        if os.getpid() != self._process:
            return
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _loop(self) -> None:
        try:
            while self._turn():
                pass
        finally:
            self._closed = True  # however it ended, nobody may wait for this thread any more
            if self._at_end is not None:
                self._at_end()

    def _turn(self) -> bool:
        """Wait for work and do one step; False once closed."""
        with self._wake:
            while not (self._closed or self._new or self._embeddings) and self._engine.idle:
                self._wake.wait()
            new, self._new = self._new, []
            self._engine.embeddings += self._embeddings
            self._embeddings = []
            closed = self._closed
        for s in new:
            self._engine.add(s)
        if closed:
            self._engine.fail_all(ClosedError("the model was closed while generating"))
            return False
        try:
            self._engine.step()
        except Exception as e:  # a bug must not leave callers waiting for ever
            log.exception("the engine's step failed; its requests are ended")
            self._engine.start_over(e)
        return True
