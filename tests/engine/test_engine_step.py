"""Engine.step on a program that notices every wrong page, position and count."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from helpers.fake_program import (
    FakeProgram,
    ListSink,
    alone,
    drain,
    engine,
    greedy,
    logits_of,
    sequence,
    sink_of,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgerun.backends.base import Batch
from edgerun.core import FinishReason, Timings, Usage
from edgerun.engine import Limits
from edgerun.engine import Sequence as EngineSequence
from edgerun.engine.sampling import Sampled
from edgerun.errors import BackendError, ContextLengthError, GenerationError

CTX = 48


@dataclass(frozen=True)
class Ask:
    """A request of the property test; cancelled at step ``arrival + cancel`` if that is set."""

    arrival: int
    prompt: list[int]
    max_tokens: int
    temperature: float
    cancel: int | None

    def sequence(self, seed: int) -> EngineSequence:
        return sequence(
            self.prompt,
            min(self.max_tokens, CTX - len(self.prompt)),
            seed=seed,
            temperature=self.temperature,
        )


ASKS = st.builds(
    Ask,
    arrival=st.sampled_from([0, 0, 0, 3]) | st.integers(0, 30),
    prompt=st.lists(st.integers(0, 60), min_size=1, max_size=12) | st.just([7] * 40),
    max_tokens=st.sampled_from([0, 1, 30, 30, 30]),
    temperature=st.sampled_from([0.0, 0.0, 1.5]),
    cancel=st.none() | st.none() | st.integers(0, 12),
)


@given(
    asks=st.lists(ASKS, min_size=1, max_size=9),
    limits=st.builds(Limits, st.integers(1, 6), st.integers(1, 40), st.integers(1, 12)),
    page_size=st.integers(1, 8),
    spare=st.sampled_from([0, 0, 1, 5]),
)
@example(  # a pool of one context, and everything at once
    [Ask(0, [i] * 10, 38, 0.0, None) for i in range(1, 6)], Limits(4, 16, 8), 4, 0
)
@example(  # the last enters with pages that a sequence has to give up in the same step
    [Ask(at, [7] * 40, 0, 0.0, None) for at in (0, 0, 23)]
    + [Ask(0, [0] * n, most, 0.0, None) for n, most in ((1, 0), (2, 30), (1, 30))],
    Limits(2, 3, 1),
    1,
    0,
)
@settings(max_examples=60, deadline=None)
def test_any_load_gives_each_request_what_it_gets_alone(
    asks: list[Ask], limits: Limits, page_size: int, spare: int
) -> None:
    e = engine(-(-CTX // page_size) + spare, page_size, limits)
    waiting = [(a, a.sequence(seed=i)) for i, a in enumerate(asks)]
    sequences = [s for _, s in waiting]
    for now in range(2000):
        for a, s in list(waiting):
            if a.arrival <= now:
                e.add(s)
                waiting.remove((a, s))
        for a, s in zip(asks, sequences, strict=True):
            if a.cancel is not None and a.arrival + a.cancel <= now:
                s.cancelled = True
        e.step()
        e.check()
        if e.idle and not waiting:
            break
    assert e.pool.n_free == e.pool.n_pages
    for i, (a, s) in enumerate(zip(asks, sequences, strict=True)):
        got = sink_of(s)
        want = alone(a.prompt, s.max_tokens, i, temperature=a.temperature)
        if got.reason is FinishReason.ABORT:
            assert a.cancel is not None
            assert got.ids == want.ids[: len(got.ids)]
        else:
            assert (got.ids, got.reason) == (want.ids, want.reason)
            assert got.usage == Usage(len(a.prompt), len(want.ids), s.n_cached)
            assert got.usage.cached_tokens < len(a.prompt)


def test_a_tight_pool_does_preempt() -> None:
    """The property above means something: sequences are evicted and start over on the way."""
    program = FakeProgram(12, 4)
    e = engine(12, 4, program=program)
    asks = [sequence([i, i + 1] * 8, 24) for i in range(3, 7)]
    for s in asks:
        e.add(s)
    drain(e)
    for s in asks:
        assert sink_of(s).ids == greedy(s.ids[:16], 24)[0]
    computed = sum(tokens for _, tokens in program.widths)
    assert computed > sum(len(s.ids) for s in asks)


def test_who_lost_its_pages_finds_those_that_were_not_needed() -> None:
    program = FakeProgram(8, 4)
    e = engine(8, 4, program=program)
    old, young = sequence([3] * 15, 14, ignore_eos=True), sequence([4] * 15, 3, ignore_eos=True)
    e.add(old)
    e.add(young)
    drain(e)
    assert e.metrics().preemptions == 1
    # 28 and 17 tokens are computed. The young one lost 16 of them, and the pages of 12 were taken.
    computed = sum(tokens for _, tokens in program.widths)
    assert computed == 28 + 17 + 12
    assert sink_of(young).ids == alone([4] * 15, 3, ignore_eos=True).ids
    assert young.usage().cached_tokens == 0  # of the first time


def test_what_a_shift_computed_is_cached_as_what_it_is() -> None:
    e = engine(64, 4)
    s = sequence([3, 4, 5], 30, n_ctx=20, n_keep=2, ignore_eos=True)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == alone([3, 4, 5], 30, n_ctx=20, n_keep=2, ignore_eos=True).ids
    text = list(s.ids)
    assert len(text) < 20
    again = sequence([*text, 9], 2, ignore_eos=True)
    e.add(again)
    drain(e)
    assert again.n_cached is not None
    assert again.n_cached >= len(text) // 4 * 4 - 4
    assert sink_of(again).ids == alone([*text, 9], 2, ignore_eos=True).ids


def test_forks_share_what_they_can() -> None:
    """Three answers to a prompt of ten tokens in pages of four: two pages are shared for good,
    the third is copied by all but its last user."""
    program = FakeProgram(64, 4)
    e = engine(64, 4, program=program)
    first = sequence([3] * 10, 6, temperature=1.5, ignore_eos=True)
    more = [
        sequence([3] * 10, 6, temperature=1.5, ignore_eos=True, stream=i, leader=first)
        for i in (1, 2)
    ]
    for s in (first, *more):
        e.add(s)
    e.step()
    assert program.widths == [(1, 10)]
    assert e.metrics().pages_used == 3
    e.step()
    assert len(program.copies) == 2
    assert e.metrics().pages_used == 5
    drain(e)
    for i, s in enumerate((first, *more)):
        want = alone([3] * 10, 6, temperature=1.5, ignore_eos=True, stream=i)
        assert sink_of(s).ids == want.ids


def test_a_fork_leads_on_when_its_leader_goes() -> None:
    program = FakeProgram(64, 4)
    e = engine(64, 4, Limits(4, 4, 4), program)
    first = sequence([3] * 10, 6)
    more = [sequence([3] * 10, 6, leader=first) for _ in range(2)]
    for s in (first, *more):
        e.add(s)
    e.step()
    first.cancelled = True
    drain(e)
    assert sink_of(first).reason is FinishReason.ABORT
    for s in more:
        assert sink_of(s).ids == alone([3] * 10, 6).ids
    assert sum(tokens for _, tokens in program.widths) == 10 + 2 * (len(more[0].ids) - 11)


def test_chunks_respect_the_budgets() -> None:
    program = FakeProgram(64, 4)
    e = engine(64, 4, Limits(4, 20, 8), program)
    e.add(sequence(range(1, 51), 6))
    for _ in range(3):
        e.step()
    assert program.widths == [(1, 20), (1, 20), (1, 10)]
    e.add(sequence(range(31, 61), 2))
    e.step()
    assert program.widths[-1] == (2, 8)  # one generated token and seven of the new prompt


def test_no_tokens_wanted_computes_the_prompt_only() -> None:
    e = engine()
    s = sequence([5, 6, 7], 0)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == []
    assert sink_of(s).reason is FinishReason.LENGTH
    assert sink_of(s).usage == Usage(prompt_tokens=3, completion_tokens=0)


# -- when something goes wrong -------------------------------------------------------------------


class Poisoned(FakeProgram):
    """NaN logits for every sequence that begins with 13."""

    def predict(self, ids):  # type: ignore[no-untyped-def]
        logits = logits_of(ids).copy()
        if ids[0] == 13:
            logits[7] = np.nan
        return logits


def test_nan_logits_fail_only_their_request() -> None:
    e = engine(program=Poisoned(64, 4))
    good, bad, other = sequence([2, 3]), sequence([13, 4]), sequence([5])
    for s in (good, bad, other):
        e.add(s)
    drain(e)
    assert isinstance(sink_of(bad).error, GenerationError)
    assert sink_of(good).ids == greedy([2, 3], 8)[0]
    assert sink_of(other).ids == greedy([5], 8)[0]
    assert e.pool.n_free == 64


@pytest.mark.parametrize("error", [BackendError("device lost"), ValueError("a bug")])
def test_a_step_that_fails_takes_its_rows_only(error: Exception) -> None:
    def before(batch: Batch) -> None:
        if 13 in batch.tokens[batch.positions == 0]:
            raise error

    e = engine(limits=Limits(max_rows=2), program=FakeProgram(64, 4, before))
    asks = [sequence([13, 4]), sequence([5]), sequence([6]), sequence([7, 8])]
    for s in asks:
        e.add(s)
    e.step()
    e.check()
    assert [sink_of(s).error for s in asks] == [error, error, None, None]
    drain(e)
    assert sink_of(asks[2]).ids == greedy([6], 8)[0]
    assert sink_of(asks[3]).ids == greedy([7, 8], 8)[0]


class BrokenSink(ListSink):
    """A receiver with a bug: raises from push, or from finish and fail."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def push(self, tokens: Sequence[Sampled]) -> tuple[int, bool]:
        if self.where == "push":
            raise RuntimeError("broken sink")
        return super().push(tokens)

    def finish(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        if self.where == "end":
            raise RuntimeError("broken sink")
        super().finish(reason, usage, timings)

    def fail(self, error: Exception) -> None:
        super().fail(error)
        if self.where == "end":
            raise RuntimeError("broken sink")


@pytest.mark.parametrize("where", ["push", "end"])
def test_a_broken_sink_ends_its_own_request_only(where: str) -> None:
    e = engine()
    bad, good = BrokenSink(where), sequence([5])
    e.add(sequence([2, 3], 2, bad))
    e.add(good)
    drain(e)
    assert str(bad.error) == "broken sink"
    assert sink_of(good).ids == greedy([5], 8)[0]


def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers() -> None:
    e = engine(n_pages=2, page_size=4)
    big, whole, small = sequence(range(1, 20)), sequence(range(1, 9)), sequence([5], 3)
    for s in (big, whole, small):
        e.add(s)
        if s is not small:
            assert isinstance(sink_of(s).error, ContextLengthError)  # at once
    assert "19 tokens" in str(sink_of(big).error)
    assert "holds 8" in str(sink_of(big).error)
    drain(e, most=20)
    assert sink_of(small).ids == greedy([5], 3)[0]


def test_a_sequence_that_fills_the_pool_ends_with_length() -> None:
    e = engine(n_pages=3, page_size=4)
    big, small = sequence([9, 3, 4], 50, ignore_eos=True), sequence([5], 2)
    e.add(big)
    e.add(small)
    drain(e, most=60)
    assert sink_of(big).reason is FinishReason.LENGTH
    assert len(sink_of(big).ids) == 10  # 12 tokens are computed; the last one's need no page
    assert sink_of(small).ids == greedy([5], 2)[0]


def test_an_empty_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one token"):
        sequence([])


def test_cancelled_before_its_first_step() -> None:
    e = engine()
    s = sequence([5])
    s.cancelled = True
    e.add(s)
    drain(e)
    assert sink_of(s).reason is FinishReason.ABORT
    assert sink_of(s).ids == []


def test_an_async_reader_whose_loop_is_gone_harms_nobody() -> None:
    from edgerun.delivery import AsyncMailbox

    async def make() -> AsyncMailbox:
        return AsyncMailbox()

    mailbox = asyncio.run(make())
    mailbox.put(RuntimeError("nobody reads this"))
