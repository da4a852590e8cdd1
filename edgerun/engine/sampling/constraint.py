"""What constrains a text looks like to the sampler: a mask over the vocabulary, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Bits", "TokenConstraint", "unpack"]

Bits = npt.NDArray[np.bool_]


class TokenConstraint(Protocol):
    """The state of one constrained text. It moves in :meth:`accept` alone, so drafts that are
    rejected leave no trace. The engine calls it on its own thread.

    What any method raises ends this request and no other.
    """

    @property
    def ended(self) -> bool:
        """Whether the text is complete and nothing may follow, not even an end token."""
        ...

    def mask(self) -> npt.NDArray[np.uint32]:
        """The tokens that may come next: bit ``i % 32`` of word ``i // 32`` for token i.

        End-of-generation tokens are among them where the text may end. Valid until the next call.
        """
        ...

    def accept(self, token_id: int) -> None:
        """Go on behind a token that the mask allowed."""
        ...

    def forced(self, most: int) -> Sequence[int]:
        """The next tokens, at most ``most``, that are the only ones possible; seldom all such."""
        ...

    def fits(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first, may come next."""
        ...


def unpack(words: npt.NDArray[np.uint32], n: int) -> Bits:
    """The first ``n`` bits of a mask, bool [n]."""
    packed = words.view(np.uint8)  # little-endian machines only, as all of edgerun
    return np.unpackbits(packed, count=n, bitorder="little").view(np.bool_)
