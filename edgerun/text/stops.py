"""Finds stop strings in a text that arrives in pieces, in one pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from edgerun.errors import RequestError

__all__ = ["MAX_STOP_CHARS", "StopMatcher"]

#: Bounds the automaton, whose size is that of the stop strings a request may bring.
MAX_STOP_CHARS = 1 << 16


class StopMatcher:
    """An Aho-Corasick automaton over the stop strings (doi:10.1145/360825.360855).

    Each character is looked at once, however the text is cut. The match that ends first wins,
    since there the generation ends; of several ending together the longest. Text that may still
    become a match is held back, and no more than that.

    Attributes:
        matched: the stop string that was completed, or None.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """``stops`` may be empty, and empty strings in it are ignored.

        Raises:
            RequestError: they hold more than :data:`MAX_STOP_CHARS` characters together.
        """
        if (total := sum(map(len, stops))) > MAX_STOP_CHARS:
            raise RequestError(
                f"the stop strings have {total} characters together, more than {MAX_STOP_CHARS}: "
                "send shorter ones",
                param="stop",
            )
        self._next: list[dict[str, int]] = [{}]
        self._found: list[str | None] = [None]
        depth = [0]
        for stop in filter(None, stops):
            node = 0
            for c in stop:
                if c not in self._next[node]:
                    self._next[node][c] = len(self._next)
                    self._next.append({})
                    self._found.append(None)
                    depth.append(depth[node] + 1)
                node = self._next[node][c]
            self._found[node] = stop
        self._depth = depth
        self._fail = self._link()
        self._first = frozenset(self._next[0])
        self._state = 0
        self._held: list[str] = []
        self.matched: str | None = None

    def _link(self) -> list[int]:
        """For each state, that of its longest proper suffix which is also a state."""
        fail = [0] * len(self._next)
        todo = deque(self._next[0].values())
        while todo:
            node = todo.popleft()
            for c, child in self._next[node].items():
                f = fail[node]
                while f and c not in self._next[f]:
                    f = fail[f]
                fail[child] = self._next[f].get(c, 0)
                if self._found[child] is None:
                    self._found[child] = self._found[fail[child]]
                todo.append(child)
        return fail

    def push(self, text: str) -> str:
        """Take more text and return what is now safe to show.

        Once a stop string is complete, ``matched`` is set, the text before it has been returned,
        and everything after it is dropped.
        """
        if self.matched is not None:
            return ""
        state = self._state
        if not state and self._first.isdisjoint(text):
            return text
        for i, c in enumerate(text):
            while state and c not in self._next[state]:
                state = self._fail[state]
            state = self._next[state].get(c, 0)
            if (stop := self._found[state]) is not None:
                self.matched = stop
                before = "".join(self._held) + text[: i + 1]
                self._held.clear()
                return before[: len(before) - len(stop)]
        held, keep = self._depth[self._state], self._depth[state]
        self._state = state
        if held and keep == held + len(text):
            self._held.append(text)  # nothing comes free yet: do not join the pieces again
            return ""
        text = "".join(self._held) + text
        self._held = [text[len(text) - keep :]] if keep else []
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The held text: the end came, so it can no longer become a match."""
        held = "".join(self._held)
        self._held.clear()
        self._state = 0
        return held
