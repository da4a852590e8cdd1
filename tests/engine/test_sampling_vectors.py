"""Published vectors: llama.cpp's tests/test-sampling.cpp (MIT) and Random123's kat_vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edgerun.core import SamplingParams
from edgerun.engine.sampling import Sampler
from edgerun.engine.sampling.rng import draws, philox4x32

NEUTRAL: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
ASCENDING = [0.1, 0.2, 0.3, 0.4]
DESCENDING = [0.4, 0.3, 0.2, 0.1]


def logs(p: list[float]) -> np.ndarray:
    return np.log(np.array(p, np.float32))


def probabilities(
    p: list[float], setting: dict[str, Any], history: list[int] | None = None, **more: Any
) -> list[float]:
    """What is left of each token's probability, by id."""
    sampler = Sampler(SamplingParams(**{**NEUTRAL, **setting}), len(p), seed=0, **more)
    for t in history or []:
        sampler.accept(t)
    ids, q = sampler.distribution(logs(p))
    out = np.zeros(len(p))
    out[ids] = q
    return out.tolist()


@pytest.mark.parametrize(
    ("p", "setting", "want"),
    [
        (ASCENDING, {"temperature": 1.0}, [0.1, 0.2, 0.3, 0.4]),
        (ASCENDING, {"temperature": 0.0}, [0, 0, 0, 1]),
        (ASCENDING, {"temperature": 0.0, "dynatemp_range": 0.0}, [0, 0, 0, 1]),
        (ASCENDING, {"top_k": 1}, [0, 0, 0, 1]),
        (ASCENDING, {"top_k": 3}, [0, 0.22222, 0.33333, 0.44444]),
        (ASCENDING, {"top_k": 4}, [0.1, 0.2, 0.3, 0.4]),
        (ASCENDING, {"top_k": 0}, [0.1, 0.2, 0.3, 0.4]),
        (ASCENDING, {"top_p": 0.0}, [0, 0, 0, 1]),
        (ASCENDING, {"top_p": 0.7}, [0, 0, 0.428571, 0.571429]),
        (ASCENDING, {"top_p": 0.8}, [0, 0.22222, 0.33333, 0.44444]),
        (ASCENDING, {"top_p": 1.0}, [0.1, 0.2, 0.3, 0.4]),
        (ASCENDING, {"min_p": 0.0}, [0.1, 0.2, 0.3, 0.4]),
        (ASCENDING, {"min_p": 0.24}, [0.1, 0.2, 0.3, 0.4]),
        (ASCENDING, {"min_p": 0.26}, [0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9]),
        (ASCENDING, {"min_p": 0.49}, [0, 0.2 / 0.9, 0.3 / 0.9, 0.4 / 0.9]),
        (ASCENDING, {"min_p": 0.51}, [0, 0, 0.3 / 0.7, 0.4 / 0.7]),
        (ASCENDING, {"min_p": 0.74}, [0, 0, 0.3 / 0.7, 0.4 / 0.7]),
        (ASCENDING, {"min_p": 0.76}, [0, 0, 0, 1]),
        (ASCENDING, {"min_p": 1.0}, [0, 0, 0, 1]),
        (DESCENDING, {"xtc_probability": 1.0, "xtc_threshold": 0.09}, [0, 0, 0, 1]),
        (DESCENDING, {"xtc_probability": 1.0, "xtc_threshold": 0.19}, [0, 0, 2 / 3, 1 / 3]),
        (DESCENDING, {"xtc_probability": 1.0, "xtc_threshold": 0.29}, [0, 1 / 2, 1 / 3, 1 / 6]),
        (DESCENDING, {"xtc_probability": 1.0, "xtc_threshold": 0.39}, DESCENDING),
        ([0.97, 0.01, 0.01, 0.01], {"typical_p": 0.5}, [1, 0, 0, 0]),
        ([0.4, 0.2, 0.2, 0.2], {"typical_p": 0.5}, [0, 1 / 3, 1 / 3, 1 / 3]),
        (ASCENDING, {"top_n_sigma": 1.0}, [0, 0, 0.428571, 0.571429]),
        (ASCENDING, {"top_n_sigma": 0.0}, [0.1, 0.2, 0.3, 0.4]),
        (ASCENDING, {"top_n_sigma": 3.0}, [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_samplers(p: list[float], setting: dict[str, Any], want: list[float]) -> None:
    assert probabilities(p, setting) == pytest.approx(want, abs=1e-5)


OFTEN = {"presence_penalty": 5.0, "frequency_penalty": 5.0}


@pytest.mark.parametrize(
    ("history", "setting", "want"),
    [
        ([0], {"repeat_penalty": 50.0}, [0, 0.25, 0.25, 0.25, 0.25]),
        ([0, 1, 2], {"repeat_penalty": 50.0}, [0, 0, 0, 0.5, 0.5]),
        ([0, 1, 2, 0, 0], {"repeat_penalty": 50.0}, [0, 0, 0, 0.5, 0.5]),
        ([0], OFTEN, [0.000011, 0.249997, 0.249997, 0.249997, 0.249997]),
        ([0, 1, 2], OFTEN, [0.000023, 0.000023, 0.000023, 0.499966, 0.499966]),
        ([0, 1, 2, 0, 0], OFTEN, [0.0, 0.000023, 0.000023, 0.499977, 0.499977]),
    ],
)
def test_penalties(history: list[int], setting: dict[str, Any], want: list[float]) -> None:
    assert probabilities([0.2] * 5, setting, history) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("as_prompt", [True, False])
@pytest.mark.parametrize(
    ("n", "history", "want", "multiplier", "allowed", "last_n", "breaker"),
    [
        (4, [0, 1], [0.25] * 4, 1.0, 2, 4, None),
        (4, [0, 1, 2, 0, 1], [0.296923, 0.296923, 0.109232, 0.296923], 1.0, 2, 5, None),
        (5, [0, 1, 3, 4, 0, 1], [0.2] * 5, 1.0, 2, 6, 3),
        (5, [0, 1, 2, 0, 1], [0.241818, 0.241818, 0.032727, 0.241818, 0.241818], 2.0, 2, 5, None),
        (5, [0, 1, 2, 3, 4, 0, 1], [0.2] * 5, 1.0, 4, 7, None),
    ],
)
def test_dry(
    n: int,
    history: list[int],
    want: list[float],
    multiplier: float,
    allowed: int,
    last_n: int,
    breaker: int | None,
    as_prompt: bool,
) -> None:
    setting = {
        "dry_multiplier": multiplier,
        "dry_base": 1.1,
        "dry_allowed_length": allowed,
        "dry_penalty_last_n": last_n,
        "dry_sequence_breakers": [] if breaker is None else [f"<{breaker}>"],
    }
    more: dict[str, Any] = {"token_bytes": lambda i: f"<{i}>".encode()}
    if as_prompt:
        got = probabilities([1 / n] * n, setting, prompt_ids=history, **more)
    else:
        got = probabilities([1 / n] * n, setting, history, **more)
    assert got == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize("order", ["k", "p", "m", "kp", "km", "pk", "pm", "mk", "mp"])
@pytest.mark.parametrize(
    "order3", ["", "kpm", "kmp", "pkm", "pmk", "mkp", "mpk"], ids=lambda s: s or "-"
)
@pytest.mark.parametrize(("k", "p", "m"), [(100, 0.8, 0.1), (9000, 0.9997, 0.9), (1, 0.5, 0.5)])
def test_orders(order: str, order3: str, k: int, p: float, m: float) -> None:
    """Token i has probability proportional to i, so every set is known in whole numbers."""
    n, names = 10_000, {"k": "top_k", "p": "top_p", "m": "min_p"}
    chain = order3 or order
    params = SamplingParams(
        temperature=1.0, top_k=k, top_p=p, min_p=m, samplers=[names[s] for s in chain]
    )
    with np.errstate(divide="ignore"):
        x = np.log(np.arange(n, dtype=np.float32))
    low = 1
    for s in chain:
        if s == "k":
            low = max(low, n - k)
        elif s == "m":
            low = max(low, math.ceil(m * (n - 1) - 1e-6))
        else:
            total = sum(range(low, n))
            run, i = 0, n
            while run < p * total and i > low:
                i -= 1
                run += i
            low = i
    ids, q = Sampler(params, n, seed=0).distribution(x)
    assert sorted(ids.tolist()) == list(range(low, n))
    assert q[0] == pytest.approx((n - 1) / sum(range(low, n)), rel=1e-5)


def test_dry_reads_the_longest_repetition_of_each_token() -> None:
    """The worked example in DRY's description: a b c c b c y a b c."""
    a, b, c, y = range(4)
    history = [a, b, c, c, b, c, y, a, b, c]
    setting = {
        "dry_multiplier": 1.0,
        "dry_base": 2.0,
        "dry_allowed_length": 1,
        "dry_sequence_breakers": [],
    }
    p = probabilities([0.25] * 4, setting, prompt_ids=history)
    costs = np.log(p[a]) - np.log(p)  # a is not penalized
    assert costs.tolist() == pytest.approx([0.0, 2.0**0, 2.0**2, 2.0**1])  # lengths -, 1, 3, 2


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox(counter: str, key: str, want: str) -> None:
    c, k = ([int(w, 16) for w in s.split()] for s in (counter, key))
    got = philox4x32((c[0], c[1], c[2], c[3]), (k[0], k[1]))
    assert got == tuple(int(w, 16) for w in want.split())


def test_draws() -> None:
    seen = {draws(seed, at) for seed in (0, 1, -1, 2**63, 2**64 - 2) for at in range(1000)}
    assert len(seen) == 5000
    assert draws(-1, 5) == draws(2**64 - 1, 5)
    assert draws(7, 2**32) != draws(7, 0)
    values = np.array(sorted(seen))
    assert values.min() >= 0
    assert values.max() < 1
    for stream in values.T:
        assert np.histogram(stream, 10, (0, 1))[0] == pytest.approx(500, abs=100)
    assert abs(np.corrcoef(values.T)[0, 1]) < 0.05
