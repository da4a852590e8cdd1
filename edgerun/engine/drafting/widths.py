"""How many drafted tokens a step verifies, for all its rows together. Pure policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Account", "Row", "Share", "share"]

_START = 0.5  # steps that may be lost before anything is gained
_SLACK = 0.02  # and for each token since
_BANK = 4.0  # steps of past gain that may be lost again


@dataclass
class Account:
    """What speculation has gained one sequence, in steps of one token.

    It bounds what wrong drafts can cost: all in all no more than half a step, a fiftieth of the
    tokens emitted and, of what was gained before, four steps.
    """

    emitted: int = 0
    bank: float = 0.0

    @property
    def allowance(self) -> float:
        """Extra cost that the next step may risk."""
        return _START + _SLACK * self.emitted + self.bank

    def settle(self, emitted: int, charge: float) -> None:
        """A step emitted so many tokens and cost ``charge`` more than one without drafts."""
        self.emitted += emitted
        self.bank = min(_BANK, self.bank + emitted - 1 - charge)


class Row(NamedTuple):
    """One generating row. ``probs`` as in :class:`~edgerun.engine.draft_source.Draft`; empty if
    nothing was drafted."""

    probs: Sequence[float]
    allowance: float


class Share(NamedTuple):
    """How many tokens of a row's draft to verify, and its part of the step's extra cost."""

    length: int
    charge: float


def share(rows: Sequence[Row], n_base: int, cost: Callable[[int], float]) -> list[Share]:
    """The lengths with the most expected tokens a second.

    Tokens are taken in order of their chance to be reached and right, whatever row they are of:
    for any total no other choice expects more. Each is charged to its row, and a row at the end
    of its allowance drafts no further; certain tokens are free to it.

    Args:
        rows: every row that generates, at least one.
        n_base: tokens the step computes without drafts: the rows' own and those of prefills,
            which are neither helped nor counted.
        cost: step time by width; see :class:`~edgerun.engine.drafting.costs.StepCosts`.
    """
    queue = _queue(rows)
    plain, here = cost(len(rows)), cost(n_base)
    unit = plain / len(rows)
    spent, expected, best, n_best = plain, float(len(rows)), len(rows) / plain, 0
    charges = [0.0] * len(rows)
    stopped = [False] * len(rows)
    taken: list[tuple[int, float]] = []
    for left, (minus, i) in zip(range(len(queue), 0, -1), queue, strict=True):
        if expected - left * minus <= best * spent:
            break  # not even if all the rest were as likely as this one
        if stopped[i]:
            continue
        there = cost(n_base + len(taken) + 1)
        extra = (there - here) / unit
        if minus > -1.0 and charges[i] + extra > rows[i].allowance:
            stopped[i] = True
            continue
        charges[i] += extra
        taken.append((i, extra))
        spent, expected, here = spent + there - here, expected - minus, there
        if expected > best * spent:
            best, n_best = expected / spent, len(taken)
    lengths, charges = [0] * len(rows), [0.0] * len(rows)
    for i, extra in taken[:n_best]:
        lengths[i] += 1
        charges[i] += extra
    return [Share(n, c) for n, c in zip(lengths, charges, strict=True)]


def _queue(rows: Sequence[Row]) -> list[tuple[float, int]]:
    """Every drafted token's chance, negated, that it and all before it are right, and its row;
    the likeliest first."""
    queue = []
    for i, row in enumerate(rows):
        path = -1.0
        for p in row.probs:
            path *= p
            queue.append((path, i))
    if len(rows) > 1:
        queue.sort()
    return queue
