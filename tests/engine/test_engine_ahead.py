"""Steps that start before the ids of the ones before them are known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import pytest
from helpers.fake_program import (
    N_VOCAB,
    AheadProgram,
    ListSink,
    alone,
    drain,
    engine,
    greedy,
    logits_of,
    sequence,
    sink_of,
)
from helpers.scripted_drafter import Scripted

from edgerun.backends.base import F32, Batch, Rows, Started
from edgerun.backends.program import filled
from edgerun.core import FinishReason
from edgerun.engine import Engine, Limits
from edgerun.engine.drafting import NgramDrafter, Speculation, StepCosts
from edgerun.errors import BackendError, OutOfMemoryError


def talkative(n: int) -> Iterator[list[int]]:
    """Prompts that the program answers with ``n`` tokens or more."""
    for i in range(1, 1000):
        if len(greedy([i % N_VOCAB, i // N_VOCAB, 7], n)[0]) == n:
            yield [i % N_VOCAB, i // N_VOCAB, 7]


LONG, OTHER = islice(talkative(40), 2)


def ahead(program: AheadProgram | None = None, n_pages: int = 64) -> tuple[Engine, AheadProgram]:
    program = program or AheadProgram(n_pages, 4)
    return engine(n_pages, 4, Limits(), program), program


def test_greedy_texts_run_ahead() -> None:
    e, program = ahead()
    prompts = [LONG, [9], [11, 12, 13, 14, 15, 16]]
    asked = [sequence(p, 20) for p in prompts]
    for s in asked:
        e.add(s)
    drain(e)
    for p, s in zip(prompts, asked, strict=True):
        assert (sink_of(s).ids, sink_of(s).reason) == greedy(p, 20)
    generated = sum(len(sink_of(s).ids) for s in asked)
    assert program.n_ahead > max(len(sink_of(s).ids) for s in asked) - 6
    # What was computed in vain: a row of the step after each end that could not be foreseen.
    computed = sum(n for _, n in program.widths)
    ends = sum(sink_of(s).reason is FinishReason.STOP for s in asked)
    assert computed <= sum(map(len, prompts)) + generated + ends


def test_the_last_token_of_a_text_starts_no_further_step() -> None:
    e, program = ahead()
    s = sequence(LONG, 12)
    e.add(s)
    drain(e)
    assert len(sink_of(s).ids) == 12
    assert [n for _, n in program.widths] == [3] + [1] * 11
    assert program.n_ahead == 10


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.8}, {"logprobs": 2}, {"repeat_penalty": 1.2}, {"logit_bias": {5: 1}}],
)
def test_others_wait_for_their_ids(params: dict[str, object]) -> None:
    """And so does everybody beside them."""
    e, program = ahead()
    e.add(sequence(LONG, 10))
    e.add(sequence(OTHER, 10, **{"seed": 1, **params}))
    drain(e)
    assert program.n_ahead == 0


def test_programs_that_cannot_are_not_asked() -> None:
    e, program = ahead()
    program.ahead = 0
    program.start = None  # type: ignore[method-assign,assignment]
    s = sequence(LONG, 10)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == greedy(LONG, 10)[0]


def test_a_newcomer_waits_for_no_more_than_what_was_started() -> None:
    e, program = ahead()
    e.add(sequence(LONG, 40))
    for _ in range(5):
        e.step()
    e.add(sequence(OTHER, 5))
    before = len(program.widths)
    e.step()  # the one that was under way
    assert len(program.widths) == before
    e.step()
    assert program.widths[-1] == (2, 4)
    e.check()
    drain(e)


@pytest.mark.parametrize("steps", range(1, 6))
def test_cancelled_texts_give_up_the_step_under_way(steps: int) -> None:
    e, _ = ahead()
    kept, dropped = sequence(LONG, 20), sequence(OTHER, 20)
    e.add(kept)
    e.add(dropped)
    for _ in range(steps):
        e.step()
    dropped.cancelled = True
    said = len(sink_of(dropped).ids)
    drain(e)
    assert sink_of(dropped).reason is FinishReason.ABORT
    assert len(sink_of(dropped).ids) == said
    assert len(sink_of(kept).ids) == 20
    assert e.pool.n_free == e.pool.n_pages


def test_an_engine_whose_texts_have_ended_forgets_the_step_under_way() -> None:
    e, program = ahead()
    s = sequence(LONG, 20, ListSink([greedy(LONG, 6)[0][3]]))
    e.add(s)
    drain(e)
    assert sink_of(s).reason is FinishReason.STOP
    assert not program.steps[-1].waited
    again = sequence(LONG, 6)
    e.add(again)
    drain(e)
    assert sink_of(again).ids == greedy(LONG, 6)[0]


class Beyond(AheadProgram):
    """The model knows more tokens than may be sampled, and likes the last one best."""

    n_vocab = N_VOCAB + 1

    def predict(self, ids: Sequence[int]) -> F32:
        worst = np.float32(9.0 if len(ids) % 3 else -9.0)
        return np.append(logits_of([i for i in ids if i < N_VOCAB]), worst)


def test_ids_past_the_vocabulary_are_not_what_is_sampled() -> None:
    e, program = ahead(Beyond(64, 4))
    s = sequence(LONG, 12)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == alone(LONG, 12, predict=program.predict).ids
    assert len(sink_of(s).ids) > 6
    assert program.n_ahead > 0


class Broken(AheadProgram):
    """Refuses to start steps behind others, or has some fail later."""

    def __init__(self, refuse: bool) -> None:
        super().__init__(64, 4)
        self.refuse = refuse
        self.n_started = 0

    def start(self, batch: Batch, after: Started | None = None) -> Started:
        if after is not None and self.refuse:
            raise OutOfMemoryError("no memory")
        self.n_started += 1
        step = super().start(batch, after)
        if self.n_started == 5:
            step.wait = self.fail  # type: ignore[method-assign]
        return step

    def fail(self) -> Rows:
        raise BackendError("the device failed")


def test_steps_that_cannot_be_started_ahead_come_later() -> None:
    e, program = ahead(Broken(refuse=True))
    s = sequence(LONG, 4)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == greedy(LONG, 4)[0]
    assert program.n_ahead == 0


def test_a_step_that_fails_fails_its_texts_and_no_others() -> None:
    e, _ = ahead(Broken(refuse=False))
    s = sequence(LONG, 30)
    e.add(s)
    for _ in range(20):
        e.step()
        e.check()
    assert isinstance(sink_of(s).error, BackendError)
    assert len(sink_of(s).ids) == 5
    later = sequence(LONG, 30)
    e.add(later)
    drain(e)
    assert sink_of(later).ids == greedy(LONG, 30)[0]


def test_drafts_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once there were none for a while, steps run ahead until the next one."""
    monkeypatch.setattr("edgerun.engine.ahead._QUIET", 4)
    answer = greedy(LONG, 40)[0]
    drafter = Scripted(LONG, answer, [0])
    silent = True

    def draft(most: int, guess=drafter.draft):
        found = guess(most)
        return found._replace(tokens=()) if silent else found

    drafter.draft = draft  # type: ignore[method-assign]
    e, program = ahead()
    s = sequence(LONG, 40, drafter=drafter)
    e.add(s)
    for n in range(12):
        e.step()
        assert (program.n_ahead > 0) == (n >= 4)
    silent, before = False, program.n_ahead
    drain(e)
    assert program.n_ahead == before  # it has something to say every time
    assert max(tokens for _, tokens in program.widths[3:]) > 1
    assert sink_of(s).ids == answer


def test_drafters_that_keep_a_device_busy_are_left_alone() -> None:
    answer = greedy(LONG, 40)[0]
    drafter = Scripted(LONG, answer, [0], length=0)
    e, program = ahead()
    drafter.quick = False
    e.add(sequence(LONG, 40, drafter=drafter))
    drain(e)
    assert program.n_ahead == 0


def test_costs_are_learned_from_steps_that_ran_ahead() -> None:
    program = AheadProgram(64, 4)
    costs = StepCosts()
    speculation = Speculation(lambda costs, account: NgramDrafter(costs, account), costs)
    timed = speculation.timed(program)
    e = Engine(timed, 64, 4, copy_page=program.copy_page)
    s = sequence(LONG, 20)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == greedy(LONG, 20)[0]
    assert program.n_ahead > 0
    assert costs.seconds(1) is not None
    assert e.cost.n == len(program.widths)
    assert e.metrics().steps == len(program.widths)


def test_ids_are_filled_in() -> None:
    batch = Batch.pack([([-1], 4, [0], [0]), ([7], 4, [1], [0]), ([-3], 4, [2], [0])])
    found = filled(batch, np.array([40, 50, -1], np.int32))
    assert found.tokens.tolist() == [40, 7, 0]
    assert found.tokens.dtype == np.int32
    assert batch.tokens.tolist() == [-1, 7, -3]
