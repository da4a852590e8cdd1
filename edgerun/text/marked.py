"""Text that remembers which of its characters a chat template wrote.

Control tokens may come only from the template, never from a message, a tool result or a tool's
arguments. So the template's own literals enter the renderer as :class:`Marked` strings, and all
that callers send enters as plain ``str``. Operations on text keep the marks where they can and
drop them where they cannot, so the only error this design can make is to call template text
untrusted; it cannot be talked into trusting what a caller wrote.

Marks never change the characters: ``in``, ``==``, ``split``, slicing, ``len`` and JSON see the
very same text as without them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = ["Marked", "Segment", "concat", "mark", "mark_literals", "segments"]

Span = tuple[int, int]


class Segment(NamedTuple):
    """A run of a rendered prompt. Special tokens may be parsed only inside trusted runs.

    Segments say nothing about where text may be split otherwise: a tokenizer should join them,
    accept a special token only where all its characters are trusted, and encode what lies between
    as one piece of text, so that ordinary text gets the ids it would have had without marks.
    """

    text: str
    trusted: bool


class Marked(str):
    """A string with trusted spans: sorted, disjoint, non-empty ``(start, end)`` pairs."""

    __slots__ = ("spans",)
    spans: tuple[Span, ...]

    def __new__(cls, text: str, spans: tuple[Span, ...]) -> Marked:
        self = super().__new__(cls, text)
        self.spans = spans
        return self

    def __str__(self) -> str:
        return self  # str() must not drop the marks

    def __getitem__(self, key: Any) -> str:
        piece = super().__getitem__(key)
        if isinstance(key, slice):
            start, stop, step = key.indices(len(self))
            return self._cut(start, stop) if step == 1 else piece
        i = key.__index__()
        i += len(self) if i < 0 else 0
        return self._cut(i, i + 1)

    def _cut(self, start: int, stop: int) -> str:
        text = str.__getitem__(self, slice(start, stop))
        if not text:
            return text
        spans = tuple(
            (max(a, start) - start, min(b, stop) - start)
            for a, b in self.spans
            if a < stop and b > start
        )
        return Marked(text, spans) if spans else text

    def _pieces(self, parts: Iterable[str], gap: int = 0) -> list[str]:
        """Give each part, in order of occurrence and ``gap`` characters apart, its marks back."""
        out, pos = [], 0
        for p in parts:
            pos = self.find(p, pos) if not gap else pos
            out.append(self._cut(pos, pos + len(p)))
            pos += len(p) + gap
        return out

    def strip(self, chars: str | None = None, /) -> str:
        return self._trim(str.lstrip(self, chars), str.rstrip(self, chars))

    def lstrip(self, chars: str | None = None, /) -> str:
        return self._trim(str.lstrip(self, chars), self)

    def rstrip(self, chars: str | None = None, /) -> str:
        return self._trim(self, str.rstrip(self, chars))

    def _trim(self, left: str, right: str) -> str:
        start, stop = len(self) - len(left), len(right)
        return self if not start and stop == len(self) else self._cut(start, max(start, stop))

    def split(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        return self._pieces(str.split(self, sep, maxsplit), len(sep or ""))

    def rsplit(self, sep: str | None = None, maxsplit: Any = -1) -> list[str]:
        return self._pieces(str.rsplit(self, sep, maxsplit), len(sep or ""))

    def splitlines(self, keepends: Any = False) -> list[str]:
        kept = self._pieces(str.splitlines(self, True))
        bare = str.splitlines(self)
        return kept if keepends else [k[: len(b)] for k, b in zip(kept, bare, strict=True)]

    def partition(self, sep: str, /) -> tuple[str, str, str]:
        a, b, _ = str.partition(self, sep)
        x, y = len(a), len(a) + len(b)
        return self._cut(0, x), self._cut(x, y), self._cut(y, len(self))

    def rpartition(self, sep: str, /) -> tuple[str, str, str]:
        a, b, _ = str.rpartition(self, sep)
        x, y = len(a), len(a) + len(b)
        return self._cut(0, x), self._cut(x, y), self._cut(y, len(self))

    def removeprefix(self, prefix: str, /) -> str:
        return self._cut(len(prefix) if self.startswith(prefix) else 0, len(self))

    def removesuffix(self, suffix: str, /) -> str:
        cut = len(suffix) if suffix and self.endswith(suffix) else 0
        return self._cut(0, len(self) - cut)

    def lower(self) -> str:
        return self._recased(str.lower(self))

    def upper(self) -> str:
        return self._recased(str.upper(self))

    def capitalize(self) -> str:
        return self._recased(str.capitalize(self))

    def title(self) -> str:
        return self._recased(str.title(self))

    def _recased(self, text: str) -> str:
        # Case mapping may change lengths (ß -> SS); then positions no longer correspond.
        return Marked(text, self.spans) if len(text) == len(self) else text

    def replace(self, old: str, new: str, count: Any = -1, /) -> str:
        if not old:
            return str.replace(self, old, new, count)
        return join(new, self.split(old, count))

    def repeated(self, n: int) -> str:
        """``self * n``, with marks if all of it has them."""
        text = str.__mul__(self, n)
        return mark(text) if self.spans == ((0, len(self)),) else text

    def join(self, items: Iterable[str], /) -> str:
        return join(self, list(items))


def mark(text: str) -> Marked:
    """``text`` as trusted from end to end."""
    return Marked(text, ((0, len(text)),) if text else ())


def mark_literals(text: str, literals: Sequence[str]) -> str:
    """``text`` with every occurrence of one of ``literals`` trusted, and nothing else."""
    spans: list[Span] = []
    for lit in literals:
        pos = text.find(lit)
        while pos >= 0:
            spans.append((pos, pos + len(lit)))
            pos = text.find(lit, pos + len(lit))
    return Marked(text, _merged(sorted(spans))) if spans else text


def _merged(spans: Iterable[Span]) -> tuple[Span, ...]:
    out: list[Span] = []
    for a, b in spans:
        if out and a <= out[-1][1]:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return tuple(out)


def concat(parts: Iterable[str]) -> str:
    """``"".join`` that keeps marks; plain ``str`` where there are none to keep."""
    parts = parts if isinstance(parts, (list, tuple)) else list(parts)
    text = "".join(parts)
    spans: list[Span] = []
    pos = 0
    for p in parts:
        if type(p) is Marked:
            for a, b in p.spans:
                if spans and spans[-1][1] == pos + a:
                    spans[-1] = (spans[-1][0], pos + b)
                else:
                    spans.append((pos + a, pos + b))
        pos += len(p)
    return Marked(text, tuple(spans)) if spans else text


def join(sep: str, items: Sequence[str]) -> str:
    """``sep.join(items)`` with marks."""
    out: list[str] = []
    for i, item in enumerate(items):
        if i:
            out.append(sep)
        out.append(item)
    return concat(out)


def segments(text: str) -> list[Segment]:
    """Cut ``text`` into maximal runs of one trust; their texts join to ``text``."""
    out: list[Segment] = []
    pos = 0
    plain = str.__getitem__
    for a, b in text.spans if isinstance(text, Marked) else ():
        if a > pos:
            out.append(Segment(plain(text, slice(pos, a)), False))
        out.append(Segment(plain(text, slice(a, b)), True))
        pos = b
    if pos < len(text):
        out.append(Segment(plain(text, slice(pos, None)), False))
    return out
