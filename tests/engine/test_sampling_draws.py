"""Tokens come up as often as they should, and the same ones whatever else goes on."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from helpers.sampling_reference import Reference

from edgerun.core import SamplingParams
from edgerun.engine.sampling import Sampler

NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def row(n: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=n) * 2).astype(np.float32)


def chi_square_bound(degrees: int) -> float:
    """The 1e-6 quantile from above (Wilson and Hilferty)."""
    a = 2 / (9 * degrees)
    return degrees * (1 - a + 4.753 * math.sqrt(a)) ** 3


@pytest.mark.parametrize(
    ("setting", "n"),
    [
        ({}, 30),
        ({"temperature": 1.5, "min_p": 0.0}, 500),
        ({**NEUTRAL, "temperature": 0.7}, 1000),  # the whole vocabulary, drawn natively
        ({**NEUTRAL, "top_p": 0.9}, 1000),
        ({**NEUTRAL, "min_p": 0.02}, 65),
        ({**NEUTRAL, "typical_p": 0.8}, 200),
    ],
)
def test_frequencies(setting: dict[str, Any], n: int) -> None:
    p, logits, total = SamplingParams(**setting), row(n), 8000
    sampler = Sampler(p, n, seed=11)
    counts = np.zeros(n)
    for _ in range(total):
        token = sampler.sample(logits).token_id
        counts[token] += 1
        sampler.accept(token)
    ids, q = Reference(p, n).distribution(logits, 0.0)
    assert counts.sum() == counts[ids].sum()
    # Groups that expect at least 10, the likeliest first.
    groups = np.minimum.accumulate(np.cumsum(q * total)[::-1])[::-1] // 10
    _, at = np.unique(groups, return_inverse=True)
    want, got = np.bincount(at, q * total), np.bincount(at, counts[ids])
    chi = float(((got - want) ** 2 / want).sum())
    assert chi < chi_square_bound(len(want) - 1)
    assert chi > 0.2 * len(want)  # as far off as chance makes it, not closer


def test_xtc_flips_its_coin() -> None:
    p = SamplingParams(**NEUTRAL, xtc_probability=0.3, xtc_threshold=0.1)
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    sampler = Sampler(p, 3, seed=5)
    counts = np.zeros(3)
    for _ in range(5000):
        token = sampler.sample(logits).token_id
        counts[token] += 1
        sampler.accept(token)
    want = np.array([0.7 * 0.5, 0.7 * 0.3, 0.7 * 0.2 + 0.3])
    assert counts / 5000 == pytest.approx(want, abs=0.03)


CHAINS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0, "repeat_penalty": 1.2},
    {**NEUTRAL, "temperature": 1.3},
    {"mirostat": 1},
    {"mirostat": 2},
    {"xtc_probability": 0.5, "dry_multiplier": 0.8, "dry_sequence_breakers": ["\n"]},
    {"presence_penalty": 0.5, "frequency_penalty": 0.3, "dynatemp_range": 0.4},
]


def text(setting: dict[str, Any], seed: int, steps: int = 30) -> list[int]:
    sampler = make(setting, seed)
    out = []
    for step in range(steps):
        out.append(sampler.sample(row(300, step)).token_id)
        sampler.accept(out[-1])
    return out


def make(setting: dict[str, Any], seed: int) -> Sampler:
    return Sampler(
        SamplingParams(**setting),
        300,
        seed=seed,
        token_bytes=lambda i: b"\n" if i == 7 else b"x",
        prompt_ids=[1, 2, 3] * 20,
    )


@pytest.mark.parametrize("setting", CHAINS)
def test_the_same_text_whatever_the_batch(setting: dict[str, Any]) -> None:
    alone = text(setting, seed=1)
    together = [make(c, seed=1) for c in [setting, *CHAINS]]
    out: list[list[int]] = [[] for _ in together]
    for step in range(30):
        for sampler, ids in zip(reversed(together), reversed(out), strict=True):
            first = sampler.sample(row(300, step))
            # Looking twice, or at a draft's row that is then refused, changes nothing.
            sampler.sample(row(300, step + 1))
            again = sampler.sample(row(300, step))
            assert first == again
            ids.append(again.token_id)
            sampler.accept(again.token_id)
    assert out[0] == alone


def test_seeds_and_positions_differ() -> None:
    assert text({}, seed=1) == text({}, seed=1)
    assert text({}, seed=1) != text({}, seed=2)
    sampler = make({**NEUTRAL, "temperature": 2.0}, seed=1)
    seen = set()
    for _ in range(50):
        seen.add(sampler.sample(row(300)).token_id)
        sampler.accept(0)
    assert len(seen) > 20
