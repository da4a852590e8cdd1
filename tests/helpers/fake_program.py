"""A program in plain Python whose output hangs on every token it reads back from the pages."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from edgerun.backends.base import F32, I32, Batch, Program, Rows, Started
from edgerun.backends.fetched import FetchedRows
from edgerun.backends.program import filled
from edgerun.backends.swap import SwapSpace
from edgerun.core import FinishReason, SamplingParams, Timings, Usage
from edgerun.engine import Drafter, Engine, Limits, Widths
from edgerun.engine import Sequence as EngineSequence
from edgerun.engine.draft_source import whole_drafts
from edgerun.engine.sampling import Sampled, Sampler
from edgerun.engine.swap import SwapTier
from edgerun.errors import GenerationError
from helpers.leading import top_of

N_VOCAB = 61
EOG = 0


def alone(
    ids: Sequence[int],
    max_tokens: int,
    seed: int = 0,
    *,
    stop: Sequence[int] = (),
    n_ctx: int = 0,
    n_keep: int = 0,
    predict: Callable[[Sequence[int]], F32] | None = None,
    **more: Any,
) -> ListSink:
    """What a request gets with no engine at all: sample, append, sample. ``more`` as for
    :func:`sequence`."""
    s = sequence(ids, max_tokens, ListSink(stop), seed, **more)
    sink, text = sink_of(s), list(ids)
    sink.reason = FinishReason.LENGTH
    while len(sink.ids) < max_tokens:
        try:
            token = s.sampler.sample((predict or logits_of)(text))
        except GenerationError as e:
            sink.reason, sink.error = None, e
            break
        if token.token_id == EOG and not s.params.ignore_eos:
            sink.reason = FinishReason.STOP
            break
        s.sampler.accept(token.token_id)
        text.append(token.token_id)
        if sink.push([token])[1]:
            sink.reason = FinishReason.STOP
            break
        if n_ctx and len(text) >= n_ctx and len(sink.ids) < max_tokens:
            del text[n_keep : n_keep + max(1, (len(text) - n_keep) // 2)]
    return sink


def logits_of(ids: Sequence[int]) -> F32:
    """The logits after ``ids``: float32 [N_VOCAB], read-only."""
    return _logits(zlib.crc32(np.array(ids, np.int32).tobytes()))


@lru_cache(maxsize=20_000)
def _logits(seed: int) -> F32:
    logits = np.random.default_rng(seed).normal(0, 2, N_VOCAB).astype(np.float32)
    logits.flags.writeable = False
    return logits


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
    page, position or count changes the output. ``before`` sees each batch first, and may raise.
    ``may_write`` tells whether a page may be written to."""

    n_vocab = N_VOCAB

    def __init__(
        self, n_pages: int, page_size: int, before: Callable[[Batch], None] | None = None
    ) -> None:
        self.page_size = page_size
        self.before = before
        self.may_write: Callable[[int], bool] = lambda page: True
        self.widths: list[tuple[int, int]] = []  # rows, tokens
        self.copies: list[tuple[int, int]] = []
        self.n_tops = 0  # steps that asked for the largest logits
        self._memory = np.random.default_rng(0).integers(1, N_VOCAB, (n_pages, page_size))

    def copy_page(self, src: int, dst: int) -> None:
        assert self.may_write(dst)
        self.copies.append((src, dst))
        self._memory[dst] = self._memory[src]

    def run(self, batch: Batch) -> F32:
        self.widths.append((batch.n_rows, batch.n_tokens))
        if self.before is not None:
            self.before(batch)
        size = self.page_size
        row_pages = [[p for p in pages if p >= 0] for pages in batch.pages.tolist()]
        after: list[list[int]] = []  # per token: the sequence up to it, as the pages hold it
        for r, pages in enumerate(row_pages):
            a, b = batch.row_start[r : r + 2].tolist()
            past = int(batch.n_past[r])
            assert b > a, "an empty row"
            assert batch.positions[a:b].tolist() == list(range(past, past + b - a))
            assert len(pages) * size >= past + b - a, "a token without a page"
            assert len(pages) == len(set(pages)), "a row uses a page twice"
            for page in pages[past // size : -(-(past + b - a) // size)]:
                assert self.may_write(page)
                assert sum(page in other for other in row_pages) == 1, "a row writes another's page"
            for position, token in enumerate(batch.tokens[a:b].tolist(), past):
                self._memory[pages[position // size], position % size] = token
            held = self._memory[pages].reshape(-1).tolist()
            after += [held[: past + i + 1] for i in range(b - a)]
        rows = [self.predict(after[i]) for i in batch.outputs]
        logits = np.stack(rows) if rows else np.zeros((0, N_VOCAB), np.float32)
        self.best = None
        if batch.want_best:
            finite = np.isfinite(logits).all(axis=1)
            self.best = np.where(finite, logits.argmax(axis=1), -1).astype(np.int32)
        assert 0 <= batch.want_top <= self.n_top
        self.top = top_of(logits, batch.want_top) if batch.want_top else None
        self.n_tops += batch.want_top > 0
        return logits

    def predict(self, ids: Sequence[int]) -> F32:
        return logits_of(ids)


class AheadProgram(FakeProgram):
    """Steps may be started before the ids of those before them are known. It computes them at once,
    as a device may have when the host comes to ask; what was not waited for is not told, and what
    the device has written over is gone."""

    ahead = 1000

    def __init__(
        self, n_pages: int, page_size: int, before: Callable[[Batch], None] | None = None
    ) -> None:
        super().__init__(n_pages, page_size, before)
        self.n_ahead = 0  # started behind a step that was not waited for
        self.steps: list[FakeStarted] = []  # begun, one way or the other

    def run(self, batch: Batch) -> F32:
        logits = super().run(batch)
        self.steps.append(FakeStarted(self, logits, self.best, waited=True))
        return logits

    def start(self, batch: Batch, after: Started | None = None) -> Started:
        assert batch.want_best
        assert batch.outputs.tolist() == list(range(batch.n_rows)) == list(range(batch.n_tokens))
        assert (after is None) == (batch.tokens >= 0).all()
        if after is not None:
            assert isinstance(after, FakeStarted)
            assert after in self.steps[-2:]
            self.n_ahead += not after.waited
            batch = filled(batch, after.ids)
        logits = super().run(batch)
        assert self.best is not None
        self.steps.append(FakeStarted(self, logits, self.best))
        assert sum(not s.waited for s in self.steps[-3:]) < 3
        return self.steps[-1]


class FakeStarted(Started):
    def __init__(
        self, program: AheadProgram, logits: F32, ids: I32 | None, waited: bool = False
    ) -> None:
        self._program = program
        self._logits = logits
        self.ids = ids if ids is not None else np.zeros(0, np.int32)
        self.waited = waited

    def wait(self) -> Rows:
        assert not self.waited
        self.waited = True
        self.best = self.ids
        return FetchedRows(self._fetch, range(len(self._logits)))  # type: ignore[return-value]

    def _fetch(self) -> F32:
        steps = self._program.steps
        assert self in steps[-2:]
        assert self is steps[-1] or not steps[-1].waited
        return self._logits


class FakeSpace(SwapSpace):
    """Slots for pages of a program; a few more at a time, up to ``limit``."""

    def __init__(self, program: FakeProgram, limit: int = 1 << 20) -> None:
        self.program = program
        self.limit = limit
        self.slots: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    def grow(self, most: int) -> None:
        for _ in range(min(3, min(most, self.limit) - len(self.slots))):
            self.slots.append(np.full(self.program.page_size, -1, np.int64))
        self.n_slots = len(self.slots)

    def save(self, page: int, slot: int) -> None:
        self.slots[slot][:] = self.program._memory[page]

    def restore(self, slot: int, page: int) -> None:
        assert self.program.may_write(page)
        self.program._memory[page] = self.slots[slot]


class ListSink:
    """Keeps what it is told; ``ended`` is set by the first of finish and fail. The text ends where
    ``stop`` is its end."""

    def __init__(self, stop: Sequence[int] = ()) -> None:
        self.stop = list(stop)
        self.ids: list[int] = []
        self.logprobs: list[tuple[float | None, object]] = []
        self.timings: Timings | None = None
        self.reason: FinishReason | None = None
        self.usage: Usage | None = None
        self.error: Exception | None = None
        self.ended = threading.Event()

    def push(self, tokens: Sequence[Sampled]) -> tuple[int, bool]:
        assert not self.ended.is_set(), "a token after the end"
        assert tokens, "a push of nothing"
        for kept, token in enumerate(tokens, 1):
            self.ids.append(token.token_id)
            self.logprobs.append((token.logprob, token.top))
            if self.stop and self.ids[-len(self.stop) :] == self.stop:
                return kept, True
        return len(tokens), False

    def finish(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        assert not self.ended.is_set(), "ended twice"
        self.reason, self.usage, self.timings = reason, usage, timings
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
    *,
    drafter: Drafter | None = None,
    leader: EngineSequence | None = None,
    priority: int = 0,
    n_ctx: int = 0,
    n_keep: int = 0,
    stream: int = 0,
    n_vocab: int = N_VOCAB,
    **params: Any,
) -> EngineSequence:
    """A request for the fake program, greedy unless ``params`` say otherwise."""
    chosen = SamplingParams(**{"temperature": 0.0, **params})
    sampler = Sampler(
        chosen,
        n_vocab,
        eog_ids=(EOG,),
        seed=seed,
        stream=stream,
        token_bytes=lambda i: bytes([i % 256]),
        prompt_ids=ids,
    )
    return EngineSequence(
        list(ids),
        chosen,
        sampler,
        sink or ListSink(),
        max_tokens,
        eog_ids=frozenset((EOG,)),
        drafter=drafter,
        leader=leader,
        priority=priority,
        n_ctx=n_ctx,
        n_keep=n_keep,
    )


def engine(
    n_pages: int = 64,
    page_size: int = 4,
    limits: Limits | None = None,
    program: FakeProgram | None = None,
    widths: Widths = whole_drafts,
    gap: float | None = None,
    space: SwapSpace | None = None,
) -> Engine:
    """An engine on the fake program, which from here on knows what must not be written to. What
    it does depends on the clock only if ``gap`` is given. Pages are swapped to ``space``."""
    program = program or FakeProgram(n_pages, page_size)
    limits = replace(limits or Limits(), gap=gap)
    swap = SwapTier(space, lambda n_slots: 1 << 20, 8 * page_size) if space is not None else None
    copy = program.copy_page
    e = Engine(program, n_pages, page_size, limits, copy_page=copy, widths=widths, swap=swap)
    program.may_write = lambda page: e.pool.users(page) == 1 and page not in e.pool.index
    return e


def drain(e: Engine, most: int = 2000) -> None:
    """Step until nothing is left, checking the accounts at every step."""
    for _ in range(most):
        if e.idle:
            return
        e.step()
        e.check()
    raise AssertionError(f"not idle after {most} steps")


def sink_of(s: EngineSequence) -> ListSink:
    assert isinstance(s.sink, ListSink)
    return s.sink
