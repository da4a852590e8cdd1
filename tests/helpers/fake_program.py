"""A program in plain Python whose output hangs on every token it reads back from the pages."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence

import numpy as np

from edgerun.backends.base import F32, Batch, Program
from edgerun.core import FinishReason, SamplingParams, Timings, Usage
from edgerun.engine import Sequence as EngineSequence
from edgerun.engine.sampling import Sampled, Sampler

N_VOCAB = 61
EOG = 0


def logits_of(ids: Sequence[int]) -> F32:
    """The logits after ``ids``: float32 [N_VOCAB]."""
    rng = np.random.default_rng(zlib.crc32(np.array(ids, np.int32).tobytes()))
    return rng.normal(0, 2, N_VOCAB).astype(np.float32)


def greedy(ids: Sequence[int], max_tokens: int) -> tuple[list[int], FinishReason]:
    """What the program says after ``ids``, without pages or batches."""
    ids, said = list(ids), []
    while len(said) < max_tokens:
        token = int(np.argmax(logits_of(ids)))
        if token == EOG:
            return said, FinishReason.STOP
        said.append(token)
        ids.append(token)
    return said, FinishReason.LENGTH


class FakeProgram(Program):
    """Writes each token into its page and predicts from what the row's pages hold, so that a wrong
    page, position or count changes the output. ``before`` sees each batch first, and may raise."""

    n_vocab = N_VOCAB

    def __init__(
        self, n_pages: int, page_size: int, before: Callable[[Batch], None] | None = None
    ) -> None:
        self.page_size = page_size
        self.before = before
        self.widths: list[tuple[int, int]] = []  # rows, tokens
        self._memory = np.random.default_rng(0).integers(1, N_VOCAB, (n_pages, page_size))

    def run(self, batch: Batch) -> F32:
        self.widths.append((batch.n_rows, batch.n_tokens))
        if self.before is not None:
            self.before(batch)
        used = batch.pages[batch.pages >= 0].tolist()
        assert len(used) == len(set(used)), "two rows share a page"
        after: list[list[int]] = []  # per token: the sequence up to it, as the pages hold it
        for r in range(batch.n_rows):
            a, b = batch.row_start[r : r + 2]
            assert b > a, "an empty row"
            past, pages = int(batch.n_past[r]), batch.pages[r]
            assert batch.positions[a:b].tolist() == list(range(past, past + b - a))
            for position, token in zip(batch.positions[a:b], batch.tokens[a:b], strict=True):
                page = pages[position // self.page_size]
                assert page >= 0, "a token without a page"
                self._memory[page, position % self.page_size] = token
            held = self._memory[pages[pages >= 0]].reshape(-1)
            after += [held[: past + i + 1].tolist() for i in range(b - a)]
        rows = [self.predict(after[i]) for i in batch.outputs]
        return np.stack(rows) if rows else np.zeros((0, N_VOCAB), np.float32)

    def predict(self, ids: Sequence[int]) -> F32:
        return logits_of(ids)


class ListSink:
    """Keeps what it is told; ``ended`` is set by the first of finish and fail."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.reason: FinishReason | None = None
        self.usage: Usage | None = None
        self.error: Exception | None = None
        self.ended = threading.Event()

    def push(self, token: Sampled) -> bool:
        assert not self.ended.is_set(), "a token after the end"
        self.ids.append(token.token_id)
        return False

    def finish(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        assert not self.ended.is_set(), "ended twice"
        self.reason, self.usage = reason, usage
        self.ended.set()

    def fail(self, error: Exception) -> None:
        assert not self.ended.is_set(), "ended twice"
        self.error = error
        self.ended.set()


def sequence(
    ids: Sequence[int],
    max_tokens: int = 8,
    sink: ListSink | None = None,
    seed: int = 0,
    **params: float,
) -> EngineSequence:
    """A request for the fake program, greedy unless ``params`` say otherwise."""
    chosen = SamplingParams(**{"temperature": 0.0, **params})  # type: ignore[arg-type]
    sampler = Sampler(
        chosen,
        N_VOCAB,
        eog_ids=(EOG,),
        seed=seed,
        token_bytes=lambda i: bytes([i]),
        prompt_ids=ids,
    )
    return EngineSequence(
        list(ids), chosen, sampler, sink or ListSink(), max_tokens, eog_ids=frozenset((EOG,))
    )
