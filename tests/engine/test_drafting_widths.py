"""How many drafted tokens a step verifies."""

from __future__ import annotations

import itertools
import random

import pytest

from edgerun.engine.drafting import Account, Row, StepCosts, share

FREE = float("inf")


def cost(width):
    """A step of one token is 1, of nine 2."""
    return 1.0 + (width - 1) / 8


def value(rows, lengths, n_base, cost):
    """Expected tokens per time that the generating rows answer for."""
    expected = float(len(rows))
    for row, n in zip(rows, lengths, strict=True):
        path = 1.0
        for p in row.probs[:n]:
            path *= p
            expected += path
    extra = cost(n_base + sum(lengths)) - cost(n_base)
    return expected / (cost(len(rows)) + extra)


def random_cost(rng):
    steps = itertools.accumulate(rng.choice((0.0, 0.01, 0.1, 0.6)) for _ in range(99))
    table = [1.0, *(1.0 + s for s in steps)]
    return lambda width: table[width - 1]


@pytest.mark.parametrize("seed", range(150))
def test_no_other_lengths_expect_more(seed):
    rng = random.Random(seed)
    rows = [
        Row([rng.random() ** 0.3 for _ in range(rng.randrange(5))], FREE)
        for _ in range(rng.randrange(1, 4))
    ]
    n_base = len(rows) + rng.choice((0, 0, 30))
    price = random_cost(rng)
    got = value(rows, [s.length for s in share(rows, n_base, price)], n_base, price)
    every = itertools.product(*(range(len(r.probs) + 1) for r in rows))
    assert got == pytest.approx(max(value(rows, n, n_base, price) for n in every))


@pytest.mark.parametrize("seed", range(100))
def test_charges_are_the_extra_cost_and_within_the_allowance(seed):
    rng = random.Random(seed)
    rows = [
        Row([rng.uniform(0.5, 0.99) for _ in range(rng.randrange(20))], rng.uniform(0, 3))
        for _ in range(rng.randrange(1, 9))
    ]
    price = random_cost(rng)
    shares = share(rows, len(rows), price)
    width = len(rows) + sum(s.length for s in shares)
    extra = (price(width) - price(len(rows))) / (price(len(rows)) / len(rows))
    assert sum(s.charge for s in shares) == pytest.approx(extra, abs=1e-9)
    for row, s in zip(rows, shares, strict=True):
        assert 0 <= s.length <= len(row.probs)
        assert s.charge <= row.allowance


def test_width_goes_to_the_likelier_row():
    surer, less = Row([0.9] * 8, FREE), Row([0.55] * 8, FREE)
    a, b = share([surer, less], 2, cost)
    assert a.length > b.length
    assert [s.length for s in share([less, surer], 2, cost)] == [b.length, a.length]


def test_nothing_is_drafted_where_it_does_not_pay():
    assert share([Row([0.1, 0.9], FREE)], 1, cost) == [(0, 0.0)]
    assert share([Row([], FREE)], 1, cost) == [(0, 0.0)]
    assert share([Row([0.9] * 9, FREE)], 1, float) == [(0, 0.0)]


def test_certain_tokens_need_no_allowance():
    assert share([Row([1.0] * 6, 0.0)], 1, cost)[0].length == 6
    assert share([Row([0.999] * 6, 0.0)], 1, cost)[0].length == 0


def test_prefill_in_the_step_does_not_make_drafts_look_cheap():
    """They pay for themselves or not; what the step costs anyway is no reason."""
    row = Row([0.2] * 4, FREE)
    dear = lambda width: 0.5 + 0.5 * width  # noqa: E731
    assert share([row], 1, dear)[0].length == 0
    assert share([row], 200, dear)[0].length == 0


def test_losses_are_bounded_whatever_the_drafter_says():
    for lucky in (0, 30):
        account, tokens, time = Account(), 0, 0.0
        for step in range(400):
            [(n, charge)] = share([Row([0.99] * 31, account.allowance)], 1, cost)
            right = n if step < lucky else 0
            account.settle(1 + right, charge)
            if step >= lucky:
                tokens += 1
                time += cost(1 + n)
        assert time <= tokens * 1.02 + 0.5 + (4.0 + 0.02 * 32 * lucky if lucky else 0.0) + 1e-6


def test_costs_interpolate_and_continue():
    c = StepCosts({1: 2.0, 3: 4.0, 5: 5.0}, learn=False)
    assert [c(w) for w in (1, 2, 3, 4, 5)] == [1.0, 1.5, 2.0, 2.25, 2.5]
    assert c(64) == pytest.approx(2.5 + 59 * 0.25)
    assert c(164) == pytest.approx(c(64) + 25.0)
    c.observe(3, 100.0)
    assert c(3) == 2.0


def simulate(c, truth, steps, seed, widths=(1, 1, 2, 5, 8, 13, 16, 24)):
    """Steps on a machine with noise, hiccups and a context that grows."""
    rng = random.Random(seed)
    for i in range(steps):
        w = rng.choice(widths)
        t = 0.004 * truth(w) * (1 + i / steps) * rng.lognormvariate(0, 0.1)
        c.observe(w, t * (rng.uniform(2, 10) if rng.random() < 0.1 else 1.0))


@pytest.mark.parametrize("truth", [lambda w: 1 + 0.01 * (w - 1), cost, lambda w: 0.3 + 0.7 * w])
def test_costs_are_learned_through_noise(truth):
    c = StepCosts()
    simulate(c, truth, 1500, 1)
    for w in (2, 5, 8, 16, 24):
        assert c(w) == pytest.approx(truth(w), rel=0.15), w
    table = [c(w) for w in range(1, 100)]
    assert table == sorted(table)
    assert table[0] == 1.0


def test_costs_follow_a_machine_that_slows_down():
    c = StepCosts()
    simulate(c, cost, 800, 2)
    before = [c(w) for w in (4, 8, 16)]
    for _ in range(200):  # one width only, ever slower: the shape stays
        c.observe(16, 0.02 * cost(16))
    assert [c(w) for w in (4, 8, 16)] == pytest.approx(before, rel=0.1)


def test_unseen_widths_follow_the_seen_ones():
    c = StepCosts()
    simulate(c, lambda w: 1.0, 600, 3, widths=(1, 4, 8))
    assert c(8) < 1.1
    assert c(16) < 1.8
    assert c(3) < 1.1
