"""The native scans against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.engine.sampling.native import TOP_K_MAX, address, scans

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
