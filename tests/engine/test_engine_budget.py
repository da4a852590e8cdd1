"""What a step costs, learned from steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.engine.budget import Pace, StepCost


def learn(fixed: float, each: float, widths: list[int], noise: float = 0.0) -> StepCost:
    rng = random.Random(1)
    cost = StepCost()
    for w in widths:
        cost.add(w, (fixed + each * w) * (1 + noise * rng.uniform(-1, 1)))
    return cost


def test_it_knows_nothing_at_first() -> None:
    cost = StepCost()
    assert (cost.n, cost.seconds(5), cost.within(0.1)) == (0, None, None)


@given(st.floats(1e-4, 0.2), st.floats(1e-5, 0.01))
@settings(max_examples=50)
def test_it_finds_a_line(fixed: float, each: float) -> None:
    cost = learn(fixed, each, [1, 2, 8, 64, 300] * 4, noise=0.05)
    for n in (1, 30, 200):
        assert cost.seconds(n) == pytest.approx(fixed + each * n, rel=0.15)


def test_it_finds_a_bend() -> None:
    """Up to eight tokens cost about as much as one; from there on each costs the same."""

    def true(n: float) -> float:
        return 0.02 if n <= 8 else 0.02 + 0.002 * (n - 8)

    cost = StepCost()
    for n in (1, 3, 8, 30, 60, 120, 500) * 3:
        cost.add(n, true(n))
    for seconds in (0.03, 0.1, 0.5):
        n = cost.within(seconds)
        assert n is not None
        assert seconds * 0.8 < true(n) <= seconds * 1.02


def test_a_busy_machine_does_not_count() -> None:
    cost = StepCost()
    for i in range(60):
        slow = 20 if i % 5 == 0 else 1  # every fifth step is held up
        n = [1, 16, 128][i % 3]
        cost.add(n, slow * (0.01 + 0.001 * n))
    assert cost.within(0.1) in range(75, 106)  # 90 by the true line


def test_it_follows_a_change() -> None:
    cost = learn(0.001, 0.0001, [1, 16, 128] * 20)
    assert cost.within(0.1) == 256  # twice the widest: it promises no more
    for _ in range(6):  # the contexts grew: a step costs ten times as much
        for n in (1, 16, 128):
            cost.add(n, 10 * (0.001 + 0.0001 * n))
    assert cost.within(0.1) in range(80, 100)


def test_old_widths_are_forgotten() -> None:
    cost = learn(0.0, 0.1, [512])  # the first step of all, with the disk still busy, say
    for _ in range(600):
        cost.add(1, 0.001)
        cost.add(8, 0.002)
    assert cost.seconds(8) == pytest.approx(0.002, rel=0.1)
    assert cost.seconds(512) < 0.2  # type: ignore[operator]


def test_what_no_tokens_can_keep_to_is_none_of_them() -> None:
    assert learn(0.3, 0.04, [1, 2, 4, 8]).within(0.1) == 0


def test_the_pace_is_that_of_the_last_prompts() -> None:
    pace = Pace()
    assert pace.within(0.1) is None
    pace.add(8, 0.008)
    assert pace.within(0.1) == 16  # twice as many as lately: it promises no more
    pace.add(50, 0.05)
    pace.add(50, 0.1)
    assert pace.within(0.1) == 50
    pace.add(50, 1.0)  # held up by something else
    assert pace.within(0.1) == 5
    pace.add(5, 0.01)
    pace.add(10, 0.02)
    assert pace.within(0.1) == 20
    pace.add(1, -0.001)  # less than the other rows alone were thought to take
    pace.add(2, 0.0)
    assert pace.within(0.1) == 4


@given(st.lists(st.tuples(st.integers(1, 600), st.floats(1e-9, 100.0)), min_size=1, max_size=40))
@settings(max_examples=100)
def test_any_measurements_give_a_line_that_does_not_fall(steps: list[tuple[int, float]]) -> None:
    cost = StepCost()
    for n, seconds in steps:
        cost.add(n, seconds)
        values = [cost.seconds(w) for w in (1, 10, 100)]
        assert all(v is not None and 0 <= v < 1e6 for v in values)
        assert values == sorted(values, key=lambda v: v or 0)
        assert cost.within(0.1) is not None
