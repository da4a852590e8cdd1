"""How large a regular expression becomes once its repetitions are written out."""

from __future__ import annotations

import re

__all__ = ["MAX_PATTERN", "check_pattern"]

#: Positions; beyond it a single step could take a second.
MAX_PATTERN = 20_000

_COUNT = re.compile(r"\{(\d+)(?:,(\d*))?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\]", re.DOTALL)


def check_pattern(pattern: str) -> str | None:
    """Why a regular expression cannot be used, or None."""
    if len(pattern) > MAX_PATTERN or _size(pattern) > MAX_PATTERN:
        return f"repeats too much: more than {MAX_PATTERN} positions"
    return None


def _size(pattern: str) -> int:
    """Positions of the expression, an upper bound; repetitions without end count once."""
    sums, last, at = [0], 0, 0
    while at < len(pattern):
        c = pattern[at]
        if c == "(":
            sums.append(0)
            last = 0
        elif c == ")" and len(sums) > 1:
            last = sums.pop()
            sums[-1] += last
        elif found := _COUNT.match(pattern, at):
            low, high = found[1], found[2]
            times = int((high or low)[:9])
            sums[-1] += last * max(0, times - 1)
            last *= max(1, times)
            at = found.end()
            continue
        else:
            found = _CLASS.match(pattern, at) if c == "[" else None
            at += len(found[0]) - 1 if found else 1 if c == "\\" else 0
            last = 1
            sums[-1] += 1
        if sums[-1] > MAX_PATTERN:
            return sums[-1]
        at += 1
    return sum(sums)
