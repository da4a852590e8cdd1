"""How many drafted tokens a step verifies, for all its rows together. Pure policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import NamedTuple

from edgerun.engine.draft_source import Draft

__all__ = ["MARGIN", "Share", "share"]

#: Tokens that drafts must promise beyond those of the time they take, or there are none: what a
#: step costs is not known better. ``kernels_cpu/src/draft.cpp`` has it, too.
MARGIN = 0.03


class Share(NamedTuple):
    """How many tokens of a row's draft to verify, and its part of the step's extra cost."""

    length: int
    charge: float


def share(drafts: Sequence[Draft], n_base: int, cost: Callable[[int], float]) -> list[Share]:
    """The lengths with the most expected tokens a second; all 0 if those are hardly more than
    without drafts.

    Tokens are taken in order of their chance to be reached and right, whatever row they are of:
    for any total no other choice expects more. Each is charged to its row, and a row at the end
    of its allowance drafts no further; certain tokens are free to it.

    Args:
        drafts: of every row that generates, at least one row; empty if nothing was drafted.
        n_base: tokens the step computes without drafts: the rows' own and those of prefills,
            which are neither helped nor counted.
        cost: step time by width; see :class:`~edgerun.engine.drafting.costs.StepCosts`.
    """
    if len(drafts) == 1:
        return [_alone(drafts[0], n_base, cost)]
    queue = _queue(drafts)
    plain, here = cost(len(drafts)), cost(n_base)
    unit = plain / len(drafts)
    spent, expected, best, n_best = plain, float(len(drafts)), (len(drafts) + MARGIN) / plain, 0
    charges = [0.0] * len(drafts)
    allowances = [inf if d.account is None else d.account.allowance for d in drafts]
    stopped = [False] * len(drafts)
    taken: list[tuple[int, float]] = []
    for left, (minus, i) in zip(range(len(queue), 0, -1), queue, strict=True):
        if expected - left * minus <= best * spent:
            break  # not even if all the rest were as likely as this one
        if stopped[i]:
            continue
        there = cost(n_base + len(taken) + 1)
        extra = (there - here) / unit
        if minus > -1.0 and charges[i] + extra > allowances[i]:
            stopped[i] = True
            continue
        charges[i] += extra
        taken.append((i, extra))
        spent, expected, here = spent + there - here, expected - minus, there
        if expected > best * spent:
            best, n_best = expected / spent, len(taken)
    lengths, charges = [0] * len(drafts), [0.0] * len(drafts)
    for i, extra in taken[:n_best]:
        lengths[i] += 1
        charges[i] += extra
    return [Share(n, c) for n, c in zip(lengths, charges, strict=True)]


def _queue(drafts: Sequence[Draft]) -> list[tuple[float, int]]:
    """Every drafted token's chance, negated, that it and all before it are right, and its row;
    the likeliest first."""
    queue = []
    for i, d in enumerate(drafts):
        path = -1.0
        for p in d.probs:
            path *= p
            queue.append((path, i))
    queue.sort()
    return queue


def _alone(draft: Draft, n_base: int, cost: Callable[[int], float]) -> Share:
    """:func:`share` for one row, in a quarter of the time."""
    allowance = inf if draft.account is None else draft.account.allowance
    here, unit = cost(n_base), cost(1)
    path = expected = spent = 1.0
    best = 1.0 + MARGIN
    length, charge, left = 0, 0.0, len(draft.probs)
    for k, p in enumerate(draft.probs, 1):
        path *= p
        if expected + left * path <= best * spent:
            break
        left -= 1
        extra = (cost(n_base + k) - here) / unit
        if extra > allowance and path < 1.0:
            break
        expected += path
        spent = 1.0 + extra
        if expected > best * spent:
            best, length, charge = expected / spent, k, extra
    return Share(length, charge)
