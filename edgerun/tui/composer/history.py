"""What was asked before, back and forth with the arrow keys. No widget."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["History"]


class History:
    """Texts, oldest first, and the place in them; at the end is the draft one came from."""

    def __init__(self, texts: Iterable[str] = (), limit: int = 1000) -> None:
        self._limit = limit
        self._texts: list[str] = list(texts)[-limit:]
        self._at: int | None = None
        self._draft = ""
        self._start = ""

    def load(self, texts: Iterable[str]) -> None:
        """Put what was asked in earlier runs before what was asked in this one."""
        self._texts = [*texts, *self._texts][-self._limit :]

    def add(self, text: str) -> None:
        """The newest; said twice in a row it counts once."""
        self._at = None
        if text.strip() and (not self._texts or self._texts[-1] != text):
            self._texts = [*self._texts, text][-self._limit :]

    @property
    def browsing(self) -> bool:
        return self._at is not None

    def older(self, draft: str) -> str | None:
        """The text before the one that is shown; None at the oldest. Of a draft with text, those
        that begin so, as shells do."""
        if self._at is None:
            self._draft, self._start, at = draft, draft.strip(), len(self._texts)
        else:
            at = self._at
        for i in range(at - 1, -1, -1):
            if self._texts[i].startswith(self._start) and self._texts[i] != draft:
                self._at = i
                return self._texts[i]
        return None

    def newer(self) -> str | None:
        """The text after it, at last the draft itself; None if that is what is shown."""
        if self._at is None:
            return None
        for i in range(self._at + 1, len(self._texts)):
            if self._texts[i].startswith(self._start):
                self._at = i
                return self._texts[i]
        self._at = None
        return self._draft

    def leave(self) -> None:
        """The text was changed: it is a draft of its own now."""
        self._at = None
