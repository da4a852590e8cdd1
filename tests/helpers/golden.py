"""Compare a backend with golden/*.json: values an independent float32 implementation computed.

The same functions judge every backend; each caller states its own tolerance.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from helpers import models
from helpers.paths import shared
from helpers.runner import Runner

F32 = npt.NDArray[np.float32]

#: Below this gap between the best two logits, rounding alone may pick the other token.
CLEAR_MARGIN = 0.3

_FILES: dict[str, tuple[str, Callable[[], Path]]] = {
    "smollm2": ("smollm2-135m-q4_1.json", models.smollm2),
    "gemma3": ("gemma3-270m-q4_k_m.json", models.gemma3),
}
MODELS = tuple(_FILES)


@dataclass(frozen=True)
class Prompt:
    """``top`` maps the 20 likeliest first tokens to natural-log probabilities; ``margins`` are the
    gaps between the best two logits at each greedy step."""

    text: str
    ids: list[int]
    top: dict[int, float]
    greedy_ids: list[int]
    margins: list[float]


@dataclass(frozen=True)
class Golden:
    model: Path
    prompts: list[Prompt]
    text: str  # what perplexity is measured on
    context: int
    bos_first: bool  # every chunk's first token is replaced by BOS
    perplexity: float
    chunk_nll: list[float]  # mean over the scored half of each chunk, nats per token
    n_tokens: int
    first_ids: list[int]


def full() -> bool:
    """Whether to run the long form of a test; CI sets ``EDGERUN_TEST_FULL=1``."""
    return os.environ.get("EDGERUN_TEST_FULL", "") not in ("", "0")


def load(name: str) -> Golden:
    """The golden values of ``smollm2`` or ``gemma3``; skips the test where data is absent."""
    file, model = _FILES[name]
    data: dict[str, Any] = json.loads(shared("golden", file).read_text("utf-8"))
    ppl = data["perplexity"]
    return Golden(
        model=model(),
        prompts=[
            Prompt(
                p["prompt"],
                p["ids"],
                dict(p["first_token_top20_logprobs"]),
                p["greedy_ids"],
                p["greedy_margins"],
            )
            for p in data["prompts"]
        ],
        text=shared("golden", ppl["text"]).read_text("utf-8"),
        context=ppl["context"],
        bos_first=ppl["bos_first"],
        perplexity=ppl["value"],
        chunk_nll=ppl["mean_nll_per_chunk"],
        n_tokens=ppl["tokens"],
        first_ids=ppl["first_ids"],
    )


def eval_ids(golden: Golden, encode: Callable[[str], list[int]]) -> list[int]:
    """The evaluation text's ids, checked against what is known of them. ``encode`` adds BOS."""
    ids = encode(golden.text)
    assert ids[: len(golden.first_ids)] == golden.first_ids
    assert len(ids) == golden.n_tokens
    return ids


def check_prompt_ids(golden: Golden, encode: Callable[[str], list[int]]) -> None:
    """Every prompt encodes to the golden ids. ``encode`` adds BOS where the model wants it."""
    for p in golden.prompts:
        assert encode(p.text) == p.ids, p.text


def log_softmax(x: F32) -> npt.NDArray[np.float64]:
    """Natural-log probabilities along the last axis, float64."""
    y = x.astype(np.float64)
    y -= y.max(axis=-1, keepdims=True)
    return y - np.log(np.exp(y).sum(axis=-1, keepdims=True))


def log_sum_exp(x: F32) -> npt.NDArray[np.float64]:
    """Of each row. Exponentials in single precision, which is 1e-7 of them: a vocabulary of 262 144
    takes a fraction of the time of double precision; one row at a time stays in cache."""
    most = x.max(axis=-1)
    sums = [np.exp(r - m).sum(dtype=np.float64) for r, m in zip(x, most, strict=True)]
    return np.asarray(most + np.log(sums), np.float64)


def divergence(x: F32, y: F32) -> npt.NDArray[np.float64]:
    """KL(x || y) in nats of each row of logits."""
    of_x, of_y = log_sum_exp(x), log_sum_exp(y)
    moved = [
        (np.exp(a - np.float32(n)) * (a - b)).sum(dtype=np.float64)
        for a, b, n in zip(x, y, of_x, strict=True)
    ]
    return np.array(moved) - of_x + of_y


def first_token_kl(golden: Golden, runner: Runner) -> list[float]:
    """KL(golden || runner) in nats of each prompt's first token, over the golden top 20 and one
    cell for all other tokens."""
    divergences = []
    for p in golden.prompts:
        ours = log_softmax(runner.logits(p.ids, start=len(p.ids) - 1)[0])
        ids = list(p.top)
        log_p = np.array(list(p.top.values()))
        log_q = ours[ids]
        rest_p = max(1.0 - np.exp(log_p).sum(), 1e-12)
        rest_q = max(1.0 - np.exp(log_q).sum(), 1e-12)
        kl = (np.exp(log_p) * (log_p - log_q)).sum() + rest_p * np.log(rest_p / rest_q)
        divergences.append(float(kl))
    return divergences


def greedy(
    runner: Runner, prompts: Sequence[Sequence[int]], lengths: Sequence[int]
) -> list[list[int]]:
    """Greedy tokens, ``lengths[i]`` of them for prompt i; all prompts are rows of one batch, which
    shrinks as they finish."""
    out: list[list[int]] = [[] for _ in prompts]
    sequences = [runner.begin() for _ in prompts]
    todo: dict[int, Sequence[int]] = {i: p for i, p in enumerate(prompts) if lengths[i] > 0}
    while todo:
        rows = [(sequences[i], new, [len(new) - 1]) for i, new in todo.items()]
        best = runner.step(rows).argmax(axis=-1)
        for i, token in zip(list(todo), best, strict=True):
            out[i].append(int(token))
            todo[i] = [int(token)]
            if len(out[i]) == lengths[i]:
                del todo[i]
    for s in sequences:
        runner.end(s)
    return out


def check_greedy(golden: Golden, runner: Runner, limit: int | None = None) -> None:
    """Greedy ids equal the golden ones up to the first step whose golden margin is unclear, or
    to step ``limit``."""
    lengths = [
        next((i for i, m in enumerate(p.margins) if m < CLEAR_MARGIN), len(p.margins))
        for p in golden.prompts
    ]
    if limit is not None:
        lengths = [min(n, limit) for n in lengths]
    found = greedy(runner, [p.ids for p in golden.prompts], lengths)
    for p, ids in zip(golden.prompts, found, strict=True):
        assert ids == p.greedy_ids[: len(ids)], f"{p.text!r} diverges within {len(ids)} tokens"


def check_forced(golden: Golden, runner: Runner, tolerance: float) -> None:
    """Along every golden continuation, fed as prompt: the best token is the golden one wherever
    its margin is clear, and the gap between the best two is within ``tolerance`` of the margin."""
    for p in golden.prompts:
        logits = runner.logits(p.ids + p.greedy_ids[:-1], start=len(p.ids) - 1)
        margins = np.array(p.margins)
        clear = margins >= CLEAR_MARGIN
        assert (logits.argmax(axis=-1) == p.greedy_ids)[clear].all(), p.text
        second, first = np.partition(logits, -2, axis=-1)[:, -2:].T
        worst = float(np.abs(first - second - margins).max())
        assert worst <= tolerance, f"{p.text!r}: a margin is off by {worst:.4f}"


def chunk_nll(
    golden: Golden,
    runner: Runner,
    ids: Sequence[int],
    chunks: Sequence[int] | None = None,
    prefill: int = 512,
) -> list[float]:
    """Mean negative log-likelihood of the second half of each chunk, nats per token.

    Each chunk of ``golden.context`` tokens starts an empty context and is prefilled in pieces
    of ``prefill``. ``chunks`` are indexes; ``None`` = all.
    """
    size, half = golden.context, golden.context // 2
    result = []
    for c in range(len(ids) // size) if chunks is None else chunks:
        chunk = list(ids[c * size : (c + 1) * size])
        if golden.bos_first:
            chunk[0] = ids[0]
        logits = runner.logits(chunk, start=half - 1, chunk=prefill)[:-1]
        said = logits[np.arange(len(logits)), chunk[half:]]
        result.append(float(np.mean(log_sum_exp(logits) - said)))
    return result


def check_perplexity(
    golden: Golden,
    runner: Runner,
    ids: Sequence[int],
    tolerance: float,
    chunks: Sequence[int] | None = None,
    prefill: int = 512,
) -> None:
    """Perplexity is within the relative ``tolerance`` of the golden value: over all chunks, or
    those in ``chunks``."""
    found = chunk_nll(golden, runner, ids, chunks, prefill)
    if chunks is None:
        assert len(found) == len(golden.chunk_nll)
        expected = golden.perplexity
    else:
        expected = float(np.exp(np.mean([golden.chunk_nll[c] for c in chunks])))
    ppl = float(np.exp(np.mean(found)))
    assert abs(ppl / expected - 1) <= tolerance, f"perplexity {ppl:.5f}, golden {expected:.5f}"
