"""What a step costs by how many tokens it computes, learned from the steps themselves."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

__all__ = ["StepCosts"]

#: Widths a deviation from the prior is kept for; others lie between two of them.
_KNOTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WIDEST = _KNOTS[-1]

#: A small model with its weights in the caches, the dearest case measured: drafts must be good
#: until the real costs are known.
_PRIOR = {1: 1.0, 2: 1.1, 4: 1.25, 8: 1.6, 16: 2.6, 32: 4.6, 64: 8.6}

_RATE = 0.05  # a step's weight in the long run
_CLIP = 0.15  # most that it may say, in units of log time: others use the machine too
_FRESH = 0.01  # the table is made anew when an entry has moved so far


class StepCosts:
    """Step time by width, the number of tokens in the step, in units of a step of one token.

    Only the shape matters for choosing widths. So every step's time is split into a level, the
    median of the last steps, which follows the context's growth and a busy machine at once, and
    the width's part, which moves slowly and never far on one step's word. Costs never fall with
    width. Text never depends on any of this.

    Args:
        table: costs by width, rising; in between, and past the end, along straight lines.
        learn: whether :meth:`observe` may move them.
    """

    def __init__(self, table: Mapping[int, float] = _PRIOR, *, learn: bool = True) -> None:
        self._prior = [_along(sorted(table.items()), w) / table[1] for w in _KNOTS]
        self._learn = learn
        self._deviation: dict[int, float] = {0: 0.0}  # log, by knot number
        self._seen = [0] * len(_KNOTS)
        self._levels: deque[float] = deque(maxlen=15)
        self._moved = 0.0
        self._costs: list[float] = []
        if learn:
            self._build()
        else:
            exact = sorted(table.items())
            self._costs = [_along(exact, w) / table[1] for w in range(1, _WIDEST + 1)]

    def __call__(self, width: int) -> float:
        """The cost of a step of ``width`` tokens, at least 1; that of width 1 is 1."""
        costs = self._costs
        if width <= _WIDEST:
            return costs[max(width, 1) - 1]
        return costs[-1] + (width - _WIDEST) * (costs[-1] - costs[-17]) / 16

    def seconds(self, width: int) -> float | None:
        """What a step of ``width`` tokens takes at present; None = nothing was observed yet."""
        return math.exp(median(self._levels)) * self(width) if self._levels else None

    def observe(self, width: int, seconds: float) -> None:
        """A step of ``width`` tokens, all with logits, took so long."""
        if not self._learn or not 1 <= width <= _WIDEST or seconds <= 0.0:
            return
        level = math.log(seconds) - math.log(self(width))
        if len(self._levels) >= 3:
            self._shift(width, level - median(self._levels))
        self._levels.append(level)
        if self._moved > _FRESH:
            self._build()

    def _shift(self, width: int, off: float) -> None:
        """Move what the width's cost hangs on, so that it comes closer to what was seen."""
        right = bisect_right(_KNOTS, width)
        shares = [(right - 1, 1.0)]
        if _KNOTS[right - 1] != width:
            part = (width - _KNOTS[right - 1]) / (_KNOTS[right] - _KNOTS[right - 1])
            shares = [(right - 1, 1.0 - part), (right, part)]
        known = dict(self._deviation)
        for k, share in shares:
            self._seen[k] += 1
            newness = 1.0 / (1 + self._seen[k])
            clip = max(_CLIP, newness)
            by = share * max(-clip, min(clip, off)) * max(_RATE, newness)
            self._deviation[k] = _along(sorted(known.items()), k, flat=True) + by
            self._moved += abs(by)
        if self._deviation[0]:  # width 1 is the unit: the others move instead
            self._deviation = {k: d - self._deviation[0] for k, d in self._deviation.items()}

    def _build(self) -> None:
        known = sorted(self._deviation.items())
        knots = [p * math.exp(_along(known, k, flat=True)) for k, p in enumerate(self._prior)]
        knots = _rising(knots, [1 + s for s in self._seen])
        points = list(zip(_KNOTS, (c / knots[0] for c in knots), strict=True))
        self._costs = [_along(points, w) for w in range(1, _WIDEST + 1)]
        self._moved = 0.0


def _along(points: Sequence[tuple[int, float]], x: int, *, flat: bool = False) -> float:
    """The value at ``x`` on straight lines through ``points``; past the last one on, or flat."""
    if len(points) == 1:
        return points[0][1]
    i = min(max(bisect_right(points, x, key=lambda p: p[0]), 1), len(points) - 1)
    (x0, y0), (x1, y1) = points[i - 1], points[i]
    if flat and x > x1:
        return y1
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def _rising(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The closest sequence that never falls: pool adjacent violators."""
    pools: list[tuple[float, float, int]] = []  # mean, weight, members
    for value, weight in zip(values, weights, strict=True):
        mean, total, members = value, float(weight), 1
        while pools and pools[-1][0] > mean:
            m, w, n = pools.pop()
            mean, total, members = (mean * total + m * w) / (total + w), total + w, members + n
        pools.append((mean, total, members))
    return [mean for mean, _, members in pools for _ in range(members)]
