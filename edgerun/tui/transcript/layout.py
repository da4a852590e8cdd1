"""Leaves as rows of a given width."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.tui.text import width
from edgerun.tui.transcript.blocks import Box, Leaf
from edgerun.tui.transcript.code import highlight, language
from edgerun.tui.transcript.inline import inline
from edgerun.tui.transcript.lines import BLANK, Line, Run, Style, fold, line, styled
from edgerun.tui.transcript.tables import table

__all__ = ["paragraph", "rows"]

_BULLETS = "•◦▪"
_BAR = Run("│ ", ("bar",))


def rows(leaf: Leaf, before: Leaf | None, cells: int) -> list[Line]:
    """The rows of ``leaf``, which comes after ``before``, in ``cells`` columns."""
    out = []
    if before is not None and _gap(before, leaf):
        shared = leaf.boxes[: len(leaf.boxes) - leaf.opened]
        bars = _prefix(shared, 0, False, cells)
        out.append(line(bars, indent=_length(bars)) if any(b.quote for b in shared) else BLANK)
    first = _prefix(leaf.boxes, leaf.opened, True, cells)
    rest = _prefix(leaf.boxes, 0, False, cells)
    for i, row in enumerate(_content(leaf, max(cells - sum(width(r.text) for r in rest), 4))):
        start = rest if i else first
        runs = (*start, *row.runs)
        out.append(line(runs, joined=row.joined, indent=_length(start) + row.indent, fill=row.fill))
    return out


def _gap(before: Leaf, leaf: Leaf) -> bool:
    """Whether a blank row parts them: as in the source, and above every heading."""
    return not leaf.more and (leaf.blank or (leaf.kind == "heading" and not leaf.opened))


def _length(runs: Sequence[Run]) -> int:
    return sum(len(r.text) for r in runs)


def _prefix(boxes: Sequence[Box], opened: int, first: bool, cells: int) -> list[Run]:
    """Bars of quotes, markers of items that begin here, blanks for those that go on."""
    out: list[Run] = []
    for i, box in enumerate(boxes):
        if box.quote:
            out.append(_BAR)
            continue
        marker = _marker(box, sum(not b.quote for b in boxes[:i]))
        here = first and i >= len(boxes) - opened
        out.append(Run(marker, ("marker",)) if here else Run(" " * width(marker)))
    while sum(width(r.text) for r in out) > cells // 2:  # deep boxes in a narrow window
        out.pop(0)
    return out


def _marker(box: Box, depth: int) -> str:
    if box.done is not None:
        return "[x] " if box.done else "[ ] "
    if box.number is not None:
        return f"{box.number}. "
    return f"{_BULLETS[depth % len(_BULLETS)]} "


def _content(leaf: Leaf, cells: int) -> list[Line]:
    quoted: Style = ("quote",) if any(b.quote for b in leaf.boxes) else ()
    if leaf.kind == "text":
        return paragraph(styled(inline(leaf.text.removesuffix("\n")), quoted), cells, leaf.more)
    if leaf.kind == "heading":
        runs = styled(inline(leaf.text), (f"h{min(leaf.level, 4)}",))
        return paragraph(runs, cells, leaf.more)
    if leaf.kind == "code":
        return _code(leaf, cells)
    if leaf.kind == "table":
        return table(leaf, cells)
    if leaf.kind == "rule":
        return [line([Run("─" * cells, ("bar",))])]
    if leaf.kind == "empty":
        return [BLANK]
    style: Style = ("math",) if leaf.kind == "math" else ()
    return paragraph([Run(leaf.text.rstrip("\n").expandtabs(4), style)], cells)


def paragraph(runs: Sequence[Run], cells: int, more: bool = False) -> list[Line]:
    """Rows of ``runs``, broken between words."""
    out = [line(row, joined=glue) for row, glue in fold(runs, cells)]
    if more and out and not out[0].runs:
        del out[0]  # nothing has come yet of the piece
    return out


def _code(leaf: Leaf, cells: int) -> list[Line]:
    """On a ground of its own, with the language and the block's number above."""
    out = []
    fill: Style = ("code-block",)
    inner = max(cells - 2, 2)
    if not leaf.more:
        name, number = language(leaf.info), f"{leaf.number} "
        label = f" {name}"
        label += " " * (cells - width(label) - len(number)) + number
        if width(label) <= cells:
            out.append(line([Run(label, (*fill, "label"))], indent=len(label), fill=fill))
    if not leaf.text:
        return out
    for runs in highlight(leaf.text, leaf.info, partial=leaf.partial):
        for row, glue in fold(runs, inner, words=False):
            shown = (Run(" ", fill), *styled(row, fill))
            out.append(line(shown, joined=glue, indent=1, fill=fill))
    return out
