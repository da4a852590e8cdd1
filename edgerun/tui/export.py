"""A conversation as a file: Markdown for people, JSON for programs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping

from edgerun.tui.conversation import Conversation, Message, fence_for
from edgerun.tui.rows import clean, from_plain, to_plain

__all__ = ["FORMAT", "file_name", "from_json", "to_json", "to_markdown"]

#: What an export says it is.
FORMAT = "edgerun-chat-1"

_FENCE = re.compile(r"[ >]{0,40}(`{3,}|~{3,})")
#: What ends CommonMark's kinds of raw HTML that a blank line does not.
_CLOSERS = ("-->", "?>", "]]>", ">", "</pre>", "</script>", "</style>", "</textarea>")


def file_name(title: str) -> str:
    """A file's name for a conversation: letters and digits of any script, the rest dashes."""
    kept = re.sub(r"[^\w]+", "-", title.lower()).strip("-_")[:48].rstrip("-_")
    return (kept or "chat") + ".md"


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
    for item in data.get("messages") or ():
        message = from_plain(item)
        if message.parent is not None and message.parent not in messages:
            raise ValueError(f"message {message.id} follows {message.parent}, which is not there")
        messages[message.id] = message
    try:
        head, visited, created = data["head"], dict(data["visited"]), float(data["created"])
        words = [str(data[k]) for k in ("id", "title", "system")]
    except (KeyError, TypeError) as e:
        raise ValueError(f"the conversation is not whole: {type(e).__name__}: {e}") from None
    if head is not None and head not in messages:
        raise ValueError(f"the last message shown, {head}, is not there")
    return Conversation(
        words[0],
        words[1],
        bool(data.get("named")),
        words[2],
        head,
        messages,
        {str(k): str(v) for k, v in visited.items() if v in messages},
        created,
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
    """``text``, and the end of a block that it leaves open: a code block, a comment, raw HTML."""
    text = text.rstrip("\n")
    if not re.search(r"```|~~~|<", text) or _ends(text):
        return text
    fences = dict.fromkeys(m[1] for line in text.splitlines() if (m := _FENCE.match(line)))
    for closer in (*reversed(fences), *_CLOSERS):
        if _ends(f"{text}\n{closer}"):
            return f"{text}\n{closer}"
    return _code(text)


def _ends(text: str) -> bool:
    """Whether a heading after ``text`` is one."""
    from markdown_it import MarkdownIt

    tokens = MarkdownIt("commonmark").parse(text + "\n\n# end")
    return len(tokens) > 2 and tokens[-3].type == "heading_open" and tokens[-3].level == 0
