"""How long running rows wait for prompts: what the engine makes of a step's cost. Time is told by a
clock that moves with the tokens computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fake_program import (
    FakeProgram,
    FakeSpace,
    alone,
    drain,
    engine,
    sequence,
    sink_of,
)

from edgerun.backends.base import F32, Batch
from edgerun.engine import Limits
from edgerun.engine import engine as engine_module
from edgerun.engine.embedding import Embedding

Cost = Callable[[Batch], float]


def flat(fixed: float, each: float) -> Cost:
    return lambda batch: fixed + each * batch.n_tokens


def deep(fixed: float, each: float, more: float) -> Cost:
    """A token costs ``more`` for every token before it in its row."""
    return lambda batch: (
        fixed + each * batch.n_tokens + more * float(batch.positions.astype(float).sum())
    )


class Clocked(FakeProgram):
    """A step takes what ``cost`` says; ``seconds`` are those of steps of more than one row."""

    def __init__(self, patch: pytest.MonkeyPatch, cost: Cost, n_pages: int = 400) -> None:
        super().__init__(n_pages, 4)
        self.cost = cost
        self.good = 10**9
        # From nought, not from the uptime: sums of times then round alike on each run.
        self.now = 0.0
        self.mixed: list[tuple[int, float]] = []
        patch.setattr(engine_module, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def width(self, most: int) -> int:
        return self.good if self.good < most < 2 * self.good else most

    def run(self, batch: Batch) -> F32:
        took = self.cost(batch)
        self.now += took
        if batch.n_rows > 1:
            self.mixed.append((batch.n_tokens, took))
        return super().run(batch)


def start(program: Clocked, gap: float, rows: int = 1, **limits: Any) -> Any:
    """An engine with ``rows`` generating rows."""
    e = engine(len(program._memory), 4, Limits(**{"max_rows": 8, **limits}), program, gap=gap)
    for i in range(rows):
        e.add(sequence([3, 4, 5 + i], 1000, ignore_eos=True))
    for _ in range(8):
        e.step()
    program.mixed.clear()
    return e


def arrive(e: Any, n: int, at: int = 0) -> None:
    """A prompt of ``n`` tokens comes, and is computed."""
    long = sequence([(at + i) % 50 + 1 for i in range(n)], 1)
    e.add(long)
    while not sink_of(long).ended.is_set():
        e.step()


@pytest.mark.parametrize("gap", [0.02, 0.05])
def test_a_running_row_waits_no_longer_than_the_gap(
    monkeypatch: pytest.MonkeyPatch, gap: float
) -> None:
    """Whatever the first guess: a step costs little more than ``gap``, and not much less."""
    program = Clocked(monkeypatch, flat(0.002, 0.001))
    arrive(start(program, gap, busy_budget=8), 400)
    assert max(took for _, took in program.mixed) <= gap * 1.01
    steady = program.mixed[len(program.mixed) // 2 : -1]
    assert min(took for _, took in steady) >= gap * 0.9


def test_a_long_prompt_gets_dearer_and_the_next_one_does_not_suffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Clocked(monkeypatch, deep(0.005, 0.0006, 1e-6))
    e = start(program, 0.1)
    for at in (0, 7, 13):
        arrive(e, 1200, at)
        assert max(took for _, took in program.mixed) <= 0.125
        taken = [n for n, _ in program.mixed]
        # The first third is cheap: as much as fits into the gap there, after a few steps.
        assert max(taken[: len(taken) // 3]) > 100
        assert sum(took for _, took in program.mixed) / len(taken) > 0.07
        program.mixed.clear()


def test_one_step_held_up_by_something_else_is_soon_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = Clocked(monkeypatch, flat(0.002, 0.001))
    e = start(program, 0.0505)  # 48.5 tokens: rounding of times does not decide
    arrive(e, 200)
    plain = program.cost
    program.cost = lambda batch: plain(batch) + (0.3 if len(program.mixed) == 4 else 0.0)
    program.mixed.clear()
    arrive(e, 700, 7)
    assert program.mixed[4][1] > 0.3
    assert [n for n, _ in program.mixed[9:-1]] == [48] * (len(program.mixed) - 10)


def test_rows_dearer_than_the_gap_leave_room_for_half_as_much_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a slow machine, too, prompts get in at some speed: they are not left a few tokens."""
    program = Clocked(monkeypatch, flat(0.05, 0.01))
    e = start(program, 0.1, rows=7)  # 0.12 s alone
    arrive(e, 60)
    assert max(took for _, took in program.mixed) <= 0.18 * 1.01
    assert max(n for n, _ in program.mixed) == 13


def test_nobody_generating_means_the_whole_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Clocked(monkeypatch, flat(0.002, 0.001))
    e = engine(400, 4, Limits(8, 200), program, gap=0.01)
    e.add(sequence([i % 50 for i in range(400)], 1))
    drain(e)
    assert program.widths == [(1, 200), (1, 200)]


def test_short_prompts_enter_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as rows are free, or as fill a step: not a few at a time."""
    program = Clocked(monkeypatch, flat(0.05, 0.01))
    e = engine(400, 4, Limits(max_rows=12, budget=60), program, gap=0.1)
    for i in range(20):
        e.add(sequence([i + 1, 2, 3], 4, ignore_eos=True))
    e.step()
    assert program.widths == [(12, 36)]
    drain(e)
    e = engine(400, 4, Limits(max_rows=12, budget=20), program, gap=0.1)
    program.widths.clear()
    for i in range(20):
        e.add(sequence([i + 1, 2, 3, 4], 4, ignore_eos=True))
    e.step()
    assert program.widths == [(5, 20)]
    drain(e)


def test_a_step_stops_where_the_next_token_would_cost_a_jump(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """12 tokens take 50 ms, 13 to 24 take 90: within 100 ms, 12 at a time come through sooner."""

    def cliff(batch: Batch) -> float:
        return 0.01 + 0.04 * -(-batch.n_tokens // 12)

    program = Clocked(monkeypatch, cliff)
    program.good = 12
    e = start(program, 0.1)
    e.add(sequence(list(range(1, 61)) * 5, 1))
    for _ in range(20):
        e.step()
    assert program.mixed
    assert {n for n, _ in program.mixed[2:]} == {12}
    assert max(took for _, took in program.mixed[2:]) < 0.06


@pytest.mark.parametrize(("rows", "each", "longest"), [(1, 0.001, 0.1), (7, 0.02, 1.5 * 0.142)])
@pytest.mark.parametrize("prompt", [False, True])
def test_texts_for_vectors_and_prompts_share_what_the_gap_leaves(
    monkeypatch: pytest.MonkeyPatch, rows: int, each: float, longest: float, prompt: bool
) -> None:
    """Between two tokens of a generating row lie a step and an embedding's turn: together they take
    no longer than the gap, or than half as long again as the rows alone, if that is more; and not
    much less."""
    program = Clocked(monkeypatch, flat(0.002, each))
    e = start(program, 0.1, rows=rows, least_budget=1)
    e.embeddings.append(Embedding(lambda: program, [[i % 50 for i in range(1500)]], "mean"))
    if prompt:
        e.add(sequence([i % 50 for i in range(900)], 1))
    between = []
    for _ in range(12):
        before = program.now
        e.step()
        between.append(program.now - before)
    assert e.embeddings[0].pages
    settled = between[4:]
    assert max(settled) <= longest * 1.01
    assert min(settled) >= longest * 0.85


@pytest.mark.parametrize("seed", range(12))
def test_pages_from_host_memory_come_back_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A long text that was swapped out comes back in many steps, none much longer than the gap."""
    rng = random.Random(seed)
    gap, copy = 0.1, rng.uniform(0.0015, 0.003)
    program = Clocked(monkeypatch, flat(rng.uniform(0.001, 0.03), 0.002), n_pages=160)

    class Slow(FakeSpace):
        def restore(self, slot: int, page: int) -> None:
            program.now += copy
            super().restore(slot, page)

    space = Slow(program)
    space.copy_seconds = copy
    e = engine(160, 4, Limits(max_rows=8), program, gap=gap, space=space)
    texts = [[(at + i) % 50 + 1 for i in range(rng.randrange(380, 420))] for at in (0, 7, 13)]
    for ids in texts:  # each needs the pages of the one before
        e.add(sequence(ids, 1))
        drain(e)
    running = [sequence([3, 4, 5 + i], 1000, ignore_eos=True) for i in range(rng.randrange(1, 4))]
    for s in running:
        e.add(s)
    for _ in range(8):
        e.step()
    again = sequence(texts[0], 6, ignore_eos=True)
    e.add(again)
    least, pages = 10**9, e.metrics().swap.pages_in
    longest, steps = 0.0, 0
    cancelled = seed % 4 == 3
    while not sink_of(again).ended.is_set():
        before, said = program.now, [len(sink_of(s).ids) for s in running]
        e.step()
        e.check()
        longest, steps = max(longest, program.now - before), steps + 1
        least = min(least, *(len(sink_of(s).ids) - n for s, n in zip(running, said, strict=True)))
        if cancelled and steps == 3:
            again.cancelled = True
    back = e.metrics().swap.pages_in - pages
    assert least == 1  # those that run go on in every step
    assert longest <= 1.6 * gap
    assert steps > 3
    if cancelled:
        assert 0 < back < 90
        return
    assert back > 90
    assert again.usage().cached_tokens == 4 * back
    assert sink_of(again).ids == alone(texts[0], 6, ignore_eos=True).ids
