"""Tools for models whose chat template has no place for them: everything as ordinary text.

The form is the one most open models were taught: calls as JSON between ``<tool_call>`` tags.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edgerun.text.messages import Message
from edgerun.text.template_input import REASONING_TAGS

__all__ = ["fold_history", "fold_system", "fold_tools"]

_INTRO = (
    "You can call functions. Each line below describes one as JSON.\n{tools}\n\n"
    "To call a function, answer with a JSON object of its name and arguments between tags:\n"
    '<tool_call>\n{{"name": "...", "arguments": {{...}}}}\n</tool_call>\n'
    "Call several by writing several such blocks. The results come back between "
    "<tool_response> tags. If no function helps, answer as usual."
)


def fold_tools(
    messages: Sequence[Message], tools: Sequence[dict[str, Any]], *, into_system: bool
) -> list[Message]:
    """``messages`` with a description of ``tools`` in the system prompt.

    With ``into_system`` false, for templates without a system role, it goes before the first
    user message's text.
    """
    lines = "\n".join(json.dumps(t.get("function", t), ensure_ascii=False) for t in tools)
    text = _INTRO.format(tools=lines)
    if not into_system:
        return _before_first_user(messages, text)
    if messages and messages[0].role == "system":
        first = messages[0]
        content = f"{first.content}\n\n{text}" if first.content else text
        return [replace(first, content=content), *messages[1:]]
    return [Message("system", text), *messages]


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """``messages`` with system prompts moved to the front of the first user message."""
    text = "\n\n".join(m.content for m in messages if m.role == "system" and m.content)
    rest = [m for m in messages if m.role != "system"]
    return _before_first_user(rest, text) if text else rest


def _before_first_user(messages: Sequence[Message], text: str) -> list[Message]:
    out = list(messages)
    for i, m in enumerate(out):
        if m.role == "user":
            out[i] = replace(m, content=f"{text}\n\n{m.content}" if m.content else text)
            return out
    return [Message("user", text), *out]


def fold_history(messages: Sequence[Message], *, results: bool) -> list[Message]:
    """``messages`` with tool calls as text of the assistant's messages.

    With ``results`` also the tools' messages become text, of user messages. Results that follow
    each other become one message, and join a user message that comes next, so that roles still
    alternate.
    """
    out: list[Message] = []
    open_results = False
    for m in messages:
        if m.role == "tool" and results:
            name = f' name="{m.name}"' if m.name else ""
            text = f"<tool_response{name}>\n{m.content or ''}\n</tool_response>"
            if open_results:
                out[-1] = replace(out[-1], content=f"{out[-1].content}\n{text}")
            else:
                out.append(Message("user", text))
            open_results = True
            continue
        if m.role == "user" and open_results:
            out[-1] = replace(out[-1], content=f"{out[-1].content}\n\n{m.content or ''}")
        elif m.tool_calls:
            calls = [_call(c.name, c.arguments) for c in m.tool_calls]
            text = "\n".join(([m.content] if m.content else []) + calls)
            out.append(replace(m, content=text, tool_calls=()))
        else:
            out.append(m)
        open_results = False
    return out


def _call(name: str, arguments: dict[str, Any] | str) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    # Templates cut an assistant's text at these tags: spelled as JSON escapes they stay data.
    for tag in (t for pair in REASONING_TAGS for t in pair):
        body = body.replace(tag, f"\\u{ord(tag[0]):04x}{tag[1:]}")
    return f"<tool_call>\n{body}\n</tool_call>"
