"""From sampled tokens to :class:`~edgerun.core.Chunk`: text, stop strings, the way out."""

from __future__ import annotations

import contextlib
import os
import queue
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

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
from edgerun.text.detok import StreamDetokenizer
from edgerun.text.tokenizer import Tokenizer

__all__ = ["AsyncMailbox", "ChunkStream", "Collector", "Delivery", "Mailbox", "off_loop"]

Item: TypeAlias = "Chunk | Exception"
T = TypeVar("T")

# On Windows Ctrl-C does not wake a thread that waits for a lock: look up now and then.
_POLL = 0.2 if os.name == "nt" else None


class Delivery:
    """The engine's sink for one request: detokenizes and emits chunks.

    Tokens whose text is still held back (half a character, half a stop string) travel with the
    next chunk that has text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        last_prompt_id: int,
        emit: Callable[[Item], None],
        index: int = 0,
    ) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._detok = StreamDetokenizer(tokenizer, stop=params.stop, previous=last_prompt_id)
        self._emit = emit
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    def push(self, tokens: Sequence[Sampled]) -> tuple[int, bool]:
        text, kept = self._detok.feed([t.token_id for t in tokens])
        for token in tokens[:kept]:
            self._ids.append(token.token_id)
            if token.logprob is not None:
                self._logprobs.append(self._logprob(token))
        if text:
            self._emit(Chunk(text, *self._held(), index=self._index))
        return kept, self._detok.stopped

    def finish(self, reason: FinishReason, usage: Usage, timings: Timings) -> None:
        text = self._detok.flush()
        self._emit(Chunk(text, *self._held(), reason, usage, timings, self._index))

    def fail(self, error: Exception) -> None:
        self._emit(error)

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


class Mailbox:
    """Chunks from the engine's thread to a blocking reader."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[Item] = queue.SimpleQueue()

    def put(self, item: Item) -> None:
        self._items.put(item)

    def get(self) -> Chunk:
        """The next chunk; raises what ended the request instead of its last chunk."""
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


async def off_loop(function: Callable[..., T], *args: object, **kwargs: object) -> T:
    """``function(...)`` on a thread of its own: long texts must not hold up the caller's loop."""
    import asyncio

    return await asyncio.to_thread(function, *args, **kwargs)


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
        )
