"""The candidates and probabilities of any chain equal those of the plain reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.sampling_reference import Reference
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edgerun.core import DEFAULT_SAMPLERS, SamplingParams
from edgerun.engine.sampling import Sampler, rng

CLOSE = 1e-5  # decisions nearer than this may go either way in float32 sums

# Sizes around the block of 64, the native heap's limit and the histogram's.
SIZES = st.one_of(st.integers(1, 12), st.sampled_from([63, 64, 65, 128, 300, 1000]), st.just(6000))


def make_logits(kind: str, n: int, seed: int) -> np.ndarray:
    r = np.random.default_rng(seed)
    x = r.normal(size=n) * r.uniform(0.1, 6)
    if kind == "ties":
        x = np.round(x)
    elif kind == "equal":
        x[:] = -100.0
    elif kind == "masked":
        x[r.random(n) < 0.5] = -np.inf
        x[r.integers(n)] = 1.5
    elif kind == "peaked":
        x[r.integers(n)] += 20
    elif kind == "zipf":
        x = 12 - 2 * np.log(1 + r.permutation(n)) + r.normal(size=n) * 0.3
    return x.astype(np.float32)


def maybe(strategy: st.SearchStrategy[Any], neutral: Any) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(neutral), st.just(neutral), strategy)


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.one_of(st.just(1.0), st.just(0.0), st.floats(0.2, 3)),
        "dynatemp_range": maybe(st.floats(0.1, 2), 0.0),
        "dynatemp_exponent": maybe(st.floats(0.3, 2), 1.0),
        "top_k": maybe(st.integers(1, 6500), 0),
        "top_p": maybe(st.floats(0, 1), 1.0),
        "min_p": maybe(st.floats(1e-6, 1), 0.0),
        "typical_p": maybe(st.floats(0, 1), 1.0),
        "top_n_sigma": maybe(st.floats(0.01, 4), -1.0),
        "xtc_probability": maybe(st.just(1.0), 0.0),
        "xtc_threshold": st.floats(0, 0.6),
        "repeat_penalty": maybe(st.floats(0.5, 2), 1.0),
        "repeat_last_n": st.sampled_from([-1, 0, 1, 4, 64]),
        "presence_penalty": maybe(st.floats(-2, 2), 0.0),
        "frequency_penalty": maybe(st.floats(-2, 2), 0.0),
        "dry_multiplier": maybe(st.floats(0.1, 3), 0.0),
        "dry_allowed_length": st.integers(0, 3),
        "dry_penalty_last_n": st.sampled_from([-1, 0, 3, 20]),
        "min_keep": st.sampled_from([0, 1, 1, 2, 5, 7000]),
        "samplers": st.one_of(
            st.just(DEFAULT_SAMPLERS),
            st.permutations(DEFAULT_SAMPLERS),
            st.lists(st.sampled_from(DEFAULT_SAMPLERS), max_size=6),
        ),
    }
)
KINDS = st.sampled_from(["normal", "ties", "equal", "masked", "peaked", "zipf"])


def token_bytes(i: int) -> bytes:
    return [b"a", b"b\n", b"us", b"er", b":", b"", b"\nx"][i % 7]


def compare(
    sampler: Sampler, reference: Reference, logits: np.ndarray, seed: int, slack: int = 0
) -> bool:
    """Same candidates, same probabilities.

    Where a decision is too close to call, up to ``slack`` candidates may differ; with no slack
    nothing more is checked and the answer is False.
    """
    coin = rng.draws(seed, sampler.position)[1]
    ids, p = reference.distribution(logits, coin)
    got, q = sampler.distribution(logits)
    assert np.isfinite(q).all()
    assert q.sum() == pytest.approx(1)
    if reference.margin <= CLOSE:
        assert not slack or len(set(got.tolist()) ^ set(ids.tolist())) <= slack
        return False
    assert set(got.tolist()) == set(ids.tolist())
    mine = dict(zip(got.tolist(), q.tolist(), strict=True))
    np.testing.assert_allclose([mine[i] for i in ids.tolist()], p, rtol=2e-3, atol=1e-6)
    return True


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(params=PARAMS, kind=KINDS, n=SIZES, seed=st.integers(0, 2**32), data=st.data())
def test_a_chain_equals_the_reference(
    params: dict[str, Any], kind: str, n: int, seed: int, data: st.DataObject
) -> None:
    p = SamplingParams(**params, dry_sequence_breakers=("\n", "user:"))
    prompt = data.draw(st.lists(st.integers(0, min(n, 9) - 1), max_size=40))
    generated = data.draw(st.lists(st.integers(0, min(n, 9) - 1), max_size=12))
    logits = make_logits(kind, n, seed)
    sampler = Sampler(p, n, seed=seed, token_bytes=token_bytes, prompt_ids=prompt)
    reference = Reference(p, n, token_bytes=token_bytes, prompt_ids=prompt)
    for t in generated:
        sampler.accept(t)
        reference.accept(t, 0.5)
    assume(compare(sampler, reference, logits, seed))


@pytest.mark.parametrize("name", DEFAULT_SAMPLERS)
@pytest.mark.parametrize("n", [3, 200, 40_000])
@pytest.mark.parametrize("first", [None, "top_k"])
def test_each_sampler_alone_and_after_top_k(name: str, n: int, first: str | None) -> None:
    setting: dict[str, Any] = {
        "penalties": {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        "dry": {"dry_multiplier": 0.8},
        "top_n_sigma": {"top_n_sigma": 1.0},
        "top_k": {"top_k": 5000},
        "typ_p": {"typical_p": 0.63},
        "top_p": {"top_p": 0.83},
        "min_p": {"min_p": 0.07},
        "xtc": {"xtc_probability": 1.0, "xtc_threshold": 1e-3},
        "temperature": {"temperature": 0.7},
    }[name]
    neutral = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    chain = (name,) if first is None else (first, name)
    if first:
        setting.setdefault("top_k", 37)
    p = SamplingParams(**{**neutral, **setting}, samplers=chain, dry_sequence_breakers=())
    prompt = [0, 1, 2, 0, 1, 2, 0]
    for kind in ("normal", "zipf", "ties"):
        sampler = Sampler(p, n, seed=3, prompt_ids=prompt)
        reference = Reference(p, n, prompt_ids=prompt)
        for t in (1, 2, 0, 1):
            sampler.accept(t)
            reference.accept(t, 0.5)
        compare(sampler, reference, make_logits(kind, n, 5), 3, slack=4)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    version=st.sampled_from([1, 2]),
    tau=st.floats(0.5, 8),
    eta=st.floats(0.01, 0.5),
    temperature=st.sampled_from([1.0, 0.7, 1.5]),
    n=st.sampled_from([2, 50, 300, 6000]),
    seed=st.integers(0, 2**32),
)
def test_mirostat_equals_the_reference_over_a_text(
    version: int, tau: float, eta: float, temperature: float, n: int, seed: int
) -> None:
    p = SamplingParams(
        mirostat=version, mirostat_tau=tau, mirostat_eta=eta, temperature=temperature
    )
    sampler, reference = Sampler(p, n, seed=seed), Reference(p, n)
    for step in range(6):
        logits = make_logits("zipf" if step % 2 else "normal", n, seed + step)
        assume(compare(sampler, reference, logits, seed))
        ids, q = sampler.distribution(logits)
        t = sampler.sample(logits).token_id
        sampler.accept(t)
        reference.accept(t, float(q[ids == t][0]))


def test_a_flat_row_of_a_large_vocabulary() -> None:
    # Half the vocabulary is needed for the mass: every growing reach and the histogram run.
    n = 70_001
    logits = (np.random.default_rng(0).normal(size=n) * 0.5).astype(np.float32)
    for setting in ({"top_p": 0.9}, {"typical_p": 0.9}, {"top_p": 0.9, "top_k": 60_000}):
        p = SamplingParams(
            **{"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **setting}
        )
        ids, q = Sampler(p, n, seed=0).distribution(logits)
        want, w = Reference(p, n).distribution(logits, 0.0)
        # The border may move by a token or two: probabilities there are 1e-5.
        assert len(set(ids.tolist()) ^ set(want.tolist())) <= 2
        assert q[0] == pytest.approx(w[0], rel=1e-4)
