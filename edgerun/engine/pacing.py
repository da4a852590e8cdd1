"""How many tokens a step takes, from what steps have cost: running texts go on evenly."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from edgerun.engine.budget import Pace, StepCost
from edgerun.engine.scheduler import Demand, Limits

__all__ = ["Pacer"]


class Pacer:
    """Learns from an engine's steps and bounds the next ones by it.

    Args:
        limits: the engine's.
        width: see :meth:`edgerun.backends.base.Program.width`.
    """

    def __init__(self, limits: Limits, width: Callable[[int], int]) -> None:
        self.cost = StepCost()
        self._pace = Pace()
        self._limits = limits
        self._width = width

    def learn(self, n_tokens: int, prompts: int, seconds: float) -> None:
        """A step of ``n_tokens`` tokens, ``prompts`` of them of prompts, took so long."""
        rest = self.cost.seconds(n_tokens - prompts) if 0 < prompts < n_tokens else None
        if rest is not None:
            self._pace.add(prompts, seconds - rest)
        self.cost.add(n_tokens, seconds)

    def budget(self, demands: Sequence[Demand], embedding: bool) -> int:
        """Tokens of the next step. ``embedding``: texts wait for their turn behind it."""
        limits = self._limits
        generating = sum([d.generating for d in demands])
        if not 0 < generating < len(demands):  # nobody's gap, or no prompt that could stretch it
            return limits.budget
        generating = min(generating, limits.max_rows)
        within = None if limits.gap is None else self._within(limits.gap, generating, embedding)
        if within is None:
            within = limits.busy_budget
        least = generating + limits.least_budget
        return min(limits.budget, max(self._width(within), least))

    def spare(self, generating: int, n_sequences: int) -> int:
        """Tokens that may be computed between two steps: as many as take what those leave."""
        limits = self._limits
        if not n_sequences or limits.gap is None:
            return limits.budget
        room = self._room(limits.gap, min(generating, limits.max_rows))
        within = None
        if room is not None:
            shared = generating < n_sequences  # by prompts, in the next step
            within = self.cost.within(room / 2 if shared else room)
        within = limits.busy_budget if within is None else within
        return min(limits.budget, max(within, limits.least_budget))

    def pages(self, demands: Sequence[Demand], seconds: float) -> int:
        """Pages that may come back from host memory in the next step, of ``seconds`` each: where
        rows generate, as many as take half of what the gap leaves."""
        generating = min(sum([d.generating for d in demands]), self._limits.max_rows)
        gap = self._limits.gap
        room = self._room(gap, generating) if gap is not None and generating else None
        return sys.maxsize if room is None else max(1, int(room / 2 / max(seconds, 1e-9)))

    def _room(self, gap: float, generating: int) -> float | None:
        """Seconds that may come between one token of the generating rows and the next, besides
        what these take alone; None if that is unknown. Half as long as they take in any case: on a
        slow machine they alone may be longer than the gap, and others must get in."""
        alone = self.cost.seconds(generating) if generating else 0.0
        return None if alone is None else max(gap - alone, alone / 2)

    def _within(self, gap: float, generating: int, embedding: bool) -> int | None:
        """Tokens of a step, those of generating rows among them, so that prompts take what the gap
        leaves; half of that if embeddings wait for their turn behind it."""
        alone, room = self.cost.seconds(generating), self._room(gap, generating)
        if alone is None or room is None:
            return None
        if embedding:
            room /= 2
        more = self._pace.within(room)
        return self.cost.within(alone + room) if more is None else generating + more
