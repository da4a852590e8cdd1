"""Who computes how many tokens in the next step. Pure policy over plain ints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["HEAD_START", "Demand", "Limits", "Plan", "plan", "rank"]

#: Seconds that a request of one priority more counts as having come earlier.
HEAD_START = 30.0


def rank(created: float, priority: int) -> float:
    """Requests go in this order, the smallest first: by arrival, priorities as a head start.

    The order of two requests never changes, so they cannot take turns evicting each other, and
    nobody is overtaken by what comes more than ``HEAD_START`` seconds per priority later.
    """
    return created - HEAD_START * priority


@dataclass(frozen=True)
class Limits:
    """Bounds of one step, each at least 1.

    Attributes:
        max_rows: sequences in one batch.
        budget: tokens in one step while nothing is being generated.
        busy_budget: the same while some row is, so that its next token is never far away, until
            the cost of a step is known.
        least_budget: tokens of prompts among them, however dear a step is.
        gap: the seconds from one token to the next that prompts may stretch a running row's
            steps to; None = ``busy_budget``, whatever it costs.
        max_draft: most draft tokens of a row.
    """

    max_rows: int = 16
    budget: int = 512
    busy_budget: int = 128
    least_budget: int = 4
    gap: float | None = 0.1
    max_draft: int = 32

    def __post_init__(self) -> None:
        if min(self.max_rows, self.budget, self.busy_budget, self.least_budget) < 1:
            raise ValueError(f"limits below 1 would never let a token through: {self}")


class Demand(NamedTuple):
    """One sequence, the foremost first in the list given to :func:`plan`.

    Attributes:
        pending: tokens not yet computed, at least 1.
        n_past: tokens computed, of a sequence that has not entered: those it finds cached.
        n_pages: pages held; at least what ``n_past`` needs. Of a sequence that has not entered:
            those of its cached start that others use already.
        shared: how many of ``n_pages`` others use as well, so that giving them up frees nothing.
        writes_shared: the next token goes into a shared page, which must be copied first.
        entered: it holds its pages.
        patient: it has not waited long yet; others may overtake it where pages are short.
    """

    pending: int
    n_past: int
    n_pages: int
    shared: int = 0
    writes_shared: bool = False
    entered: bool = True
    patient: bool = False

    @property
    def generating(self) -> bool:
        """Its prompt is computed: one more token gives the next one."""
        return self.entered and self.pending == 1 and self.n_past > 0

    def new_pages(self, n: int, page_size: int) -> int:
        """Pages to find for ``n`` more tokens."""
        return -(-(self.n_past + n) // page_size) - self.n_pages + self.writes_shared


class Plan(NamedTuple):
    """``take[i]`` tokens of demand i this step; ``preempt`` give up their pages first."""

    take: tuple[int, ...]
    preempt: tuple[int, ...]


def plan(
    demands: Sequence[Demand], max_rows: int, budget: int, n_free: int, page_size: int
) -> Plan:
    """Share out the next step: ``budget`` tokens, ``max_rows`` rows, ``n_free`` pages.

    - The foremost sequence always goes on. Then each generating row gets its token. Either may
      take the pages of those behind it, the hindmost first, which start over later. So every
      request ends, as long as the pool holds one full context.
    - Prompts share the rest. The first of them gets half, which bounds how long it takes; the other
      half goes to the shortest first, so that no short one waits for a long one. They take pages
      from nobody.
    - A sequence enters when the pages that can be had hold all its pending tokens: else it
      would be thrown out half-way. While one cannot, it holds back those behind it, unless it is
      still ``patient``.
    """
    step = _Step(demands, max_rows, budget, n_free, page_size)
    if not demands:
        return Plan((), ())
    generating = [i for i, d in enumerate(demands) if d.generating]
    prompts = [i for i, d in enumerate(demands) if not d.generating]
    kept = min(sum(i > 0 for i in generating), max_rows - 1)
    share = budget - kept if len(prompts) < 2 else (budget - kept + 1) // 2
    step.give(0, max(1, share), evict=True)
    waits = prompts[0] if prompts and not step.take[prompts[0]] else len(demands)
    for i in generating:
        if step.rows > 1 or i < waits:  # the last row is the prompt's before them
            step.give(i, 1, evict=True)
    allowed = step.allowed(prompts)
    if allowed:
        if allowed[0]:  # else it has its share
            step.give(allowed[0], share)
        for i in sorted(allowed[1:], key=lambda i: demands[i].pending):
            step.give(i, budget)
        step.give(allowed[0], budget)
    for i in generating:
        if not step.take[i]:  # no prompt needed that row
            step.give(i, 1)
    return step.plan()


class _Step:
    """One plan being made: what is given so far, and what is left to give."""

    def __init__(
        self,
        demands: Sequence[Demand],
        max_rows: int,
        budget: int,
        n_free: int,
        page_size: int,
    ) -> None:
        self.demands = demands
        self.page_size = page_size
        self.n_free = n_free
        self.budget = budget
        self.rows = max_rows
        self.take = [0] * len(demands)
        self.got = [0] * len(demands)  # new pages
        self.preempted: list[int] = []

    def allowed(self, prompts: Sequence[int]) -> list[int]:
        """Those of ``prompts`` that have entered or may enter, in order."""
        found = []
        free = self.n_free
        for i in prompts:
            d = self.demands[i]
            if d.entered or self.take[i]:
                if i not in self.preempted:
                    found.append(i)
                continue
            if self.preempted and i >= min(self.preempted):
                break
            need = d.new_pages(d.pending, self.page_size)
            if need <= free:
                free -= need
                found.append(i)
            elif not d.patient:
                break
        return found

    def give(self, i: int, most: int, evict: bool = False) -> None:
        """Up to ``most`` more tokens to ``i``, as far as rows, budget and pages reach."""
        d = self.demands[i]
        old = self.take[i]
        n = min(d.pending - old, most, self.budget)
        if n < 1 or not (self.rows or old) or i in self.preempted:
            return
        need = d.new_pages(old + n, self.page_size) - self.got[i]
        while evict and need > self.n_free and (victim := self._hindmost(i)) is not None:
            self._preempt(victim)
        if need > self.n_free:
            need = self.n_free
            pages = d.n_pages + self.got[i] + need - d.writes_shared
            n = pages * self.page_size - d.n_past - old
            if n < 1:
                return
        need = max(0, need)
        self.n_free -= need
        self.got[i] += need
        self.take[i] += n
        self.budget -= n
        self.rows -= not old

    def plan(self) -> Plan:
        """What was decided. Whoever counted on pages that a victim uses enters a step later."""
        take = [
            0 if self.preempted and d.n_pages and not d.entered else n
            for n, d in zip(self.take, self.demands, strict=True)
        ]
        return Plan(tuple(take), tuple(self.preempted))

    def _hindmost(self, i: int) -> int | None:
        """The last sequence after ``i`` with pages to give."""
        demands = self.demands
        return next(
            (
                j
                for j in range(len(demands) - 1, i, -1)
                if demands[j].entered and demands[j].n_pages and j not in self.preempted
            ),
            None,
        )

    def _preempt(self, victim: int) -> None:
        d = self.demands[victim]
        self.n_free += d.n_pages - d.shared + self.got[victim]
        self.budget += self.take[victim]
        self.rows += self.take[victim] > 0
        self.take[victim] = self.got[victim] = 0
        self.preempted.append(victim)
