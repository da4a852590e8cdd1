"""Rope scaling rules on their own; whole models with them are in test_arch.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edgerun.arch.base import Params, Source
from edgerun.arch.rope import inverse_frequencies, read_rope, yarn_frequencies
from edgerun.backends.base import Rope
from edgerun.gguf import Metadata


def rope(n_ctx: int = 128, vectors: dict[str, Any] | None = None, **changes: Any) -> Rope:
    vectors = {f"{k}.weight": v for k, v in (vectors or {}).items()}
    meta = {f"m.rope.{k.replace('__', '.')}": v for k, v in changes.items()}
    source = Source(
        Metadata(meta), {n: (len(v),) for n, v in vectors.items()}, lambda n: np.float32(vectors[n])
    )
    return read_rope(Params("m", source), 16, n_ctx, 128, interleaved=False)


def test_plain() -> None:
    r = rope(freq_base=100.0)
    assert r.inv_freq.dtype == np.float32
    assert r.n_rot == 16
    assert r.mscale == 1.0
    np.testing.assert_allclose(r.inv_freq, [100 ** (-i / 8) for i in range(8)], rtol=1e-7)


def test_partial() -> None:
    assert rope(dimension_count=8).n_rot == 8
    np.testing.assert_allclose(rope(dimension_count=8).inv_freq, inverse_frequencies(8, 1e4))


@pytest.mark.parametrize(
    "changes",
    [
        {"scaling__type": "linear", "scaling__factor": 4.0},
        {"scaling__factor": 4.0},  # before files named the type
        {"scale_linear": 4.0},  # before they named the factor so
    ],
)
def test_linear(changes: dict[str, Any]) -> None:
    np.testing.assert_allclose(rope(**changes).inv_freq, rope().inv_freq / 4)


@pytest.mark.parametrize(
    "changes", [{"scaling__type": "none", "scaling__factor": 4.0}, {"scaling__factor": 0.0}]
)
def test_not_scaled(changes: dict[str, Any]) -> None:
    np.testing.assert_array_equal(rope(**changes).inv_freq, rope().inv_freq)


def test_divisors() -> None:
    factors = np.linspace(1, 8, 8)
    r = rope(vectors={"rope_freqs": factors})
    np.testing.assert_allclose(r.inv_freq, inverse_frequencies(16, 1e4) / factors, rtol=1e-6)
    assert r.mscale == 1.0


def test_yarn_keeps_fast_dimensions_and_divides_slow_ones() -> None:
    plain = inverse_frequencies(64, 1e4)
    scaled = yarn_frequencies(plain, 1e4, 8.0, 4096)
    turns = 4096 * plain / (2 * math.pi)
    np.testing.assert_allclose(scaled[turns > 40], plain[turns > 40])
    np.testing.assert_allclose(scaled[turns < 0.7], plain[turns < 0.7] / 8)
    assert (np.diff(scaled) < 0).all()


def test_yarn_attention_factors() -> None:
    yarn = {"scaling__type": "yarn", "scaling__factor": 8.0}
    assert rope(**yarn).mscale == pytest.approx(1 + 0.1 * math.log(8))
    assert rope(**yarn, scaling__yarn_attn_factor=0.5).mscale == pytest.approx(
        0.5 * (1 + 0.1 * math.log(8))
    )
    off = rope(**yarn, scaling__yarn_ext_factor=0.0)  # pure interpolation
    np.testing.assert_allclose(off.inv_freq, rope().inv_freq / 8)
    assert off.mscale == 1.0


def test_longrope() -> None:
    factors = {"rope_factors_short": [1.0] * 8, "rope_factors_long": [2.0] * 8}
    original = {"scaling__original_context_length": 64}
    plain = inverse_frequencies(16, 1e4)
    for n_ctx, divisor in ((64, 1), (65, 2)):
        r = rope(n_ctx, factors, **original)
        np.testing.assert_allclose(r.inv_freq, plain / divisor, rtol=1e-6)
        # Both alike; derived where the file lacks it.
        assert r.mscale == pytest.approx(math.sqrt(1 + math.log(2) / math.log(64)))
    assert rope(65, factors, **original, scaling__attn_factor=1.5).mscale == 1.5
