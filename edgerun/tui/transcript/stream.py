"""Markdown as it arrives: what is done is never looked at again.

Only the last piece of the last block is parsed when text comes, however long the block, list or
quotation around it is. For that the parser gets, before the text, lines that open the same boxes
(:func:`_context`). The outcome does not depend on how the text was cut into chunks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from edgerun.tui.text import Cleaner
from edgerun.tui.transcript.blocks import Box, Leaf, leaves, pieces
from edgerun.tui.transcript.inline import parser

__all__ = ["Markdown"]

#: A line that may still become anything: shown when there is more of it.
_UNDECIDED = re.compile(r"[ \t>]*(?:[-=*+#`~|:_$\\]{1,8}|\d{1,9}[.)]?)?[ \t]*")
_MARKER = re.compile(r"[-+*]|\d{1,9}[.)]")

#: Text that cannot be divided is parsed again only when it has grown by an eighth.
_MAX_TAIL = 16_384


@dataclass(frozen=True)
class _Context:
    """What the parser is told before the text.

    Attributes:
        text: lines that open the boxes and the leaf that the text goes on with.
        numbers: what the lists in it count from.
        opener: the line on which the leaf that goes on begins; -1 = none does.
        indented: code without fences, which nothing opens, goes on.
        blank: an empty line comes before what is next.
    """

    text: str = ""
    numbers: tuple[int, ...] = ()
    opener: int = -1
    indented: bool = False
    blank: bool = False


class Markdown:
    """A growing text in Markdown as a growing list of leaves.

    Attributes:
        done: leaves that will not change any more.
        open: those after them, which may.
        source: all of the text, cleaned.
    """

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.done: list[Leaf] = []
        self.open: list[Leaf] = []
        self._cleaner = Cleaner()
        self._new: list[str] = []
        self._tail = ""
        self._context = _Context()
        self._parsed = -1  # length of the tail when it was last parsed
        self._stuck = 0  # length of the tail below which dividing it is not tried again
        self._codes = 0  # code blocks that are done
        self.ended = False
        self.feed(text)
        if ended:
            self.end()

    def feed(self, text: str) -> None:
        """More text. Nothing is parsed until :meth:`update`."""
        if text and not self.ended:
            self._new.append(self._cleaner.push(text))

    def end(self) -> None:
        """No more text will come."""
        if not self.ended:
            self._new.append(self._cleaner.flush())
            self.ended = True
            self._parsed = -1

    @property
    def pending(self) -> int:
        """Characters that are parsed again with each update; for tests."""
        return len(self._context.text) + len(self._tail)

    def update(self) -> bool:
        """Parse what has come; whether leaves have changed."""
        if self._new:
            self._tail += "".join(self._new)
            self._new.clear()
        size = len(self._tail)
        if size == self._parsed:
            return False
        if not self.ended and size > _MAX_TAIL and size * 8 < self._parsed * 9:
            return False
        self._parsed = size
        found = self._parse(self._context, self._tail)
        while not self.ended and (rest := self._divide(found)) is not None:
            found = rest
        self._show(found)
        return True

    def _parse(self, context: _Context, tail: str) -> list[Leaf]:
        """The pieces of ``tail``; ``line`` counts from the context's first line."""
        partial = not self.ended and not tail.endswith("\n")
        if partial:
            last = tail.rfind("\n") + 1
            if _UNDECIDED.fullmatch(tail, last):
                tail, partial = tail[:last], False
        text = context.text + tail
        known = context.text.count("\n")
        found = leaves(parser().parse(text), text.split("\n"), context.numbers)
        if partial and found and found[-1].kind == "code":
            found[-1].partial = True
        out: list[Leaf] = []
        for leaf, after in zip_longest(found, found[1:]):
            if leaf.line == context.opener:
                _continue(leaf)
            elif leaf.line < known:
                continue
            elif leaf.line == known and not out:
                leaf.blank = context.blank
                if context.indented and leaf.kind == "code" and not leaf.fenced:
                    leaf.more, leaf.opened = True, 0
            out.extend(pieces(leaf, after))
        return out

    def _divide(self, found: list[Leaf]) -> list[Leaf] | None:
        """Set all but the last of ``found`` aside if possible; then what is left is returned."""
        if len(found) < 2 or len(self._tail) < self._stuck:
            return None
        context = self._context
        text = context.text + self._tail
        lines = text.split("\n")
        last = next(
            (i for i in range(len(found) - 1, 0, -1) if _settled(found[i], len(lines) - 1)), 0
        )
        if not last:
            return None
        cut, after = _restart(found, last, lines)
        if after is not None and cut > len(context.text):
            tail = text[cut:]
            again = self._parse(after, tail)
            if len(again) == len(found) - last and all(map(Leaf.same, again, found[last:])):
                self._set_aside(found[:last])
                self._context, self._tail, self._parsed, self._stuck = after, tail, len(tail), 0
                return again
        self._stuck = len(self._tail) * 2
        return None

    def _set_aside(self, found: Sequence[Leaf]) -> None:
        self._number(found)
        self.done.extend(found)
        self._codes = max((x.number for x in found if x.number), default=self._codes)

    def _show(self, found: list[Leaf]) -> None:
        self._number(found)
        self.open = found
        if self.ended:
            self.done.extend(found)
            self.open = []
            self._tail = ""

    def _number(self, found: Sequence[Leaf]) -> None:
        """Code blocks are counted; the pieces of a table share their columns."""
        n = self._codes
        before = self.done[-1] if self.done else None
        for leaf in found:
            if leaf.kind == "code":
                n += not leaf.more
                leaf.number = n
            if leaf.kind == "table" and leaf.more and before is not None:
                leaf.sample = before.sample
            before = leaf


def _continue(leaf: Leaf) -> None:
    """Take from a leaf that began in the context what the context put there."""
    leaf.more, leaf.opened, leaf.blank = True, 0, False
    if leaf.kind in ("text", "heading"):
        leaf.below = int(leaf.text[1:2] == "\n")
        leaf.text = leaf.text[2:]  # "x" and what divides it from the rest
    elif leaf.kind == "table":
        del leaf.rows[0]


def _settled(leaf: Leaf, complete: int) -> bool:
    """Whether ``leaf`` will begin where it does whatever comes, with so many lines complete."""
    if leaf.more and leaf.kind in ("text", "heading"):
        return True
    return _line(leaf) < complete


def _line(leaf: Leaf) -> int:
    """The line on which a piece that is no text begins."""
    if not leaf.more:
        return leaf.line
    return leaf.line + leaf.at + (2 if leaf.kind == "table" else int(leaf.fenced))


def _restart(found: Sequence[Leaf], i: int, lines: Sequence[str]) -> tuple[int, _Context | None]:
    """Where in the text ``found[i]`` begins, and the context to begin there with; None = none."""
    leaf = found[i]
    outer = list(leaf.boxes)
    numbers = [1 if b.number is None else b.number for b in outer if not b.quote]
    if not leaf.more:
        outer = [b for b in leaf.boxes if b.line < leaf.line]
        numbers = numbers[: sum(not b.quote for b in outer)]
        here = leaf.boxes[len(outer) :]
        if here and not here[0].quote and not here[0].first:  # its list is open: with an item
            outer.append(here[0])
            numbers.append((here[0].number or 1) - 1)
    text = ""
    for n, box in enumerate(outer, 1):
        if n < len(outer) and outer[n].line == box.line:
            continue
        prefix = _opening(lines[box.line], outer[:n], box.line)
        if prefix is None:
            return 0, None
        text += f"{prefix}x\n{_blanked(prefix).rstrip()}\n"
    if not leaf.more:
        start = sum(len(x) + 1 for x in lines[: leaf.line])
        return start, _Context(text, tuple(numbers), blank=leaf.blank)
    return _restart_within(found, i, lines, text, tuple(numbers))


def _restart_within(
    found: Sequence[Leaf], i: int, lines: Sequence[str], text: str, numbers: tuple[int, ...]
) -> tuple[int, _Context | None]:
    """:func:`_restart` for a piece that goes on with the one before it."""
    leaf = found[i]
    first = lines[leaf.line]
    prefix = _opening(first, leaf.boxes, leaf.line)
    if prefix is None:
        return 0, None
    rest = first.expandtabs(4)[len(prefix) :]
    opener = text.count("\n")
    line, column = _line(leaf), 0
    if leaf.kind == "code":
        if not leaf.fenced:
            opener = -1
        else:
            text += f"{_blanked(prefix)}{rest}\n"
    elif leaf.kind == "table":
        text += f"{_blanked(prefix)}{rest}\n{lines[leaf.line + 1]}\n"
    else:
        j = i
        while j and found[j].more and found[j - 1].line == leaf.line:
            j -= 1
        before = "".join(p.text for p in found[j:i])
        line = leaf.line + leaf.below + before.count("\n")
        indent = rest[: len(rest) - len(rest.lstrip())]
        text += f"{_blanked(prefix)}{indent}{'#' * leaf.level}{' ' * bool(leaf.level)}x"
        if before.endswith("\n"):
            text += "\n"
        else:
            text += " "
            ahead, ending = lines[line].rstrip(), leaf.text.split("\n", 1)[0].rstrip()
            if not ahead.endswith(ending):
                return 0, None
            column = len(ahead) - len(ending)
    start = sum(len(x) + 1 for x in lines[:line]) + column
    return start, _Context(text, numbers, opener, leaf.kind == "code" and not leaf.fenced)


def _opening(line: str, boxes: Sequence[Box], n: int) -> str | None:
    """The beginning of ``line``, the n-th, up to what lies in ``boxes``; None = it looks strange.

    Items that began on earlier lines are only an indentation: it is not included.
    """
    line = line.expandtabs(4)
    pos = 0
    for box in boxes:
        start = len(line) - len(line[pos:].lstrip(" "))
        if box.quote:
            if not line.startswith(">", start):
                return None
            pos = start + 1 + line.startswith(" ", start + 1)
        elif box.line == n:
            match = _MARKER.match(line, start)
            if match is None:
                return None
            blanks = len(line[match.end() :]) - len(line[match.end() :].lstrip(" "))
            empty = match.end() + blanks == len(line)
            pos = match.end() + (1 if empty or blanks > 4 else blanks)
    return line[:pos].ljust(pos)


def _blanked(prefix: str) -> str:
    """``prefix`` for a further line of the same boxes."""
    return "".join(c if c == ">" else " " for c in prefix)
