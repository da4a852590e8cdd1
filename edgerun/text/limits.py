"""Bounds on what one rendering of a chat template may cost.

A template is a program out of a downloaded file. It runs in this process and on the caller's
thread, so nothing can kill it from outside: each operation it can reach is instead given a known
upper cost and pays for it here before it runs.

- **steps**: every loop iteration, call, filter and macro ticks; the thread's CPU time is read
  every few ticks, so a busy machine cannot make an honest template fail.
- **size**: no text or collection may grow past ``limit`` characters, a collection counted as the
  tree it would print as. That bounds what ``==``, ``|tojson`` and ``|string`` can cost even when a
  list holds itself a million times over.
- **memory**: all text and collections made during a rendering are charged to ``fuel``.

All three grow with the size of the request, never with what the template says.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

__all__ = ["Budget", "LimitExceeded", "current", "spending"]

_TICKS_PER_CLOCK_READ = 32
_MAX_DEPTH = 100
_MAX_CALL_DEPTH = 100
MAX_INT_BITS = 4096


class LimitExceeded(Exception):
    """The template asked for more than a rendering may use; the text says of what."""


class Budget:
    """What is left to one rendering of ``input_chars`` characters in ``n_messages`` messages."""

    def __init__(self, input_chars: int, n_messages: int, seconds: float) -> None:
        self.limit = (1 << 20) + 16 * input_chars
        # A template may honestly gather the conversation in a variable, message by message.
        self.fuel = min((1 << 25) + input_chars * (64 + 2 * n_messages), 1 << 30)
        self.seconds = seconds
        self._deadline = time.thread_time() + seconds
        self._ticks = _TICKS_PER_CLOCK_READ
        self._depth = 0
        # id -> (the object, kept alive so that its id stays its own; its weight; its depth)
        self._weights: dict[int, tuple[Any, int, int]] = {}
        self._frozen: set[int] = set()

    def tick(self) -> None:
        """One step was taken."""
        self._ticks -= 1
        if self._ticks < 0:
            self._ticks = _TICKS_PER_CLOCK_READ
            if time.thread_time() > self._deadline:
                raise LimitExceeded(f"it ran for more than {self.seconds:.2g} s")

    def charge(self, chars: int) -> None:
        """``chars`` characters, or as much memory, are about to be made."""
        if chars > self.limit:
            raise LimitExceeded(f"it made a value of more than {self.limit} characters")
        self.fuel -= chars
        if self.fuel < 0:
            raise LimitExceeded("it used more memory than a prompt can need")
        if chars > 4096:  # so that 32 ticks of big copies cannot outrun the clock
            self._ticks -= chars >> 12

    def enter(self) -> None:
        """A macro or a recursive loop was entered; pair with :meth:`leave`."""
        self._depth += 1
        if self._depth > _MAX_CALL_DEPTH:
            raise LimitExceeded(f"its macros call each other more than {_MAX_CALL_DEPTH} deep")

    def leave(self) -> None:
        self._depth -= 1

    def weigh(self, obj: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> int:
        """Charge a new collection and return its weight: the characters it holds, as a tree."""
        known = self._weights.get(id(obj))
        if known is not None:
            return known[1]
        self.charge(16 * len(obj))
        weight = self._weight(obj, 0)[0]
        if weight > self.limit:
            raise LimitExceeded(f"it made a value of more than {self.limit} characters")
        return weight

    def _weight(self, obj: Any, depth: int) -> tuple[int, int]:
        if isinstance(obj, str):
            return len(obj) + 1, 0
        if not isinstance(obj, (list, tuple, dict)):
            return 8, 0
        known = self._weights.get(id(obj))
        if known is not None:
            weight, below = known[1], known[2]
        else:
            if depth > _MAX_DEPTH:
                raise LimitExceeded(f"it nested collections more than {_MAX_DEPTH} deep")
            weight, below = 2, 0
            children: Any = obj
            if isinstance(obj, dict):
                weight += sum(self._weight(k, depth + 1)[0] for k in obj)
                children = obj.values()
            for child in children:
                w, d = self._weight(child, depth + 1)
                weight, below = weight + w, max(below, d + 1)
            self._weights[id(obj)] = (obj, weight, below)
        if depth + below > _MAX_DEPTH:
            raise LimitExceeded(f"it nested collections more than {_MAX_DEPTH} deep")
        if depth:
            self._frozen.add(id(obj))
        return weight, below

    def append(self, target: list[Any], item: Any) -> None:
        """``target.append(item)``, for scalars only: a list inside itself has no weight."""
        if not isinstance(item, (str, int, float, type(None))):
            raise LimitExceeded("it may append only text and numbers to a list")
        if id(target) in self._frozen:
            raise LimitExceeded("it may not append to a list that another collection holds")
        weight = self.weigh(target) + (len(item) + 1 if isinstance(item, str) else 8)
        self.charge(16)
        if weight > self.limit:
            raise LimitExceeded(f"it made a value of more than {self.limit} characters")
        target.append(item)
        self._weights[id(target)] = (target, weight, 1)


_CURRENT: ContextVar[Budget] = ContextVar("edgerun_template_budget")


def current() -> Budget:
    """The budget of the rendering under way on this thread; ``LookupError`` outside of one."""
    return _CURRENT.get()


@contextmanager
def spending(budget: Budget) -> Iterator[None]:
    """Make ``budget`` the current one."""
    token = _CURRENT.set(budget)
    try:
        yield
    finally:
        _CURRENT.reset(token)
