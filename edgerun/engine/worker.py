"""The engine's thread: requests come in from any thread, steps run on this one."""

from __future__ import annotations

import threading

from edgerun.engine.engine import Engine
from edgerun.engine.sequence import Sequence
from edgerun.errors import ClosedError

__all__ = ["Worker"]


class Worker:
    """Owns the thread that steps an :class:`Engine`. It sleeps while there is nothing to do."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._new: list[Sequence] = []
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="edgerun-engine", daemon=True)
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Queue a sequence.

        Raises:
            ClosedError: the worker was closed.
        """
        with self._wake:
            if self._closed:
                raise ClosedError("this model is closed")
            self._new.append(sequence)
            self._wake.notify()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence before the next step; harmless if it has already ended."""
        with self._wake:
            sequence.cancelled = True
            self._wake.notify()

    def close(self) -> None:
        """Fail what is running with ClosedError, stop the thread and wait for it."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._closed and not self._new and self._engine.idle:
                    self._wake.wait()
                new, self._new = self._new, []
                closed = self._closed
            for s in new:
                self._engine.add(s)
            if closed:
                self._engine.fail_all(ClosedError("the model was closed while generating"))
                return
            try:
                self._engine.step()
            except Exception as e:  # a bug must not leave callers waiting for ever
                self._engine.fail_all(e)
