"""What a source of draft tokens looks like to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

__all__ = ["Account", "Draft", "Drafter", "Widths", "whole_drafts"]

_START = 0.5  # steps that may be lost before anything is gained
_SLACK = 0.01  # and for each token since
_BANK = 4.0  # steps of past gain that may be lost again


@dataclass(slots=True)
class Account:
    """What drafts have gained one sequence, in steps of one token.

    It bounds what wrong ones can cost: all in all no more than half a step, a hundredth of the
    tokens emitted and, of what was gained before, four steps.

    Attributes:
        emitted: tokens so far.
        bank: gain less losses.
        charge: what the step under way costs more than one without this sequence's draft.
    """

    emitted: int = 0
    bank: float = 0.0
    charge: float = 0.0

    @property
    def allowance(self) -> float:
        """What the next step may be charged."""
        return _START + _SLACK * self.emitted + self.bank

    def settle(self, emitted: int) -> None:
        """The step is over and emitted so many tokens."""
        self.emitted += emitted
        self.bank = min(_BANK, self.bank + emitted - 1 - self.charge)
        self.charge = 0.0


class Draft(NamedTuple):
    """A guess at the next tokens.

    Attributes:
        tokens: the guess, in order; may be empty.
        probs: ``probs[j]`` is the chance that token j is right if those before it are.
        origins: how many of the tokens came from which source, in order, where that is not the
            drafter itself.
        account: where the cost of verifying it is charged, if it is limited.
        priced: it is as long as pays, and may be charged, where its row is the step.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    origins: tuple[tuple[str, int], ...] = ()
    account: Account | None = None
    priced: bool = False


class Drafter(Protocol):
    """Guesses the tokens of one sequence. The engine calls it on its own thread.

    A guess never changes what is generated, only how many steps it takes.
    """

    #: The kind of source, for metrics.
    name: str
    #: Whether a draft is a look-up, which keeps no device waiting.
    quick: bool

    def extend(self, ids: Sequence[int]) -> None:
        """Take the next tokens of the text: the prompt first, then what was generated."""
        ...

    def draft(self, most: int) -> Draft:
        """Guess at most ``most`` tokens behind the text so far."""
        ...


#: ``widths(drafts, n_base)``: how many tokens of each draft to verify in a step that computes
#: ``n_base`` tokens anyway. Decides for all rows that generate together, since they share the
#: step's cost; those without a guess have an empty one.
Widths: TypeAlias = Callable[[Sequence[Draft], int], Sequence[int]]


def whole_drafts(drafts: Sequence[Draft], n_base: int) -> list[int]:
    """A width policy that verifies every draft whole, whatever it costs."""
    return [len(d.tokens) for d in drafts]
