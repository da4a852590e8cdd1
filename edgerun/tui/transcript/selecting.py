"""What the mouse selects: rows in another style, and the text they stand for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.selection import Selection

from edgerun.tui.transcript.lines import Line, Run

__all__ = ["SELECTED", "highlighted", "selected"]

#: The style of selected text: the screen's, not one of the transcript's.
SELECTED = "selected"


def highlighted(runs: Sequence[Run], start: int, end: int) -> list[Run]:
    """``runs`` with the characters from ``start`` up to ``end`` (-1 = the last) selected."""
    out, at = [], 0
    for run in runs:
        stop = at + len(run.text)
        a = min(max(start, at), stop)
        b = stop if end < 0 else min(max(end, a), stop)
        parts = ((at, a, run.style), (a, b, (*run.style, SELECTED)), (b, stop, run.style))
        out += [Run(run.text[i - at : j - at], s, run.link) for i, j, s in parts if i < j]
        at = stop
    return out


def selected(row: Callable[[int], Line], height: int, selection: Selection, gutter: int) -> str:
    """The text of ``selection`` among ``height`` rows that begin with a gutter. Markers, bars and
    padding are left out; rows that were one line become one again."""
    first = selection.start.y if selection.start is not None else 0
    last = selection.end.y if selection.end is not None else height - 1
    out: list[str] = []
    for y in range(max(first, 0), min(last, height - 1) + 1):
        line = row(y)
        span = selection.get_span(y)
        if span is None:
            continue
        start, end = span
        text = line.text
        stop = len(text) if end < 0 else end - gutter
        whole = start <= gutter and stop >= line.indent
        piece = text[
            max(start - gutter, line.indent if whole or start > gutter else 0) : max(stop, 0)
        ]
        if out:
            out.append("\n" if line.joined is None else line.joined)
        out.append(piece if line.fill == () else piece.rstrip())
    return "".join(out)
