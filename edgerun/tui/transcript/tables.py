"""Tables as rows: columns as wide as their cells need, narrower where the window is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from edgerun.tui.text import width
from edgerun.tui.transcript.blocks import Leaf
from edgerun.tui.transcript.inline import inline
from edgerun.tui.transcript.lines import Line, Run, fold, line, plain, styled

__all__ = ["table"]

_BETWEEN = 3  # cells of " │ "
_NARROWEST = 6


def table(leaf: Leaf, cells: int) -> list[Line]:
    """The rows of one piece of a table. Its columns follow from the first piece (``sample``), so
    that those which come later change nothing above them."""
    columns = max(len(leaf.aligns), 1)
    room = cells - _BETWEEN * (columns - 1)
    if room < columns * _NARROWEST and cells < columns * 2 * _NARROWEST:
        return _records(leaf, cells)
    widths = _shares(_natural(leaf.sample, columns), room)
    out: list[Line] = []
    rows = [tuple(row) for row in leaf.rows]
    if not leaf.more and rows:
        out += _row(rows.pop(0), widths, leaf.aligns, True)
        out.append(line([Run("─┼─".join("─" * w for w in widths), ("bar",))]))
    for row in rows:
        out += _row(row, widths, leaf.aligns)
    return out


def _natural(rows: Sequence[Sequence[str]], columns: int) -> list[int]:
    """The widest line of each column."""
    widths = [1] * columns
    for row in rows:
        for i, cell in enumerate(row[:columns]):
            widths[i] = max(widths[i], _widest(cell))
    return widths


@lru_cache(1024)
def _widest(cell: str) -> int:
    return max(width(x) for x in plain(inline(cell)).split("\n"))


def _shares(wanted: Sequence[int], room: int) -> tuple[int, ...]:
    """``room`` cells among columns: those that want less than an even share get what they want."""
    widths = [0] * len(wanted)
    left, order = room, sorted(range(len(wanted)), key=lambda i: wanted[i])
    for n, i in enumerate(order):
        widths[i] = max(1, min(wanted[i], left // (len(order) - n)))
        left -= widths[i]
    return tuple(widths)


@lru_cache(256)
def _row(
    row: tuple[str, ...], widths: tuple[int, ...], aligns: tuple[str, ...], head: bool = False
) -> list[Line]:
    style = ("strong",) if head else ()
    texts = [inline(x) for x in row] + [()] * (len(widths) - len(row))
    columns = [
        [r for r, _ in fold(styled(runs, style), w)] for runs, w in zip(texts, widths, strict=False)
    ]
    out = []
    for y in range(max(map(len, columns))):
        runs: list[Run] = []
        for i, column in enumerate(columns):
            if i:
                runs.append(Run(" │ ", ("bar",)))
            cell = column[y] if y < len(column) else []
            runs += _aligned(cell, widths[i], aligns[i], last=i + 1 == len(columns))
        out.append(line(runs))
    return out


def _aligned(cell: Sequence[Run], cells: int, align: str, *, last: bool) -> list[Run]:
    room = max(cells - sum(width(r.text) for r in cell), 0)
    left = {"right": room, "center": room // 2}.get(align, 0)
    right = 0 if last else room - left
    return [Run(" " * left), *cell, Run(" " * right)]


def _records(leaf: Leaf, cells: int) -> list[Line]:
    """For a window too narrow for columns: one line for each cell, after its column's head."""
    heads = leaf.sample[0] if leaf.sample else []
    out: list[Line] = []
    for row in leaf.rows if leaf.more else leaf.rows[1:]:
        for head, cell in zip(heads, row, strict=False):
            runs = (*styled(inline(head), ("strong",)), Run(": "), *inline(cell))
            out += [line(r, joined=glue) for r, glue in fold(runs, cells)]
        out.append(line([Run("─" * cells, ("bar",))]))
    return out
