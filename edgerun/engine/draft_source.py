"""What a source of draft tokens looks like to the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

__all__ = ["Draft", "Drafter", "Widths", "whole_drafts"]


class Draft(NamedTuple):
    """A guess at the next tokens.

    Attributes:
        tokens: the guess, in order; may be empty.
        probs: ``probs[j]`` is the chance that token j is right if those before it are.
        origins: how many of the tokens came from which source, in order, where more than one
            drafted.
    """

    tokens: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    origins: tuple[tuple[str, int], ...] = ()


class Drafter(Protocol):
    """Guesses the tokens of one sequence. The engine calls it on its own thread.

    A guess never changes what is generated, only how many steps it takes.
    """

    #: The kind of source, for metrics.
    name: str

    def extend(self, ids: Sequence[int]) -> None:
        """Take the next tokens of the text: the prompt first, then what was generated."""
        ...

    def draft(self, most: int) -> Draft:
        """Guess at most ``most`` tokens behind the text so far."""
        ...


#: ``widths(drafts, n_base)``: how many tokens of each draft to verify in a step that computes
#: ``n_base`` tokens anyway. Decides for all rows together, since they share the step's cost.
Widths: TypeAlias = Callable[[Sequence[Draft], int], Sequence[int]]


def whole_drafts(drafts: Sequence[Draft], n_base: int) -> list[int]:
    """A width policy that verifies every draft whole, whatever it costs."""
    return [len(d.tokens) for d in drafts]
