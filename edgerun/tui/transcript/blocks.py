"""Markdown's blocks as a flat list of leaves, each within its boxes (quotes and list items).

Flat, because a list of leaves can grow at its end while all before it is long done: see
:mod:`edgerun.tui.transcript.stream`. A leaf that grows too long is cut into pieces, at places that
depend on nothing after them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from edgerun.tui.transcript.inline import MAX_DEPTH

if TYPE_CHECKING:
    from markdown_it.token import Token

__all__ = ["MAX_CHARS", "MAX_LINES", "MAX_ROWS", "Box", "Kind", "Leaf", "leaves", "pieces"]

Kind: TypeAlias = Literal["text", "heading", "code", "table", "rule", "math", "empty", "plain"]

#: How long a piece may grow: characters of a paragraph, lines of code, rows of a table.
MAX_CHARS, MAX_LINES, MAX_ROWS = 1500, 48, 24

_TASK = re.compile(r"\[([ xX])\](?=\s|$)\s?")


@dataclass(frozen=True)
class Box:
    """What a leaf lies in.

    Attributes:
        quote: a quotation; otherwise an item of a list.
        line: of the source, where it begins.
        first: the first item of its list.
        number: of an ordered list's item; None in other lists.
        done: of a task list's item: whether it is; None in other lists.
    """

    quote: bool
    line: int
    first: bool = True
    number: int | None = None
    done: bool | None = None


@dataclass
class Leaf:
    """One paragraph, heading, code block, table, ..., or a piece of one.

    Attributes:
        line: of the source, where the whole leaf begins; ``at`` where this piece does: a
            character of a text, a line of code, a row of a table.
        below: of a text: so many lines below ``line`` it begins.
        boxes: what it lies in, outermost first; the last ``opened`` of them begin with it.
        blank: an empty line comes before it in the source.
        more: it goes on with the leaf before it.
        text: of a text or heading in Markdown; of code, math and ``plain`` as it is.
        level: of a heading.
        info: of code: its language.
        fenced: of code: between fences, not indented.
        rows: of a table: cells in Markdown; the heads come first, in the first piece.
        sample: of a table: the first piece's rows, from which the columns' widths follow.
        aligns: of a table: "left", "center", "right" or "" of each column.
        partial: of code: its last line may grow.
        number: of code: its place among the message's code blocks, from 1.
    """

    kind: Kind
    line: int
    boxes: tuple[Box, ...] = ()
    opened: int = 0
    blank: bool = False
    more: bool = False
    at: int = 0
    below: int = 0
    text: str = ""
    level: int = 0
    info: str = ""
    fenced: bool = False
    rows: list[list[str]] = field(default_factory=list)
    sample: list[list[str]] = field(default_factory=list)
    aligns: tuple[str, ...] = ()
    partial: bool = False
    number: int = 0

    def same(self, other: Leaf) -> bool:
        """Whether both look alike, wherever in the source they lie."""

        def key(leaf: Leaf) -> object:
            boxes = [(b.quote, b.number, b.done) for b in leaf.boxes]
            return boxes, replace(
                leaf, line=0, at=0, below=0, boxes=(), sample=[], number=0, blank=False
            )

        return key(self) == key(other)


def leaves(
    tokens: Sequence[Token], lines: Sequence[str], numbers: Sequence[int] = ()
) -> list[Leaf]:
    """The leaves of ``tokens``, which a parser made of ``lines``.

    ``numbers``: what the first lists in it count from, instead of what the source says.
    """
    walk = _Walk(lines, list(numbers))
    for i, token in enumerate(tokens):
        walk.take(token, tokens, i)
    return walk.leaves


@dataclass
class _List:
    ordered: bool
    next: int
    first: bool = True


class _Walk:
    """Block tokens -> leaves."""

    def __init__(self, lines: Sequence[str], numbers: list[int]) -> None:
        self.leaves: list[Leaf] = []
        self._lines = lines
        self._numbers = numbers
        self._lists: list[_List] = []
        self._boxes: list[Box] = []
        self._begun = 0  # boxes that hold a leaf already, counted from outside
        self._maps: list[tuple[int, int]] = []

    def take(self, token: Token, tokens: Sequence[Token], i: int) -> None:
        """The next token, which is ``tokens[i]``."""
        kind = token.type
        line, end = token.map or (0, 0)
        if kind in ("bullet_list_open", "ordered_list_open"):
            start = int(token.attrs.get("start", 1))
            start = self._numbers.pop(0) if self._numbers else start
            self._lists.append(_List(kind == "ordered_list_open", start))
        elif kind in ("bullet_list_close", "ordered_list_close"):
            self._lists.pop()
        elif kind == "list_item_open":
            here = self._lists[-1]
            number = here.next if here.ordered else None
            self._open(Box(False, line, here.first, number), line, end)
            here.next, here.first = here.next + 1, False
        elif kind == "blockquote_open":
            self._open(Box(True, line), line, end)
        elif kind in ("list_item_close", "blockquote_close"):
            self._close(token.level)
        elif kind == "inline":
            self._inline(token, tokens[i - 1])
        elif kind in ("fence", "code_block"):
            info = token.info.split(maxsplit=1)
            code = Leaf("code", line, text=token.content, info=info[0] if info else "")
            code.fenced = kind == "fence"
            self._add(code)
        elif kind == "hr":
            self._add(Leaf("rule", line))
        elif kind == "math_block":
            self._add(Leaf("math", line, text=token.content))
        elif kind == "table_open":
            self._add(_table(tokens, i))

    def _open(self, box: Box, line: int, end: int) -> None:
        self._boxes.append(box)
        self._maps.append((line, end))

    def _close(self, level: int) -> None:
        first, end = self._maps[-1]
        if self._begun < len(self._boxes):
            if level >= MAX_DEPTH - 2:  # the parser has left out what is inside
                self._add(Leaf("plain", first, text="\n".join(self._lines[first:end]).strip("\n")))
            else:
                self._add(Leaf("empty", first))
        self._boxes.pop()
        self._maps.pop()
        self._begun = min(self._begun, len(self._boxes))

    def _inline(self, token: Token, opener: Token) -> None:
        line = (token.map or (0, 0))[0]
        if opener.type == "paragraph_open":
            self._add(Leaf("text", line, text=token.content))
        elif opener.type == "heading_open":
            level = int(opener.tag[1:])
            heading = Leaf("heading", line, text=token.content, level=level)
            heading.fenced = opener.markup in ("=", "-")  # underlined
            self._add(heading)

    def _add(self, leaf: Leaf) -> None:
        opened = len(self._boxes) - self._begun
        if leaf.kind == "text" and opened and not self._boxes[-1].quote:
            task = _TASK.match(leaf.text)
            if task:
                leaf.text = leaf.text[task.end() :]
                self._boxes[-1] = replace(self._boxes[-1], done=task[1] != " ")
        leaf.boxes, leaf.opened = tuple(self._boxes), opened
        before = self._lines[leaf.line - 1] if 0 < leaf.line <= len(self._lines) else "-"
        leaf.blank = not before.strip(" \t>")
        self._begun = len(self._boxes)
        self.leaves.append(leaf)


def _table(tokens: Sequence[Token], i: int) -> Leaf:
    """The table that opens at ``tokens[i]``."""
    leaf = Leaf("table", (tokens[i].map or (0, 0))[0])
    aligns: list[str] = []
    while tokens[i].type != "table_close":
        token = tokens[i]
        if token.type == "tr_open":
            leaf.rows.append([])
        elif token.type == "th_open":
            aligns.append(str(token.attrs.get("style", "")).removeprefix("text-align:"))
        elif token.type == "inline":
            leaf.rows[-1].append(token.content)
        i += 1
    leaf.aligns = tuple(aligns)
    return leaf


def pieces(leaf: Leaf, after: Leaf | None = None) -> list[Leaf]:
    """``leaf``, which ``after`` follows, cut where it is too long: at a place that depends only on
    what is before it, as soon as it is sure that this will not become something else."""
    if leaf.kind in ("text", "heading"):
        ends = leaf.line + leaf.below + leaf.text.count("\n") + 1
        table = after is not None and after.kind == "table" and after.line == ends
        return _text_pieces(leaf, table)
    if leaf.kind == "code":
        return _code_pieces(leaf)
    return _table_pieces(leaf) if leaf.kind == "table" else [leaf]


def _after(leaf: Leaf, at: int) -> Leaf:
    """An empty piece that goes on with ``leaf``."""
    return replace(leaf, at=leaf.at + at, more=True, opened=0, blank=False, text="", rows=[])


def _text_pieces(leaf: Leaf, table: bool) -> list[Leaf]:
    """A table right after a text takes its last line, so the last two are not divided before."""
    text, underlined = leaf.text, leaf.kind == "heading" and leaf.fenced
    out, start = [], 0
    while True:
        end = len(text) + 1 if table else text.rfind("\n", start, max(text.rfind("\n"), start)) + 1
        if end - start <= MAX_CHARS and len(text) - start <= 3 * MAX_CHARS:
            break
        cut = text.rfind("\n", start + MAX_CHARS // 2, start + MAX_CHARS)
        if cut < 0:
            cut = text.rfind(" ", start + 1, start + MAX_CHARS)
        after = cut + 1 if cut >= 0 else start + MAX_CHARS
        out.append(replace(_after(leaf, start) if start else leaf, text=text[start:after]))
        start = after
    out.append(replace(_after(leaf, start) if start else leaf, text=text[start:]))
    if underlined and (leaf.more or start):  # it was a text before the line below it came
        out = [replace(x, kind="text", level=0, fenced=False) for x in out]
        out.append(Leaf("rule", leaf.line + leaf.below + text.count("\n") + 1, leaf.boxes))
    return out


def _code_pieces(leaf: Leaf) -> list[Leaf]:
    lines = leaf.text.split("\n")
    ended = not lines[-1]
    if ended:
        lines.pop()
    out, start = [], 0
    while seam := _seam(lines[start:]):
        text = "\n".join(lines[start : start + seam]) + "\n"
        out.append(replace(_after(leaf, start) if start else leaf, text=text, partial=False))
        start += seam
    if not out:
        return [leaf]
    rest = "\n".join(lines[start:]) + "\n" * ended
    out.append(replace(_after(leaf, start), text=rest))
    return out


def _seam(lines: Sequence[str]) -> int:
    """Before which line to cut: where something new seems to begin; 0 = nowhere yet."""
    if len(lines) <= MAX_LINES:
        return 0
    best = 0
    for i in range(MAX_LINES, MAX_LINES // 3, -1):
        if lines[i][:1].strip():
            if not lines[i - 1].strip():
                return i
            best = best or i
    if best:
        return best
    return next((i for i in range(MAX_LINES, len(lines) - 1) if lines[i].strip()), 0)


def _table_pieces(leaf: Leaf) -> list[Leaf]:
    heads = 0 if leaf.more else 1
    out: list[Leaf] = []
    rows, start = leaf.rows, 0
    while start < len(rows) or not out:
        stop, size = start, 0
        most = start + MAX_ROWS + (0 if out else heads)
        while stop < min(most, len(rows)) and (size <= 4 * MAX_CHARS or stop < 2):
            size += sum(map(len, rows[stop]))
            stop += 1
        piece = _after(leaf, start - heads) if out else replace(leaf)
        piece.rows = rows[start:stop]
        piece.sample = out[0].sample if out else leaf.sample or piece.rows
        out.append(piece)
        start = max(stop, 1)
    return out
