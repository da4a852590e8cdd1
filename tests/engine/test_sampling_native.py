"""The native scans against numpy."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from edgerun.core import SamplingParams
from edgerun.engine.sampling import Sampler
from edgerun.engine.sampling.native import TOP_K_MAX, address, scans
from edgerun.errors import GenerationError

SIZES = [1, 2, 63, 64, 65, 127, 128, 1000, 4096, 4097, 20_000]


def row(n: int, seed: int = 0) -> np.ndarray:
    r = np.random.default_rng(seed)
    x = (r.normal(size=n) * 5).astype(np.float32)
    x[r.random(n) < 0.1] = -np.inf
    x[r.integers(n)] = -0.0
    x[r.integers(n)] = 0.0
    return x


@pytest.mark.parametrize("n", SIZES)
def test_maximum(n: int) -> None:
    for seed in range(5):
        x = row(n, seed)
        assert scans(n).scan(address(x)) == x.max()
        assert scans(n).argmax(address(x)) == x.argmax()
        for at in {0, n // 2, n - 1}:
            y = x.copy()
            y[at] = np.nan
            assert np.isnan(scans(n).scan(address(y)))
            assert scans(n).argmax(address(y)) == -1


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_sums(n: int, scale: float) -> None:
    x = row(n)
    best = float(x.max())
    e = np.exp((x.astype(np.float64) - best) * scale)
    s = scans(n)
    assert s.mass(address(x), best, scale) == pytest.approx(e.sum(), rel=5e-7)
    p = e[e > 0] / e.sum()
    mass, entropy = s.entropy(address(x), best, scale)
    assert mass == pytest.approx(e.sum(), rel=5e-7)
    assert entropy == pytest.approx(-(p * np.log(p)).sum(), abs=2e-6)
    live = x[x > -np.inf].astype(np.float64)
    count, mean, variance = s.moments(address(x))
    assert count == len(live)
    assert mean == pytest.approx(live.mean(), abs=1e-5)
    assert variance == pytest.approx(live.var(), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("n", SIZES)
def test_pick(n: int) -> None:
    x = row(n)
    best = float(x.max())
    run = np.cumsum(np.exp(x.astype(np.float64) - best))
    run /= run[-1]
    for u in [0.0, *np.random.default_rng(1).random(50).tolist(), 1 - 2**-53]:
        i = scans(n).pick(address(x), best, 1.0, u)
        assert x[i] > -np.inf
        assert (run[i - 1] if i else 0.0) - 1e-6 <= u <= run[i] + 1e-6


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["random", "equal", "up", "down", "ties", "outliers"])
def test_top_k(n: int, kind: str) -> None:
    x = row(n)
    if kind == "equal":
        x[:] = -100
    elif kind == "up":
        x = np.sort(x)
    elif kind == "down":
        x = np.sort(x)[::-1].copy()
    elif kind == "ties":
        x = np.round(x / 3)
    elif kind == "outliers":
        x[::7] *= 1e30
    live = np.flatnonzero(x > -np.inf)
    want = live[np.lexsort((live, -x[live]))]
    s = scans(n)
    best = s.scan(address(x))
    for k in (1, 2, 40, 300, TOP_K_MAX, 10**9):
        k = min(k, TOP_K_MAX)
        ids, vals = s.top_k(address(x), best, k)
        np.testing.assert_array_equal(ids, want[:k])
        np.testing.assert_array_equal(vals, x[want[:k]])


@pytest.mark.parametrize("n", SIZES)
def test_collect(n: int) -> None:
    x = row(n)
    wide = x.astype(np.float64)
    s = scans(n)
    s.scan(address(x))
    bounds = [-np.inf, -1e300, -3.0, float(x[0]), float(np.nextafter(np.float64(x[-1]), 9)), 1e300]
    for low in bounds:
        for high in [*bounds, np.inf]:
            ids, vals = s.collect(address(x), low, high)
            want = np.flatnonzero((x > -np.inf) & (wide >= low) & (wide <= high))
            np.testing.assert_array_equal(ids, want)
            np.testing.assert_array_equal(vals, x[want])


def test_the_usual_chain_in_one_call_is_the_chain() -> None:
    rng, numbers = random.Random(5), np.random.default_rng(6)
    for _ in range(400):
        n = rng.choice((5, 70, 300, 3000))
        row = (numbers.standard_normal(n) * rng.choice((0.1, 1, 3, 10))).astype(np.float32)
        if rng.random() < 0.3:
            row = np.round(row)  # ties
        if rng.random() < 0.2:
            row[numbers.random(n) < 0.9] = -np.inf
            row[n // 2] = 0
        params = SamplingParams(
            temperature=rng.choice((0.05, 0.8, 1, 1.7)), top_k=rng.choice((1, 2, 40, n)),
            top_p=rng.choice((0.0, 0.1, 0.95, 1)), min_p=rng.choice((0, 0.05, 0.5, 1)),
        )  # fmt: skip
        sampler = Sampler(params, n, seed=rng.randrange(2**40))
        assert (sampler._usual is not None) == (params.top_k < n)
        found = sampler.sample(row).token_id
        sampler._usual = None
        assert found == sampler.sample(row).token_id


@pytest.mark.parametrize(("value", "text"), [(np.nan, "NaN"), (np.inf, "infinite")])
def test_the_usual_chain_refuses_what_the_chain_refuses(value: float, text: str) -> None:
    sampler = Sampler(SamplingParams(), 100, seed=1)
    assert sampler._usual is not None
    row = np.zeros(100, np.float32)
    row[40] = value
    with pytest.raises(GenerationError, match=text):
        sampler.sample(row)
    with pytest.raises(GenerationError, match="no token"):
        sampler.sample(np.full(100, -np.inf, np.float32))


@pytest.mark.parametrize(
    "change",
    [
        {"logprobs": 1},
        {"typical_p": 0.9},
        {"min_keep": 2},
        {"dynatemp_range": 0.5},
        {"mirostat": 2},
        {"repeat_penalty": 1.1},
        {"logit_bias": {1: 2.0}},
        {"samplers": ("temperature", "top_k")},
        {"top_k": 0},
        {"temperature": 0},
    ],
)
def test_what_is_not_usual_takes_the_long_way(change: dict[str, Any]) -> None:
    assert Sampler(SamplingParams(**change), 100, seed=1)._usual is None
