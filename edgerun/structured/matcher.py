"""The state of one constrained text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgerun.errors import GenerationError, printable

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["Matcher", "first_line", "panics"]

#: Seconds for one mask; others wait for it meanwhile.
_PATIENCE = 1.0


class Matcher:
    """A :class:`~edgerun.engine.sampling.constraint.TokenConstraint`.

    Args:
        matcher: its own, at the start of the text.
        vocab_size: tokens that llguidance knows of.
        n_vocab: tokens that may be sampled.
        end_ids: end-of-generation tokens, as llguidance knows them.
        can_end: whether one of them may be sampled.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocab_size: int,
        n_vocab: int,
        end_ids: frozenset[int],
        can_end: bool,
    ) -> None:
        self._matcher = matcher
        self._n_words, self._n_vocab = (vocab_size + 31) // 32, n_vocab
        self._words: npt.NDArray[np.uint32] | None = None  # a waiting request needs none
        self._current = False
        self._ends, self._can_end = end_ids, can_end
        self.ended = False

    def mask(self) -> npt.NDArray[np.uint32]:
        if self._words is None:
            self._words = np.zeros(self._n_words, np.uint32)
        if not self._current:
            start = time.perf_counter()
            with panics():
                self._matcher.unsafe_compute_mask_ptr(self._words.ctypes.data, self._words.nbytes)
            self._check()
            if time.perf_counter() - start > _PATIENCE:
                raise GenerationError(
                    "the constraint is too complex here: one token took over a second"
                )
            self._current = True
        return self._words

    def accept(self, token_id: int) -> None:
        self._current = False
        with panics():
            self._matcher.consume_token(token_id)
        self._check()
        # Where no end token can be sampled, the text ends once nothing else can come.
        self.ended = self._matcher.is_stopped() or (not self._can_end and self._only_end())

    def _only_end(self) -> bool:
        if not self._matcher.is_accepting():
            return False
        bits = np.unpackbits(self.mask().view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist()) <= self._ends

    def forced(self, most: int) -> Sequence[int]:
        if self.ended:
            return ()
        with panics():
            found = self._matcher.compute_ff_tokens()[:most]
        return found if all(i < self._n_vocab for i in found) else ()

    def fits(self, token_ids: Sequence[int]) -> int:
        if self.ended:
            return 0
        with panics():
            return self._matcher.validate_tokens(list(token_ids))

    def _check(self) -> None:
        if self._matcher.is_error():
            why = first_line(self._matcher.get_error())
            raise GenerationError(f"the constraint cannot be followed any further: {why}")


def first_line(error: str) -> str:
    """What went wrong, of llguidance's several lines."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    named = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return printable((named or lines or ["unknown"])[0], 160)


@contextmanager
def panics() -> Iterator[None]:
    """A panic in llguidance, which is no Exception, becomes one."""
    try:
        yield
    except Exception:
        raise
    except BaseException as e:
        if type(e).__name__ != "PanicException":
            raise
        raise GenerationError(f"the constraint broke its parser: {first_line(str(e))}") from None
