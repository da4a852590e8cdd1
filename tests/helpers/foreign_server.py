"""A server that plays what other runtimes send, and who asks it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from edgerun.chat import ChatOptions
from edgerun.core import Chunk, SamplingParams
from edgerun.tui.remote import RemotePartner
from helpers.raw_server import Asked, RawServer, Reply, answer, events, refuse

__all__ = ["HELLO", "MODELS", "answered", "ask", "delta", "serve", "silent", "text"]


HELLO = [{"role": "user", "content": "Hello"}]


MODELS = {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "llamacpp"}]}


def silent(stage: str, done: int, total: int | None) -> None:
    pass


def serve(
    *replies: Reply | Callable[[Asked], Reply], models: Any = MODELS, key: str | None = None
) -> Callable[[Callable[[RemotePartner, RawServer], Awaitable[Any]]], Any]:
    """Chat completions play the replies in turn, the last again and again."""
    n = [0]

    def reply(asked: Asked) -> Reply:
        if asked.path.endswith("/models"):
            return models if isinstance(models, list) else answer(models)
        if not asked.path.endswith("/chat/completions"):
            return refuse(404, {"error": "no such route"})
        n[0] += 1
        chosen = replies[min(n[0], len(replies)) - 1]
        return chosen(asked) if callable(chosen) else chosen

    def run(work: Callable[[RemotePartner, RawServer], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with RawServer(reply) as server:
                partner = RemotePartner(server.url, key)
                try:
                    return await asyncio.wait_for(work(partner, server), 20)
                finally:
                    await partner.close()

        return asyncio.run(main())

    return run


async def ask(
    partner: RemotePartner, options: ChatOptions | None = None, **params: Any
) -> list[Chunk]:
    if partner.about is None:
        await partner.load(None, silent)
    chunks = partner.answer(HELLO, SamplingParams(**params), options or ChatOptions())
    return [c async for c in chunks]


def answered(*items: Any, done: bool = True) -> list[Chunk]:
    result: list[Chunk] = serve(events(*items, done=done))(lambda p, s: ask(p))
    return result


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def text(chunks: list[Chunk]) -> str:
    return "".join(c.text for c in chunks)
