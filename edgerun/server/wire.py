"""From what is asked to what leaves: a model's chunks, streamed as events or collected."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from edgerun import __version__
from edgerun.core import Chunk, Completion, Timings, Usage
from edgerun.delivery import AsyncChunkStream, Collector, off_loop
from edgerun.errors import ClosedError, RequestError
from edgerun.llm import LLM
from edgerun.server.asked import Asked, ChatAsked
from edgerun.server.errors import ClientGoneError, TimeLimitError, error_fields
from edgerun.server.registry import Lease
from edgerun.server.sse import COMMENT, DONE, EVENT_HEADERS, JSON, Event, encode

__all__ = [
    "DONE",
    "FINGERPRINT",
    "JSON",
    "Answering",
    "Event",
    "Translator",
    "UsageSum",
    "respond",
    "timings_fields",
    "usage_fields",
    "while_here",
    "with_model",
]

#: ``system_fingerprint``: what computed the answer.
FINGERPRINT = f"edgerun-{__version__}"

#: Most answers one request may ask for, over all its prompts.
MAX_ANSWERS = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Answering:
    """One request that is being answered.

    Attributes:
        id: 32 hex digits; APIs put their own prefix before it.
        created, model: seconds since 1970, and the name it is served under.
        asked: what ``prepare`` made of it, where there was one.
        llm: the model, for facts and tokens; nobody but :func:`respond` generates with it.
        known: what of its usage is known before the first token, of all prompts.
    """

    id: str
    created: int
    model: str
    asked: Asked
    llm: LLM
    known: Usage = field(default_factory=Usage)

    @property
    def n_prompts(self) -> int:
        """1 in a conversation."""
        return 1 if isinstance(self.asked, ChatAsked) else len(self.asked.prompts)

    @property
    def n_answers(self) -> int:
        """``params.n`` for each prompt. Answer i of prompt p has index ``p * params.n + i``."""
        return self.n_prompts * self.asked.params.n


class Translator(Protocol):
    """Chunks to the events of one API; one per streamed answer. No I/O in it."""

    def start(self) -> Iterable[Event]:
        """Sent at once, before anything is computed."""
        ...

    def chunk(self, chunk: Chunk) -> Iterable[Event]: ...

    def end(self) -> Iterable[Event]:
        """After the last chunk of the last answer."""
        ...

    def error(self, error: Mapping[str, Any]) -> Iterable[Event]:
        """Instead of all that was to come; ``error`` has OpenAI's fields. The stream closes."""
        ...


class UsageSum:
    """Adds up the usage of several answers: each prompt counts once."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.usage = Usage()

    def add(self, chunk: Chunk) -> None:
        """Any chunk; only the last ones have usage."""
        if (u := chunk.usage) is None:
            return
        first = chunk.index % self._n == 0
        self.usage = Usage(
            self.usage.prompt_tokens + (u.prompt_tokens if first else 0),
            self.usage.completion_tokens + u.completion_tokens,
            self.usage.cached_tokens + (u.cached_tokens if first else 0),
            self.usage.reasoning_tokens + u.reasoning_tokens,
            self.usage.left_out + (u.left_out if first else 0),
        )


def usage_fields(usage: Usage) -> dict[str, Any]:
    """``usage`` as OpenAI's chat and completions APIs have it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        **left_out_field(usage),
    }


def left_out_field(usage: Usage) -> dict[str, int]:
    """How many messages were left out by ``context_shift``, of which no API knows: beside what they
    define, and only where it happened."""
    return {"messages_left_out": usage.left_out} if usage.left_out else {}


def timings_fields(usage: Usage, timings: Timings) -> dict[str, Any]:
    """``timings`` as llama.cpp's server has it; milliseconds and tokens a second."""
    prompt_ms, predicted_ms = timings.prefill * 1000, timings.decode * 1000
    prompt_n, predicted_n = timings.prefill_tokens, usage.completion_tokens
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": prompt_n,
        "prompt_ms": round(prompt_ms, 3),
        "prompt_per_token_ms": round(prompt_ms / max(1, prompt_n), 3),
        "prompt_per_second": round(timings.prefill_per_second, 3),
        "predicted_n": predicted_n,
        "predicted_ms": round(predicted_ms, 3),
        "predicted_per_token_ms": round(predicted_ms / max(1, timings.decode_tokens), 3),
        "predicted_per_second": round(timings.decode_per_second, 3),
    }


# -- the request's life --------------------------------------------------------------------------


@dataclass
class _Running:
    """What a request holds: the model, its place in the queue, its streams."""

    lease: Lease | None = None
    streams: list[AsyncChunkStream] = field(default_factory=list)
    leave: Callable[[], None] | None = None

    def close(self) -> None:
        """Give all of it back; idempotent."""
        for stream in self.streams:
            stream.close()
        self.streams = []
        if (leave := self.leave) is not None:
            self.leave = None
            leave()
        if self.lease is not None:
            self.lease.release()
            self.lease = None


async def respond(
    request: Request,
    asked: Asked,
    translator: Callable[[Answering], Translator],
    whole: Callable[[Answering, Completion], Mapping[str, Any] | list[dict[str, Any]]],
) -> Response:
    """Answer ``asked``: a stream of events, or one JSON body.

    What can be refused is refused before the first byte, as an exception. A client that goes away
    frees what its request holds at once. ``whole`` gets the answers to all prompts in one
    completion, whose ``total_usage`` counts each prompt once.
    """
    running = _Running()
    deadline = _deadline(request)
    try:
        answering = await while_here(request, _begin(request, asked, running))
        clock = _Clock(request, answering)
        chunks = _chunks(running.streams, answering.asked.params.n)
        if answering.asked.stream:
            events = translator(answering)
            return _Events(request, running, events, clock.watch(chunks), deadline)
        try:
            work = while_here(request, _collect(clock.watch(chunks), answering))
            left = None if deadline is None else deadline - time.monotonic()
            done = await asyncio.wait_for(work, left)
        except asyncio.TimeoutError:
            raise TimeLimitError(request.app.state.options.timeout) from None
        running.close()
        return JSON(whole(answering, done))
    except BaseException:
        running.close()
        raise


async def while_here(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns, unless the client goes away meanwhile: it is cancelled then.

    Raises:
        ClientGoneError: it went away.
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError("the client closed the connection")
    finally:
        await _end(task, watch)


async def with_model(request: Request, name: str | None, work: Callable[[LLM], T]) -> T:
    """``work(llm)`` of the model called ``name``, off the loop; the model stays for that long."""
    with await request.app.state.registry.acquire(name) as lease:
        return await off_loop(partial(work, lease.llm))


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _deadline(request: Request) -> float | None:
    timeout = request.app.state.options.timeout
    return None if timeout is None else time.monotonic() + timeout


async def _begin(request: Request, asked: Asked, running: _Running) -> Answering:
    """The model, a place, and the accepted prompts; ``running`` holds them."""
    state = request.app.state
    lease = running.lease = await state.registry.acquire(asked.model)
    if (prepare := asked.prepare) is not None:
        asked = await off_loop(lambda: prepare(lease.llm))
    answering = Answering(secrets.token_hex(16), int(time.time()), lease.name, asked, lease.llm)
    _facts(request)["model"] = lease.name
    if answering.n_answers > MAX_ANSWERS:
        raise RequestError(
            f"{answering.n_answers} answers were asked for in one request; "
            f"at most {MAX_ANSWERS} are given",
            param="prompt",
        )
    running.leave = state.queue.enter(lease.name, answering.n_answers)
    if isinstance(asked, ChatAsked):
        begun = await lease.llm.start_chat(asked.messages, asked.params, asked.options)
        running.streams.append(begun)
    else:
        for prompt in asked.prompts:
            running.streams.append(await lease.llm.start(prompt, asked.params))
    known = [s.known for s in running.streams]
    prompts = sum(u.prompt_tokens for u in known)
    return replace(answering, known=Usage(prompts, left_out=sum(u.left_out for u in known)))


async def _chunks(streams: list[AsyncChunkStream], n: int) -> AsyncIterator[Chunk]:
    """The chunks of all streams, as they come; of a stream's n answers the indexes go on from those
    of the stream before."""
    if len(streams) == 1:
        async for chunk in streams[0]:
            yield chunk
        return
    items: asyncio.Queue[Chunk | Exception | None] = asyncio.Queue()

    async def pump(offset: int, stream: AsyncChunkStream) -> None:
        try:
            async for chunk in stream:
                items.put_nowait(replace(chunk, index=chunk.index + offset))
            items.put_nowait(None)
        except Exception as e:
            items.put_nowait(e)

    pumps = [asyncio.ensure_future(pump(i * n, s)) for i, s in enumerate(streams)]
    left = len(pumps)
    try:
        while left:
            item = await items.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                left -= 1
            else:
                yield item
    finally:
        await _end(*pumps)


async def _collect(chunks: AsyncIterator[Chunk], answering: Answering) -> Completion:
    params, total = answering.asked.params, UsageSum(answering.asked.params.n)
    collector = Collector(params.logprobs is not None, answering.n_answers)
    async for chunk in chunks:
        total.add(chunk)
        if (done := collector.add(chunk)) is not None:
            prompt, cached = total.usage.prompt_tokens, total.usage.cached_tokens
            usage = replace(done.usage, prompt_tokens=prompt, cached_tokens=cached)
            return replace(done, usage=usage)
    raise ClosedError("the answer ended early")


# -- what is measured ----------------------------------------------------------------------------


def _facts(request: Request) -> dict[str, Any]:
    """What the log's line will say of this request."""
    facts: dict[str, Any] = request.scope.setdefault("state", {}).setdefault("facts", {})
    return facts


class _Clock:
    """Notes what the log and the metrics want to know of an answer."""

    def __init__(self, request: Request, answering: Answering) -> None:
        self._facts = _facts(request)
        self._sum = UsageSum(answering.asked.params.n)
        self._began = self._facts.get("began", time.perf_counter())
        self._clock = request.app.state.metrics.clock(answering.model, self._began)

    async def watch(self, chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
        facts, usage = self._facts, self._sum
        async for chunk in chunks:
            if "ttft" not in facts and (chunk.token_ids or chunk.finish_reason is not None):
                facts["ttft"] = time.perf_counter() - self._began
            self._clock.chunk(chunk)
            if chunk.finish_reason is not None:
                usage.add(chunk)
                facts["usage"] = usage.usage
                facts["finish"] = str(chunk.finish_reason)
            yield chunk


# -- streams -------------------------------------------------------------------------------------


class _Events(Response):
    """An answer as server-sent events: headers at once, a comment whenever nothing was sent for
    a while. Whatever ends it, the request's place is free when it returns."""

    def __init__(
        self,
        request: Request,
        running: _Running,
        translator: Translator,
        chunks: AsyncIterator[Chunk],
        deadline: float | None,
    ) -> None:
        super().__init__()
        self._options = request.app.state.options
        self._facts = _facts(request)
        self._running, self._translator, self._chunks = running, translator, chunks
        self._deadline = deadline
        self._last = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._send, self._last = send, time.monotonic()
        tasks: list[asyncio.Future[Any]] = []
        try:
            await send(
                {"type": "http.response.start", "status": 200, "headers": list(EVENT_HEADERS)}
            )
            tasks = [asyncio.ensure_future(self._produce()), asyncio.ensure_future(_gone(receive))]
            tasks.append(asyncio.ensure_future(self._keep_alive()))
            left = None if self._deadline is None else self._deadline - time.monotonic()
            done, _ = await asyncio.wait(
                tasks[:2], timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            await _end(*tasks)
            if not done:
                await self._fail(TimeLimitError(self._options.timeout))
            elif tasks[0] not in done:
                self._facts["status"] = 499
            else:
                tasks[0].result()
        except OSError:  # some servers' way to say that the client has gone
            self._facts["status"] = 499
        finally:
            self._running.close()
            await _end(*tasks)

    async def _produce(self) -> None:
        translator = self._translator
        try:
            await self._put(translator.start())
            async for chunk in self._chunks:
                await self._put(translator.chunk(chunk))
            events = list(translator.end())
        except OSError:
            raise
        except Exception as e:
            await self._fail(e)
            return
        await self._put(events)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _fail(self, error: Exception) -> None:
        fields = error_fields(error)
        self._facts["error"] = fields["message"]
        await self._put(self._translator.error(fields))
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _put(self, events: Iterable[Event]) -> None:
        if body := encode(events):
            self._last = time.monotonic()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def _keep_alive(self) -> None:
        every = self._options.comment_every
        while True:
            await asyncio.sleep(max(0.01, self._last + every - time.monotonic()))
            if time.monotonic() - self._last >= every:
                self._last = time.monotonic()
                await self._send({"type": "http.response.body", "body": COMMENT, "more_body": True})
