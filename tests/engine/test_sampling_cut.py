"""Ordering and cutting candidates, against plain sorts."""

from __future__ import annotations

import numpy as np
import pytest

from edgerun.engine.sampling.cut import lightest, ranking


def candidates(n: int, step: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    r = np.random.default_rng(seed)
    ids = r.permutation(4 * n)[:n].astype(np.int32)
    v = r.normal(size=n) * 4
    return ids, np.round(v / step) * step if step else v


@pytest.mark.parametrize("n", [1, 2, 40, 3000, 50_000])
@pytest.mark.parametrize("step", [0.0, 0.01, 1.0, 1e9])
def test_ranking(n: int, step: float) -> None:
    ids, v = candidates(n, step, n)
    order = np.lexsort((ids, -v))
    got_v, got_ids = ranking(v, ids)
    assert got_ids.dtype == np.int32
    np.testing.assert_array_equal(got_ids, ids[order])
    np.testing.assert_array_equal(got_v, v[order])


@pytest.mark.parametrize("n", [1, 2, 40, 3000, 50_000])
@pytest.mark.parametrize("step", [0.0, 0.25, 1e9])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("min_keep", [0, 1, 2500, 10**6])
def test_lightest(n: int, step: float, share: float, strict: bool, min_keep: int) -> None:
    ids, v = candidates(n, step, n)
    keys = np.abs(v - 1.0)
    weights = np.random.default_rng(n).random(n)
    bound = share * weights.sum()
    keep = lightest(keys, weights, v, ids, bound, min_keep, strict=strict)
    order = np.lexsort((ids, -v, keys))
    m = int(keep.sum())
    np.testing.assert_array_equal(np.flatnonzero(keep), np.sort(order[:m]))  # a prefix
    # Long enough, and no longer than it must be (sums may differ in their last bits).
    run, slack = np.cumsum(weights[order]), 1e-9 * weights.sum()
    assert m == n or (run[m - 1] >= bound - slack and m >= min_keep)
    assert m <= max(min_keep, 1) or run[m - 2] <= bound + slack
