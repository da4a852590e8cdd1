"""Text for one row of a list: safe, cut to cells, with what was searched for marked."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, chop_cells, set_cell_size

from edgerun.amounts import size_text
from edgerun.tui.text import clean as safe

__all__ = [
    "Span",
    "ago",
    "clean",
    "fit",
    "found",
    "mark",
    "matches",
    "rate",
    "shared",
    "size",
    "spans_width",
]

#: A piece of a line, and the name of the style it is drawn in; "" = as the row.
Span = tuple[str, str]

_SPACES = re.compile(r"\s+")


def clean(text: object, limit: int = 400) -> str:
    """``text`` as one line that may reach a terminal; blanks at its ends stay."""
    line = _SPACES.sub(" ", safe(str(text)[: limit * 2]))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def spans_width(spans: Iterable[Span]) -> int:
    """In cells."""
    return sum(cell_len(text) for text, _ in spans)


def fit(spans: Sequence[Span], width: int, align: str = "left") -> list[Span]:
    """``spans`` in exactly ``width`` cells: padded, or cut with ``…`` at the end.

    ``align`` is ``left``, ``right``, or ``middle``: which keeps both ends when it must cut, as the
    ends of file names tell them apart.
    """
    if width <= 0:
        return []
    room = width - spans_width(spans)
    if room >= 0:
        pad = (" " * room, "")
        return [pad, *spans] if align == "right" else [*spans, pad]
    if align == "middle" and len(spans) == 1 and width > 8:
        text, style = spans[0]
        tail = _tail(text, (width - 1) // 2)
        head = set_cell_size(text, width - 1 - cell_len(tail))
        return [(f"{head}…{tail}", style)]
    out: list[Span] = []
    left = width - 1
    for text, style in spans:
        n = cell_len(text)
        if n > left:
            kept = chop_cells(text, left)[0] if left else ""
            return [*out, (kept + "…", style), (" " * (left - cell_len(kept)), "")]
        out.append((text, style))
        left -= n
    return out


def shared(room: int, needs: Sequence[int], widths: Sequence[int], least: int) -> list[int]:
    """How ``room`` cells are shared by columns that need so many each; the ``widths`` of one are
    fixed if positive, elastic if negative, and what is left for 0: ``least`` at least, if it needs
    that, at the cost of the widest elastic one, which keeps ten cells."""
    sizes = list(needs)
    rest = room - sum(n for n, w in zip(needs, widths, strict=True) if w)
    for i, width in enumerate(widths):
        if width:
            continue
        widest = max((j for j, w in enumerate(widths) if w < 0), key=lambda j: sizes[j], default=-1)
        short = min(needs[i], least) - rest
        if widest >= 0 and short > 0:
            given = min(short, max(sizes[widest] - 10, 0))
            sizes[widest] -= given
            rest += given
        sizes[i] = max(4, rest)
    return sizes


def _tail(text: str, width: int) -> str:
    """The end of ``text``, ``width`` cells at most."""
    used, at = 0, len(text)
    while at and used + cell_len(text[at - 1]) <= width:
        at -= 1
        used += cell_len(text[at])
    return text[at:]


def found(text: str, words: Sequence[str]) -> bool:
    """Whether each of ``words``, in lower case, stands in ``text``."""
    lower = text.lower()
    return all(w in lower for w in words)


def matches(text: str, words: Sequence[str]) -> list[tuple[int, int]]:
    """Where ``words``, in lower case, stand in ``text``: (from, to), in order, not overlapping."""
    lower = text.lower()
    if len(lower) != len(text):  # a letter whose lower case is longer, e.g. İ: positions differ
        lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    hits: list[tuple[int, int]] = []
    for word in filter(None, words):
        at = lower.find(word)
        while at >= 0:
            hits.append((at, at + len(word)))
            at = lower.find(word, at + len(word))
    out: list[tuple[int, int]] = []
    for start, end in sorted(hits):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((start, end))
    return out


def mark(text: str, words: Sequence[str], style: str = "", matched: str = "match") -> list[Span]:
    """``text`` as spans in ``style``, with ``words`` in the style ``matched``."""
    out: list[Span] = []
    at = 0
    for start, end in matches(text, words):
        out += [(text[at:start], style), (text[start:end], matched)]
        at = end
    out.append((text[at:], style))
    return [s for s in out if s[0]]


def size(n: int | None) -> str:
    """Bytes as people say them: ``270 MB``, ``4.7 GB``; nothing for None."""
    return "" if n is None else size_text(n, 2)


def rate(seconds: float | None) -> str:
    """A time to come: ``8 s``, ``3 min``, ``2 h``."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{round(seconds / 60)} min"
    return f"{round(seconds / 3600)} h"


def ago(then: float, now: float) -> str:
    """A date as short as it stays clear, in local time: ``14:05``, ``yesterday``, ``Tue``,
    ``24 Nov``, ``24 Nov 2024``. Seconds since the epoch."""
    try:
        a, b = datetime.datetime.fromtimestamp(then), datetime.datetime.fromtimestamp(now)
    except (OverflowError, OSError, ValueError):
        return ""
    days = (b.date() - a.date()).days
    if days <= 0:
        return a.strftime("%H:%M") if days == 0 else a.strftime("%d %b %Y").lstrip("0")
    if days == 1:
        return "yesterday"
    if days < 7:
        return a.strftime("%a")
    return a.strftime("%d %b" if days < 300 else "%d %b %Y").lstrip("0")
