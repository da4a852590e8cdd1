"""Speculation of one engine: its sources, what steps cost, who may risk how much."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edgerun.backends.base import F32, Batch, Program, Rows, Started
from edgerun.engine.draft_source import Account, Draft, Drafter
from edgerun.engine.drafting.costs import StepCosts
from edgerun.engine.drafting.forced import ForcedDrafter, Guesser
from edgerun.engine.drafting.widths import share
from edgerun.engine.sampling.constraint import TokenConstraint

__all__ = ["AccountedDrafter", "Speculation", "TimedProgram"]


#: Steps whose costs are learned together.
_AT_ONCE = 8


class Speculation:
    """Makes drafters for an engine's sequences and shares its steps among them.

    Args:
        source: makes the drafter of a new sequence, given the costs of steps and its account.
        costs: step costs; learned from the steps unless given.
    """

    def __init__(
        self, source: Callable[[StepCosts, Account], Guesser], costs: StepCosts | None = None
    ) -> None:
        self.costs = costs or StepCosts()
        self._source = source

    def drafter(self, constraint: TokenConstraint | None = None) -> Drafter:
        """A drafter for one sequence, whose losses are bounded. What its constraint forces is
        drafted, too."""
        account = Account()
        source = self._source(self.costs, account)
        if constraint is None:
            return AccountedDrafter(source, account)
        return AccountedDrafter(ForcedDrafter(constraint, source), account)

    def timed(self, program: Program) -> Program:
        """``program``, with what its steps cost learned."""
        return TimedProgram(program, self.costs)

    def widths(self, drafts: Sequence[Draft], n_base: int) -> list[int]:
        """How many tokens of each draft to verify; see
        :data:`~edgerun.engine.draft_source.Widths`."""
        if n_base == 1 and len(drafts) == 1 and drafts[0].priced:  # as in most steps
            draft = drafts[0]
            length = len(draft.tokens)
            if draft.account is not None:
                draft.account.charge = self.costs(1 + length) - 1.0
            return [length]
        widest = n_base + sum([len(d.tokens) for d in drafts])
        shares = share(drafts, n_base, self.costs.up_to(widest))
        for d, s in zip(drafts, shares, strict=True):
            if d.account is not None:
                d.account.charge = s.charge
        return [s.length for s in shares]


class AccountedDrafter:
    """A source of drafts with an account of what they gain and lose."""

    def __init__(self, source: Drafter, account: Account) -> None:
        self.name, self.quick = source.name, source.quick
        self._source = source
        self._account = account
        self._begun = False

    def extend(self, ids: Sequence[int]) -> None:
        """Take committed tokens, in order, the prompt first."""
        self._source.extend(ids)
        if self._begun:
            self._account.settle(len(ids))
        self._begun = True

    def draft(self, most: int) -> Draft:
        """At most ``most`` tokens."""
        draft = self._source.draft(most)
        if not draft.tokens:
            return draft
        return Draft(draft.tokens, draft.probs, draft.origins, self._account, draft.priced)


class TimedProgram(Program):
    """A program whose steps teach what they cost by width."""

    def __init__(self, program: Program, costs: StepCosts) -> None:
        self.n_vocab = program.n_vocab
        self.ahead, self.n_top = program.ahead, program.n_top
        self._program = program
        self._costs = costs
        self._ended = 0.0  # the last step that was started
        self._taken: list[tuple[int, float]] = []  # steps to learn from

    def width(self, most: int) -> int:
        return self._program.width(most)

    def run(self, batch: Batch) -> F32:
        start = time.perf_counter()
        logits = self._program.run(batch)
        self.best, self.top = self._program.best, self._program.top
        if batch.n_outputs == batch.n_tokens:  # a part of a prompt has fewer logits
            self._learn(batch.n_tokens, time.perf_counter() - start)
        return logits

    def _learn(self, width: int, seconds: float) -> None:
        """Note what a step took. Several are learned from at once: between two steps nothing of
        this is in the caches, and the first takes longer than the others together."""
        taken = self._taken
        taken.append((width, seconds))
        if len(taken) >= _AT_ONCE:
            for step in taken:
                self._costs.observe(*step)
            taken.clear()

    def start(self, batch: Batch, after: Started | None = None) -> Started:
        behind = after.step if isinstance(after, _TimedStep) else after
        return _TimedStep(self, self._program.start(batch, behind), batch.n_tokens)

    def ended(self, width: int, began: float) -> None:
        """A step that was started ``began`` is over. It took the time since the one before."""
        now = time.perf_counter()
        self._learn(width, now - max(began, self._ended))
        self._ended = now


class _TimedStep(Started):
    def __init__(self, program: TimedProgram, step: Started, width: int) -> None:
        self.step = step
        self._program = program
        self._width = width
        self._began = time.perf_counter()

    def wait(self) -> Rows:
        rows = self.step.wait()
        self.best = self.step.best
        self._program.ended(self._width, self._began)
        return rows
