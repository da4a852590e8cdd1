"""What the engine counts, and what it makes of a step's cost."""

from __future__ import annotations

import json
import time

import pytest
from helpers.fake_program import FakeProgram, ListSink, alone, drain, engine, sequence, sink_of
from helpers.scripted_drafter import Scripted

from edgerun.backends.base import Batch
from edgerun.engine import Limits
from edgerun.engine.metrics import STEP_BOUNDS, Counters, DraftCount, Metrics

ANSWER = alone([3, 4, 5], 12, ignore_eos=True).ids


def test_what_is_counted() -> None:
    e = engine(16, 4)
    assert e.metrics() == Metrics(
        finished={"stop": 0, "length": 0, "abort": 0, "error": 0}, pages_total=16
    )
    drafter = Scripted([3, 4, 5], ANSWER, [2], 4)
    first = sequence([3, 4, 5], 12, drafter=drafter, ignore_eos=True)
    waiting = sequence([9] * 70)
    gone = sequence([8, 8])
    gone.cancelled = True
    for s in (first, waiting, gone):
        e.add(s)
    assert e.metrics(waiting=2).waiting == 4  # one was refused at once
    e.step()
    m = e.metrics()
    assert (m.waiting, m.running, m.pages_used, m.pages_cached) == (0, 1, 1, 0)
    drain(e)
    again = sequence([3, 4, 5, *ANSWER, 6], 1, ListSink(), ignore_eos=True)
    e.add(again)
    drain(e)
    m = e.metrics()
    assert m.finished == {"stop": 0, "length": 2, "abort": 1, "error": 1}
    assert (m.prompt_tokens, m.cached_tokens) == (3 + 16, again.n_cached)
    assert again.n_cached == 12
    assert m.cache_hit_rate == 12 / 19
    assert m.generated_tokens == 13
    # One token from the prompt, then three a step: two right guesses of four, and the next.
    assert m.drafts == {"scripted": DraftCount(drafted=4 + 4 + 4 + 1, accepted=2 * 3 + 1)}
    assert m.drafts["scripted"].acceptance == 7 / 13
    assert m.steps == sum(m.step_times) == 6
    assert m.step_tokens == 3 + 3 * 5 + 2 + 4
    assert m.step_seconds > 0
    assert (m.running, m.pages_used) == (0, 0)
    assert m.pages_cached == 4
    assert json.loads(json.dumps(m.to_dict()))["drafts"]["scripted"]["acceptance"] == 7 / 13


def test_preemptions_and_evictions_are_counted() -> None:
    e = engine(12, 4)
    for i in range(3, 7):
        e.add(sequence([i, i + 1] * 8, 24, ignore_eos=True))
    drain(e)
    m = e.metrics()
    assert m.preemptions > 0
    assert m.evictions > 0
    assert m.prompt_tokens == 64  # each once, however often it started over


def test_nothing_counted_is_no_rate() -> None:
    assert Metrics().cache_hit_rate == DraftCount().acceptance == 0.0


def test_a_step_falls_into_its_class() -> None:
    counters = Counters()
    for seconds in (0.0005, 0.001, 0.0011, 7.0):
        counters.step(1, seconds)
    times = counters.snapshot().step_times
    assert (times[0], times[1], times[-1]) == (2, 1, 1)
    assert len(times) == len(STEP_BOUNDS) + 1


class Slow(FakeProgram):
    """Takes a millisecond a token, and two more."""

    def run(self, batch: Batch):  # type: ignore[no-untyped-def]
        time.sleep(0.002 + 0.001 * batch.n_tokens)
        return super().run(batch)


@pytest.mark.parametrize("gap", [0.02, 0.05])
def test_a_running_row_waits_no_longer_than_the_gap(gap: float) -> None:
    """Whatever the first guess: a step costs little more than ``gap``, and not much less."""
    program = Slow(400, 4)
    e = engine(400, 4, Limits(8, 512, busy_budget=8), program, gap=gap)
    run = sequence([3, 4, 5], 1000, ignore_eos=True)
    e.add(run)
    for _ in range(8):
        e.step()
    long = sequence([i % 50 for i in range(400)], 1)
    e.add(long)
    while not sink_of(long).ended.is_set():
        e.step()
    mixed = [tokens for rows, tokens in program.widths if rows == 2]
    steady = sorted(mixed[len(mixed) // 2 : -1])
    assert steady[len(steady) // 2] in range(int(gap * 500), int(gap * 1000) + 1)
    assert max(mixed) <= gap * 1000 * 1.3


def test_nobody_generating_means_the_whole_budget() -> None:
    program = Slow(400, 4)
    e = engine(400, 4, Limits(8, 200), program, gap=0.01)
    e.add(sequence([i % 50 for i in range(400)], 1))
    drain(e)
    assert program.widths == [(1, 200), (1, 200)]
