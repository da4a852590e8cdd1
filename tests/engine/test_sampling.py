"""What a Sampler promises besides its distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgerun.core import DEFAULT_SAMPLERS, SamplingParams
from edgerun.engine.sampling import Sampled, Sampler
from edgerun.errors import GenerationError, RequestError

NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
GREEDY: dict[str, Any] = {"temperature": 0.0}
CHAINS: list[dict[str, Any]] = [
    GREEDY,
    {},
    NEUTRAL,
    {**NEUTRAL, "top_p": 0.9},
    {**NEUTRAL, "typical_p": 0.9},
    {**NEUTRAL, "top_n_sigma": 1.0},
    {**NEUTRAL, "xtc_probability": 1.0, "xtc_threshold": 0.01},
    {**NEUTRAL, "dynatemp_range": 0.5},
    {"mirostat": 1},
    {"mirostat": 2},
    {"repeat_penalty": 1.3, "presence_penalty": 1.0},
    {"dry_multiplier": 1.0, "dry_sequence_breakers": []},
    {"logit_bias": {3: 2.0}},
    {"logprobs": 3},
    {"temperature": 1e-300, "top_k": 0},
    {"temperature": 1000.0, "top_k": 0},
]


def make(setting: dict[str, Any], n: int, **more: Any) -> Sampler:
    return Sampler(SamplingParams(**setting), n, **{"seed": 1, **more})


def row(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=n).astype(np.float32)


@pytest.mark.parametrize("setting", CHAINS)
def test_logits_are_not_written_to(setting: dict[str, Any]) -> None:
    x = row(300)
    x.setflags(write=False)
    before = x.copy()
    sampler = make(setting, 300, prompt_ids=[1, 2, 3, 1, 2, 3])
    for _ in range(3):
        sampler.accept(sampler.sample(x).token_id)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("setting", CHAINS)
@pytest.mark.parametrize("n", [1, 70])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("at", [0, -1])
def test_a_broken_row_is_refused(setting: dict[str, Any], n: int, bad: float, at: int) -> None:
    x = row(n)
    x[at] = bad
    setting = {k: v for k, v in setting.items() if k != "logit_bias"}
    with pytest.raises(GenerationError, match="NaN" if bad != bad else "infinite"):
        make(setting, n).sample(x)


@pytest.mark.parametrize("setting", CHAINS)
def test_nothing_left_to_sample_is_an_error(setting: dict[str, Any]) -> None:
    with pytest.raises(GenerationError, match="no token can be sampled"):
        make(setting, 5).sample(np.full(5, -np.inf, np.float32))


def test_nan_of_a_banned_token_is_seen() -> None:
    x = row(10)
    x[4] = np.nan
    with pytest.raises(GenerationError, match="NaN"):
        make({"logit_bias": {4: -np.inf}}, 10).sample(x)


@pytest.mark.parametrize("setting", CHAINS)
@pytest.mark.parametrize("n", [1, 2, 64, 129])
def test_one_live_token_is_always_chosen(setting: dict[str, Any], n: int) -> None:
    x = np.full(n, -np.inf, np.float32)
    x[n // 2] = -5.0
    sampled = make({k: v for k, v in setting.items() if k != "logit_bias"}, n).sample(x)
    assert sampled.token_id == n // 2


def test_everything_at_its_extreme() -> None:
    x = np.full(1000, -100.0, np.float32)
    setting = {"temperature": 0.0, "top_p": 0.0, "top_k": 0, "min_p": 1.0, "logprobs": 2}
    got = make(setting, 1000).sample(x)
    assert got.token_id == 0
    assert got.logprob == pytest.approx(-np.log(1000))
    assert got.top is not None
    assert [i for i, _ in got.top] == [0, 1]
    for temperature in (1e-6, 0.8, 1000.0):
        ids, q = make({**setting, "temperature": temperature}, 1000).distribution(x)
        assert ids.tolist() == [0]  # top_p 0 keeps one
        assert q.tolist() == [1.0]


def test_a_best_token_that_is_known_is_taken_where_nothing_else_matters() -> None:
    x = row(50)
    best = int(x.argmax())
    assert make(GREEDY, 50).sample(x, 7).token_id == 7
    for setting in ({}, {"logit_bias": {best: 1.0}}, {"logprobs": 0}, {"repeat_penalty": 1.5}):
        neutral = {} if not setting else GREEDY
        plain = make({**neutral, **setting}, 50, seed=3).sample(x)
        assert make({**neutral, **setting}, 50, seed=3).sample(x, 7) == plain
    for unknown in (None, -1, 50):  # none, not finite, padding of the head
        assert make(GREEDY, 50).sample(x, unknown).token_id == best


@pytest.mark.parametrize("n", [1, 5, 63, 64, 65, 4096, 5000])
def test_greedy_takes_the_first_of_the_likeliest(n: int) -> None:
    x = np.round(row(n))
    sampler = make(GREEDY, n)
    assert sampler.sample(x) == Sampled(int(x.argmax()), None, None)
    assert make({**GREEDY, "logit_bias": {0: 0.0}}, n).sample(x).token_id == int(x.argmax())


def test_greedy_is_greedy_whatever_the_order() -> None:
    x = row(50)
    for samplers in ((), ("xtc", "typ_p"), DEFAULT_SAMPLERS):
        setting = {
            "samplers": samplers,
            "xtc_probability": 1.0,
            "xtc_threshold": 0.0,
            "typical_p": 0.2,
            "mirostat": 2,
        }
        assert make({**GREEDY, **setting}, 50).sample(x).token_id == int(x.argmax())


def test_rows_past_the_vocabulary_are_never_sampled() -> None:
    x = row(100)
    x[90:] = 50.0
    for setting in (GREEDY, {}, NEUTRAL, {"logprobs": 5}):
        got = make(setting, 90).sample(x)
        assert got.token_id < 90
        assert all(i < 90 for i, _ in got.top or ())


@pytest.mark.parametrize(
    "bad", [np.zeros(9, np.float32), np.zeros(10, np.float64), np.zeros((1, 10), np.float32)]
)
def test_a_row_of_another_shape_is_refused(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"float32 \[10\]"):
        make({}, 10).sample(bad)


def test_neutral_settings_add_no_step() -> None:
    assert make(NEUTRAL, 10).steps == ()
    assert make(GREEDY, 10).steps == ()
    assert make({}, 10).steps == ("top_k", "top_p", "min_p", "temperature")
    unused = {"repeat_penalty": 1.1, "repeat_last_n": 0, "xtc_probability": 1, "xtc_threshold": 0.6}
    assert make({**NEUTRAL, **unused}, 10).steps == ()
    assert make({**NEUTRAL, "dry_multiplier": 1.0, "dry_penalty_last_n": 0}, 10).steps == ()
    assert make({"ignore_eos": True}, 10).steps[0] == "top_k"  # no such token to mask
    assert make({"ignore_eos": True}, 10, eog_ids=[2]).steps[0] == "bias"
    some = {"mirostat": 2, "repeat_penalty": 1.1, "min_p": 0.5, "samplers": ("min_p", "penalties")}
    assert make(some, 10).steps == ("penalties",)
    assert make({"top_p": 0.5, "samplers": ("temperature", "top_p")}, 10).steps == (
        "temperature",
        "top_p",
    )


def test_greedy_fast_is_claimed_only_where_an_argmax_suffices() -> None:
    assert make(GREEDY, 10).greedy_fast
    assert make({"temperature": -1.0, "top_k": 5, "mirostat": 1}, 10).greedy_fast
    for more in (
        {"logprobs": 0},
        {"logit_bias": {1: 1.0}},
        {"repeat_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"dry_multiplier": 1.0, "dry_sequence_breakers": ()},
    ):
        assert not make({**GREEDY, **more}, 10).greedy_fast
    assert not make({**GREEDY, "ignore_eos": True}, 10, eog_ids=[0]).greedy_fast
    assert not make({}, 10).greedy_fast


def test_logprobs_are_the_models_own() -> None:
    x = row(500)
    want = x.astype(np.float64) - np.log(np.exp(x.astype(np.float64)).sum())
    order = np.argsort(-want)
    settings: list[dict[str, Any]] = [
        {},
        GREEDY,
        {"temperature": 2.0, "top_k": 3},
        {"logit_bias": {int(order[0]): -np.inf}, "repeat_penalty": 2.0},
        {"mirostat": 2},
    ]
    for setting in settings:
        for count in (0, 1, 5, 499, 500, 9999):
            got = make({**setting, "logprobs": count}, 500, prompt_ids=[1, 2]).sample(x)
            assert got.token_id == make(setting, 500, prompt_ids=[1, 2]).sample(x).token_id
            assert got.logprob == pytest.approx(want[got.token_id], abs=1e-5)
            assert got.top is not None
            assert [i for i, _ in got.top] == order[:count].tolist()
            assert [v for _, v in got.top] == pytest.approx(want[order[:count]], abs=1e-5)
    assert make({}, 500).sample(x)[1:] == (None, None)


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    x = np.zeros(4, np.float32)
    sampler = make({**NEUTRAL, "presence_penalty": 1.0}, 4, prompt_ids=[0, 1, 2, 3])
    assert sampler.distribution(x)[1] == pytest.approx([0.25] * 4)
    sampler.accept(2)
    ids, q = sampler.distribution(x)
    assert ids[-1] == 2
    assert np.log(q[0] / q[-1]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("last_n", "penalized"), [(0, []), (1, [5]), (2, [4, 5]), (3, [4, 5]), (4, [1, 4, 5]),
                              (64, [0, 1, 4, 5]), (-1, [0, 1, 4, 5])],
)  # fmt: skip
def test_repeat_penalty_looks_at_the_last_tokens_prompt_included(
    last_n: int, penalized: list[int]
) -> None:
    x = np.array([1, -1, 1, -1, 1, -1], np.float32)
    setting = {**NEUTRAL, "repeat_penalty": 2.0, "repeat_last_n": last_n}
    sampler = make(setting, 6, prompt_ids=[0, 1, 4])
    sampler.accept(4)
    sampler.accept(5)
    ids, q = sampler.distribution(x)
    changed = [0.5 if v > 0 else -2.0 for v in x]
    want = np.exp([changed[i] if i in penalized else x[i] for i in range(6)])
    assert q == pytest.approx((want / want.sum())[ids])


def test_many_distinct_tokens_are_counted() -> None:
    sampler = make({**NEUTRAL, "presence_penalty": 3.0, "repeat_penalty": 1.1}, 1000)
    for t in range(600):
        sampler.accept(t)
    ids, _ = sampler.distribution(np.ones(1000, np.float32))
    assert set(ids[:400].tolist()) == set(range(600, 1000))


def test_logit_bias() -> None:
    x = row(50)
    assert make({**NEUTRAL, "logit_bias": {9: np.inf}}, 50).sample(x).token_id == 9
    assert make({**GREEDY, "logit_bias": {9: 100}}, 50).sample(x).token_id == 9
    best = int(x.argmax())
    banned = {i: -np.inf for i in range(50) if i != 7}
    assert make({"logit_bias": banned}, 50).sample(x).token_id == 7
    assert make({**GREEDY, "logit_bias": {best: -100.0}}, 50).sample(x).token_id != best
    ids, q = make({**NEUTRAL, "logit_bias": {3: 1.5}}, 50).distribution(np.zeros(50, np.float32))
    assert ids[0] == 3
    assert q[0] / q[1] == pytest.approx(np.exp(1.5))


@pytest.mark.parametrize("token", [50, 999_999, 2**40])
def test_logit_bias_past_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(RequestError, match=f"token {token}.*ends at 49") as e:
        make({"logit_bias": {token: 1.0}}, 50)
    assert e.value.param == "logit_bias"


@pytest.mark.parametrize("token", [-1, 50, 2**32 + 1])
def test_prompt_ids_past_the_vocabulary_are_refused(token: int) -> None:
    dry = {"dry_multiplier": 1.0, "dry_sequence_breakers": ()}
    for setting in ({"repeat_penalty": 1.1}, dry):
        with pytest.raises(RequestError) as e:
            make(setting, 50, prompt_ids=[1, token])
        assert e.value.param == "prompt"
    with pytest.raises(ValueError, match="vocabulary of 50"):
        make({}, 50).accept(token)


def test_ignore_eos_never_samples_an_end_token() -> None:
    x = row(20)
    x[[3, 8]] = 30.0
    for setting in (GREEDY, {}, NEUTRAL, {"mirostat": 2}, {"logit_bias": {3: np.inf}}):
        sampler = make({**setting, "ignore_eos": True}, 20, eog_ids=[3, 8, 500])
        assert sampler.sample(x).token_id not in (3, 8)
        assert make(GREEDY, 20, eog_ids=[3, 8]).sample(x).token_id == 3


def test_min_keep_holds_for_every_truncating_sampler() -> None:
    x = row(200) * 4
    hard: list[dict[str, Any]] = [
        {"top_k": 1},
        {"top_p": 0.0},
        {"min_p": 1.0},
        {"typical_p": 0.0},
        {"top_n_sigma": 1e-6},
    ]
    for setting in hard:
        for keep in (1, 7, 200, 999):
            ids, _ = make({**NEUTRAL, **setting, "min_keep": keep}, 200).distribution(x)
            assert len(ids) == min(keep, 200)


def test_a_breaker_is_found_however_it_was_tokenized() -> None:
    pieces = [b"a", b"b", b"c", b"us", b"er:", b"x user: y", b"u", b"s", b"e", b"r", b":"]
    setting = {
        **NEUTRAL,
        "dry_multiplier": 1.0,
        "dry_allowed_length": 2,
        "dry_sequence_breakers": ["user:", "\n"],
    }

    def penalized(prompt: list[int], generated: list[int]) -> list[int]:
        sampler = make(setting, 11, token_bytes=pieces.__getitem__, prompt_ids=prompt)
        for t in generated:
            sampler.accept(t)
        ids, q = sampler.distribution(np.zeros(11, np.float32))
        return sorted(ids[q < q[0] * 0.9].tolist())

    for breaker in ([3, 4], [5], [6, 7, 8, 9, 10], [6, 7, 4]):
        text = [0, 1, 2, *breaker, 0, 1]
        for cut in range(len(text) + 1):
            assert penalized(text[:cut], text[cut:]) == [2], (breaker, cut)
        text = [0, *breaker, 1, 2, 0, *breaker, 1]  # a repetition across the breaker counts not
        for cut in range(len(text) + 1):
            assert penalized(text[:cut], text[cut:]) == []


def test_a_short_breaker_counts_once_beside_a_long_one() -> None:
    pieces = [b"\n", b"x", b"y", b"z"]
    setting = {**NEUTRAL, "dry_multiplier": 1.0, "dry_sequence_breakers": ["\n", "a long one"]}
    text = [0, 1, 2, 3, 1, 2]
    for cut in range(len(text) + 1):
        sampler = make(setting, 4, token_bytes=pieces.__getitem__, prompt_ids=text[:cut])
        for t in text[cut:]:
            sampler.accept(t)
        ids, q = sampler.distribution(np.zeros(4, np.float32))
        assert ids[q < q[0] * 0.9].tolist() == [3]


def test_dry_is_quick_on_a_hostile_history() -> None:
    setting = {"dry_multiplier": 1.0, "dry_sequence_breakers": ["\n"]}
    sampler = make(setting, 300, token_bytes=lambda i: b"a", prompt_ids=[7] * 131_072)
    ids, q = sampler.distribution(np.zeros(300, np.float32))
    assert 7 not in ids[q > 0]


def test_dry_without_token_bytes_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="token_bytes"):
        make({"dry_multiplier": 1.0}, 10)
