"""Pages that go to host memory when the pool gives them up, and come back."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from helpers import scenarios
from helpers.fake_program import (
    N_VOCAB,
    FakeProgram,
    FakeSpace,
    alone,
    drain,
    engine,
    greedy,
    sequence,
    sink_of,
)

from edgerun.backends.base import F32, Batch
from edgerun.engine import Engine
from edgerun.engine.metrics import SwapCount
from edgerun.engine.swap import worth_moving
from edgerun.errors import BackendError, OutOfMemoryError
from edgerun.planning import Room, swap_pages

SIZE = 4


def swap_of(e: Engine) -> SwapCount:
    count = e.metrics().swap
    assert count is not None
    return count


def rig(n_pages: int, limit: int = 1 << 20) -> tuple[FakeProgram, FakeSpace, Engine]:
    program = FakeProgram(n_pages, SIZE)
    space = FakeSpace(program, limit)
    return program, space, engine(n_pages, SIZE, program=program, space=space)


def run(e: Engine, ids: Sequence[int], n: int = 2) -> int:
    """It says what it should; returns the cached tokens."""
    s = sequence(ids, n, ignore_eos=True)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == alone(ids, n, ignore_eos=True).ids
    return s.usage().cached_tokens


def text(k: int, n: int = 15) -> list[int]:
    return [1 + (k * 31 + i * i) % 60 for i in range(n)]


# -- random loads ---------------------------------------------------------------------------------


class Poisoned(FakeProgram):
    def predict(self, ids: Sequence[int]) -> F32:
        return scenarios.poisoned(super().predict)(ids)


class Checked(Engine):
    """Every slot and every known page holds the tokens that it is kept for."""

    space: FakeSpace

    def check(self) -> None:
        super().check()
        assert self.swap is not None
        for saved in self.swap._saved.values():
            assert tuple(self.space.slots[saved.slot].tolist()) == saved.tokens
        for page, node in self.pool.index._by_page.items():
            held = tuple(self.space.program._memory[page].tolist())
            assert held[: len(node.tokens)] == node.tokens


@pytest.mark.parametrize("block", range(6))
def test_every_request_gets_what_it_gets_alone(block: int) -> None:
    """Arrivals, cancels, forks, drafts, shifts, NaN; pools and host memory down to starvation."""
    counts = dict.fromkeys(("preemptions", "out", "in", "cached", "dropped"), 0)
    for seed in range(10_000 + block * 100, 10_000 + (block + 1) * 100):
        s = scenarios.draw(seed, None, N_VOCAB, 24, poison=True)
        scenarios.expect(s, scenarios.poisoned(FakeProgram.predict.__get__(object())), N_VOCAB)
        program = Poisoned(s.n_pages, s.page_size)
        space = FakeSpace(program, (1, 2, 7, 1 << 20)[seed % 4])
        e = engine(s.n_pages, s.page_size, s.limits, program, space=space)
        e.__class__, e.space = Checked, space
        try:
            scenarios.play(s, e)
            scenarios.judge(s)
        except AssertionError as error:
            raise AssertionError(f"scenario {seed}: {error}") from error
        count = swap_of(e)
        counts["preemptions"] += e.metrics().preemptions
        counts["cached"] += e.metrics().cached_tokens
        counts["out"] += count.pages_out
        counts["in"] += count.pages_in
        counts["dropped"] += count.pages_out - count.pages_kept
    assert all(n > 5 for n in counts.values()), counts  # it all did happen
