"""How many drafted tokens a step verifies."""

from __future__ import annotations

import itertools
import random

import pytest

from edgerun.engine.draft_source import Account, Draft
from edgerun.engine.drafting import NgramDrafter, Speculation, StepCosts, share
from edgerun.engine.drafting.widths import MARGIN


class Rich(Account):
    """An account with a given allowance."""

    def __init__(self, allowance):
        super().__init__(bank=allowance - Account().allowance)


def row(probs, allowance=None):
    """A row's draft; without an allowance it may cost what it will."""
    account = None if allowance is None else Rich(allowance)
    return Draft(tuple(range(len(probs))), tuple(probs), account=account)


def cost(width):
    """A step of one token is 1, of nine 2."""
    return 1.0 + (width - 1) / 8


def value(rows, lengths, n_base, cost):
    """Expected tokens per time that the generating rows answer for."""
    expected = float(len(rows))
    for d, n in zip(rows, lengths, strict=True):
        path = 1.0
        for p in d.probs[:n]:
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
        row([rng.random() ** 0.3 for _ in range(rng.randrange(5))])
        for _ in range(rng.randrange(1, 4))
    ]
    n_base = len(rows) + rng.choice((0, 0, 30))
    price = random_cost(rng)
    got = value(rows, [s.length for s in share(rows, n_base, price)], n_base, price)
    every = itertools.product(*(range(len(r.probs) + 1) for r in rows))
    best = max(value(rows, n, n_base, price) for n in every)
    none = value(rows, [0] * len(rows), n_base, price)
    pays = best > none * (1 + MARGIN / len(rows))
    assert got == pytest.approx(best if pays else none)


@pytest.mark.parametrize("seed", range(100))
def test_charges_are_the_extra_cost_and_within_the_allowance(seed):
    rng = random.Random(seed)
    rows = [
        row([rng.uniform(0.5, 0.99) for _ in range(rng.randrange(20))], rng.uniform(0, 3))
        for _ in range(rng.randrange(1, 9))
    ]
    price = random_cost(rng)
    shares = share(rows, len(rows), price)
    width = len(rows) + sum(s.length for s in shares)
    extra = (price(width) - price(len(rows))) / (price(len(rows)) / len(rows))
    assert sum(s.charge for s in shares) == pytest.approx(extra, abs=1e-9)
    for d, s in zip(rows, shares, strict=True):
        assert 0 <= s.length <= len(d.probs)
        assert s.charge <= d.account.allowance


def test_width_goes_to_the_likelier_row():
    surer, less = row([0.9] * 8), row([0.55] * 8)
    a, b = share([surer, less], 2, cost)
    assert a.length > b.length
    assert [s.length for s in share([less, surer], 2, cost)] == [b.length, a.length]


def test_nothing_is_drafted_where_it_does_not_pay():
    assert share([row([0.1, 0.9])], 1, cost) == [(0, 0.0)]
    assert share([row([])], 1, cost) == [(0, 0.0)]
    assert share([row([0.9] * 9)], 1, float) == [(0, 0.0)]


def test_certain_tokens_need_no_allowance():
    assert share([row([1.0] * 6, 0.0)], 1, cost)[0].length == 6
    assert share([row([0.999] * 6, 0.0)], 1, cost)[0].length == 0


def test_prefill_in_the_step_does_not_make_drafts_look_cheap():
    """They pay for themselves or not; what the step costs anyway is no reason."""
    d = row([0.2] * 4)
    dear = lambda width: 0.5 + 0.5 * width  # noqa: E731
    assert share([d], 1, dear)[0].length == 0
    assert share([d], 200, dear)[0].length == 0


def test_a_priced_draft_alone_in_its_step_is_verified_whole():
    """What a drafter has priced, the policy would verify; its account is charged the same."""
    rng = random.Random(4)
    long = 0
    for _ in range(100):
        costs = StepCosts({w: random_cost(rng)(w) + w / 9 for w in (1, 2, 4, 8, 32)}, learn=False)
        account = Account(bank=rng.uniform(0, 3))
        drafter = NgramDrafter(costs, account)
        text = [rng.randrange(40) for _ in range(30)]
        drafter.extend(text * 3)
        drafter.extend(text[: rng.randrange(1, 25)])
        draft = drafter.draft(31)._replace(account=account)
        assert draft.priced or not draft.tokens
        [shared] = share([draft], 1, costs)
        assert Speculation(NgramDrafter, costs).widths([draft], 1) == [shared.length]
        assert account.charge == pytest.approx(shared.charge)
        long += shared.length > 3
        [beside] = Speculation(NgramDrafter, costs).widths([draft], 40)
        assert beside == share([draft], 40, costs)[0].length  # here it was not
    assert long > 20
    assert not drafter.draft(5, text[:3]).priced
    assert not NgramDrafter().draft(5).priced


class Boaster:
    """A drafter that is always sure."""

    name = "boaster"
    quick = True

    def extend(self, ids):
        pass

    def draft(self, most):
        return Draft((1,) * most, (0.99,) * most)


@pytest.mark.parametrize("lucky", [0, 30])
def test_losses_are_bounded_whatever_the_drafter_says(lucky):
    costs = StepCosts({1: 1.0, 9: 2.0}, learn=False)
    speculation = Speculation(lambda costs, account: Boaster(), costs)
    drafter = speculation.drafter()
    drafter.extend([5] * 10)
    emitted, tokens, time = 0, 0, 0.0
    for step in range(400):
        [n] = speculation.widths([drafter.draft(31)], 1)
        right = n if step < lucky else 0
        drafter.extend([1] * (1 + right))
        emitted += 1 + right
        if step >= lucky:
            tokens += 1
            time += costs(1 + n)
    gained = 4.0 if lucky else 0.0
    assert time <= tokens + 0.02 * emitted + 0.5 + gained + 1e-6


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
