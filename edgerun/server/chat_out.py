"""Answers of OpenAI's chat completions: whole, and as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edgerun.chat import ToolCall, ToolCallDelta
from edgerun.core import Chunk, Completion, FinishReason, Timings, TokenLogprob, Usage
from edgerun.server.wire import (
    DONE,
    FINGERPRINT,
    Answering,
    Event,
    UsageSum,
    timings_fields,
    usage_fields,
)

__all__ = ["ChatTranslator", "logprobs_fields", "whole"]


def logprobs_fields(tokens: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Token probabilities in the chat API's shape; the ``bytes`` join to the raw output."""
    return {
        "content": [_token(t) | {"top_logprobs": [_token(x) for x in t.top]} for t in tokens],
        "refusal": None,
    }


def _token(t: TokenLogprob) -> dict[str, Any]:
    return {
        "token": t.bytes.decode("utf-8", "replace"),
        "bytes": list(t.bytes),
        "logprob": max(t.logprob, -9999.0),  # OpenAI's stand-in for what is impossible
    }


def finish_word(reason: FinishReason, legacy: bool) -> str:
    """``finish_reason`` as OpenAI words it."""
    if reason is FinishReason.TOOL_CALLS and legacy:
        return "function_call"
    return str(reason)


def whole(answering: Answering, done: Completion, *, legacy: bool = False) -> dict[str, Any]:
    """The body of an answer that is not streamed. ``legacy``: calls in the form that went with
    ``functions``."""
    choices = []
    for i, c in enumerate(done.choices):
        message: dict[str, Any] = {
            "role": "assistant",
            "content": c.text if c.text or not c.tool_calls else None,
            "refusal": None,
        }
        if c.reasoning:
            message["reasoning_content"] = c.reasoning
        if c.tool_calls and legacy:
            first = c.tool_calls[0]
            message["function_call"] = {"name": first.name, "arguments": first.arguments}
        elif c.tool_calls:
            message["tool_calls"] = [_call(t) for t in c.tool_calls]
        logprobs = None if c.logprobs is None else logprobs_fields(c.logprobs)
        finish = finish_word(c.finish_reason, legacy)
        choices.append(
            {"index": i, "message": message, "logprobs": logprobs, "finish_reason": finish}
        )
    return {
        "id": f"chatcmpl-{answering.id}",
        "object": "chat.completion",
        "created": answering.created,
        "model": answering.model,
        "system_fingerprint": FINGERPRINT,
        "choices": choices,
        "usage": usage_fields(done.total_usage),
        "timings": timings_fields(done.usage, done.timings),
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


class ChatTranslator:
    """Chunks to ``chat.completion.chunk`` events."""

    def __init__(self, answering: Answering, *, legacy: bool = False) -> None:
        self._legacy, self._n = legacy, answering.n_answers
        self._logprobs = answering.asked.params.logprobs is not None
        self._include_usage = answering.asked.include_usage
        self._sum = UsageSum(answering.asked.params.n)
        self._last: tuple[Usage, Timings] | None = None
        self._head = {
            "id": f"chatcmpl-{answering.id}",
            "object": "chat.completion.chunk",
            "created": answering.created,
            "model": answering.model,
            "system_fingerprint": FINGERPRINT,
        }

    def start(self) -> Iterable[Event]:
        for i in range(self._n):
            yield self._event(i, {"role": "assistant", "content": "", "refusal": None})

    def chunk(self, chunk: Chunk) -> Iterable[Event]:
        self._sum.add(chunk)
        delta: dict[str, Any] = {}
        if chunk.reasoning:
            delta["reasoning_content"] = chunk.reasoning
        if chunk.text:
            delta["content"] = chunk.text
        if chunk.tool_calls and self._legacy:
            delta["function_call"] = _function_delta(chunk.tool_calls)
        elif chunk.tool_calls:
            delta["tool_calls"] = [_delta(d) for d in chunk.tool_calls]
        logprobs = logprobs_fields(chunk.logprobs) if self._logprobs else None
        if delta or chunk.logprobs:
            yield self._event(chunk.index, delta, logprobs)
        if chunk.finish_reason is None:
            return
        event = self._event(chunk.index, {}, None, finish_word(chunk.finish_reason, self._legacy))
        if chunk.usage is not None and chunk.timings is not None:
            self._last = chunk.usage, chunk.timings
            if not self._include_usage:
                event = Event({**event.data, "timings": timings_fields(*self._last)})  # type: ignore[dict-item]
        yield event

    def end(self) -> Iterable[Event]:
        if self._include_usage:
            last = {**self._head, "choices": [], "usage": usage_fields(self._sum.usage)}
            if self._last is not None:
                last["timings"] = timings_fields(*self._last)
            yield Event(last)
        yield DONE

    def error(self, error: Mapping[str, Any]) -> Iterable[Event]:
        yield Event({"error": dict(error)})

    def _event(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish: str | None = None,
    ) -> Event:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        data = {**self._head, "choices": [choice]}
        if self._include_usage:
            data["usage"] = None
        return Event(data)


def _delta(d: ToolCallDelta) -> dict[str, Any]:
    """The first piece of a call has id, type and name; later ones only arguments."""
    out: dict[str, Any] = {"index": d.index}
    function: dict[str, Any] = {}
    if d.id is not None:
        out |= {"id": d.id, "type": "function"}
    if d.name is not None:
        function["name"] = d.name
    return out | {"function": function | {"arguments": d.arguments}}


def _function_delta(deltas: Sequence[ToolCallDelta]) -> dict[str, Any]:
    name = next((d.name for d in deltas if d.name is not None), None)
    arguments = "".join(d.arguments for d in deltas)
    return ({"name": name} if name is not None else {}) | {"arguments": arguments}
