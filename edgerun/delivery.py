"""From sampled tokens to :class:`~edgerun.core.Chunk`: text, stop strings, the way out."""

from __future__ import annotations

import contextlib
import os
import queue
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from edgerun.chat import ToolCall, ToolCallDelta
from edgerun.core import (
    Chunk,
    Completion,
    FinishReason,
    SamplingParams,
    Timings,
    TokenLogprob,
    Usage,
)
from edgerun.engine.sampling import Sampled
from edgerun.engine.worker import check_process
from edgerun.errors import ClosedError
from edgerun.text.answer.pieces import Piece
from edgerun.text.answer.reader import AnswerReader
from edgerun.text.detok import StreamDetokenizer
from edgerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import asyncio

    from edgerun.conversing import Conversation

__all__ = [
    "AsyncChunkStream",
    "AsyncMailbox",
    "ChunkStream",
    "Collector",
    "Delivery",
    "Mailbox",
    "acollect",
    "collect",
    "markup_ids",
    "off_loop",
]

Item: TypeAlias = "Chunk | Exception"
T = TypeVar("T")

# On Windows Ctrl-C does not wake a thread that waits for a lock: look up now and then.
_POLL = 0.2 if os.name == "nt" else None


class Delivery:
    """The engine's sink for one request: detokenizes and emits chunks.

    Tokens whose text is still held back (half a character, half a stop string, markup) travel with
    the next chunk that has something to show. Of an answer to a conversation, ``said``, reasoning,
    text and calls come apart.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        last_prompt_id: int,
        emit: Callable[[Item], None],
        index: int = 0,
        said: Conversation | None = None,
    ) -> None:
        self._index = index
        self._left_out = said.left_out if said is not None else 0
        shape = said.shape if said is not None else None
        self._tokenizer = tokenizer
        self._reader = None if shape is None else AnswerReader(shape)
        exact = params.constraint is not None and params.constraint.kind != "lark"
        self._detok = StreamDetokenizer(
            tokenizer,
            stop=params.stop,
            previous=last_prompt_id,
            exact=exact,
            shown=() if shape is None else markup_ids(tokenizer, shape.texts),
        )
        self._emit = emit
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._limit = params.time_limit
        self._deadline: float | None = None
        self._late = False
        self._n_reasoning = 0

    def push(self, tokens: Sequence[Sampled]) -> tuple[int, bool]:
        feed = self._detok.feed if self._limit is None else self._feed_in_time
        text, kept = feed([t.token_id for t in tokens])
        for token in tokens[:kept]:
            self._ids.append(token.token_id)
            if token.logprob is not None:
                self._logprobs.append(self._logprob(token))
        if self._reader is not None:
            self._send_pieces(self._reader.feed(text))
        elif text:
            self._emit(Chunk(text, *self._held(), index=self._index))
        return kept, self._detok.stopped or self._late

    def finish(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        text = self._detok.flush()
        if self._reader is not None:
            self._send_pieces(self._reader.feed(text) + self._reader.finish())
            text = ""
            if reason is FinishReason.STOP and self._reader.calls:
                reason = FinishReason.TOOL_CALLS
            usage = replace(usage, reasoning_tokens=self._n_reasoning)
        if self._left_out:
            usage = replace(usage, left_out=self._left_out)
        if self._late:
            reason = FinishReason.LENGTH
        stopped_by = self._detok.matched
        held = self._held()
        self._emit(Chunk(text, *held, reason, usage, timings, self._index, stop_string=stopped_by))

    def fail(self, error: Exception) -> None:
        self._emit(error)

    def _feed_in_time(self, ids: Sequence[int]) -> tuple[str, int]:
        """What the detokenizer's ``feed`` returns, up to the first line break past the limit."""
        now = time.perf_counter()
        if self._deadline is None:
            self._deadline = now + (self._limit or 0)
        out: list[str] = []
        for i in ids:
            out.append(self._detok.push(i))
            self._late = now > self._deadline and "\n" in out[-1]
            if self._late or self._detok.stopped:
                break
        return "".join(out), len(out)

    def _send_pieces(self, pieces: Sequence[Piece]) -> None:
        for p in pieces:
            ids, logprobs = self._held()
            if p.reasoning:
                self._n_reasoning += len(ids)
            calls = () if p.call is None else (p.call,)
            self._emit(
                Chunk(p.text, ids, logprobs, None, None, None, self._index, p.reasoning, calls)
            )

    def _held(self) -> tuple[tuple[int, ...], tuple[TokenLogprob, ...]]:
        """The tokens that travel with the next chunk, handed over."""
        held = tuple(self._ids), tuple(self._logprobs)
        self._ids.clear()
        self._logprobs.clear()
        return held

    def _logprob(self, token: Sampled) -> TokenLogprob:
        raw = self._tokenizer.token_bytes
        top = tuple(TokenLogprob(i, raw(i), p) for i, p in token.top or ())
        assert token.logprob is not None
        return TokenLogprob(token.token_id, raw(token.token_id), token.logprob, top)


def markup_ids(tokenizer: Tokenizer, texts: Iterable[str]) -> frozenset[int]:
    """The control tokens that ``texts`` are spelled with."""
    spelled = (tokenizer.encode(t, add_bos=False, parse_special=True) for t in texts)
    return frozenset(i for ids in spelled for i in ids if tokenizer.is_control(i))


class Mailbox:
    """Chunks from the engine's thread to a blocking reader."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._process = os.getpid()

    def put(self, item: Item) -> None:
        self._items.put(item)

    def get(self) -> Chunk:
        """The next chunk; raises what ended the request instead of its last chunk."""
        check_process(self._process)
        while True:
            with contextlib.suppress(queue.Empty):
                return _open(self._items.get(timeout=_POLL))


class AsyncMailbox:
    """The same for a coroutine of the loop that was running when it was made."""

    def __init__(self) -> None:
        import asyncio  # 40 ms, which the command line need not pay

        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()

    def put(self, item: Item) -> None:
        # RuntimeError: the loop has closed, so no reader is left either.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)

    async def get(self) -> Chunk:
        return _open(await self._items.get())


async def off_loop(function: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """``function()`` on another thread: long texts must not hold up the caller's loop.

    A task cancelled meanwhile does not stop the thread; what it returns then goes to ``undo``.
    """
    import asyncio

    work = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(partial(_undone, undo))
        raise


def _undone(undo: Callable[[T], None] | None, work: asyncio.Future[T]) -> None:
    if not work.cancelled() and work.exception() is None and undo is not None:
        undo(work.result())


def _open(item: Item) -> Chunk:
    if isinstance(item, Exception):
        raise item
    return item


class ChunkStream(Iterator[Chunk]):
    """A running request's chunks. Closing or dropping it ends the request.

    ``owner`` is kept alive until then: the model that computes the chunks. ``n`` answers come, each
    with a last chunk of its own.
    """

    def __init__(
        self, mailbox: Mailbox, cancel: Callable[[], None], owner: object, n: int = 1
    ) -> None:
        self._mailbox = mailbox
        self._owner = owner
        self._left = n
        self._cancel = weakref.finalize(self, cancel)

    def __next__(self) -> Chunk:
        if not self._left:
            raise StopIteration
        try:
            chunk = self._mailbox.get()
        except Exception:
            self.close()
            raise
        if chunk.finish_reason is not None:
            self._left = max(0, self._left - 1)  # it is 0 if the stream was closed meanwhile
        return chunk

    def close(self) -> None:
        """End the request, if it still runs; no more chunks come."""
        self._left = 0
        self._cancel()


class AsyncChunkStream(AsyncIterator[Chunk]):
    """:class:`ChunkStream` for a coroutine of the loop that was running when it was made.

    ``known``: what of its usage is known from the start: tokens of the prompt, messages left out.
    """

    def __init__(
        self,
        mailbox: AsyncMailbox,
        cancel: Callable[[], None],
        owner: object,
        n: int = 1,
        known: Usage | None = None,
    ) -> None:
        self.known = known or Usage()
        self._mailbox = mailbox
        self._owner = owner
        self._left = n
        self._cancel = weakref.finalize(self, cancel)

    async def __anext__(self) -> Chunk:
        if not self._left:
            raise StopAsyncIteration
        try:
            chunk = await self._mailbox.get()
        except BaseException:  # the task's cancellation, too
            self.close()
            raise
        if chunk.finish_reason is not None:
            self._left = max(0, self._left - 1)
        return chunk

    def close(self) -> None:
        """End the request, if it still runs; no more chunks come."""
        self._left = 0
        self._cancel()

    async def aclose(self) -> None:
        """:meth:`close`, as asynchronous generators have it."""
        self.close()


class Collector:
    """Adds the chunks of ``n`` answers up to a :class:`Completion`."""

    def __init__(self, want_logprobs: bool, n: int = 1) -> None:
        self._parts: list[list[Chunk]] = [[] for _ in range(n)]
        self._left = n
        self._want_logprobs = want_logprobs

    def add(self, chunk: Chunk) -> Completion | None:
        """The completion, once the last chunk is in."""
        self._parts[chunk.index].append(chunk)
        self._left -= chunk.finish_reason is not None
        if self._left:
            return None
        first, *others = (self._join(part) for part in self._parts)
        return replace(first, others=tuple(others))

    def _join(self, chunks: Sequence[Chunk]) -> Completion:
        last = chunks[-1]
        assert last.finish_reason is not None
        logprobs = tuple(p for c in chunks for p in c.logprobs)
        return Completion(
            text="".join(c.text for c in chunks),
            token_ids=tuple(i for c in chunks for i in c.token_ids),
            finish_reason=last.finish_reason,
            usage=last.usage or Usage(),
            timings=last.timings or Timings(),
            logprobs=logprobs if self._want_logprobs else None,
            reasoning="".join(c.reasoning for c in chunks),
            tool_calls=joined_calls(d for c in chunks for d in c.tool_calls),
            stop_string=last.stop_string,
        )


def joined_calls(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """The calls that streamed pieces add up to, in the order of their indexes."""
    calls: dict[int, ToolCall] = {}
    for d in deltas:
        call = calls.get(d.index, ToolCall(d.id or "", d.name or "", ""))
        calls[d.index] = replace(call, arguments=call.arguments + d.arguments)
    return tuple(calls[i] for i in sorted(calls))


def collect(chunks: ChunkStream, params: SamplingParams) -> Completion:
    """All of a stream as one completion."""
    collector = Collector(params.logprobs is not None, params.n)
    with contextlib.closing(chunks):  # an interrupt ends the request, too
        for chunk in chunks:
            if (done := collector.add(chunk)) is not None:
                return done
    raise ClosedError("the stream ended without a last chunk")


async def acollect(chunks: AsyncChunkStream, params: SamplingParams) -> Completion:
    """:func:`collect` for coroutines."""
    collector = Collector(params.logprobs is not None, params.n)
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            if (done := collector.add(chunk)) is not None:
                return done
    raise ClosedError("the stream ended without a last chunk")
