"""``/v1/responses``: answers as OpenAI's clients read them, whole and as events.

https://platform.openai.com/docs/api-reference/responses-streaming is the order of events.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edgerun.chat import ToolCall
from edgerun.core import Chunk, Completion, FinishReason, TokenLogprob, Usage
from edgerun.server.responses_in import Tool, Wanted
from edgerun.server.wire import Answering, Event, left_out_field

__all__ = ["ResponseEvents", "whole"]

Json = dict[str, Any]


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
        **left_out_field(usage),
    }


def _response(wanted: Wanted, answering: Answering, status: str, **more: Any) -> Json:
    body, params = wanted.body, wanted.asked.params
    return {
        "id": f"resp_{answering.id}",
        "object": "response",
        "created_at": answering.created,
        "status": status,
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": answering.model,
        "output": [],
        "parallel_tool_calls": wanted.asked.options.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": (body.reasoning or {}).get("effort"), "summary": None},
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [t.given for t in wanted.tools.values() if t.namespace is None],
        "top_logprobs": params.logprobs or 0,
        "top_p": params.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": None,
        **more,
    }


def _finished(wanted: Wanted, answering: Answering, output: list[Json], last: Chunk) -> Json:
    """The response once its last chunk is there."""
    cut = last.finish_reason is FinishReason.LENGTH
    return _response(
        wanted,
        answering,
        "incomplete" if cut else "completed",
        incomplete_details={"reason": "max_output_tokens"} if cut else None,
        output=output,
        usage=_usage(last.usage or Usage()),
    )


def _logprobs(logprobs: tuple[TokenLogprob, ...]) -> list[Json]:
    def entry(p: TokenLogprob) -> Json:
        token = p.bytes.decode("utf-8", "replace")
        return {"token": token, "bytes": list(p.bytes), "logprob": p.logprob}

    return [entry(p) | {"top_logprobs": [entry(t) for t in p.top]} for p in logprobs]


# -- items --------------------------------------------------------------------------------------


def _reasoning(item_id: str, text: str | None, status: str) -> Json:
    content = [] if text is None else [{"type": "reasoning_text", "text": text}]
    head: Json = {"id": item_id, "type": "reasoning", "summary": [], "content": content}
    return head | {"encrypted_content": None, "status": status}


def _message(item_id: str, part: Json | None, status: str) -> Json:
    content = [] if part is None else [part]
    head: Json = {"id": item_id, "type": "message", "role": "assistant", "content": content}
    return head | {"status": status}


def _part(text: str, logprobs: list[Json]) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _call(item_id: str, call: ToolCall, tool: Tool | None, status: str) -> Json:
    if tool is not None and tool.custom:
        return {
            "id": item_id,
            "type": "custom_tool_call",
            "call_id": call.id,
            "name": call.name,
            "input": _custom_input(call.arguments),
            "status": status,
        }
    item: Json = {
        "id": item_id,
        "type": "function_call",
        "call_id": call.id,
        "name": call.name,
        "arguments": call.arguments,
        "status": status,
    }
    if tool is not None and tool.namespace is not None:
        item |= {"name": tool.given["name"], "namespace": tool.namespace}
    return item


def _custom_input(arguments: str) -> str:
    """The one text of a custom tool's call; all that was written, if it is not just that."""
    try:
        given = json.loads(arguments)["input"]
    except (ValueError, KeyError, TypeError):
        return arguments
    return given if isinstance(given, str) else arguments


def whole(wanted: Wanted, answering: Answering, completion: Completion) -> Json:
    """The answer as one response."""
    output: list[Json] = []

    def suffix() -> str:
        return f"{answering.id}_{len(output)}"

    if completion.reasoning:
        output.append(_reasoning(f"rs_{suffix()}", completion.reasoning, "completed"))
    if completion.text or not (completion.tool_calls or completion.reasoning):
        part = _part(completion.text, _logprobs(completion.logprobs or ()))
        output.append(_message(f"msg_{suffix()}", part, "completed"))
    for call in completion.tool_calls:
        tool = wanted.tools.get(call.name)
        output.append(_call(_call_id(suffix(), tool), call, tool, "completed"))
    if completion.finish_reason is FinishReason.LENGTH:
        output[-1]["status"] = "incomplete"
    last = Chunk(finish_reason=completion.finish_reason, usage=completion.usage)
    return _finished(wanted, answering, output, last)


def _call_id(suffix: str, tool: Tool | None) -> str:
    return f"ctc_{suffix}" if tool is not None and tool.custom else f"fc_{suffix}"


# -- events -------------------------------------------------------------------------------------


@dataclass
class _Open:
    """The item that is being written."""

    kind: str
    which: int
    id: str
    text: list[str] = field(default_factory=list)
    logprobs: list[Json] = field(default_factory=list)
    call: ToolCall = field(default_factory=lambda: ToolCall("", "", ""))
    tool: Tool | None = None


class ResponseEvents:
    """One streamed answer. ``keep`` gets the finished response."""

    def __init__(self, wanted: Wanted, answering: Answering, keep: Callable[[Json], None]) -> None:
        self._wanted, self._answering, self._keep = wanted, answering, keep
        self._sequence = 0
        self._output: list[Json] = []
        self._open: _Open | None = None
        self._last = Chunk()

    def start(self) -> Iterator[Event]:
        for name in ("created", "in_progress"):
            response = _response(self._wanted, self._answering, "in_progress")
            yield self._event(f"response.{name}", response=response)

    def chunk(self, chunk: Chunk) -> Iterator[Event]:
        if chunk.reasoning:
            item, begun = self._enter("reasoning", 0)
            yield from begun
            item.text.append(chunk.reasoning)
            yield self._at("response.reasoning_text.delta", content_index=0, delta=chunk.reasoning)
        if chunk.text:
            item, begun = self._enter("message", 0)
            yield from begun
            item.text.append(chunk.text)
            logprobs = _logprobs(chunk.logprobs)
            item.logprobs += logprobs
            name = "response.output_text.delta"
            yield self._at(name, content_index=0, delta=chunk.text, logprobs=logprobs)
        for d in chunk.tool_calls:
            item, begun = self._enter("call", d.index, ToolCall(d.id or "", d.name or "", ""))
            yield from begun
            item.text.append(d.arguments)
            if d.arguments and not (item.tool is not None and item.tool.custom):
                yield self._at("response.function_call_arguments.delta", delta=d.arguments)
        if chunk.finish_reason is not None:
            self._last = chunk

    def end(self) -> Iterator[Event]:
        cut = self._last.finish_reason is FinishReason.LENGTH
        if self._open is None and not self._output:
            yield from self._enter("message", 0)[1]
        yield from self._leave("incomplete" if cut else "completed")
        response = _finished(self._wanted, self._answering, self._output, self._last)
        self._keep(response)
        yield self._event(f"response.{response['status']}", response=response)

    def error(self, error: Mapping[str, Any]) -> Iterator[Event]:
        said = {"code": error.get("code") or "server_error", "message": error.get("message")}
        response = _response(
            self._wanted, self._answering, "failed", error=said, output=self._output
        )
        yield self._event("response.failed", response=response)

    def _enter(
        self, kind: str, which: int, call: ToolCall | None = None
    ) -> tuple[_Open, list[Event]]:
        """The open item, and the events that open it if another one was."""
        now = self._open
        if now is not None and (now.kind, now.which) == (kind, which):
            return now, []
        events = list(self._leave("completed"))
        suffix = f"{self._answering.id}_{len(self._output)}"
        item = self._open = _Open(kind, which, suffix)
        if call is not None:
            item.call, item.tool = call, self._wanted.tools.get(call.name)
            item.id = _call_id(suffix, item.tool)
        else:
            item.id = ("rs_" if kind == "reasoning" else "msg_") + suffix
        index = len(self._output)
        shown = self._item(item, "in_progress", empty=True)
        events.append(self._event("response.output_item.added", output_index=index, item=shown))
        if call is None:
            part = _part("", []) if kind == "message" else {"type": "reasoning_text", "text": ""}
            events.append(self._at("response.content_part.added", content_index=0, part=part))
        return item, events

    def _leave(self, status: str) -> Iterator[Event]:
        """The events that close the open item."""
        item = self._open
        if item is None:
            return
        text, done = "".join(item.text), self._item(item, status)
        if item.kind == "message":
            name, logprobs = "response.output_text.done", item.logprobs
            yield self._at(name, content_index=0, text=text, logprobs=logprobs)
        elif item.kind == "reasoning":
            yield self._at("response.reasoning_text.done", content_index=0, text=text)
        elif item.tool is not None and item.tool.custom:
            yield self._at("response.custom_tool_call_input.delta", delta=done["input"])
            yield self._at("response.custom_tool_call_input.done", input=done["input"])
        else:
            name = "response.function_call_arguments.done"
            yield self._at(name, name=done["name"], arguments=text)
        if item.kind != "call":
            part = done["content"][0]
            yield self._at("response.content_part.done", content_index=0, part=part)
        index = len(self._output)
        self._output.append(done)
        self._open = None
        yield self._event("response.output_item.done", output_index=index, item=done)

    def _item(self, item: _Open, status: str, empty: bool = False) -> Json:
        text = "" if empty else "".join(item.text)
        if item.kind == "reasoning":
            return _reasoning(item.id, None if empty else text, status)
        if item.kind == "message":
            return _message(item.id, None if empty else _part(text, item.logprobs), status)
        return _call(item.id, ToolCall(item.call.id, item.call.name, text), item.tool, status)

    def _at(self, event: str, **data: Any) -> Event:
        """An event about the open item."""
        assert self._open is not None
        return self._event(event, item_id=self._open.id, output_index=len(self._output), **data)

    def _event(self, kind: str, **data: Any) -> Event:
        event = Event({"type": kind, "sequence_number": self._sequence, **data}, kind)
        self._sequence += 1
        return event
