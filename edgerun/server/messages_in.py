"""``/v1/messages``: what a client asks for in Anthropic's shape, as a conversation.

Pure translation. What this server cannot do is refused by its place in the request; what it need
not know (``metadata``, ``cache_control``, ``service_tier``, betas) is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edgerun.chat import ChatOptions
from edgerun.core import Constraint, SamplingParams
from edgerun.errors import RequestError, printable
from edgerun.server.asked import ChatAsked
from edgerun.server.bodies import Body, SamplingBody, refuse, sampling_params

__all__ = ["CountBody", "MessagesBody", "count", "parse", "wants_thinking"]

_EFFORT = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}
# Claude Code's note to Anthropic. It changes with each request, and would have every prompt
# computed from its first line on.
_BILLING = "x-anthropic-billing-header:"


class CountBody(Body):
    """What ``/v1/messages/count_tokens`` takes.

    Conversations and tools are checked by hand: the errors then name message and block.
    """

    model: str | None = None
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessagesBody(CountBody, SamplingBody):
    """What ``/v1/messages`` takes."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    output_format: dict[str, Any] | None = None
    mcp_servers: list[Any] | None = None
    container: Any = None


_ELSEWHERE = {
    "mcp_servers": "no server is called from here: have your client call it, and send tools",
    "container": "no code is run here: have your client run it, and send tools",
}


def parse(body: MessagesBody) -> ChatAsked:
    """The conversation to answer.

    Raises:
        RequestError: something in it is malformed, or cannot be done here; names it.
    """
    refuse(body, _ELSEWHERE)
    params = sampling_params(
        body,
        max_tokens=body.max_tokens,
        stop=body.stop_sequences or None,
        constraint=_format(body),
    )
    return ChatAsked(
        model=body.model,
        messages=_messages(body),
        params=params,
        options=_options(body),
        stream=bool(body.stream),
    )


def count(body: CountBody) -> ChatAsked:
    """The conversation whose tokens are to be counted."""
    return ChatAsked(body.model, _messages(body), SamplingParams(), _options(body))


def wants_thinking(body: CountBody) -> bool:
    """Whether the answer may have blocks of thinking."""
    kind = (body.thinking or {}).get("type")
    return kind is not None and kind != "disabled"


def _format(body: MessagesBody) -> Constraint | None:
    wanted, at = body.output_format, "output_format"
    if wanted is None:
        wanted, at = (body.output_config or {}).get("format"), "output_config.format"
    if wanted is None:
        return None
    if not isinstance(wanted, Mapping) or wanted.get("type") != "json_schema":
        raise _bad(f"{at}.type must be 'json_schema'", f"{at}.type")
    return Constraint("json_schema", wanted.get("schema"), param=f"{at}.schema")


# -- tools and thinking -------------------------------------------------------------------------


def _options(body: CountBody) -> ChatOptions:
    tools = [_tool(t, f"tools[{i}]") for i, t in enumerate(body.tools or [])]
    choice, parallel = _choice(body.tool_choice, [t["function"]["name"] for t in tools])
    last = body.messages[-1] if body.messages else {}
    goes_on = last.get("role") == "assistant" and not any(
        isinstance(b, Mapping) and b.get("type") == "tool_use" for b in _blocks(last.get("content"))
    )
    effort, budget = _thinking(body)
    return ChatOptions(
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        reasoning_effort=effort,
        reasoning_budget=budget,
        continue_final=goes_on,
    )


def _tool(tool: Mapping[str, Any], at: str) -> dict[str, Any]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise _bad(
            f"{at} is of type {printable(repr(kind), 60)}: only tools of the client's own, with "
            "name and input_schema, can be used here",
            at,
        )
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise _bad(f"{at}.name must be text", f"{at}.name")
    if not isinstance(schema, Mapping):
        raise _bad(f"{at}.input_schema must be a JSON Schema of an object", f"{at}.input_schema")
    function: dict[str, Any] = {"name": name, "parameters": dict(schema)}
    if isinstance(tool.get("description"), str):
        function["description"] = tool["description"]
    return {"type": "function", "function": function}


def _choice(
    choice: Mapping[str, Any] | None, names: Sequence[str]
) -> tuple[str | Mapping[str, Any], bool]:
    """``ChatOptions.tool_choice`` and whether several calls may be made."""
    if choice is None:
        return "auto", True
    parallel = choice.get("disable_parallel_tool_use") is not True
    kind = choice.get("type")
    if kind in ("auto", "none"):
        return kind, parallel
    if kind == "any":
        if not names:
            raise _bad("tool_choice wants a tool, but there are no tools", "tool_choice")
        return "required", parallel
    if kind != "tool":
        raise _bad("tool_choice.type must be auto, any, tool or none", "tool_choice.type")
    name = choice.get("name")
    if name not in names:
        raise _bad(
            f"tool_choice.name is {printable(repr(name), 60)}, which is none of the tools",
            "tool_choice.name",
        )
    return {"name": name}, parallel


def _thinking(body: CountBody) -> tuple[str | None, int | None]:
    """Reasoning effort and budget. Who asks for no thinking reads text as the first block."""
    effort = (body.output_config or {}).get("effort")
    if effort is not None and (not isinstance(effort, str) or effort not in _EFFORT):
        raise _bad(f"output_config.effort must be one of {', '.join(_EFFORT)}", "output_config")
    if not wants_thinking(body):
        return "none", None
    assert body.thinking is not None
    kind = body.thinking.get("type")
    if kind not in ("enabled", "adaptive", "between_tools"):
        raise _bad("thinking.type must be enabled, adaptive or disabled", "thinking.type")
    budget = body.thinking.get("budget_tokens")
    if kind == "enabled" or budget is not None:
        if isinstance(budget, bool) or not isinstance(budget, int) or budget < 1:
            raise _bad(
                "thinking.budget_tokens must be a whole number above 0", "thinking.budget_tokens"
            )
        limit = getattr(body, "max_tokens", None)
        if limit is not None and budget >= limit:
            raise _bad(
                f"thinking.budget_tokens is {budget}, which leaves nothing of max_tokens {limit}",
                "thinking.budget_tokens",
            )
    return _EFFORT.get(effort or ""), budget


# -- messages -----------------------------------------------------------------------------------


def _messages(body: CountBody) -> list[dict[str, Any]]:
    if not body.messages:
        raise _bad("messages is empty: send at least one message", "messages")
    out: list[dict[str, Any]] = []
    if system := _system(body.system):
        out.append({"role": "system", "content": system})
    for i, m in enumerate(body.messages):
        role, at = m.get("role"), f"messages[{i}]"
        if role not in ("user", "assistant", "system"):
            raise _bad(
                f"{at}.role is {printable(repr(role), 60)}; it must be user or assistant",
                f"{at}.role",
            )
        content = m.get("content")
        if not isinstance(content, (str, list)):
            raise _bad(f"{at}.content must be text or a list of blocks", f"{at}.content")
        blocks = _blocks(content)
        turn = _assistant(blocks, at) if role == "assistant" else _user(role, blocks, at)
        for message in turn:
            _add(out, message)
    return out


def _system(system: str | list[dict[str, Any]] | None) -> str:
    texts: list[str] = []
    for i, block in enumerate(_blocks(system)):
        at = f"system[{i}]"
        if block.get("type") != "text":
            raise _bad(f"{at} must be a block of text", at)
        text = _text(block.get("text"), f"{at}.text")
        if not text.startswith(_BILLING):
            texts.append(text)
    return "\n\n".join(texts)


def _blocks(content: Any) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list) else []


def _add(out: list[dict[str, Any]], message: dict[str, Any]) -> None:
    """Consecutive turns of one role are one turn, as Anthropic's API has it."""
    last = out[-1] if out else {}
    if message["role"] == "user" == last.get("role"):
        last["content"] += "\n\n" + message["content"]
    elif message["role"] == "assistant" == last.get("role") and not last.get("tool_calls"):
        for key in ("content", "reasoning_content"):
            both = [m[key] for m in (last, message) if m.get(key)]
            if both:
                last[key] = "".join(both)
        if message.get("tool_calls"):
            last["tool_calls"] = message["tool_calls"]
    else:
        out.append(message)


def _user(role: str, blocks: Sequence[Any], at: str) -> Iterator[dict[str, Any]]:
    """Texts of a turn as one message; before or between them, results of tools as their own."""
    texts: list[str] = []
    for i, block in enumerate(blocks):
        where = f"{at}.content[{i}]"
        if isinstance(block, Mapping) and block.get("type") == "tool_result":
            if texts:
                yield {"role": role, "content": "\n\n".join(texts)}
                texts = []
            yield _result(block, where)
        else:
            texts.append(_block_text(block, where))
    if texts or not blocks:
        yield {"role": role, "content": "\n\n".join(texts)}


def _result(block: Mapping[str, Any], at: str) -> dict[str, Any]:
    parts = [
        _block_text(b, f"{at}.content[{i}]") for i, b in enumerate(_blocks(block.get("content")))
    ]
    text = "\n".join(parts)
    if block.get("is_error") is True:
        text = f"Error: {text}"
    call = _text(block.get("tool_use_id"), f"{at}.tool_use_id")
    return {"role": "tool", "tool_call_id": call, "content": text}


def _assistant(blocks: Sequence[Any], at: str) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for i, block in enumerate(blocks):
        where = f"{at}.content[{i}]"
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind == "thinking":
            thoughts.append(_text(block.get("thinking"), f"{where}.thinking"))
        elif kind == "tool_use":
            arguments = block.get("input")
            function = {
                "name": _text(block.get("name"), f"{where}.name"),
                "arguments": json.dumps(arguments or {}, ensure_ascii=False),
            }
            call_id = _text(block.get("id"), f"{where}.id")
            calls.append({"id": call_id, "type": "function", "function": function})
        elif kind != "redacted_thinking":
            texts.append(_block_text(block, where))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    if message["content"] is None and not calls:
        message["content"] = ""
    yield message


def _block_text(block: Any, at: str) -> str:
    """The text of a block that is made of text."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "text":
        return _text(block.get("text"), f"{at}.text")
    if kind == "document":
        source = block.get("source")
        if isinstance(source, Mapping) and source.get("type") == "text":
            return _text(source.get("data"), f"{at}.source.data")
        if isinstance(source, Mapping) and source.get("type") == "content":
            inner = _blocks(source.get("content"))
            return "\n".join(_block_text(b, f"{at}.source.content") for b in inner)
    if kind == "search_result":
        return "\n".join(_block_text(b, f"{at}.content") for b in _blocks(block.get("content")))
    if kind == "tool_reference":
        return _text(block.get("tool_name"), f"{at}.tool_name")
    raise _bad(
        f"{at} is a block of type {printable(repr(kind), 60)}; this model takes text only", at
    )


def _text(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _bad(f"{at} must be text", at)
    return value


def _bad(message: str, param: str) -> RequestError:
    return RequestError(message, param=param)
