"""Long pastes: shown as one mark in the draft, whole again when it is sent. No widget."""

from __future__ import annotations

import re

__all__ = ["FOLD_CHARS", "FOLD_LINES", "Folds"]

#: A paste beyond either is folded: more than one would want to scroll through in a few lines.
FOLD_CHARS, FOLD_LINES = 8_000, 100

_MARK = re.compile(r"\[pasted #(\d+): [^\]\n]*\]")


class Folds:
    """The folded texts of a draft, by the number in their mark."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._last = 0

    def fold(self, text: str) -> str:
        """``text`` itself, or the mark that stands for it."""
        lines = text.count("\n") + 1
        if len(text) <= FOLD_CHARS and lines <= FOLD_LINES:
            return text
        self._last += 1
        self._texts[self._last] = text
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return f"[pasted #{self._last}: {size.replace(',', ' ')}]"

    def unfold(self, text: str) -> str:
        """``text`` with what its marks stand for. A mark that somebody typed stays as it is."""
        if not self._texts:
            return text
        return _MARK.sub(lambda m: self._texts.get(int(m[1]), m[0]), text)

    def ending(self, text: str) -> int:
        """How many characters of a mark ``text`` ends with; 0 = none."""
        if not self._texts or not text.endswith("]"):
            return 0
        at = text.rfind("[pasted #")
        m = _MARK.fullmatch(text, at) if at >= 0 else None
        return len(m[0]) if m and int(m[1]) in self._texts else 0

    def clear(self) -> None:
        """Forget all: the draft is gone."""
        self._texts.clear()
