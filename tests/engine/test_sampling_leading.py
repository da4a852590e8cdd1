"""Sampling by a row's largest logits alone: never another token than the whole row would give."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engine.test_sampling_constraint import Allow
from helpers.leading import top_of

from edgerun.core import SamplingParams
from edgerun.engine.sampling import Sampled, Sampler
from edgerun.engine.sampling.dense import Dense
from edgerun.engine.sampling.leading import Leading, UnknownError
from edgerun.engine.sampling.native import scans
from edgerun.engine.sampling.sparse import Sparse
from edgerun.errors import GenerationError

N = 3000
NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
#: Settings that the largest logits may decide, and the share of steps they decide at least where
#: a row is as models' are.
FEW: list[tuple[dict[str, Any], float]] = [
    ({}, 1.0),
    ({"temperature": 2.0, "top_k": 64, "top_p": 1.0, "min_p": 0.0}, 1.0),
    ({**NEUTRAL, "top_k": 1}, 1.0),
    ({"min_keep": 5, "top_k": 3}, 1.0),
    ({"dynatemp_range": 0.5, "typical_p": 0.9, "xtc_probability": 1.0, "xtc_threshold": 0.02}, 1.0),
    ({**NEUTRAL, "min_p": 0.1}, 0.9),
    ({**NEUTRAL, "min_p": 0.1, "min_keep": 30, "top_k": 20, "samplers": ("min_p", "top_k")}, 0.9),
    ({"repeat_penalty": 1.3, "presence_penalty": 0.3, "frequency_penalty": -0.2}, 0.9),
    ({"repeat_penalty": 0.8}, 0.5),
    ({"repeat_penalty": 1.3, "samplers": ("top_k", "penalties", "temperature")}, 1.0),
    ({"dry_multiplier": 1.0, "dry_sequence_breakers": []}, 0.9),
    ({"logit_bias": {3: 1.0, 70: -np.inf, 71: -1.0}}, 0.5),
    ({"logit_bias": {3: 5.0}}, 0.0),
    ({"logit_bias": {3: np.inf, 9: 1e-6}}, 0.0),
    ({"ignore_eos": True}, 0.9),
    ({"temperature": 0.0, "repeat_penalty": 1.2}, 0.9),
    ({"temperature": 0.0, "ignore_eos": True, "logit_bias": {5: 2.0}}, 0.9),
]
#: Settings that ask for more of a row.
WHOLE: list[dict[str, Any]] = [
    NEUTRAL,
    {**NEUTRAL, "top_p": 0.9},
    {"logprobs": 2},
    {"temperature": 0.0, "logprobs": 0},
    {"mirostat": 1},
    {"mirostat": 2},
    {"top_n_sigma": 1.0},
    {"temperature": 0.7, "samplers": ("temperature", "top_k")},
    {"top_k": N},
    {"typical_p": 0.5, "top_k": 0},
]
#: Tokens that a constraint allows, by their number.
SETS = {5: range(0, N, 599), 900: range(0, N, 3)[:900], 2900: range(100, N), N: range(N)}


def rows(rng: np.random.Generator) -> Iterator[np.ndarray]:
    """As models say them, with ties, with few that are possible, and with none or a broken one."""
    for width in (3.0, 0.3):
        yield (rng.standard_normal(N) * width).astype(np.float32)
    yield np.round(rng.standard_normal(N) * 2).astype(np.float32)
    yield np.where(rng.random(N) < 0.5, -0.0, 0.0).astype(np.float32)
    few = np.full(N, -np.inf, np.float32)
    few[rng.integers(0, N, 20)] = rng.standard_normal(20)
    yield few
    yield np.full(N, -np.inf, np.float32)
    for bad in (np.nan, np.inf):
        spoilt = rng.standard_normal(N).astype(np.float32)
        spoilt[rng.integers(N)] = bad
        yield spoilt


class Steps:
    """Samples with and without the largest logits, and counts how often they sufficed."""

    def __init__(self, setting: dict[str, Any], n_vocab: int = N, allowed: Any = None) -> None:
        def make() -> Sampler:
            return Sampler(
                SamplingParams(**setting), n_vocab, eog_ids=(2,), seed=5,
                prompt_ids=[1, 2, 3, 1, 2], token_bytes=lambda i: bytes([i % 256]),
                constraint=None if allowed is None else Allow(allowed, n_vocab),
            )  # fmt: skip

        self.plain, self.quick = make(), make()
        self.asked = 0

    def step(self, row: np.ndarray, k: int) -> None:
        def whole() -> np.ndarray:
            self.asked += 1
            return row

        top = top_of(row[None], k)
        found, wanted = (
            _result(lambda: self.quick.sample(whole, None, (top.ids[0], top.logits[0]))),
            _result(lambda: self.plain.sample(row)),
        )
        assert found == wanted
        if isinstance(wanted, Sampled):
            self.plain.accept(wanted.token_id)
            self.quick.accept(wanted.token_id)


def _result(sample: Any) -> Any:
    try:
        return sample()
    except GenerationError as e:
        return str(e)


@pytest.mark.parametrize(("setting", "share"), FEW, ids=str)
def test_the_same_tokens(setting: dict[str, Any], share: float) -> None:
    rng = np.random.default_rng(1)
    steps = Steps(setting)
    assert steps.quick.leading(128) > 0
    for k in (1, 24, 128):
        for row in rows(rng):
            steps.step(row, k)
    steps.asked = 0
    for _ in range(40):
        steps.step((rng.standard_normal(N) * 3).astype(np.float32), 128)
    assert steps.asked <= 40 * (1 - share)


@pytest.mark.parametrize("allowed", SETS.values(), ids=map(str, SETS))
@pytest.mark.parametrize(("setting", "share"), FEW, ids=str)
def test_the_same_tokens_under_a_constraint(
    setting: dict[str, Any], share: float, allowed: range
) -> None:
    rng = np.random.default_rng(2)
    steps = Steps(setting, allowed=allowed)
    for k in (24, 128):
        for row in rows(rng):
            steps.step(row, k)


def test_greedy_under_a_constraint_finds_the_best_that_is_allowed() -> None:
    rng = np.random.default_rng(3)
    steps = Steps({"temperature": 0.0}, allowed=SETS[900])
    for _ in range(20):
        steps.step(rng.standard_normal(N).astype(np.float32), 128)
    assert steps.asked == 0


@pytest.mark.parametrize("setting", WHOLE, ids=str)
def test_what_needs_the_whole_row_says_so(setting: dict[str, Any]) -> None:
    steps = Steps(setting)
    assert steps.quick.leading(128) == 0
    for row in rows(np.random.default_rng(4)):
        steps.step(row, 128)


def test_a_head_that_is_longer_than_the_vocabulary() -> None:
    rng = np.random.default_rng(6)
    for n_vocab in (N - 1000, 40, 3):
        for setting in ({}, {"top_k": 2}, {**NEUTRAL, "min_p": 0.2}, {"ignore_eos": True}):
            steps = Steps(setting, n_vocab)
            for _ in range(20):
                steps.step((rng.standard_normal(N) * 2).astype(np.float32), 128)


def test_a_lowered_tie_gives_way_to_what_nobody_has_seen() -> None:
    """Token 9 falls to the last known logit: of those as large, unseen ones have lower ids."""
    row = np.zeros(N, np.float32)
    row[[7, 9]] = 1.0, 0.5
    setting = {"temperature": 0.0, "logit_bias": {7: -2.0, 9: -0.5}}
    steps = Steps(setting)
    steps.step(row, 2)
    assert steps.asked == 1
    steps.step(row, 128)
    assert steps.asked == 1


def _settings(rng: np.random.Generator) -> dict[str, Any]:
    """A chain that the largest logits may decide, with changes that make and break ties."""
    setting: dict[str, Any] = {**NEUTRAL, "min_keep": int(rng.integers(1, 6))}
    first = rng.integers(3)
    if first == 0:
        setting["temperature"] = 0.0
    elif first == 1:
        setting["min_p"] = float(rng.choice([0.9, 0.6, np.exp(-1), 0.1]))
    else:
        setting["top_k"] = int(rng.integers(1, 9))
        setting["top_p"] = float(rng.choice([1.0, 0.7]))
    if rng.random() < 0.7:
        by = [-np.inf, -1.5, -1.0, -0.5, -(2.0**-25), 0.0, 2.0**-25, 2.0**-24, 0.5, 1.0]
        setting["logit_bias"] = {int(i): float(rng.choice(by)) for i in rng.integers(0, 30, 6)}
    if rng.random() < 0.3:
        setting["repeat_penalty"] = float(rng.choice([0.5, 2.0]))
        setting["presence_penalty"] = float(rng.choice([-0.5, 0.0, 0.5]))
    return setting


@pytest.mark.parametrize("block", range(4))
def test_the_same_candidates_in_the_same_order(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of few values, so that most of what decides is a tie."""
    monkeypatch.setattr("edgerun.engine.sampling.dense.FEW", 20)
    monkeypatch.setattr("edgerun.engine.sampling.leading.FEW", 20)
    known = 0
    for seed in range(block * 500, block * 500 + 500):
        rng = np.random.default_rng(seed)
        n = int(rng.integers(30, 90))
        row = (rng.integers(-3, 4, n) / 2).astype(np.float32)
        row[rng.random(n) < rng.choice([0.0, 0.3, 0.9])] = -np.inf
        row += (rng.random(n) < 0.2).astype(np.float32) * np.float32(2.0**-24)
        row[0] = 0.0
        setting = _settings(rng)
        allowed = rng.permutation(n)[: rng.choice([n, n - 1, 25, 20, 9])]
        constraint = Allow(allowed.tolist(), n) if rng.random() < 0.5 else None
        prompt = rng.integers(0, 30, 6).tolist()
        sampler = Sampler(
            SamplingParams(**setting), n, seed=1, prompt_ids=prompt, constraint=constraint
        )
        k = int(rng.integers(1, 30))
        (ids,), (logits,) = top_of(row[None], k)
        live = ids >= 0
        pool = Leading(ids[live], logits[live], n, whole=not live.all())
        try:
            found = sampler._candidates(pool)[0]  # type: ignore[arg-type]
        except UnknownError:
            continue
        known += 1
        wanted = sampler._candidates(Dense(row, scans(n)))[0]
        assert isinstance(wanted, Sparse)
        assert isinstance(found, Sparse)
        assert found.ids.tolist() == wanted.ids.tolist(), seed
        if setting["temperature"] > 0.0:
            np.testing.assert_array_equal(found.logits, wanted.logits)
            assert found.is_sorted == wanted.is_sorted
    assert known > 150


def test_what_becomes_infinite_is_said() -> None:
    steps = Steps({"temperature": 0.0, "repeat_penalty": 1e-6})
    row = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    row[1] = 1e35
    with np.errstate(over="ignore"):
        steps.step(row, 128)
    assert steps.asked == 1


def test_more_than_a_heap_holds() -> None:
    steps = Steps({**NEUTRAL, "min_p": 0.99, "min_keep": 4500}, 5000)
    row = np.full(5000, -np.inf, np.float32)
    row[[4000, 9, 700]] = 1.0, 2.0, 0.0
    for _ in range(20):
        steps.step(row, 128)


def test_what_rounding_raises_to_a_tie() -> None:
    """Of what is unseen, token 3 becomes as large as the last that is seen, and is before it."""
    row = np.zeros(N, np.float32)
    row[[3, 9]] = 1 - 2.0**-24, 1.0
    steps = Steps({"temperature": 0.0, "logit_bias": {3: 2.0**-25}})
    steps.step(row, 1)
    assert steps.asked == 1


def test_the_last_that_is_known_counts() -> None:
    row = np.zeros(N, np.float32)
    steps = Steps({"temperature": 0.0, "ignore_eos": True})
    steps.step(row, 1)
    assert steps.asked == 0
    with pytest.raises(UnknownError):
        Leading(np.arange(4, dtype=np.int32), row[:4], 9, whole=True).top_k(9)
