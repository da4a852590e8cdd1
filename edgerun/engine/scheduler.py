"""Who computes how many tokens in the next step. Pure policy over plain ints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Demand", "Limits", "Plan", "plan"]


@dataclass(frozen=True)
class Limits:
    """Bounds of one step, each at least 1.

    Attributes:
        max_rows: sequences in one batch.
        budget: tokens in one step while nothing is being generated.
        busy_budget: the same while some row is, so that its next token is never far away.
    """

    max_rows: int = 16
    budget: int = 512
    busy_budget: int = 128

    def __post_init__(self) -> None:
        if min(self.max_rows, self.budget, self.busy_budget) < 1:
            raise ValueError(f"limits below 1 would never let a token through: {self}")


@dataclass(frozen=True)
class Demand:
    """One sequence, oldest first in the list given to :func:`plan`.

    Attributes:
        pending: tokens not yet in the cache, at least 1.
        n_past: tokens in the cache.
        n_pages: pages held; at least what ``n_past`` needs.
    """

    pending: int
    n_past: int
    n_pages: int

    @property
    def generating(self) -> bool:
        """Its prompt is in the cache: one more token gives the next one."""
        return self.pending == 1 and self.n_past > 0


@dataclass(frozen=True)
class Plan:
    """``take[i]`` tokens of demand i this step; ``preempt`` give up their pages first."""

    take: tuple[int, ...]
    preempt: tuple[int, ...]


def plan(demands: Sequence[Demand], limits: Limits, n_free: int, page_size: int) -> Plan:
    """The oldest sequence, then generating ones, then prefills in order of arrival.

    The oldest always gets at least one token, and when pages run out the youngest sequence that
    holds some gives them up, to start over later. So every request ends, as long as the pool
    holds one full context. A sequence without pages enters when the free ones hold all its
    pending tokens, and no younger one overtakes it: else it would be thrown out half-way again.
    """
    step = _Step(demands, limits, n_free, page_size)
    generating = [i for i, d in enumerate(demands) if i and d.generating]
    if demands:
        # A prefill leaves the generating rows their token each.
        kept = min(len(generating), limits.max_rows - 1)
        step.give(0, max(1, step.budget - kept))
    for i in generating:
        step.give(i, step.budget)
    for i, d in enumerate(demands):
        if i == 0 or d.generating:
            continue
        if not step.may_enter(i):
            break
        step.give(i, step.budget)
    return Plan(tuple(step.take), tuple(step.preempted))


class _Step:
    """One plan being made: what is given so far, and what is left to give."""

    def __init__(
        self, demands: Sequence[Demand], limits: Limits, n_free: int, page_size: int
    ) -> None:
        self.demands = demands
        self.page_size = page_size
        self.n_free = n_free
        busy = any(d.generating for d in demands)
        self.budget = limits.busy_budget if busy else limits.budget
        self.rows = limits.max_rows
        self.take = [0] * len(demands)
        self.held = [d.n_pages for d in demands]
        self.preempted: list[int] = []

    def may_enter(self, i: int) -> bool:
        """Whether ``i`` has pages, or finds enough for all its tokens."""
        d = self.demands[i]
        if self.preempted and i >= min(self.preempted):
            return False
        return self.held[i] > 0 or -(-d.pending // self.page_size) <= self.n_free

    def give(self, i: int, most: int) -> None:
        """Up to ``most`` tokens to ``i``, as far as rows, budget and pages reach."""
        d = self.demands[i]
        n = min(d.pending, most, self.budget)
        if n < 1 or not self.rows or i in self.preempted:
            return
        need = -(-(d.n_past + n) // self.page_size) - self.held[i]
        while need > self.n_free and (victim := self._youngest(i)) is not None:
            self._preempt(victim)
        if need > self.n_free:
            need = self.n_free
            n = (self.n_free + self.held[i]) * self.page_size - d.n_past
            if n < 1:
                return
        self.n_free -= max(0, need)
        self.held[i] += max(0, need)
        self.take[i] = n
        self.budget -= n
        self.rows -= 1

    def _youngest(self, i: int) -> int | None:
        """The last arrived sequence after ``i`` with pages to give."""
        return next((j for j in range(len(self.held) - 1, i, -1) if self.held[j]), None)

    def _preempt(self, victim: int) -> None:
        self.n_free += self.held[victim]
        self.held[victim] = 0
        self.budget += self.take[victim]
        self.rows += self.take[victim] > 0
        self.take[victim] = 0
        self.preempted.append(victim)
