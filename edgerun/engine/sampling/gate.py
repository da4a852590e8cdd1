"""Reasoning before an answer: bounded, and free of the answer's constraint."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from edgerun.engine.sampling.constraint import TokenConstraint

__all__ = ["Gate", "ReasoningGate"]

_WHITE = b" \t\r\n"


class Gate(NamedTuple):
    """Where reasoning starts and ends.

    Attributes:
        opened: the prompt ends inside it.
        open, close: the bytes it stands between, special tokens as their texts.
        open_ids, close_ids: those as tokens; ``close_ids`` are said where the budget ends.
        after_ids: said after ``close``, before the answer.
        budget: most tokens of reasoning; None = no bound.
        again: there may be several blocks, each with its marks, and ``lead`` before them.
    """

    opened: bool
    open: bytes
    close: bytes
    open_ids: tuple[int, ...]
    close_ids: tuple[int, ...]
    after_ids: tuple[int, ...] = ()
    budget: int | None = None
    again: bool = False
    lead: bytes = b""


class ReasoningGate:
    """A :class:`~.constraint.TokenConstraint` that lets the model reason, for as many tokens as
    the budget allows, and then has the answer follow another constraint, if there is one.

    Args:
        gate: where reasoning starts and ends.
        n_vocab: ids from 0 up to this may be sampled.
        eog_ids: end-of-generation tokens; not before the answer where that is constrained.
        token_bytes: a token's bytes, special tokens as their texts.
        then: constrains the answer.
    """

    def __init__(
        self,
        gate: Gate,
        n_vocab: int,
        eog_ids: Collection[int],
        token_bytes: Callable[[int], bytes],
        then: TokenConstraint | None = None,
    ) -> None:
        self._gate = gate
        self._bytes = token_bytes
        self._then = then
        self._n_words = (n_vocab + 31) // 32
        self._free = np.full(self._n_words, 0xFFFFFFFF, np.uint32)
        if then is not None:
            for i in eog_ids:
                self._free[i >> 5] &= np.uint32(~(1 << (i & 31)) & 0xFFFFFFFF)
        self._inside = gate.opened
        self._before = not gate.opened  # no more than white space was said
        self._seen = bytearray()
        self._spent = 0
        self._queue: list[int] = []  # what must come, in order

    @property
    def ended(self) -> bool:
        """Whether the answer's constraint allows nothing more."""
        return not self._reasoning and self._then is not None and self._then.ended

    @property
    def _reasoning(self) -> bool:
        return self._inside or bool(self._queue)

    def mask(self) -> npt.NDArray[np.uint32]:
        """The tokens that may come next, 32 to a word."""
        if due := self._due():
            words = np.zeros(self._n_words, np.uint32)
            words[due[0] >> 5] = 1 << (due[0] & 31)
            return words
        if self._inside or self._then is None:
            return self._free
        words = self._then.mask()
        if self._may_open:
            words = words.copy()
            first = self._gate.open_ids[0]
            words[first >> 5] |= np.uint32(1 << (first & 31))
        return words

    def accept(self, token_id: int) -> None:
        """Go on behind a token that the mask allowed."""
        gate = self._gate
        if due := self._due():
            self._queue = due[1:]  # before what a mark that is complete now adds to it
            self._spoken(token_id)
            return
        if self._inside:
            self._spoken(token_id)
            self._spent += self._inside
        elif self._then is None:
            if self._before:
                self._look_for_open(token_id)
        else:
            opens = self._may_open and token_id == gate.open_ids[0]
            # A mark of one token is one; of several, the first could be the answer's own.
            if opens and (len(gate.open_ids) == 1 or not self._then.fits([token_id])):
                self._before, self._inside = False, True
                self._queue = list(gate.open_ids[1:])
                return
            self._before = False
            self._then.accept(token_id)

    def forced(self, most: int) -> Sequence[int]:
        """The next tokens that are certain."""
        if due := self._due():
            return due[:most]
        if self._inside or self._then is None or self._may_open:
            return ()
        return self._then.forced(most)

    def fits(self, token_ids: Sequence[int]) -> int:
        """How many of these tokens, from the first, may come next: in reasoning, as far as can be
        told without going on."""
        due = self._due()
        if due:
            n = 0
            while n < min(len(due), len(token_ids)) and due[n] == token_ids[n]:
                n += 1
            return n
        if self._then is None:
            return len(token_ids) if not self._inside else self._left(len(token_ids))
        if not self._inside:
            return self._then.fits(token_ids)
        return self._left(len(token_ids))

    # -- inside -------------------------------------------------------------------------------

    @property
    def _may_open(self) -> bool:
        return self._before and bool(self._gate.open_ids)

    def _left(self, n: int) -> int:
        budget = self._gate.budget
        return n if budget is None else max(0, min(n, budget - self._spent))

    def _due(self) -> list[int]:
        """The tokens that must come now."""
        if self._queue:
            return self._queue
        budget = self._gate.budget
        if self._inside and budget is not None and self._spent >= budget and self._whole():
            return list(self._gate.close_ids)
        return []

    def _whole(self) -> bool:
        """Whether no character is cut where reasoning would end; one that goes on is let go."""
        tail = bytes(self._seen[-4:])
        for back in range(1, len(tail) + 1):
            byte = tail[-back]
            if byte < 0x80:
                return True
            if byte >= 0xC0:
                return back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        return True

    def _spoken(self, token_id: int) -> None:
        """A token of reasoning, or of the marks around it."""
        if not self._inside:
            return
        seen = self._seen
        seen += self._bytes(token_id)
        if self._gate.close in seen:
            self._inside = False
            seen.clear()
            self._before = self._gate.again
            self._queue += self._gate.after_ids
        elif len(seen) > 4 * len(self._gate.close) + 64:
            del seen[: -len(self._gate.close) - 4]

    def _look_for_open(self, token_id: int) -> None:
        gate = self._gate
        self._seen += self._bytes(token_id)
        said = bytes(self._seen).lstrip(_WHITE)
        if gate.again and gate.lead.startswith(said):
            return
        said = said.removeprefix(gate.lead)
        if said.startswith(gate.open):
            self._before, self._inside = False, True
            self._seen.clear()
        elif not gate.open.startswith(said):
            self._before = False
            self._seen.clear()
