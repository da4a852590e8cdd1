"""What a step costs by how many tokens it computes, learned from the steps themselves."""

from __future__ import annotations

import itertools
import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Mapping, Sequence

__all__ = ["StepCosts"]

#: Widths a deviation from the prior is kept for; others lie between two of them. 12 and 13, since
#: the CPU kernels take a second pass from 13 columns on.
_KNOTS = (1, 2, 3, 4, 6, 8, 12, 13, 16, 24, 32, 48, 64)
_WIDEST = _KNOTS[-1]

#: A small model with its weights in the caches, the dearest case measured: drafts must be good
#: until the real costs are known.
_PRIOR = {1: 1.0, 2: 1.1, 4: 1.25, 8: 1.6, 16: 2.6, 32: 4.6, 64: 8.6}

_RATE = 0.05  # a step's weight in the long run
_CLIP = 0.15  # most that it may say, in units of log time: others use the machine too
_LEVELS = 15  # steps whose median is the level
_FRESH = 0.02  # the table is made anew when an entry has moved so far


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
        exact = _table(sorted(table.items()))
        self._learn = learn
        self._costs = array("d", [c / exact[1] for c in exact])  # by width; 0 of none
        self._prior = [self._costs[w] for w in _KNOTS]
        # By knot: the log of what it costs over what was expected, and how often it was seen.
        self._deviation = [0.0] * len(_KNOTS)
        self._seen = [0] * len(_KNOTS)
        # Of the last steps, and which of them were of one token.
        self._levels: deque[float] = deque(maxlen=_LEVELS)
        self._plain: deque[bool] = deque(maxlen=_LEVELS)
        self._n_plain = 0
        self._built = list(self._deviation)  # as in the table
        self._stale = False

    def __call__(self, width: int) -> float:
        """The cost of a step of ``width`` tokens, at least 1; that of width 1 is 1."""
        costs = self._costs
        if width <= _WIDEST:
            return costs[width]
        return costs[-1] + (width - _WIDEST) * (costs[-1] - costs[-17]) / 16

    def up_to(self, width: int) -> Callable[[int], float]:
        """The costs of widths up to ``width`` until the next step is observed, fast to look up."""
        return self._costs.__getitem__ if width <= _WIDEST else self

    @property
    def table(self) -> array[float]:
        """Costs by width, float64, from 1 on; another array when they have changed."""
        return self._costs

    def seconds(self, width: int) -> float | None:
        """What a step of ``width`` tokens takes at present; None = nothing was observed yet."""
        return self._level() * self(width) if self._levels else None

    def _level(self) -> float:
        return sorted(self._levels)[len(self._levels) // 2]

    def observe(self, width: int, seconds: float) -> None:
        """A step of ``width`` tokens, all with logits, took so long."""
        if not self._learn or not 1 <= width <= _WIDEST or seconds <= 0.0:
            return
        level = seconds / self._costs[width]
        levels, plain = self._levels, self._plain
        # Where such steps make the level, one of one token says nothing of how widths compare.
        if width > 1 or self._n_plain <= _LEVELS // 2:
            if len(levels) >= 3:
                self._shift(width, math.log(level / self._level()))
            if self._stale:
                self._build()
        if len(plain) == _LEVELS:
            self._n_plain -= plain[0]
        levels.append(level)
        plain.append(width == 1)
        self._n_plain += width == 1

    def _shift(self, width: int, off: float) -> None:
        """Move what the width's cost hangs on, so that it comes closer to what was seen."""
        k = bisect_right(_KNOTS, width) - 1
        part = 0.0
        if _KNOTS[k] != width:
            part = (width - _KNOTS[k]) / (_KNOTS[k + 1] - _KNOTS[k])
            self._move(k + 1, part, off)
        self._move(k, 1.0 - part, off)

    def _move(self, k: int, share: float, off: float) -> None:
        newness = 1.0 / (2 + self._seen[k])
        clip = max(_CLIP, newness)
        by = share * max(-clip, min(clip, off)) * max(_RATE, newness)
        self._seen[k] += 1
        self._deviation[k] += by
        self._stale = self._stale or abs(self._deviation[k] - self._built[k]) > _FRESH

    def _build(self) -> None:
        unit = self._deviation[0]  # width 1 is the unit: where it moved, the others moved instead
        known = [(k, d - unit) for k, d in enumerate(self._deviation) if self._seen[k] or not k]
        self._deviation[0] = 0.0
        for (k0, d0), (k1, d1) in zip(known, known[1:] or known, strict=False):
            for k in range(k0, k1):
                self._deviation[k] = d0 + (d1 - d0) * (k - k0) / (k1 - k0)
        last, deviation = known[-1]
        self._deviation[last:] = [deviation] * (len(_KNOTS) - last)
        knots = [p * math.exp(d) for p, d in zip(self._prior, self._deviation, strict=True)]
        knots = _rising(knots, [1 + s for s in self._seen])
        self._costs = array(
            "d", _table([(w, c / knots[0]) for w, c in zip(_KNOTS, knots, strict=True)])
        )
        self._built = list(self._deviation)
        self._stale = False


def _table(points: Sequence[tuple[int, float]]) -> list[float]:
    """Values by width up to the widest, on straight lines through ``points`` and past the last;
    0 at width 0."""
    out = [0.0]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        slope = (y1 - y0) / (x1 - x0)
        out += [y0 + slope * i for i in range(x1 - x0)]
    (x0, y0), (x1, y1) = points[-2:]
    slope = (y1 - y0) / (x1 - x0)
    out += [y1 + slope * i for i in range(_WIDEST + 1 - len(out))]
    return out[: _WIDEST + 1]


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
