"""``/v1/responses``: items of input and output as messages of a conversation. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from edgerun.errors import RequestError, printable

__all__ = ["as_items", "find_references", "to_messages"]

Item = Mapping[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_TEXT = ("input_text", "output_text", "text", "summary_text", "reasoning_text", "refusal")
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
# What OpenAI's own tools left in a conversation: nothing this model could make use of.
_FOREIGN = ("web_search_call", "file_search_call", "image_generation_call", "mcp_list_tools")


def as_items(given: str | list[Any]) -> list[dict[str, Any]]:
    """``input`` as items.

    Raises:
        RequestError: it is empty, or something in it is no object.
    """
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not given:
        raise _bad("input is empty: send text, or at least one item", "input")
    for i, item in enumerate(given):
        if not isinstance(item, dict):
            raise _bad(f"input[{i}] must be an object", f"input[{i}]")
    return given


def find_references(items: Iterable[Item], find: Callable[[str], Item | None]) -> list[Item]:
    """The items, with references to earlier ones resolved.

    Raises:
        RequestError: there is no such item.
    """
    out: list[Item] = []
    for i, item in enumerate(items):
        if item.get("type") != "item_reference":
            out.append(item)
            continue
        found = find(str(item.get("id")))
        if found is None:
            raise _bad(
                f"input[{i}] refers to the item {printable(repr(item.get('id')), 80)}, which is "
                "not kept here: send the item itself",
                f"input[{i}].id",
                "not_found",
            )
        out.append(found)
    return out


def to_messages(items: Iterable[Item], instructions: str | None = None) -> list[dict[str, Any]]:
    """The conversation in OpenAI's older shape, which :meth:`.LLM.start_chat` takes.

    What the assistant thought, said and called before its next input is one message.

    Raises:
        RequestError: an item is malformed, or of a kind that a text model cannot read; names it.
    """
    out: list[dict[str, Any]] = []
    if instructions:
        out.append({"role": "system", "content": instructions})
    turn: dict[str, Any] | None = None  # the assistant's, still open
    for i, item in enumerate(items):
        at, kind = f"input[{i}]", item.get("type", "message")
        if kind in _FOREIGN:
            continue
        said = _of_assistant(item, kind, at)
        if said is not None:
            if turn is None or not _joins(turn, said):
                turn = {"role": "assistant", "content": None}
                out.append(turn)
            _join(turn, said)
            continue
        turn = None
        out.append(_other(item, kind, at))
    for message in out:
        if message["role"] == "assistant" and not message.get("tool_calls"):
            message["content"] = message["content"] or ""
    return out


def _of_assistant(item: Item, kind: Any, at: str) -> dict[str, Any] | None:
    """What an item adds to the assistant's turn; None if it belongs to somebody else."""
    if kind == "message" and item.get("role") == "assistant":
        return {"content": _text(item.get("content"), f"{at}.content")}
    if kind == "reasoning":
        thought = item.get("content") or item.get("summary") or []
        return {"reasoning_content": _text(thought, f"{at}.content")}
    if kind in _CALLS:
        return {"tool_calls": [_call(item, kind, at)]}
    return None


def _joins(turn: Mapping[str, Any], said: Mapping[str, Any]) -> bool:
    """Whether ``said`` can go on in ``turn``: thoughts come first, calls last."""
    if "tool_calls" in said:
        return True
    if "content" in said:
        return not turn.get("tool_calls")
    return not turn.get("tool_calls") and turn["content"] is None


def _join(turn: dict[str, Any], said: Mapping[str, Any]) -> None:
    for key, value in said.items():
        turn[key] = value if turn.get(key) is None else turn[key] + value


def _call(item: Item, kind: str, at: str) -> dict[str, Any]:
    if kind == "function_call":
        name, arguments = item.get("name"), item.get("arguments")
        if item.get("namespace"):
            name = f"{item['namespace']}__{name}"
    elif kind == "custom_tool_call":
        name = item.get("name")
        arguments = json.dumps({"input": item.get("input")}, ensure_ascii=False)
    else:
        name = "local_shell"
        arguments = json.dumps(item.get("action") or {}, ensure_ascii=False)
    function = {
        "name": _string(name, f"{at}.name"),
        "arguments": _string(arguments, f"{at}.arguments"),
    }
    call_id = _string(item.get("call_id") or item.get("id"), f"{at}.call_id")
    return {"id": call_id, "type": "function", "function": function}


def _other(item: Item, kind: Any, at: str) -> dict[str, Any]:
    if kind in _OUTPUTS:
        call_id = _string(item.get("call_id") or item.get("id"), f"{at}.call_id")
        content = _text(item.get("output"), f"{at}.output")
        return {"role": "tool", "tool_call_id": call_id, "content": content}
    if kind != "message":
        raise _bad(
            f"{at} is an item of type {printable(repr(kind), 60)}, which this model cannot read",
            f"{at}.type",
        )
    role = item.get("role")
    if role not in _ROLES:
        shown = printable(repr(role), 60)
        raise _bad(f"{at}.role is {shown}; it must be one of {', '.join(_ROLES)}", f"{at}.role")
    return {"role": role, "content": _text(item.get("content"), f"{at}.content")}


def _text(content: Any, at: str) -> str:
    """Text of a string or of a list of text parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(f"{at} must be text or a list of parts", at)
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in _TEXT:
            raise _bad(
                f"{at}[{i}] is a part of type {printable(repr(kind), 60)}; "
                "this model takes text only",
                f"{at}[{i}]",
            )
        key = "refusal" if kind == "refusal" else "text"
        texts.append(_string(part.get(key), f"{at}[{i}].{key}"))
    return "\n".join(texts)


def _string(value: Any, at: str) -> str:
    if not isinstance(value, str):
        raise _bad(f"{at} must be text", at)
    return value


def _bad(message: str, param: str, code: str | None = None) -> RequestError:
    return RequestError(message, param=param, code=code)
