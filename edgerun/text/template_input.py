"""From checked messages to the variables a chat template sees."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from edgerun.errors import RequestError
from edgerun.text.marked import mark, mark_literals
from edgerun.text.messages import Message, ToolCall

__all__ = [
    "REASONING_TAGS",
    "Style",
    "check_continues",
    "count_chars",
    "developer_to_system",
    "shaped",
    "short_id",
    "with_sentinel",
]

#: Tags between which models reason, as (open, close).
REASONING_TAGS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


class Style(NamedTuple):
    """How to spell what OpenAI's format leaves open and templates differ on."""

    string_arguments: bool = False  # a call's arguments as JSON text, not as an object
    null_content: str = "absent"  # absent, empty or none
    empty_tools: bool = False  # no tools as [], not as none


def shaped(m: Message, style: Style, trusted_tags: Sequence[str]) -> dict[str, Any]:
    """``m`` as the dict a template sees. ``trusted_tags`` are marked in an assistant's content."""
    out: dict[str, Any] = {"role": mark(m.role), **m.extra}
    out["role"] = mark(m.role)
    if m.content is not None:
        tags = trusted_tags if m.role == "assistant" else []
        out["content"] = mark_literals(m.content, tags)
    elif style.null_content != "absent":
        out["content"] = "" if style.null_content == "empty" else None
    if m.name is not None:
        out["name"] = m.name
    if m.tool_call_id is not None:
        out["tool_call_id"] = m.tool_call_id
    if m.reasoning_content is not None:
        out["reasoning_content"] = out["thinking"] = m.reasoning_content
    if m.tool_calls:
        out["tool_calls"] = [_shaped_call(c, style) for c in m.tool_calls]
    return out


def _shaped_call(call: ToolCall, style: Style) -> dict[str, Any]:
    arguments = call.raw if style.string_arguments else call.arguments
    out: dict[str, Any] = {
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
    return out if call.id is None else {"id": call.id, **out}


def short_id(call_id: str) -> str:
    """``call_id`` if it is nine letters and digits, else nine that stand for it."""
    if len(call_id) == 9 and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def developer_to_system(messages: Sequence[Message]) -> list[Message]:
    """``developer`` renamed; one that follows a system prompt joins it."""
    out: list[Message] = []
    for m in messages:
        if m.role != "developer":
            out.append(m)
        elif out and out[-1].role == "system":
            both = [x for x in (out[-1].content, m.content) if x]
            out[-1] = replace(out[-1], content="\n\n".join(both))
        else:
            out.append(replace(m, role="system"))
    return out


def check_continues(last: Message) -> None:
    if last.role != "assistant" or last.tool_calls:
        raise RequestError(
            "only a last message of role assistant without tool calls can be continued; "
            f"this one is of role {last.role}" + (" with tool calls" if last.tool_calls else ""),
            param="messages",
        )


def with_sentinel(messages: list[Message], others: list[Any]) -> tuple[list[Message], str]:
    """The last message with a character at its end that stands nowhere else."""
    last = messages[-1]
    seen = "".join(_texts(others))
    sentinel = next(c for c in map(chr, range(0xF0000, 0x10FFFE)) if c not in seen)
    if not last.content and last.reasoning_content:
        last = replace(last, reasoning_content=last.reasoning_content + sentinel)
    else:
        last = replace(last, content=(last.content or "") + sentinel)
    return [*messages[:-1], last], sentinel


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, (list, tuple)):
        for x in value:
            yield from _texts(x)
    elif isinstance(value, (Message, ToolCall)):
        yield from _texts(vars(value))


def count_chars(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(count_chars(k) + count_chars(v) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return sum(map(count_chars, value)) + len(value)
    return 8
