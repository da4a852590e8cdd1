"""Reasoning before an answer: within its budget, and free of the answer's constraint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgerun.engine.sampling.constraint import unpack
from edgerun.engine.sampling.gate import Gate, ReasoningGate

#: Token id -> bytes; 0 ends a generation.
TOKENS = [b"", b"<think>", b"</think>", b"a", b"b", b"\n", b"<", b"/", b"think>", b"\xc3", b"\xa9"]
OPEN, CLOSE, A, B, NL, LT, SLASH, WORD, HALF, REST = range(1, 11)
N = len(TOKENS)


class Only:
    """Allows its tokens, one after the other, and then the end."""

    def __init__(self, *ids: int) -> None:
        self.left = list(ids)

    @property
    def ended(self) -> bool:
        return not self.left

    def mask(self) -> np.ndarray:
        words = np.zeros(1, np.uint32)
        words[0] = 1 << (self.left[0] if self.left else 0)
        return words

    def accept(self, token_id: int) -> None:
        assert self.left.pop(0) == token_id

    def forced(self, most: int) -> Sequence[int]:
        return self.left[:most]

    def fits(self, token_ids: Sequence[int]) -> int:
        n = 0
        while n < min(len(token_ids), len(self.left)) and token_ids[n] == self.left[n]:
            n += 1
        return n


def make(
    opened: bool, budget: int | None, then: Only | None = None, *, split: bool = False
) -> ReasoningGate:
    gate = Gate(
        opened=opened,
        open=b"<think>",
        close=b"</think>",
        open_ids=(LT, WORD) if split else (OPEN,),
        close_ids=(LT, SLASH, WORD) if split else (NL, CLOSE, NL),
        budget=budget,
    )  # fmt: skip
    return ReasoningGate(gate, N, (0,), TOKENS.__getitem__, then)


def allowed(gate: ReasoningGate) -> set[int]:
    return set(np.flatnonzero(unpack(gate.mask(), N)).tolist())


def say(gate: ReasoningGate, *ids: int) -> None:
    for i in ids:
        assert i in allowed(gate), (i, allowed(gate))
        gate.accept(i)


EVERYTHING = set(range(N))


def test_the_budget_closes_an_open_block() -> None:
    gate = make(True, 2)
    say(gate, A)
    assert gate.fits([A, A, A]) == 1
    say(gate, A)
    assert list(gate.forced(9)) == [NL, CLOSE, NL]
    for i in (NL, CLOSE, NL):
        assert allowed(gate) == {i}
        assert gate.fits([i, B]) == 1 or i != NL
        gate.accept(i)
    assert allowed(gate) == EVERYTHING
    say(gate, A, OPEN, B, 0)


def test_no_budget_at_all_closes_at_once() -> None:
    gate = make(True, 0)
    assert allowed(gate) == {NL}
    say(gate, NL, CLOSE, NL, A)
    gate = make(False, 0)
    assert allowed(gate) == EVERYTHING
    say(gate, NL, OPEN)
    assert allowed(gate) == {NL}


def test_a_block_that_ends_by_itself_is_left_alone() -> None:
    gate = make(True, 5)
    say(gate, A, CLOSE, A, A, A, A, A, A)
    assert allowed(gate) == EVERYTHING


def test_an_answer_that_does_not_reason_has_no_budget() -> None:
    gate = make(False, 1)
    say(gate, A, OPEN, B, B, B)
    assert allowed(gate) == EVERYTHING


def test_marks_of_several_tokens_are_seen() -> None:
    gate = make(False, 1, split=True)
    say(gate, LT, WORD, A)
    assert list(gate.forced(2)) == [LT, SLASH]
    say(gate, LT, SLASH, WORD)
    assert allowed(gate) == EVERYTHING
    gate = make(True, None, Only(B), split=True)
    say(gate, A, LT, SLASH, WORD)
    assert allowed(gate) == {B}


def test_a_character_is_not_cut() -> None:
    gate = make(True, 1)
    say(gate, HALF)
    assert allowed(gate) == EVERYTHING
    say(gate, REST)
    assert allowed(gate) == {NL}


def test_the_answers_constraint_begins_behind_reasoning() -> None:
    gate = make(True, None, Only(B, A))
    assert allowed(gate) == EVERYTHING - {0}  # a text that must come cannot end before it
    say(gate, A, B, CLOSE)
    assert not gate.ended
    assert list(gate.forced(5)) == [B, A]
    assert gate.fits([B, B]) == 1
    say(gate, B, A)
    assert gate.ended


def test_a_model_may_reason_first_or_not() -> None:
    gate = make(False, None, Only(B, A))
    assert allowed(gate) == {OPEN, B}
    assert not gate.forced(5)
    say(gate, OPEN, A, CLOSE, B, A)
    assert gate.ended
    gate = make(False, None, Only(B, A))
    say(gate, B)
    assert allowed(gate) == {A}
    gate = make(False, None, Only(B, A), split=True)
    say(gate, LT)
    assert allowed(gate) == {WORD}
    say(gate, WORD, A, LT, SLASH, WORD, B, A)
    assert gate.ended


def test_several_blocks_share_a_budget() -> None:
    gate = Gate(False, b"<think>", b"</think>", (OPEN,), (CLOSE,), budget=2, again=True, lead=b"a")
    found = ReasoningGate(gate, N, (0,), TOKENS.__getitem__)
    say(found, OPEN, B, CLOSE, A, OPEN, B)
    assert allowed(found) == {CLOSE}
    say(found, CLOSE, B, OPEN, B, B, B)
    assert allowed(found) == EVERYTHING
