"""Perplexity: how well a model predicts a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import PAGE_SIZE, Batch, Program
from edgerun.errors import GenerationError, RequestError

__all__ = ["Perplexity", "perplexity"]

#: Tokens whose logits are asked for in one step: 64 rows of a 262k vocabulary are 67 MB.
_OUTPUTS = 64

#: Tokens in one step where no logits are wanted.
_TOKENS = 512


@dataclass(frozen=True)
class Perplexity:
    """``value`` is exp of the mean negative log-likelihood over ``n_scored`` tokens; ``error`` its
    standard error."""

    value: float
    error: float
    n_scored: int
    n_chunks: int


def perplexity(
    program: Program,
    ids: Sequence[int],
    n_ctx: int = 512,
    bos_id: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Perplexity:
    """Cut ``ids`` into chunks of ``n_ctx`` tokens and score the second half of each.

    Position ``p`` of a chunk, ``n_ctx / 2 <= p < n_ctx``, is scored given the chunk's tokens before
    it; a last, shorter chunk is left out. With ``bos_id`` the first token of every chunk is
    replaced by it. The protocol of llama.cpp's perplexity tool, so values compare.

    Raises:
        RequestError: the text is shorter than one chunk, or ``n_ctx`` below 4.
        GenerationError: the model's output is not a number.
    """
    if n_ctx < 4:
        raise RequestError(f"ctx must be at least 4, not {n_ctx}", param="ctx")
    n_chunks = len(ids) // n_ctx
    if n_chunks == 0:
        raise RequestError(
            f"the text has {len(ids)} tokens, fewer than one chunk of {n_ctx}: "
            "use a longer text or a smaller --ctx",
            param="ctx",
        )
    scores: list[float] = []
    for c in range(n_chunks):
        chunk = list(ids[c * n_ctx : (c + 1) * n_ctx])
        if bos_id is not None:
            chunk[0] = bos_id
        scores += _score_chunk(program, chunk)
        if progress is not None:
            progress(c + 1, n_chunks)
    nll = np.array(scores)
    with np.errstate(over="ignore"):
        value = float(np.exp(nll.mean()))
    if not math.isfinite(value):
        raise GenerationError(f"the model's output is unusable: a perplexity of {value}")
    error = value * float(nll.std(ddof=1)) / math.sqrt(len(nll))
    return Perplexity(value, error, len(nll), n_chunks)


def _score_chunk(program: Program, chunk: list[int]) -> list[float]:
    pages = range(-(-len(chunk) // PAGE_SIZE))
    half = len(chunk) // 2
    scores: list[float] = []
    # Token p is predicted by the logits of token p - 1.
    for start in range(0, half - 1, _TOKENS):
        part = chunk[start : min(start + _TOKENS, half - 1)]
        program.run(Batch.pack([(part, start, pages, [])]))
    for start in range(half - 1, len(chunk) - 1, _OUTPUTS):
        part = chunk[start : min(start + _OUTPUTS, len(chunk) - 1)]
        logits = program.run(Batch.pack([(part, start, pages, range(len(part)))]))
        scores += _nll(logits, chunk[start + 1 : start + 1 + len(part)])
    return scores


def _nll(logits: npt.NDArray[np.float32], targets: Sequence[int]) -> list[float]:
    """Negative log-likelihood of each target in nats, in float64."""
    out = []
    with np.errstate(invalid="ignore"):  # inf - inf: the caller looks at the result
        for row, target in zip(logits, targets, strict=True):
            x = row.astype(np.float64)
            top = float(x.max())
            out.append(top + math.log(float(np.exp(x - top).sum())) - float(x[target]))
    return out
