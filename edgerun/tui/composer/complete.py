"""What the composer offers to complete: commands, their arguments, files. No widget."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgerun.tui.commands import COMMANDS, Command, find

__all__ = ["Item", "Offer", "Wanted", "commands_for", "values_for", "wanted"]


class Item(NamedTuple):
    """``insert`` takes the place of what was typed; ``label`` and ``detail`` are shown. ``open``:
    more can be completed behind it."""

    insert: str
    label: str
    detail: str = ""
    open: bool = False


class Wanted(NamedTuple):
    """What is being typed: a ``kind`` (``command``, ``value`` or ``file``), its ``text`` so far,
    and where in the line it stands. ``command`` is whose value it is."""

    kind: str
    text: str
    start: int
    end: int
    command: Command | None = None


Offer = Sequence[Item]

_COMMAND = re.compile(r"/([A-Za-z?]*)$")
_VALUE = re.compile(r"/([A-Za-z?]+)\s+(.*)$", re.S)
_FILE = re.compile(r'(?:^|(?<=[\s(\[{]))@("?)([^"\n]*)$')


def wanted(line: str, column: int, first: bool) -> Wanted | None:
    """What the cursor stands behind.

    Args:
        line: the line it is in; ``column``: where.
        first: whether nothing stands before that line: only there can a command begin.
    """
    before = line[:column]
    if first and (m := _COMMAND.fullmatch(before)):
        return Wanted("command", m[1], 0, column)
    if first and (m := _VALUE.fullmatch(before)):
        command = find(m[1])
        if command is not None and command.values:
            return Wanted("value", m[2], m.start(2), column, command)
    if m := _FILE.search(before):
        if not m[1] and re.search(r"\s", m[2]):
            return None
        return Wanted("file", m[2], m.start(), column)
    return None


def commands_for(text: str) -> list[Item]:
    """The commands whose name, or an alias, begins with ``text``, then those that hold it."""
    low = text.lower()
    found: dict[str, tuple[int, Command]] = {}
    for c in COMMANDS:
        names = (c.name, *c.aliases)
        if c.name.startswith(low):
            found[c.name] = (0, c)
        elif any(n.startswith(low) for n in names):
            found[c.name] = (1, c)
        elif len(low) > 1 and any(low in n for n in names):
            found[c.name] = (2, c)
    ordered = sorted(found.values(), key=lambda rc: rc[0])
    return [
        Item(f"/{c.name}" + (" " if c.args else ""), c.usage, c.help, open=bool(c.values))
        for _, c in ordered
    ]


def values_for(
    text: str,
    known: Sequence[tuple[str, str]],
    score: Callable[[str, str], int | None],
    limit: int = 50,
) -> list[Item]:
    """The ``known`` values, (value, what it is), that match ``text``, best first."""
    if not text:
        return [Item(v, v, d) for v, d in known[:limit]]
    hits = [(s, i) for i, (v, _) in enumerate(known) if (s := score(v, text)) is not None]
    return [Item(known[i][0], *known[i]) for _, i in sorted(hits)[:limit]]
