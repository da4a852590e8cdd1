"""Chat messages: from the dicts clients send to checked, uniform values.

Nothing here knows of templates. Every error is a :class:`~edgerun.errors.RequestError` with
``param`` ``"messages"`` or ``"tools"`` that says which message and which field.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edgerun.errors import RequestError, printable

__all__ = ["ROLES", "Message", "ToolCall", "parse_messages", "parse_tools", "plain_json"]

ROLES = ("system", "developer", "user", "assistant", "tool")

#: Deepest nesting of objects and lists in a message, a tool or a template argument.
MAX_DEPTH = 64
_MAX_INT = 1 << 1024
_TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking")
# The names clients and templates know a message's reasoning by, best first.
_REASONING = ("reasoning_content", "reasoning", "thinking")
_KNOWN = {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", *_REASONING}


@dataclass(frozen=True)
class ToolCall:
    """A function the assistant called.

    ``arguments`` is the parsed object, or the string itself where it is no JSON object: it came
    from a model. ``raw`` is the string as sent.
    """

    name: str
    arguments: dict[str, Any] | str
    raw: str
    id: str | None = None


@dataclass(frozen=True)
class Message:
    """One message. ``content`` is ``None`` where the client sent none: null is not empty.

    ``name`` of a tool's message is the function's, looked up by ``tool_call_id`` where the client
    left it out. ``extra`` holds fields of the client's own that some template may know.
    """

    role: str
    content: str | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


def parse_messages(messages: Any) -> list[Message]:
    """Check a conversation in OpenAI's shape.

    Text parts are joined by newlines; unknown fields are kept; ``null`` fields count as absent.

    Raises:
        RequestError: no messages, an unknown role, a part that is not text, a wrong type, or
            nesting deeper than 64.
    """
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise _bad("messages must be a list of objects with role and content")
    if not messages:
        raise _bad("messages is empty: send at least one message")
    out: list[Message] = []
    names: dict[str, str] = {}
    for i, m in enumerate(messages):
        message = m if isinstance(m, Message) else _message(m, f"messages[{i}]", names)
        names.update({c.id: c.name for c in message.tool_calls if c.id})
        out.append(message)
    return out


def _message(m: Any, at: str, names: Mapping[str, str]) -> Message:
    if not isinstance(m, Mapping):
        raise _bad(f"{at} must be an object with role and content, not {_kind(m)}")
    role = m.get("role")
    if role not in ROLES:
        shown = printable(repr(role), 60)
        raise _bad(f"{at}.role is {shown}; it must be one of {', '.join(ROLES)}")
    call_id = _text_or_none(m.get("tool_call_id"), f"{at}.tool_call_id")
    name = _text_or_none(m.get("name"), f"{at}.name")
    if role == "tool" and not name and call_id:
        name = names.get(call_id)
    content = _content(m.get("content"), f"{at}.content")
    if content is None and m.get("refusal") is not None:
        content = _text_or_none(m["refusal"], f"{at}.refusal")
    reasoning = next((m[k] for k in _REASONING if m.get(k) is not None), None)
    extra = {
        _text(k, f"{at} key"): plain_json(v, f"{at}.{printable(k, 40)}", "messages")
        for k, v in m.items()
        if k not in _KNOWN and v is not None
    }
    return Message(
        role=role,
        content=content,
        name=name,
        tool_calls=_tool_calls(m.get("tool_calls"), f"{at}.tool_calls"),
        tool_call_id=call_id,
        reasoning_content=_content(reasoning, f"{at}.reasoning_content"),
        extra=extra,
    )


def _content(value: Any, at: str) -> str | None:
    if value is None or isinstance(value, str):
        return _text_or_none(value, at)
    if isinstance(value, Mapping) or not isinstance(value, Sequence):
        raise _bad(f"{at} must be text, a list of text parts or null, not {_kind(value)}")
    texts = []
    for i, part in enumerate(value):
        if isinstance(part, str):
            texts.append(_text(part, f"{at}[{i}]"))
            continue
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str):
            raise _bad(f"{at}[{i}] must be an object with a type, such as text")
        if kind not in _TEXT_PARTS:
            shown = printable(kind, 60)
            raise _bad(f"{at}[{i}] is a part of type '{shown}'; this model takes text parts only")
        body = next((part[k] for k in ("text", "refusal", "thinking") if k in part), None)
        texts.append(_text(body, f"{at}[{i}].text"))
    return "\n".join(texts)


def _tool_calls(value: Any, at: str) -> tuple[ToolCall, ...]:
    if value is None:
        return ()
    if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
        raise _bad(f"{at} must be a list, not {_kind(value)}")
    calls = []
    for i, c in enumerate(value):
        fn = c.get("function") if isinstance(c, Mapping) else None
        if not isinstance(fn, Mapping):
            raise _bad(f"{at}[{i}] must be an object with a function")
        where = f"{at}[{i}].function"
        arguments, raw = _arguments(fn.get("arguments"), f"{where}.arguments")
        call_id = _text_or_none(c.get("id"), f"{at}[{i}].id")
        calls.append(ToolCall(_text(fn.get("name"), f"{where}.name"), arguments, raw, call_id))
    return tuple(calls)


def _arguments(value: Any, at: str) -> tuple[dict[str, Any] | str, str]:
    if value is None or value == "":
        return {}, "{}"
    if isinstance(value, Mapping):
        plain: dict[str, Any] = plain_json(value, at, "messages")
        return plain, json.dumps(plain, ensure_ascii=False)
    raw = _text(value, at)
    try:
        parsed = json.loads(raw)
    except (ValueError, RecursionError):
        return raw, raw
    return (plain_json(parsed, at, "messages") if isinstance(parsed, dict) else raw), raw


def parse_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Check a list of tools in OpenAI's shape; ``None`` or an empty list gives ``None``.

    Raises:
        RequestError: a tool that is not an object with a named function.
    """
    if tools is None:
        return None
    if isinstance(tools, (str, Mapping)) or not isinstance(tools, Sequence):
        raise _bad(f"tools must be a list, not {_kind(tools)}", "tools")
    out: list[dict[str, Any]] = []
    for i, tool in enumerate(tools):
        if not isinstance(tool, Mapping):
            raise _bad(f"tools[{i}] must be an object, not {_kind(tool)}", "tools")
        plain: dict[str, Any] = plain_json(tool, f"tools[{i}]", "tools")
        fn = plain.get("function")
        if not isinstance(fn, dict) or not isinstance(fn.get("name"), str) or not fn["name"]:
            raise _bad(f"tools[{i}] must have a function with a name", "tools")
        plain.setdefault("type", "function")
        out.append(plain)
    return out or None


def plain_json(value: Any, at: str, param: str, depth: int = 0) -> Any:
    """A copy of ``value`` out of plain dicts, lists and scalars, at most 64 deep.

    Raises:
        RequestError: deeper, or not JSON.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _clean(value)
    if isinstance(value, int):
        if not -_MAX_INT < value < _MAX_INT:
            raise _bad(f"{at} holds a number of more than 1024 bits", param)
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _bad(f"{at} holds a number that JSON cannot: {value}", param)
        return float(value)
    if depth >= MAX_DEPTH:
        raise _bad(f"{at} is nested more than {MAX_DEPTH} deep", param)
    if isinstance(value, Mapping):
        return {
            _text(k, f"a key of {at}", param): plain_json(v, at, param, depth + 1)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [plain_json(v, at, param, depth + 1) for v in value]
    raise _bad(f"{at} holds {_kind(value)}, which is not JSON", param)


def _text(value: Any, at: str, param: str = "messages") -> str:
    if not isinstance(value, str):
        raise _bad(f"{at} must be text, not {_kind(value)}", param)
    return _clean(value)


def _text_or_none(value: Any, at: str) -> str | None:
    return None if value is None else _text(value, at)


def _clean(text: str) -> str:
    """Plain ``str``, with the lone surrogates that JSON can spell and UTF-8 cannot replaced."""
    text = str.__str__(text)
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _kind(value: Any) -> str:
    names = {str: "text", dict: "an object", list: "a list", type(None): "null", bool: "a boolean"}
    return names.get(type(value), f"a value of type {type(value).__name__}")


def _bad(message: str, param: str = "messages") -> RequestError:
    return RequestError(message, param=param)
