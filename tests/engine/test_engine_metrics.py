"""What the engine counts."""

from __future__ import annotations

import json

from helpers.fake_program import ListSink, alone, drain, engine, sequence
from helpers.scripted_drafter import Scripted

from edgerun.engine.metrics import STEP_BOUNDS, Counters, DraftCount, Metrics

ANSWER = alone([3, 4, 5], 12, ignore_eos=True).ids


def test_what_is_counted() -> None:
    e = engine(16, 4)
    assert e.metrics() == Metrics(
        finished={"stop": 0, "length": 0, "tool_calls": 0, "abort": 0, "error": 0}, pages_total=16
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
    assert m.finished == {"stop": 0, "length": 2, "tool_calls": 0, "abort": 1, "error": 1}
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
    assert m.swap is None
    assert m.to_dict()["swap"] is None


def test_nothing_counted_is_no_rate() -> None:
    assert Metrics().cache_hit_rate == DraftCount().acceptance == 0.0


def test_a_step_falls_into_its_class() -> None:
    counters = Counters()
    for seconds in (0.0005, 0.001, 0.0011, 7.0):
        counters.step(1, seconds)
    times = counters.snapshot().step_times
    assert (times[0], times[1], times[-1]) == (2, 1, 1)
    assert len(times) == len(STEP_BOUNDS) + 1
