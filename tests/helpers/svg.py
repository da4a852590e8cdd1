"""Pictures of a terminal, compared by what stands in each cell: character, colours, weight.

An approved picture is an SVG that any browser shows. Ids, fonts and the comment of whoever made it
are taken out, so that it changes only when the screen does. A picture that differs is kept in
``build/screenshots``; ``EDGERUN_APPROVE=1 pytest tests/tui`` makes the pictures of now the approved
ones: look at them before they are committed.
"""

from __future__ import annotations

import html
import os
import re
from pathlib import Path
from typing import NamedTuple

from rich.cells import cell_len

from helpers.paths import ROOT

__all__ = ["Cell", "cells", "check", "normal"]

APPROVED = ROOT / "tests" / "fixtures" / "tui"
SEEN = ROOT / "build" / "screenshots"

#: Rich's: how wide a character is, how high a line, and where the first line's ground begins.
_WIDTH, _LINE, _TOP = 12.2, 24.4, 1.5
_FONT = re.compile(r"\s*@font-face \{.*?\}\n", re.S)
_RULE = re.compile(r"\.terminal-(r\d+) \{([^}]*)\}")
_RECT = re.compile(
    r'<rect fill="(#\w+)" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="[\d.]+"'
)
_TEXT = re.compile(
    r'<text class="terminal-(r\d+)" x="([\d.]+)" y="[\d.]+" textLength="[\d.]+" '
    r'clip-path="url\(#terminal-line-(\d+)\)">(.*?)</text>'
)


class Cell(NamedTuple):
    """``style`` is the CSS of the text: its colour, weight, slant, lines."""

    char: str = " "
    style: str = ""
    ground: str = ""


def normal(svg: str) -> str:
    """``svg`` without what differs between two runs or two versions of Rich."""
    svg = re.sub(r"terminal-\d+(?=[-\s\"])", "terminal", svg)
    svg = _FONT.sub("", svg)
    svg = re.sub(r"<!-- Generated .*? -->", "", svg)
    svg = svg.replace("Fira Code, monospace", "monospace")
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


def cells(svg: str) -> list[list[Cell]]:
    """What stands where in a :func:`normal` picture."""
    rules = {name: css.strip() for name, css in _RULE.findall(svg)}
    grid: dict[tuple[int, int], Cell] = {}
    for fill, x, y, width in _RECT.findall(svg):
        row, col = round((float(y) - _TOP) / _LINE), round(float(x) / _WIDTH)
        for i in range(round(float(width) / _WIDTH)):
            grid[row, col + i] = Cell(ground=fill)
    for name, x, line, text in _TEXT.findall(svg):
        col = round(float(x) / _WIDTH)
        for char in html.unescape(text):
            before = grid.get((int(line), col), Cell())
            blank = char in " \N{NO-BREAK SPACE}" and "underline" not in rules[name]
            style = "" if blank else rules[name]
            grid[int(line), col] = Cell(" " if char.isspace() else char, style, before.ground)
            col += cell_len(char)
    height = 1 + max(r for r, _ in grid)
    width_ = 1 + max(c for _, c in grid)
    return [[grid.get((r, c), Cell()) for c in range(width_)] for r in range(height)]


def check(name: str, svg: str) -> str | None:
    """How the picture differs from the approved one of that name; None if it does not."""
    new = normal(svg)
    approved, seen = APPROVED / f"{name}.svg", SEEN / f"{name}.svg"
    if os.environ.get("EDGERUN_APPROVE"):
        approved.parent.mkdir(parents=True, exist_ok=True)
        approved.write_text(new, encoding="utf-8")
        return None
    wrong = _differs(approved, new)
    if wrong is None:
        seen.unlink(missing_ok=True)
        return None
    seen.parent.mkdir(parents=True, exist_ok=True)
    seen.write_text(new, encoding="utf-8")
    return f"{name}: {wrong}; compare {approved} with {seen}, and if it is meant, {_HOW}"


_HOW = "EDGERUN_APPROVE=1 pytest tests/tui"


def _differs(approved: Path, new: str) -> str | None:
    if not approved.exists():
        return "there is no approved picture"
    old_cells, new_cells = cells(approved.read_text(encoding="utf-8")), cells(new)
    if old_cells == new_cells:
        return None
    for n, (old, now) in enumerate(zip(old_cells, new_cells, strict=False)):
        if old != now:
            was, is_ = ("".join(c.char for c in line).rstrip() for line in (old, now))
            if was != is_:
                return f"line {n} was {was!r} and is {is_!r}"
            col = next(i for i, (a, b) in enumerate(zip(old, now, strict=True)) if a != b)
            return f"line {n}, cell {col} was {old[col]} and is {now[col]}"
    return f"it had {len(old_cells)} lines and has {len(new_cells)}"
