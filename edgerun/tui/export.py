"""A conversation as a file: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping

from edgerun.tui.conversation import Conversation, Message, fence_for
from edgerun.tui.rows import clean, from_plain, to_plain

__all__ = ["FORMAT", "from_json", "to_json", "to_markdown"]

#: What an export says it is.
FORMAT = "edgerun-chat-1"

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)$")


def to_json(conversation: Conversation) -> str:
    """Everything: all branches, attachments, reasoning, token counts. :func:`from_json` reads it.
    ``path`` lists the messages shown."""
    c = conversation
    return clean(
        json.dumps(
            {
                "format": FORMAT,
                "id": c.id,
                "title": c.title,
                "named": c.named,
                "system": c.system,
                "created": c.created,
                "head": c.head,
                "path": [m.id for m in c.path()],
                "visited": c.visited,
                "messages": [to_plain(m) for m in c.messages.values()],
            },
            ensure_ascii=False,
            indent=1,
        )
        + "\n"
    )


def from_json(text: str) -> Conversation:
    """The conversation that :func:`to_json` wrote down.

    Raises:
        ValueError: the text is not that; says why.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ValueError(f"this is no conversation: its format is not {FORMAT}")
    messages: dict[str, Message] = {}
    for item in data["messages"]:
        message = from_plain(item)
        if message.parent is not None and message.parent not in messages:
            raise ValueError(f"message {message.id} follows {message.parent}, which is not there")
        messages[message.id] = message
    head, visited = data["head"], data["visited"]
    if head is not None and head not in messages:
        raise ValueError(f"the last message shown, {head}, is not there")
    return Conversation(
        str(data["id"]),
        str(data["title"]),
        bool(data["named"]),
        str(data["system"]),
        head,
        messages,
        {str(k): str(v) for k, v in visited.items() if v in messages},
        float(data["created"]),
    )


def to_markdown(conversation: Conversation) -> str:
    """What is shown, as a document: a heading for each message, its text as it is, reasoning as a
    quotation, attached files as code. A code block that a text leaves open is closed."""
    c = conversation
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(c.created))
    parts = [f"# {_line(c.title) or 'Conversation'}", f"*{day}*"]
    if c.system.strip():
        parts += ["## System", _closed(c.system)]
    for message in c.path():
        parts += _message(message)
    return clean("\n\n".join(p.strip("\n") for p in parts) + "\n")


def _message(m: Message) -> list[str]:
    names: Mapping[str, str] = {"user": "You", "tool": "Tool"}
    parts = ["## " + (names.get(m.role) or _line(m.model) or "Assistant")]
    for a in m.attachments:
        parts += [f"Attached: {_line(a.path)}", _code(a.text)]
    if m.reasoning.strip():
        lines = _closed(m.reasoning.strip()).splitlines()
        parts.append("\n".join(["> **Reasoning**", ">", *("> " + line for line in lines)]))
    if m.text.strip():
        parts.append(_closed(m.text))
    for call in m.calls:
        parts += [f"Call of {_line(call.name)}:", _code(call.arguments, "json")]
    if m.state in ("stopped", "length"):
        parts.append(f"*({'stopped' if m.state == 'stopped' else 'cut off: no room was left'})*")
    elif m.state == "error":
        parts.append(f"*(error: {_line(m.note)})*")
    return parts


def _line(text: str) -> str:
    """One line in which nothing is markup."""
    return re.sub(r"([\\`*_\[\]<>#|~&!])", r"\\\1", " ".join(text.split()))


def _code(text: str, language: str = "") -> str:
    fence = fence_for(text)
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"


def _closed(text: str) -> str:
    """``text``, and the end of a code block that it leaves open."""
    opened = ""
    for line in text.splitlines():
        found = _FENCE.match(line)
        if not found:
            continue
        marks, rest = found.groups()
        if not opened:
            if "`" not in rest or marks[0] == "~":
                opened = marks
        elif marks[0] == opened[0] and len(marks) >= len(opened) and not rest.strip():
            opened = ""
    return f"{text.rstrip(chr(10))}\n{opened}" if opened else text
