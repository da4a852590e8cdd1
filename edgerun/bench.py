"""How fast a loaded model computes: the program alone, without sampling and text."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgerun.backends.base import PAGE_SIZE, Batch, Program

__all__ = ["Measurement", "batch", "decode", "measure", "prefill", "tokens_needed"]

#: Tokens of a prefill step, and of each sequence's context before a batch is timed.
_STEP = 512
_PAST = 64


@dataclass(frozen=True)
class Measurement:
    """Tokens per second of one case: median, least and most over the rounds."""

    name: str
    tokens: int
    median: float
    least: float
    most: float


def tokens_needed(n_prompt: int, n_decode: int, batches: Sequence[int]) -> int:
    """The context that every case fits in, counted over all sequences of a batch."""
    return max(n_prompt + n_decode, *(b * _pages(_PAST + n_decode) * PAGE_SIZE for b in batches))


def measure(
    program: Program,
    n_prompt: int,
    n_decode: int,
    batches: Sequence[int],
    rounds: int = 3,
    progress: Callable[[str], None] | None = None,
    page_size: int = PAGE_SIZE,
) -> list[Measurement]:
    """Prefill ``n_prompt`` tokens; decode ``n_decode`` behind them (batch 1), or for each larger
    batch that many steps of all its sequences, totals counted. One more round warms up.
    ``page_size`` is that of the program's pool."""
    found: dict[str, tuple[int, list[float]]] = {}
    for round_ in range(rounds + 1):
        for name, tokens, seconds in _round(
            program, n_prompt, n_decode, batches, progress, page_size
        ):
            if round_:
                found.setdefault(name, (tokens, []))[1].append(tokens / seconds)
    return [
        Measurement(name, tokens, statistics.median(v), min(v), max(v))
        for name, (tokens, v) in found.items()
    ]


def _round(
    program: Program,
    n_prompt: int,
    n_decode: int,
    batches: Sequence[int],
    progress: Callable[[str], None] | None,
    page_size: int,
) -> list[tuple[str, int, float]]:
    say = progress or (lambda _: None)
    say(f"prefill {n_prompt}")
    results = [(f"prefill {n_prompt}", n_prompt, prefill(program, n_prompt, page_size))]
    for b in batches:
        say(f"decode {n_decode} x {b}")
        if b == 1:
            seconds = decode(program, n_decode, n_prompt, page_size)
            results.append((f"decode {n_decode}", n_decode, seconds))
        else:
            seconds = batch(program, n_decode, b, page_size)
            results.append((f"{b} sequences", b * n_decode, seconds))
    return results


def prefill(program: Program, n: int, page_size: int = PAGE_SIZE) -> float:
    """Seconds to compute ``n`` tokens from nothing, the logits of the last one with them."""
    pages = range(_pages(n, page_size))
    ids = _ids(n, program.n_vocab)
    start = time.perf_counter()
    for at in range(0, n, _STEP):
        part = ids[at : at + _STEP]
        last = [len(part) - 1] if at + len(part) == n else []
        program.run(Batch.pack([(part, at, pages, last)]))
    return time.perf_counter() - start


def decode(program: Program, n: int, past: int, page_size: int = PAGE_SIZE) -> float:
    """Seconds for ``n`` tokens one by one behind ``past`` others, which :func:`prefill` left."""
    pages = range(_pages(past + n, page_size))
    start = time.perf_counter()
    for i in range(n):
        program.run(Batch.pack([([11 + i % 97], past + i, pages, [0])]))
    return time.perf_counter() - start


def batch(program: Program, n: int, sequences: int, page_size: int = PAGE_SIZE) -> float:
    """Seconds for ``n`` steps of ``sequences`` sequences, each behind 64 tokens of its own."""
    each = _pages(_PAST + n, page_size)
    spans = [range(s * each, (s + 1) * each) for s in range(sequences)]
    for span in spans:
        program.run(Batch.pack([(_ids(_PAST, program.n_vocab), 0, span, [])]))
    start = time.perf_counter()
    for i in range(n):
        rows = [([11 + i % 97], _PAST + i, span, [0]) for span in spans]
        program.run(Batch.pack(rows))
    return time.perf_counter() - start


def _pages(n_tokens: int, page_size: int = PAGE_SIZE) -> int:
    return -(-n_tokens // page_size)


def _ids(n: int, n_vocab: int) -> list[int]:
    """A fixed walk over the vocabulary: speed does not depend on which tokens they are."""
    return [(17 + 7919 * i) % n_vocab for i in range(n)]
