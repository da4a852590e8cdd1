"""What :class:`~edgerun.llm.LLM` offers coroutines: the blocking calls' twins."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from edgerun.chat import ChatOptions
from edgerun.conversing import split_overrides
from edgerun.core import Chunk, Completion, SamplingParams, Usage
from edgerun.delivery import AsyncChunkStream, AsyncMailbox, Item, acollect, off_loop
from edgerun.requests import chosen_params

if TYPE_CHECKING:
    from edgerun.embedding import Embedder, Embeddings

__all__ = ["Begun", "Coroutines", "Message", "Prompt"]

Prompt: TypeAlias = "str | Sequence[int]"
Message: TypeAlias = Mapping[str, Any]


class Begun(NamedTuple):
    """A request that was started: how to end it, and what of its usage is known already."""

    cancel: Callable[[], None]
    known: Usage


class Coroutines(abc.ABC):
    """All of them may be awaited on any event loop; the engine runs on its own thread."""

    @property
    @abc.abstractmethod
    def _embedder(self) -> Embedder: ...

    @abc.abstractmethod
    def _begin(
        self, prompt: Prompt, params: SamplingParams, emit: Callable[[Item], None]
    ) -> Begun: ...

    @abc.abstractmethod
    def _begin_chat(
        self,
        messages: Sequence[Message],
        options: ChatOptions,
        params: SamplingParams,
        emit: Callable[[Item], None],
    ) -> Begun: ...

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> Completion:
        """:meth:`generate` for coroutines; cancelling the task frees its place."""
        chosen = chosen_params(params, overrides)
        return await acollect(await self.start(prompt, chosen), chosen)

    async def start(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> AsyncChunkStream:
        """:meth:`stream` for coroutines: when it returns the request is accepted and runs."""
        chosen = chosen_params(params, overrides)
        mailbox = AsyncMailbox()
        # Long texts take a while: they must not hold up the caller's loop.
        begun = await off_loop(partial(self._begin, prompt, chosen, mailbox.put), _end)
        return AsyncChunkStream(mailbox, begun.cancel, self, chosen.n, begun.known)

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> AsyncGenerator[Chunk, None]:
        """:meth:`start` as a generator. It starts, and refuses, at the first ``anext``."""
        async with contextlib.aclosing(await self.start(prompt, params, **overrides)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def achat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: ChatOptions | None = None,
        **overrides: Any,
    ) -> Completion:
        """:meth:`chat` for coroutines."""
        asked, rest = split_overrides(options, overrides)
        chosen = chosen_params(params, rest)
        return await acollect(await self.start_chat(messages, chosen, asked), chosen)

    async def start_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: ChatOptions | None = None,
        **overrides: Any,
    ) -> AsyncChunkStream:
        """:meth:`stream_chat` for coroutines: when it returns the request is accepted and runs."""
        asked, rest = split_overrides(options, overrides)
        mailbox, chosen = AsyncMailbox(), chosen_params(params, rest)
        work = partial(self._begin_chat, messages, asked, chosen, mailbox.put)
        begun = await off_loop(work, _end)
        return AsyncChunkStream(mailbox, begun.cancel, self, chosen.n, begun.known)

    async def astream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: ChatOptions | None = None,
        **overrides: Any,
    ) -> AsyncGenerator[Chunk, None]:
        """:meth:`start_chat` as a generator. It starts, and refuses, at the first ``anext``."""
        begun = await self.start_chat(messages, params, options, **overrides)
        async with contextlib.aclosing(begun) as chunks:
            async for chunk in chunks:
                yield chunk

    async def aembed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        pooling: str | None = None,
        dimensions: int | None = None,
    ) -> Embeddings:
        """:meth:`embed` for coroutines; cancelling the task ends the work."""
        begin = partial(self._embedder.begin, texts, pooling, dimensions)
        return await (await off_loop(begin, lambda begun: begun.cancel())).aresult()


def _end(begun: Begun) -> None:
    begun.cancel()
