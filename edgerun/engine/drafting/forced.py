"""Tokens that must come next, as free drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edgerun.engine.draft_source import Draft
from edgerun.engine.drafting.ngram import NgramDrafter

__all__ = ["ForcedDrafter"]


class ForcedDrafter:
    """Drafts what whatever constrains the text leaves no choice about, and guesses behind it.

    Args:
        ask: the next tokens that are certain, at most so many; called before each step.
        then: drafts behind them, and alone where nothing is certain.
    """

    name = "forced"

    def __init__(
        self, ask: Callable[[int], Sequence[int]], then: NgramDrafter | None = None
    ) -> None:
        self._ask = ask
        self._then = then

    def extend(self, ids: Sequence[int]) -> None:
        """Take committed tokens, in order, the prompt first."""
        if self._then is not None:
            self._then.extend(ids)

    def draft(self, most: int) -> Draft:
        """At most ``most`` tokens."""
        forced = tuple(self._ask(most))[:most]
        certain = Draft(forced, (1.0,) * len(forced), ((self.name, len(forced)),))
        if self._then is None:
            return certain
        guess = self._then.draft(most - len(forced), forced)
        return Draft(
            forced + guess.tokens,
            certain.probs + guess.probs,
            (*certain.origins, (self._then.name, len(guess.tokens))),
        )
