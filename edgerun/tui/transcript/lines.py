"""Rows of the transcript as plain data, and the folding of styled text into them.

A row is made once per width and kept; styles are names (:mod:`edgerun.tui.transcript.styles`), so
that another theme or a focus costs nothing here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from edgerun.tui.text import graphemes, width

__all__ = ["BLANK", "Line", "Run", "Style", "fold", "line", "plain", "styled"]

#: Names of component styles, laid over each other from left to right.
Style: TypeAlias = tuple[str, ...]


class Run(NamedTuple):
    """Text in one style. ``link``: where it leads, "" = nowhere."""

    text: str
    style: Style = ()
    link: str = ""


class Line(NamedTuple):
    """One row of the screen.

    Attributes:
        runs: what it shows.
        cells: how wide that is.
        joined: it continues the row above, which was too narrow: what lies between them when they
            are copied, instead of a line break. None = it does not.
        indent: characters at the start that are not part of the text: markers, bars, padding.
        fill: the style of the rest of the row.
    """

    runs: tuple[Run, ...] = ()
    cells: int = 0
    joined: str | None = None
    indent: int = 0
    fill: Style = ()

    @property
    def text(self) -> str:
        """What the row says, without styles."""
        return "".join(r.text for r in self.runs)


BLANK = Line()

#: East Asian characters, between which a line may break; what may not begin one stays with them.
_WIDE = "\u2e80-\u3000\u3003-\u9fff\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
_CLOSING = "\u3001\u3002\u300d\u300f\u3011\u3015\u30fc\uff01\uff09\uff0c\uff0e\uff1a\uff1b\uff1f"
_PIECE = re.compile(f" *([{_WIDE}][{_CLOSING}]*|[^ {_WIDE}]+) *")
_JOINER = "\N{ZERO WIDTH JOINER}"


def line(
    runs: Sequence[Run], *, joined: str | None = None, indent: int = 0, fill: Style = ()
) -> Line:
    """A row of ``runs``; neighbours of one style become one."""
    merged: list[Run] = []
    for run in runs:
        if not run.text:
            continue
        last = merged[-1] if merged else None
        if last and last.style == run.style and last.link == run.link:
            merged[-1] = Run(last.text + run.text, run.style, run.link)
        else:
            merged.append(run)
    cells = sum(width(r.text) for r in merged)
    return Line(tuple(merged), cells, joined, indent, fill)


def plain(runs: Sequence[Run]) -> str:
    """The text of ``runs``."""
    return "".join(r.text for r in runs)


def styled(runs: Sequence[Run], style: Style) -> tuple[Run, ...]:
    """``runs`` with ``style`` below their own."""
    return tuple(Run(r.text, style + r.style, r.link) for r in runs)


def fold(
    runs: Sequence[Run], cells: int, *, words: bool = True
) -> list[tuple[list[Run], str | None]]:
    """Rows of ``runs``, each at most ``cells`` wide, or one grapheme where that is wider, and what
    was dropped before each; None = it begins a line.

    Breaks at line feeds, then between words (``words``), then between graphemes, never inside
    one. Blanks at a break between words are dropped.
    """
    rows: list[tuple[list[Run], str | None]] = []
    for part in _split(runs):
        text = plain(part)
        if len(text) <= cells and text.isascii():
            rows.append((part, None))
            continue
        spans = _breaks(text, max(cells, 1), words)
        glue: list[str | None] = [None]
        glue += [text[a[1] : b[0]] for a, b in pairwise(spans)]
        rows.extend(zip(_slices(part, spans), glue, strict=True))
    return rows


def _split(runs: Sequence[Run]) -> list[list[Run]]:
    """``runs`` cut at line feeds."""
    rows: list[list[Run]] = [[]]
    for run in runs:
        first, *rest = run.text.split("\n")
        if first:
            rows[-1].append(run if not rest else Run(first, run.style, run.link))
        rows += [[Run(text, run.style, run.link)] if text else [] for text in rest]
    return rows


def _breaks(text: str, cells: int, words: bool) -> list[tuple[int, int]]:
    """``(start, end)`` of each row of ``text``, which holds no line feed."""
    if not words:
        return _chop(text, 0, len(text), cells)
    rows: list[tuple[int, int]] = []
    start = end = used = 0  # the row so far; its end without, its width with the blanks after it
    for first, stop, after in _pieces(text):
        size = width(text[first:stop])
        if used + size > cells and first > start:
            rows.append((start, end))
            start, used = first, 0
        if size > cells:
            *full, (start, _) = _chop(text, first, stop, cells)
            rows.extend(full)
            size = width(text[start:stop])
        end = stop
        used += size + after - stop
    rows.append((start, end))
    return rows


def _pieces(text: str) -> Iterator[tuple[int, int, int]]:
    """``(start, end, end of the blanks after it)`` of what no row break may divide."""
    start, end, after = -1, 0, 0
    for match in _PIECE.finditer(text):
        first, stop = match.span(1)
        joined = first > 0 and (text[first - 1] == _JOINER or not width(text[first]))
        if start < 0:
            start = match.start()  # the blanks a row begins with stay
        elif not joined or text[first - 1] == " ":
            yield start, end, after
            start = first
        end, after = stop, match.end()
    if start >= 0:
        yield start, end, after
    elif text:
        yield 0, 0, len(text)


def _chop(text: str, start: int, end: int, cells: int) -> list[tuple[int, int]]:
    """Rows of graphemes."""
    part = text[start:end]
    if part.isascii():
        return [(i, min(i + cells, end)) for i in range(start, end, cells)] or [(start, end)]
    rows: list[tuple[int, int]] = []
    at, used = 0, 0
    for first, _, size in graphemes(part):
        if used + size > cells and first > at:
            rows.append((start + at, start + first))
            at, used = first, 0
        used += size
    rows.append((start + at, end))
    return rows


def _slices(runs: Sequence[Run], spans: Sequence[tuple[int, int]]) -> list[list[Run]]:
    """The parts of ``runs`` within each of ``spans``, which are in order."""
    rows: list[list[Run]] = []
    i, at = 0, 0  # the run that the next span begins in, and where that run starts
    for start, end in spans:
        row: list[Run] = []
        while i < len(runs) and at + len(runs[i].text) <= start:
            at += len(runs[i].text)
            i += 1
        j, base = i, at
        while j < len(runs) and base < end:
            run = runs[j]
            piece = run.text[max(start - base, 0) : end - base]
            if piece:
                row.append(Run(piece, run.style, run.link))
            base += len(run.text)
            j += 1
        rows.append(row)
    return rows
