"""Rows with drafts: whatever is guessed, the same tokens come out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from helpers.fake_program import (
    EOG,
    FakeProgram,
    ListSink,
    alone,
    drain,
    engine,
    logits_of,
    sequence,
    sink_of,
)
from helpers.scripted_drafter import Scripted
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.core import FinishReason
from edgerun.engine import Draft, Drafter, Limits
from edgerun.errors import GenerationError

PARAMS: list[dict[str, float]] = [
    {"temperature": 0.0},
    {"temperature": 0.8, "logprobs": 3},
    {"temperature": 0.8, "repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"temperature": 1.2, "mirostat": 2, "logprobs": 0},
    {"temperature": 0.0, "dry_multiplier": 0.8, "repeat_penalty": 1.1},
    {"temperature": 1.0, "xtc_probability": 0.5, "top_k": 0, "min_p": 0.0, "ignore_eos": True},
]


@dataclass(frozen=True)
class Ask:
    prompt: list[int]
    max_tokens: int
    params: int
    right: list[int]
    length: int
    stop_at: int | None  # the stop string ends with this token of the answer
    stop_length: int


ASKS = st.builds(
    Ask,
    prompt=st.lists(st.integers(0, 60), min_size=1, max_size=14),
    max_tokens=st.integers(1, 30),
    params=st.integers(0, len(PARAMS) - 1),
    right=st.lists(st.sampled_from([0, 0, 2, 6, 6]), min_size=1, max_size=4),
    length=st.integers(0, 7),
    stop_at=st.none() | st.integers(0, 25),
    stop_length=st.integers(1, 3),
)


@given(
    asks=st.lists(ASKS, min_size=1, max_size=5),
    page_size=st.integers(1, 5),
    spare=st.sampled_from([0, 2, 40]),
    limits=st.builds(Limits, st.integers(1, 5), st.integers(8, 40), st.integers(6, 16)),
    cap=st.integers(0, 8),
)
@settings(max_examples=60, deadline=None)
def test_drafts_change_nothing(
    asks: list[Ask], page_size: int, spare: int, limits: Limits, cap: int
) -> None:
    """Right, wrong and half right; with penalties, logprobs, stop strings, in batches."""

    def widths(drafts: Sequence[Draft], n_base: int) -> list[int]:
        assert n_base >= len(drafts) > 0
        return [min(cap, len(d.tokens)) for d in drafts]

    n_pages = -(-44 // page_size) + spare
    e = engine(n_pages, page_size, limits, widths=widths)
    wanted = []
    for i, a in enumerate(asks):
        params = PARAMS[a.params]
        whole = alone(a.prompt, a.max_tokens, i, **params)
        stop: list[int] = []
        if a.stop_at is not None:
            stop = whole.ids[max(0, a.stop_at + 1 - a.stop_length) : a.stop_at + 1]
        want = alone(a.prompt, a.max_tokens, i, stop=stop, **params)
        drafter = Scripted(a.prompt, whole.ids, a.right, a.length)
        s = sequence(a.prompt, a.max_tokens, ListSink(stop), i, drafter=drafter, **params)
        wanted.append((s, want))
        e.add(s)
    drain(e)
    assert e.pool.n_free == n_pages
    for s, want in wanted:
        got = sink_of(s)
        assert (got.ids, got.reason) == (want.ids, want.reason)
        assert got.logprobs == want.logprobs  # floats: exact
        assert got.usage is not None
        assert got.usage.completion_tokens == len(want.ids)


def run(drafter: Drafter | None, n: int = 24, **params: float) -> tuple[ListSink, FakeProgram]:
    program = FakeProgram(64, 4)
    e = engine(program=program)
    s = sequence([3, 4, 5], n, drafter=drafter, **params)
    e.add(s)
    drain(e)
    return sink_of(s), program


ANSWER = alone([3, 4, 5], 24, ignore_eos=True).ids


def test_right_drafts_save_steps() -> None:
    plain, slow = run(None, ignore_eos=True)
    drafter = Scripted([3, 4, 5], ANSWER, [5], 5)
    got, fast = run(drafter, ignore_eos=True)
    assert got.ids == plain.ids == ANSWER
    assert len(slow.widths) == 24
    # The prompt gives one token; then each step gives the draft and one more; the last has 5 left.
    assert fast.widths == [(1, 3)] + [(1, 6)] * 3 + [(1, 5)]
    assert drafter.asked == [22, 16, 10, 4]  # a draft never reaches past the last token wanted


def test_without_a_drafter_nothing_is_asked() -> None:
    def widths(drafts: Sequence[Draft], n_base: int) -> list[int]:
        raise AssertionError("asked")

    e = engine(widths=widths)
    s = sequence([3, 4, 5], 5)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == alone([3, 4, 5], 5).ids


def test_wrong_drafts_leave_no_trace_in_the_pages() -> None:
    """What follows is computed over them, and a later request finds only true pages."""
    drafter = Scripted([3, 4, 5], ANSWER, [0, 1, 3])
    program = FakeProgram(64, 4)
    e = engine(program=program)
    first = sequence([3, 4, 5], 24, drafter=drafter, ignore_eos=True)
    e.add(first)
    drain(e)
    again = sequence([3, 4, 5, *ANSWER], 9, ignore_eos=True)
    e.add(again)
    drain(e)
    assert sink_of(first).ids == ANSWER
    assert sink_of(again).ids == alone([3, 4, 5, *ANSWER], 9, ignore_eos=True).ids
    assert again.n_cached == 24  # the full pages of what was verified


def test_a_stop_string_inside_an_accepted_draft() -> None:
    """The tokens behind it were never said: not to the reader, the count, or the cache."""
    stop = ANSWER[5:8]
    drafter = Scripted([3, 4, 5], ANSWER, [12], 12)
    program = FakeProgram(64, 4)
    e = engine(program=program)
    s = sequence([3, 4, 5], 24, ListSink(stop), drafter=drafter, ignore_eos=True)
    e.add(s)
    drain(e)
    got = sink_of(s)
    assert len(program.widths) == 2
    assert (got.ids, got.reason) == (ANSWER[:8], FinishReason.STOP)
    assert got.usage is not None
    assert got.usage.completion_tokens == 8
    assert drafter.text == [3, 4, 5, *ANSWER[:8]]


def test_the_models_end_inside_an_accepted_draft() -> None:
    prompt = next([p, 3] for p in range(1, 60) if 3 < len(alone([p, 3], 20).ids) < 12)
    want = alone(prompt, 20)
    assert want.reason is FinishReason.STOP
    drafter = Scripted(prompt, [*want.ids, EOG, 7, 7], [12], 12)
    program = FakeProgram(64, 4)
    e = engine(program=program)
    s = sequence(prompt, 20, drafter=drafter)
    e.add(s)
    drain(e)
    assert (sink_of(s).ids, sink_of(s).reason) == (want.ids, want.reason)
    assert len(program.widths) == 2


class Poisoned(FakeProgram):
    """NaN logits behind ten tokens and more."""

    def predict(self, ids: Sequence[int]) -> np.ndarray:  # type: ignore[override]
        logits = logits_of(ids).copy()
        if len(ids) >= 10:
            logits[3] = np.nan
        return logits


@pytest.mark.parametrize("right", [0, 2, 12])
def test_nan_behind_a_draft_token(right: int) -> None:
    """Harmless where the draft is wrong before it; else what came before it was said."""
    program = Poisoned(64, 4)
    e = engine(program=program)
    s = sequence([3, 4, 5], 24, drafter=Scripted([3, 4, 5], ANSWER, [right], 12), ignore_eos=True)
    e.add(s)
    drain(e)
    assert isinstance(sink_of(s).error, GenerationError)
    assert sink_of(s).ids == ANSWER[:7]
    assert e.pool.n_cached == 0


def test_nan_behind_a_stop_string_is_nobodys_business() -> None:
    program = Poisoned(64, 4)
    e = engine(program=program)
    drafter = Scripted([3, 4, 5], ANSWER, [12], 12)
    s = sequence([3, 4, 5], 24, ListSink(ANSWER[3:5]), drafter=drafter, ignore_eos=True)
    e.add(s)
    drain(e)
    assert (sink_of(s).ids, sink_of(s).reason) == (ANSWER[:5], FinishReason.STOP)


@dataclass
class Broken(Scripted):
    where: str = "draft"

    def extend(self, ids: Sequence[int]) -> None:
        if self.where == "extend":
            raise RuntimeError("no memory for this text")
        super().extend(ids)

    def draft(self, most: int) -> Draft:
        if self.where == "draft":
            raise RuntimeError("lost the thread")
        return super().draft(most)


@pytest.mark.parametrize("where", ["draft", "extend"])
def test_a_broken_drafter_stops_nobody(where: str, caplog: pytest.LogCaptureFixture) -> None:
    got, _ = run(Broken([3, 4, 5], ANSWER, [3], where=where), ignore_eos=True)
    assert got.ids == ANSWER
    assert "scripted drafter failed" in caplog.text
    assert caplog.text.count("Traceback") == 1  # it is not asked again


def test_drafts_take_no_pages_from_running_rows() -> None:
    """Two rows fill the pool to the last page; their drafts get what the pages in hand hold."""
    program = FakeProgram(8, 4)
    e = engine(8, 4, program=program)
    asks = [
        sequence(
            [p, 4, 5],
            13,
            drafter=Scripted([p, 4, 5], alone([p, 4, 5], 13, ignore_eos=True).ids, [9], 9),
            ignore_eos=True,
        )
        for p in (3, 8)
    ]
    for s in asks:
        e.add(s)
    drain(e)
    for p, s in zip((3, 8), asks, strict=True):
        assert sink_of(s).ids == alone([p, 4, 5], 13, ignore_eos=True).ids
    assert sum(tokens for _, tokens in program.widths) < 60
