"""How many tokens a step may compute so that it takes no longer than it should."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

__all__ = ["Pace", "StepCost", "median"]

_KEPT = 5  # measurements of one width
_FRESH = 1024  # steps after which a width that was not seen again is forgotten


def median(values: Iterable[float]) -> float:
    """The middle of one value or more, or the mean of the two in the middle. The standard
    library's ``statistics`` would bring fractions and decimals into every start."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class StepCost:
    """Learns what a step costs by how many tokens it computes.

    Widths are sorted into classes, a factor of two wide. Each keeps its last few measurements, and
    their median stands for it: one step that the machine was busy with something else does not
    count, and costs that grow with the contexts are followed. Between the medians cost is taken to
    be linear, and never to fall with the width.
    """

    def __init__(self) -> None:
        self._classes: dict[int, deque[tuple[int, float]]] = {}
        self._seen: dict[int, int] = {}
        self._n = 0
        self._points: list[tuple[float, float]] = []

    @property
    def n(self) -> int:
        """Steps measured."""
        return self._n

    def add(self, tokens: int, seconds: float) -> None:
        """Note one step of ``tokens`` >= 1 tokens."""
        key = tokens.bit_length()
        self._n += 1
        if key not in self._classes:
            self._classes[key] = deque(maxlen=_KEPT)
        self._classes[key].append((tokens, seconds))
        self._seen[key] = self._n
        self._points = []

    def seconds(self, tokens: int) -> float | None:
        """What a step of ``tokens`` tokens is expected to take; None before any was seen."""
        curve = self._curve()
        if not curve:
            return None
        (x0, y0), (x1, y1) = next(
            (part for part in pairwise(curve) if tokens <= part[1][0]),
            (curve[-2], curve[-1]),
        )
        return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)

    def within(self, seconds: float) -> int | None:
        """The most tokens that are expected to take at most ``seconds``; None if unknown.

        Widths far beyond any that was measured are not promised: at most twice the widest.
        """
        curve = self._curve()
        if not curve or seconds < curve[0][1]:
            return 0 if curve else None
        most = 2 * curve[-1][0]
        for (x0, y0), (x1, y1) in pairwise(curve):
            if y1 > seconds:
                return int(x0 + (x1 - x0) * (seconds - y0) / (y1 - y0))
        (x0, y0), (x1, y1) = curve[-2:]
        if y1 == y0:
            return int(most)
        return int(min(most, x1 + (x1 - x0) * (seconds - y1) / (y1 - y0)))

    def _curve(self) -> list[tuple[float, float]]:
        """Tokens and seconds, both rising, from no tokens on; two points at least, or none."""
        if self._points or not self._n:
            return self._points
        for key in [k for k, n in self._seen.items() if self._n - n > _FRESH]:
            del self._classes[key], self._seen[key]
        points: list[tuple[float, float]] = []
        for key in sorted(self._classes):
            x = median(t for t, _ in self._classes[key])
            y = median(s for _, s in self._classes[key])
            points.append((x, max(y, points[-1][1]) if points else y))
        (x0, y0), (x1, y1) = points[0], points[min(1, len(points) - 1)]
        # What no tokens would take: where the first two classes point to. One class alone says
        # nothing of it; that more tokens cost in proportion is then the careful guess.
        start = max(0.0, y0 - (y1 - y0) * x0 / (x1 - x0)) if x1 > x0 else 0.0
        self._points = [(0.0, start), *points]
        return self._points


class Pace:
    """What a token of a prompt costs in steps that generate as well, by the last two such steps.

    A prompt's tokens get dearer the longer it is, and those of the next are cheap again: both would
    be averaged away in :class:`StepCost`. The dearer of the two counts, so that a machine that
    is busy now and then does not stretch every other step.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[int, float]] = deque(maxlen=2)

    def add(self, tokens: int, seconds: float) -> None:
        """Note that ``tokens`` >= 1 tokens of prompts made a step so much longer."""
        self._last.append((tokens, max(seconds, 0.0) / tokens))

    def within(self, seconds: float) -> int | None:
        """How many are expected to take ``seconds``, at most twice as many as lately; None before
        any were seen."""
        if not self._last:
            return None
        most = 2 * max([n for n, _ in self._last])
        each = max([e for _, e in self._last])
        return min(most, int(seconds / each)) if each * most > seconds else most
