"""Who computes how many tokens in the next step. Pure policy over plain ints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Demand", "Limits", "Plan", "plan"]


@dataclass(frozen=True)
class Limits:
    """Bounds of one step.

    Attributes:
        max_rows: sequences in one batch.
        budget: tokens in one step while nothing is being generated.
        busy_budget: the same while some row is, so that its next token is never far away.
    """

    max_rows: int = 16
    budget: int = 512
    busy_budget: int = 128


@dataclass(frozen=True)
class Demand:
    """One sequence, oldest first in the list given to :func:`plan`.

    Attributes:
        pending: tokens not yet in the cache; 1 = generating, more = prefill.
        n_past: tokens in the cache.
        n_pages: pages held.
    """

    pending: int
    n_past: int
    n_pages: int


@dataclass(frozen=True)
class Plan:
    """``take[i]`` tokens of demand i this step; ``preempt`` give up their pages first."""

    take: tuple[int, ...]
    preempt: tuple[int, ...]


def plan(demands: Sequence[Demand], limits: Limits, n_free: int, page_size: int) -> Plan:
    """Generating rows first, then prefills in order of arrival with what is left of the budget.

    When pages run out, the youngest sequence that holds some gives them up and starts over later;
    the oldest one always goes on, so every request ends as long as the pool holds one full context.
    """
    take = [0] * len(demands)
    held = [d.n_pages for d in demands]
    preempted: list[int] = []
    busy = any(d.pending == 1 and d.n_past for d in demands)
    budget = limits.busy_budget if busy else limits.budget
    rows = 0
    order = sorted(range(len(demands)), key=lambda i: (demands[i].pending > 1, i))
    for i in order:
        if rows == limits.max_rows or budget == 0:
            break
        if i in preempted:
            continue
        d = demands[i]
        n = min(d.pending, budget)
        need = -(-(d.n_past + n) // page_size) - held[i]
        while need > n_free and (victim := _youngest(held, take, i)) is not None:
            n_free += held[victim]
            held[victim] = 0
            budget += take[victim]
            rows -= take[victim] > 0
            take[victim] = 0
            preempted.append(victim)
        if need > n_free:  # prefill as far as the free pages reach
            n = min(n, (n_free + held[i]) * page_size - d.n_past)
            need = n_free
            if n <= 0:
                continue
        n_free -= max(0, need)
        held[i] += max(0, need)
        take[i] = n
        budget -= n
        rows += 1
    return Plan(tuple(take), tuple(preempted))


def _youngest(held: Sequence[int], take: Sequence[int], i: int) -> int | None:
    """The last arrived sequence after ``i`` with pages to give."""
    return next((j for j in range(len(held) - 1, i, -1) if held[j]), None)
