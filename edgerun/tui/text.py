"""What may reach a terminal. Whatever a model, a file, a path, a server or a title says goes
through :func:`clean` or :func:`one_line` before it is shown, and is never read as markup."""

from __future__ import annotations

import re

from rich.cells import cell_len, split_graphemes

__all__ = ["Cleaner", "clean", "fit", "graphemes", "one_line", "width"]

#: Controls (C0, DEL, C1), line and paragraph separators, bidirectional embeddings, overrides and
#: isolates, deprecated format characters, annotations, lone surrogates, noncharacters.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
#: Drawn by no terminal, or differently by each: soft hyphens, the byte order mark, tags (text
#: that only a model would read).
_INVISIBLE = re.compile("[\u00ad\ufeff\U000e0000-\U000e007f]")
_LINE_END = re.compile("\r\n?")
_FLAG = re.compile("[\U0001f1e6-\U0001f1ff]")
_BLANKS = re.compile(r"\s+")


def clean(text: str) -> str:
    """``text`` with U+FFFD for whatever could move the cursor, set the clipboard or reorder a
    line; only line feeds and tabs stay. Joiners, variation selectors, combining marks and the
    direction marks of right-to-left text are kept: they belong to the characters beside them."""
    if text.isascii() and text.isprintable():
        return text
    if "\r" in text:
        text = _LINE_END.sub("\n", text)
    text = _UNSAFE.sub("\N{REPLACEMENT CHARACTER}", text)
    return text if text.isascii() else _INVISIBLE.sub("", text)


def one_line(text: str) -> str:
    """Like :func:`clean`, with each run of white space as one blank: for titles, names, paths."""
    return _BLANKS.sub(" ", clean(text)).strip()


class Cleaner:
    """:func:`clean` for text in pieces: the result does not depend on where they are cut."""

    def __init__(self) -> None:
        self._held = ""

    def push(self, text: str) -> str:
        """What is certain of the text so far and has not been returned yet."""
        text = self._held + text
        # The line feed of a pair may come with the next piece.
        self._held = "\r" if text.endswith("\r") else ""
        return clean(text[:-1] if self._held else text)

    def flush(self) -> str:
        """The end: a line end that was held back."""
        held, self._held = self._held, ""
        return clean(held)


def width(text: str) -> int:
    """Cells of ``text`` on the screen, as Textual counts them."""
    return cell_len(text)


def graphemes(text: str) -> list[tuple[int, int, int]]:
    """``(start, end, cells)`` of what the terminal draws as one; they cover ``text``."""
    spans, _ = split_graphemes(text)
    if _FLAG.search(text) is None:
        return spans
    out: list[tuple[int, int, int]] = []
    half = False  # whether the last span is the first half of a flag
    for start, end, size in spans:
        flag = _FLAG.match(text, start) is not None
        if flag and half:
            out[-1] = (out[-1][0], end, out[-1][2] + size)
            half = False
        else:
            out.append((start, end, size))
            half = flag
    return out


def fit(text: str, cells: int) -> str:
    """``text`` in at most ``cells`` cells, with an ellipsis where something was cut off."""
    if cell_len(text) <= cells:
        return text
    if cells <= 0:
        return ""
    used, end = 0, 0
    for _, stop, size in graphemes(text):
        if used + size > cells - 1:
            break
        used, end = used + size, stop
    return text[:end].rstrip() + "…"
