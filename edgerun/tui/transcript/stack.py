"""Entries below each other, and which row of all belongs to which."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgerun.tui.transcript.lines import BLANK, Line

if TYPE_CHECKING:
    from edgerun.tui.transcript.entry import Entry, Part

__all__ = ["Stack"]


class Stack:
    """Rows are made when an entry or the width changes. Where that would take long, only the rows
    near the view are; the height of the others is guessed until :meth:`work` comes to them.

    Attributes:
        entries: in order.
        index: the place of each, by its message's id.
        cells: the width that rows are made for.
        changed: the first row that may look different since somebody set this; None = none.
    """

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.index: dict[str, int] = {}
        self.cells = 0
        self.changed: int | None = None
        self._ends: list[int] = []  # the row after each entry
        self._stale = 0  # the first entry whose rows may have changed
        self._guessed: set[int] = set()

    @property
    def height(self) -> int:
        """Rows of all."""
        return self._ends[-1] if self._ends else 0

    @property
    def waiting(self) -> bool:
        """Whether there are heights that are only guessed."""
        return bool(self._guessed)

    def replace(self, entries: Iterable[Entry]) -> None:
        """Other entries."""
        self.entries = list(entries)
        self.index = {e.message.id: i for i, e in enumerate(self.entries)}
        self._ends.clear()
        self._guessed.clear()
        self._stale = self.changed = 0

    def append(self, entry: Entry) -> None:
        """One more."""
        self.index[entry.message.id] = len(self.entries)
        self.touch(len(self.entries))
        self.entries.append(entry)

    def touch(self, i: int) -> None:
        """The i-th entry has changed."""
        self._stale = min(self._stale, i)

    def get(self, message_id: str | None) -> Entry | None:
        """The entry of a message."""
        i = self.index.get(message_id or "")
        return None if i is None else self.entries[i]

    def start(self, i: int) -> int:
        """The first row of the i-th entry."""
        return self._ends[i - 1] if i else 0

    def at(self, y: int) -> tuple[int, int]:
        """The entry that row ``y`` belongs to, and which of its rows that is."""
        i = min(bisect_right(self._ends, y), len(self._ends) - 1)
        return i, y - self.start(i)

    def row(self, y: int) -> tuple[Entry | None, Part, Line]:
        """Row ``y``: its entry, the part of it, and what it shows."""
        if not 0 <= y < self.height:
            return None, "", BLANK
        i, row = self.at(y)
        if i in self._guessed:
            return self.entries[i], "", BLANK
        return self.entries[i], *self.entries[i].row(row)

    def lay(self, cells: int, view: int, first: int | None = None) -> None:
        """Make the rows that are missing in a view of ``view`` rows: at the end, or from the entry
        ``first`` on. What has few rows is made anyway."""
        if cells != self.cells:
            self.cells, self._stale = cells, 0
        if self._stale < len(self.entries):
            self._guess(self._stale, view)
        if self._guessed:
            self._near(view, first)
        self._stale = max(len(self.entries) - 1, 0)

    def _guess(self, i: int, view: int) -> None:
        """Rows of the entries from ``i`` on that are cheap, the heights of the others."""
        del self._ends[i:]
        at = self.start(i)
        room = 4 * view
        for n in range(i, len(self.entries)):
            entry = self.entries[n]
            row = 0
            fresh = entry.cells == self.cells  # laid before: only what is new has to be made
            if fresh or (size := entry.guess(self.cells)) <= room:
                row = entry.lay(self.cells)
                self._guessed.discard(n)
                room -= 0 if fresh else entry.height
            else:
                entry.height = size
                self._guessed.add(n)
            self._note(at + row)
            at += entry.height
            self._ends.append(at)

    def _note(self, row: int) -> None:
        self.changed = row if self.changed is None else min(self.changed, row)

    def _near(self, view: int, first: int | None) -> None:
        """Make the rows of guessed entries that are in view or next to it."""
        made, room = [], 2 * view
        if first is None:
            order = range(len(self.entries) - 1, -1, -1)
        else:
            order = range(max(first - 1, 0), len(self.entries))
        for i in order:
            if i in self._guessed:
                made.append(i)
                self._make(i)
            if first is None or i > first:  # of the one at the top, it may be only the end
                room -= self.entries[i].height
            if room <= 0:
                break
        self._recount(made)

    def _make(self, i: int) -> None:
        self.entries[i].lay(self.cells)
        self._guessed.discard(i)

    def _recount(self, made: list[int]) -> None:
        if made:
            first = min(made)
            at = self.start(first)
            self._note(at)
            del self._ends[first:]
            for entry in self.entries[first:]:
                at += entry.height
                self._ends.append(at)

    def work(self, seconds: float) -> None:
        """Make rows of guessed entries for about so long, the last ones first."""
        until = time.monotonic() + seconds
        made = []
        for i in sorted(self._guessed, reverse=True):
            self._make(i)
            made.append(i)
            if time.monotonic() >= until:
                break
        self._recount(made)

    def finish(self) -> None:
        """Make all rows."""
        self.lay(self.cells, 1 << 30)
        self.work(float("inf"))
