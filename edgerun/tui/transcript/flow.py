"""A text in Markdown as rows, which grow at the end as the text does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from edgerun.tui.text import clean
from edgerun.tui.transcript.blocks import Leaf
from edgerun.tui.transcript.layout import rows
from edgerun.tui.transcript.lines import Line, Style, styled
from edgerun.tui.transcript.stream import Markdown

__all__ = ["Flow"]


_MAX_PIECES = 1000


class Rows(Sequence[Line]):
    """Rows that are done and rows that may change, as one sequence, without a copy."""

    def __init__(self, done: list[Line], rest: list[Line]) -> None:
        self._done, self._rest = done, rest

    def __len__(self) -> int:
        return len(self._done) + len(self._rest)

    @overload
    def __getitem__(self, i: int) -> Line: ...
    @overload
    def __getitem__(self, i: slice) -> list[Line]: ...
    def __getitem__(self, i: int | slice) -> Line | list[Line]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        return self._done[i] if i < len(self._done) else self._rest[i - len(self._done)]


class Flow:
    """A growing text in Markdown, laid out for one width at a time.

    Attributes:
        style: laid below everything.
        source: the text as it was fed.
        empty: nothing but white space has been fed.
        steady: rows at the start that will not change at this width.
    """

    def __init__(self, text: str = "", style: Style = (), *, ended: bool = False) -> None:
        self.style = style
        self._given = [text]
        self.empty = not text.strip()
        self._doc = Markdown(text, ended=ended)
        self._cells = 0
        self._laid = 0  # leaves whose rows are done
        self._changed = False  # leaves have, since rows were made
        self._done: list[Line] = []
        self._rest: list[Line] = []

    @property
    def source(self) -> str:
        if len(self._given) > 1:
            self._given = ["".join(self._given)]
        return self._given[0]

    @property
    def steady(self) -> int:
        return len(self._done)

    def feed(self, text: str) -> None:
        """More text; :meth:`lay` shows it."""
        self._given.append(text)
        if len(self._given) > _MAX_PIECES:
            self._given = ["".join(self._given)]
        self.empty = self.empty and not text.strip()
        self._doc.feed(text)

    def end(self, text: str) -> bool:
        """The text is complete, and this is what it should be; False if it is something else."""
        if self.source != text:
            return False
        self._doc.end()
        return True

    def codes(self) -> list[str]:
        """The code blocks, in order, each without its last line end: pasted, it would run."""
        self._changed = self._doc.update() or self._changed
        out: dict[int, str] = {}
        for leaf in (*self._doc.done, *self._doc.open):
            if leaf.kind == "code":
                out[leaf.number] = out.get(leaf.number, "") + leaf.text
        return [clean(x).removesuffix("\n") for x in out.values()]

    def lay(self, cells: int) -> Rows:
        """The rows in ``cells`` columns. Those of leaves that are done are made once."""
        doc = self._doc
        changed = doc.update() or self._changed
        self._changed = False
        if cells != self._cells:
            self._cells, self._laid = cells, 0
            self._done, changed = [], True
        if changed:
            before = doc.done[self._laid - 1] if self._laid else None
            self._done += self._rows(doc.done[self._laid :], before)
            self._laid = len(doc.done)
            self._rest = self._rows(doc.open, doc.done[-1] if doc.done else None)
        return Rows(self._done, self._rest)

    def _rows(self, leaves: Sequence[Leaf], before: Leaf | None) -> list[Line]:
        out: list[Line] = []
        for leaf in leaves:
            out += rows(leaf, before, self._cells)
            before = leaf
        if self.style:
            return [row._replace(runs=styled(row.runs, self.style)) for row in out]
        return out
