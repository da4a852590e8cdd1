"""Tokens that must come next, as free drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgerun.engine.draft_source import Draft
from edgerun.engine.sampling.constraint import TokenConstraint

__all__ = ["ForcedDrafter", "Guesser"]


class Guesser(Protocol):
    """A source that can be asked for what follows tokens not committed yet."""

    name: str
    quick: bool

    def extend(self, ids: Sequence[int]) -> None: ...

    def draft(self, most: int, after: Sequence[int] = ()) -> Draft: ...


class ForcedDrafter:
    """Drafts what a constraint leaves no choice about, and guesses behind it what it allows.

    Args:
        constraint: of the same text.
        then: drafts behind what is forced, and alone where nothing is.
    """

    name = "forced"
    quick = False

    def __init__(self, constraint: TokenConstraint, then: Guesser | None = None) -> None:
        self._constraint = constraint
        self._then = then

    def extend(self, ids: Sequence[int]) -> None:
        """Take committed tokens, in order, the prompt first."""
        if self._then is not None:
            self._then.extend(ids)

    def draft(self, most: int) -> Draft:
        """At most ``most`` tokens."""
        forced = tuple(self._constraint.forced(most))[:most]
        guess = Draft()
        if self._then is not None and len(forced) < most:
            guess = self._then.draft(most - len(forced), forced)
        if not guess.tokens:
            return Draft(forced, (1.0,) * len(forced), ((self.name, len(forced)),))
        tokens = forced + guess.tokens
        n = max(len(forced), self._constraint.fits(tokens))
        assert self._then is not None
        origins = guess.origins or ((self._then.name, len(guess.tokens)),)
        return Draft(
            tokens[:n],
            ((1.0,) * len(forced) + guess.probs)[:n],
            ((self.name, len(forced)), *origins),
        )
