"""``/v1/messages``: answers in Anthropic's shape, whole and as events.

https://docs.anthropic.com/en/api/messages and its page on streaming say what clients expect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edgerun.core import Chunk, Completion, FinishReason, Usage
from edgerun.server.errors import body_for
from edgerun.server.wire import Answering, Event, left_out_field

__all__ = ["MessageEvents", "whole"]


def _usage(usage: Usage) -> dict[str, int]:
    """Anthropic counts cached tokens beside the input tokens, not among them."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        **left_out_field(usage),
    }


def _stop(reason: FinishReason, stop_string: str | None) -> dict[str, Any]:
    name = "end_turn"
    if reason is FinishReason.TOOL_CALLS:
        name = "tool_use"
    elif reason is FinishReason.LENGTH:
        name = "max_tokens"
    elif stop_string is not None:
        name = "stop_sequence"
    return {"stop_reason": name, "stop_sequence": stop_string}


def _message(answering: Answering, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{answering.id}",
        "type": "message",
        "role": "assistant",
        "model": answering.model,
        "content": content,
    }


def _input(arguments: str) -> Any:
    """What a call was given; nothing, if it was cut short."""
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {}


def whole(answering: Answering, completion: Completion, thinking: bool) -> dict[str, Any]:
    """The answer as one message."""
    content: list[dict[str, Any]] = []
    if completion.reasoning and thinking:
        content.append({"type": "thinking", "thinking": completion.reasoning, "signature": ""})
    if completion.text:
        content.append({"type": "text", "text": completion.text})
    content += [
        {"type": "tool_use", "id": c.id, "name": c.name, "input": _input(c.arguments)}
        for c in completion.tool_calls
    ]
    return {
        **_message(answering, content),
        **_stop(completion.finish_reason, completion.stop_string),
        "usage": _usage(completion.usage),
    }


class MessageEvents:
    """One streamed answer. Blocks come one after the other; each is closed before the next."""

    def __init__(self, answering: Answering, thinking: bool) -> None:
        self._answering = answering
        self._thinking = thinking
        self._index = -1
        self._open: tuple[str, int] | None = None  # kind, and which call
        self._last = Chunk()

    def start(self) -> Iterator[Event]:
        message = {
            **_message(self._answering, []),
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(self._answering.known),
        }
        yield _event("message_start", message=message)
        yield _event("ping")

    def chunk(self, chunk: Chunk) -> Iterator[Event]:
        if chunk.reasoning and self._thinking:
            yield from self._enter("thinking", 0, {"thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": chunk.reasoning})
        if chunk.text:
            yield from self._enter("text", 0, {"text": ""})
            yield self._delta({"type": "text_delta", "text": chunk.text})
        for call in chunk.tool_calls:
            block: dict[str, Any] = {"id": call.id, "name": call.name, "input": {}}
            yield from self._enter("tool_use", call.index, block)
            if call.arguments:
                delta = {"type": "input_json_delta", "partial_json": call.arguments}
                yield self._delta(delta)
        if chunk.finish_reason is not None:
            self._last = chunk

    def end(self) -> Iterator[Event]:
        yield from self._leave()
        last = self._last
        delta = _stop(last.finish_reason or FinishReason.STOP, last.stop_string)
        yield _event("message_delta", delta=delta, usage=_usage(last.usage or Usage()))
        yield _event("message_stop")

    def error(self, error: Mapping[str, Any]) -> Iterable[Event]:
        return [Event(body_for("/v1/messages", error, None), "error")]

    def _enter(self, kind: str, which: int, block: Mapping[str, Any]) -> Iterator[Event]:
        if self._open == (kind, which):
            return
        yield from self._leave()
        self._index += 1
        self._open = (kind, which)
        content = {"type": kind, **block}
        yield _event("content_block_start", index=self._index, content_block=content)

    def _leave(self) -> Iterator[Event]:
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._index)

    def _delta(self, delta: Mapping[str, Any]) -> Event:
        return _event("content_block_delta", index=self._index, delta=delta)


def _event(name: str, **data: Any) -> Event:
    return Event({"type": name, **data}, name)
