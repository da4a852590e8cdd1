"""Finds the special tokens in a text, and only where they may be."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

__all__ = ["SpecialSplitter"]

_SPACE = " \t\n\r\v\f"


class SpecialSplitter:
    """Cuts a text at special tokens: leftmost first, at one place the longest.

    Time is linear in the text. The candidates come from one regular expression over the first two
    characters of every token, so text without markup is scanned at C speed; no nested pattern is
    built, because a hostile vocabulary could nest one past any recursion limit.
    """

    def __init__(
        self,
        plain: Mapping[str, int],
        trusted: Mapping[str, int],
        *,
        lstrip: frozenset[int] = frozenset(),
        rstrip: frozenset[int] = frozenset(),
    ) -> None:
        """``plain`` tokens match anywhere, ``trusted`` ones inside trusted spans only.

        ``lstrip`` and ``rstrip`` ids, in trusted spans, swallow the whitespace before and after.
        """
        self._plain = dict(plain)
        self._ids = {**trusted, **plain}
        self._lstrip, self._rstrip = lstrip, rstrip
        lengths: dict[str, set[int]] = {}
        for t in self._ids:
            lengths.setdefault(t[:2], set()).add(len(t))
        # A one-character token is a candidate too where a longer one begins with it.
        self._lengths = {
            k: sorted(v | lengths.get(k[:1], set()), reverse=True) for k, v in lengths.items()
        }
        self._any = _candidates(self._ids)
        self._any_plain = _candidates(self._plain)

    def split(self, text: str, trusted: Sequence[tuple[int, int]] = ()) -> Iterator[str | int]:
        """Yield stretches of text (never empty) and token ids, in order.

        ``trusted`` are disjoint ascending ``(start, end)`` spans; a token that may only be written
        by a template counts when it lies inside one of them.
        """
        candidates = self._any if trusted else self._any_plain
        if candidates is None:
            if text:
                yield text
            return
        spans = iter((*trusted, (len(text), len(text))))
        lo, hi = next(spans)
        start = pos = 0
        while (m := candidates.search(text, pos)) is not None:
            at = m.start()
            while at >= hi and hi < len(text):
                lo, hi = next(spans)
            limit = hi if lo <= at else at
            found = self._longest(text, at, limit)
            if found is None:
                pos = at + 1
                continue
            token, end = found
            before = text[start:at]
            if token in self._lstrip and end <= limit:
                before = before.rstrip(_SPACE)
            if before:
                yield before
            yield token
            if token in self._rstrip and end <= limit:
                while end < len(text) and text[end] in _SPACE:
                    end += 1
            start = pos = end
        if start < len(text):
            yield text[start:]

    def _longest(self, text: str, at: int, limit: int) -> tuple[int, int] | None:
        two = text[at : at + 2]
        for n in self._lengths.get(two) or self._lengths.get(two[:1]) or ():
            piece = text[at : at + n]
            token, end = self._ids.get(piece), at + len(piece)
            if token is not None and (end <= limit or piece in self._plain):
                return token, end
        return None


def _candidates(ids: Mapping[str, int]) -> re.Pattern[str] | None:
    """A pattern that matches wherever one of ``ids`` could begin; None if there are none."""
    single = {t for t in ids if len(t) == 1}
    after: dict[str, set[str]] = {}
    for t in ids:
        if t and t[0] not in single:
            after.setdefault(t[0], set()).add(t[1])
    parts = [_char_class(single)] if single else []
    parts += [re.escape(c) + _char_class(nexts) for c, nexts in sorted(after.items())]
    return re.compile("|".join(parts)) if parts else None


def _char_class(chars: set[str]) -> str:
    return "[" + "".join(re.escape(c) for c in sorted(chars)) + "]"
