"""A mask comes before everything else, and the distribution is that of masking, then sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from edgerun.core import SamplingParams
from edgerun.engine.sampling import Sampler
from edgerun.errors import GenerationError

N = 5000


class Allow:
    """A constraint that always allows the same tokens."""

    def __init__(self, ids: Sequence[int], n: int = N) -> None:
        self.words = np.zeros((n + 31) // 32, np.uint32)
        for i in ids:
            self.words[i // 32] |= np.uint32(1 << i % 32)
        self.taken: list[int] = []
        self.ended = False

    def mask(self) -> np.ndarray:
        return self.words

    def accept(self, token_id: int) -> None:
        self.taken.append(token_id)

    def forced(self, most: int) -> Sequence[int]:
        return ()

    def fits(self, token_ids: Sequence[int]) -> int:
        return 0


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    {},
    {"temperature": 2.0, "top_k": 3},
    {"top_p": 0.5, "top_k": 0, "min_p": 0.0},
    {"typical_p": 0.5, "min_p": 0.0},
    {"top_n_sigma": 1.0, "top_k": 0},
    {"xtc_probability": 1.0, "xtc_threshold": 0.02, "min_p": 0.0},
    {"dynatemp_range": 0.5},
    {"mirostat": 1},
    {"mirostat": 2},
    {"repeat_penalty": 1.4, "presence_penalty": 0.5},
    {"logit_bias": {7: 3.0, 8: -2.0}},
    {"temperature": 0.0},
    {"temperature": 0.0, "repeat_penalty": 1.4},
    {"temperature": 0.0, "logprobs": 2},
]

#: Few, many, all but few, all, one; across the borders of words and of the vocabulary.
SETS = {
    "few": [0, 7, 8, 31, 32, 63, 64, 100, 4998, 4999],
    "many": list(range(0, N, 2)),
    "most": [i for i in range(N) if i % 97],
    "all": list(range(N)),
    "one": [4999],
}


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("which", SETS)
def test_as_if_the_other_logits_were_minus_infinity(setting: dict[str, Any], which: str) -> None:
    allowed = SETS[which]
    params = SamplingParams(**setting)
    x = np.random.default_rng(1).normal(0, 3, N).astype(np.float32)
    x[[3, 9]] = 20.0  # what the model wants most is in some of the sets only
    masked = np.full(N, -np.inf, np.float32)
    masked[allowed] = x[allowed]
    x.setflags(write=False)
    for seed in range(12):
        options: dict[str, Any] = {"seed": seed, "prompt_ids": [7, 8, 100, 7]}
        a = Sampler(params, N, constraint=Allow(allowed), **options)
        b = Sampler(params, N, **options)
        for _ in range(3):
            ids, p = a.distribution(x)
            want_ids, want_p = b.distribution(masked)
            np.testing.assert_array_equal(ids, want_ids)
            np.testing.assert_allclose(p, want_p, rtol=2e-6, atol=1e-9)
            assert set(ids.tolist()) <= set(allowed)
            token = a.sample(x).token_id
            assert token in allowed
            b.sample(masked)  # mirostat notes what it chose
            a.accept(token)
            b.accept(token)


def test_draws_follow_the_masked_softmax() -> None:
    allowed = [3, 50, 1000, 4000]
    x = np.zeros(N, np.float32)
    x[allowed] = [0.0, 1.0, 2.0, -1.0]
    x[4001] = 30.0
    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    sampler = Sampler(params, N, seed=3, constraint=Allow(allowed))
    counts = dict.fromkeys(allowed, 0)
    for _ in range(20_000):
        token = sampler.sample(x).token_id
        counts[token] += 1
        sampler.accept(token)
    want = np.exp(x[allowed]) / np.exp(x[allowed]).sum()
    np.testing.assert_allclose(np.array(list(counts.values())) / 20_000, want, atol=0.012)


def test_the_backends_argmax_counts_where_it_is_allowed() -> None:
    sampler = Sampler(SamplingParams(temperature=0), N, seed=1, constraint=Allow([5, 40]))
    assert sampler.greedy_fast
    x = np.zeros(N, np.float32)
    x[[5, 40, 41]] = [1.0, 2.0, 3.0]
    assert sampler.sample(np.full(N, np.nan, np.float32), best=40).token_id == 40
    assert sampler.sample(x, best=41).token_id == 40
    assert sampler.sample(x, best=-1).token_id == 40


def test_logprobs_do_not_know_of_the_mask() -> None:
    x = np.random.default_rng(0).normal(size=N).astype(np.float32)
    sampler = Sampler(SamplingParams(logprobs=2), N, seed=1, constraint=Allow([17]))
    got = sampler.sample(x)
    norm = np.log(np.exp(x.astype(np.float64)).sum())
    assert got.token_id == 17
    assert got.logprob == pytest.approx(x[17] - norm, abs=1e-5)
    assert got.top is not None
    assert [i for i, _ in got.top] == np.argsort(-x)[:2].tolist()


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("which", SETS)
def test_nothing_left_and_broken_rows_are_refused(setting: dict[str, Any], which: str) -> None:
    sampler = Sampler(SamplingParams(**setting), N, seed=1, constraint=Allow(SETS[which]))
    x = np.zeros(N, np.float32)
    x[SETS[which]] = -np.inf
    if which == "all":
        x[:] = -np.inf
    with pytest.raises(GenerationError, match="no token can be sampled"):
        sampler.sample(x)
    for bad in (np.nan, np.inf):  # wherever it stands
        x = np.zeros(N, np.float32)
        x[1] = bad
        with pytest.raises(GenerationError):
            sampler.sample(x)
    banned = SamplingParams(**{**setting, "logit_bias": dict.fromkeys(SETS[which], -np.inf)})
    sampler = Sampler(banned, N, seed=1, constraint=Allow(SETS[which]))
    with pytest.raises(GenerationError, match="no token can be sampled"):
        sampler.sample(np.zeros(N, np.float32))


def test_accept_moves_the_constraint() -> None:
    constraint = Allow([1, 2, 3])
    sampler = Sampler(SamplingParams(), N, seed=1, constraint=constraint)
    sampler.sample(np.zeros(N, np.float32))
    assert constraint.taken == []
    sampler.accept(2)
    assert constraint.taken == [2]
    assert not sampler.ended
    constraint.ended = True
    assert sampler.ended
