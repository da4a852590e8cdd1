"""A conversation as a tree of messages: what was said, every way it went, and what is shown of it.

Pure: no widget, no file, no clock but the one that stamps new messages. Nothing is ever removed: an
edit or another answer is a sibling, an undo moves the head.
"""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from edgerun.chat import ToolCall
from edgerun.core import Timings, Usage

__all__ = [
    "HEAD",
    "Attachment",
    "Conversation",
    "Message",
    "Role",
    "State",
    "fence_for",
    "new_id",
    "title_of",
]

Role: TypeAlias = Literal["user", "assistant", "tool"]
#: ``streaming``: more comes; ``stopped``: the user ended it; ``length``: the context or
#: ``max_tokens`` did; ``error``: ``note`` says what did.
State: TypeAlias = Literal["streaming", "done", "stopped", "length", "error"]

#: For :meth:`Conversation.add`: below the message that is the head.
HEAD = "head"

#: Errors that would come again with the next question, as long as this one is sent along.
_REFUSED = {"context_length_exceeded", "invalid_request", "template_error"}

_TITLE = 60

_last_id = 0
_id_lock = threading.Lock()


def new_id() -> str:
    """24 hexadecimal digits; later ones sort after earlier ones, other processes' as by clock."""
    global _last_id
    with _id_lock:
        _last_id = max(_last_id + 1, int(time.time() * 1000) << 16)
        return f"{_last_id:016x}{secrets.token_hex(4)}"


def title_of(text: str) -> str:
    """The first line of ``text`` that says something, shortened."""
    line = next((" ".join(s.split()) for s in text.splitlines() if s.strip()), "")
    return line if len(line) <= _TITLE else line[: _TITLE - 1].rstrip() + "…"


@dataclass(frozen=True)
class Attachment:
    """A file that goes with a question. ``path`` as the user named it; ``n_tokens`` of ``text`` if
    they could be counted."""

    path: str
    text: str
    n_tokens: int | None = None


@dataclass
class Message:
    """One message. ``text``, ``reasoning`` and what follows ``state`` change while it streams.

    Attributes:
        parent: the message that it follows; None = it begins the conversation.
        calls: of tools, by the assistant.
        call_id: of a tool's message: the call that it answers.
        model: what wrote it; "" of a user's.
        note: of states ``error`` and ``length``: what went wrong, in one line, with the way out.
        code: of state ``error``: the ``code`` of its :class:`~edgerun.errors.EdgerunError`.
        created: unix seconds.
    """

    id: str
    parent: str | None
    role: Role
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    call_id: str = ""
    model: str = ""
    state: State = "done"
    note: str = ""
    code: str = ""
    usage: Usage | None = None
    timings: Timings | None = None
    created: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether it says nothing that a model could be told."""
        return not (self.text.strip() or self.calls or self.attachments)


@dataclass
class Conversation:
    """Messages and the path through them that is shown, which ends at ``head``.

    Attributes:
        title: the first question's first line, until someone names it (``named``).
        system: the system prompt; "" = none.
        messages: all of them, by id, oldest first.
        head: the last message shown; None = nothing is.
        visited: the child last shown of each message that has children, of None as "".
    """

    id: str = field(default_factory=new_id)
    title: str = ""
    named: bool = False
    system: str = ""
    head: str | None = None
    messages: dict[str, Message] = field(default_factory=dict)
    visited: dict[str, str] = field(default_factory=dict, compare=False)
    created: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._children: dict[str, list[str]] = {}
        for message in self.messages.values():
            self._children.setdefault(message.parent or "", []).append(message.id)
        self._visit(self.head)

    # -- reading ------------------------------------------------------------------------------

    def path(self) -> list[Message]:
        """What is shown, first to last."""
        return list(self._upwards(self.head))[::-1]

    def siblings(self, message_id: str) -> list[str]:
        """The ways the conversation went at this message, itself among them, oldest first."""
        return list(self._children[self.messages[message_id].parent or ""])

    def place(self, message_id: str) -> tuple[int, int]:
        """Which of how many siblings it is, from 1: ``(2, 3)``."""
        beside = self._children[self.messages[message_id].parent or ""]
        return beside.index(message_id) + 1, len(beside)

    def question(self, message_id: str) -> Message | None:
        """The user's message that this one is, or answers."""
        return next((m for m in self._upwards(message_id) if m.role == "user"), None)

    def wire(self) -> list[dict[str, Any]]:
        """The messages that :meth:`edgerun.LLM.stream_chat` and OpenAI's API take, in order.

        Answers without text are left out, whatever ended them, so that user and assistant take
        turns; what was asked before them goes with the next question, unless it was refused.
        Attached files are blocks before the question's text.
        """
        path = self.path()
        results = {m.call_id for m in path if m.role == "tool"}
        called: set[str] = set()
        asked: list[str] = []
        out: list[dict[str, Any]] = []
        if self.system.strip():
            out.append({"role": "system", "content": self.system})
        for message in path:
            if message.role == "user":
                asked.append(_asked(message))
            elif message.empty and message.role == "assistant":
                if message.code in _REFUSED and asked:
                    asked.pop()
            else:
                if asked:
                    out.append({"role": "user", "content": "\n\n".join(asked)})
                    asked = []
                if message.role == "assistant":
                    entry = _answered(message, results)
                    called |= {c["id"] for c in entry.get("tool_calls", ())}
                    if out and out[-1]["role"] == "assistant":  # what was between is left out
                        entry["content"] = f"{out.pop()['content']}\n\n{entry['content']}"
                    out.append(entry)
                elif message.call_id in called:
                    out.append(
                        {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
                    )
        if asked:
            out.append({"role": "user", "content": "\n\n".join(asked)})
        return out

    # -- growing ------------------------------------------------------------------------------

    def add(self, role: Role, text: str = "", *, parent: str | None = HEAD, **more: Any) -> Message:
        """A new message below ``parent``, which becomes the head. ``more`` are fields of it.

        Raises:
            ValueError: an answer to nothing, or below an answer.
            KeyError: there is no such parent.
        """
        if parent == HEAD:
            parent = self.head
        above = None if parent is None else self.messages[parent]
        if role == "assistant" and (above is None or above.role == "assistant"):
            raise ValueError("an answer belongs below a question")
        if role == "tool" and (above is None or above.role == "user"):
            raise ValueError("a tool's result belongs below the call")
        more.setdefault("created", time.time())
        message = Message(new_id(), parent, role, text, **more)
        self.messages[message.id] = message
        self._children.setdefault(parent or "", []).append(message.id)
        self.head = message.id
        self._visit(message.id)
        if role == "user" and not self.title and not self.named:
            self.title = title_of(text) or title_of(_asked(message))
        return message

    def edit(self, message_id: str, text: str) -> Message:
        """Another version of a message beside it, which becomes the head."""
        old = self.messages[message_id]
        more: dict[str, Any] = {"attachments": old.attachments, "call_id": old.call_id}
        if old.role == "assistant":
            more |= {"model": old.model, "reasoning": old.reasoning, "calls": old.calls}
        return self.add(old.role, text, parent=old.parent, **more)

    def retry(self, message_id: str) -> Message | None:
        """Make the question that a message is, or answers, the head: another answer goes beside the
        one there is. None if there is no question."""
        question = self.question(message_id)
        if question is not None:
            self._visit(question.id)
            self.head = question.id
        return question

    def rename(self, title: str) -> None:
        """Name the conversation; "" gives the first question's line back."""
        self.named = bool(title.strip())
        self.title = title_of(title)
        if not self.named:
            first = next((m for m in self.messages.values() if m.role == "user"), None)
            self.title = title_of(first.text) if first else ""

    # -- moving -------------------------------------------------------------------------------

    def switch(self, message_id: str, step: int) -> None:
        """Show the sibling ``step`` places on, with what was last shown below it; none beyond the
        first and the last."""
        beside = self._children[self.messages[message_id].parent or ""]
        at = min(max(beside.index(message_id) + step, 0), len(beside) - 1)
        self.show(beside[at])

    def show(self, message_id: str) -> None:
        """Show the path through a message, down to what was last shown below it."""
        at = message_id
        while below := self._child(at):
            at = below
        self._visit(message_id)
        self.head = at

    def undo(self) -> Message | None:
        """Step back to before the last question and return it; None if there is none."""
        question = None if self.head is None else self.question(self.head)
        if question is not None:
            self.head = question.parent
        return question

    def redo(self) -> bool:
        """Show the question and answers that the last :meth:`undo` hid; whether there were any."""
        below = self._child(self.head)
        found = below is not None
        while below:
            self.head = below
            below = self._child(below)
            if below and self.messages[below].role == "user":
                break
        return found

    # -- inside -------------------------------------------------------------------------------

    def _upwards(self, message_id: str | None) -> Iterator[Message]:
        while message_id is not None:
            message = self.messages[message_id]
            yield message
            message_id = message.parent

    def _visit(self, message_id: str | None) -> None:
        for message in self._upwards(message_id):
            self.visited[message.parent or ""] = message.id

    def _child(self, message_id: str | None) -> str | None:
        below = self._children.get(message_id or "")
        return self.visited.get(message_id or "", below[-1]) if below else None


def fence_for(text: str) -> str:
    """Backquotes enough to hold ``text``."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    return "`" * max(3, longest + 1)


def _asked(message: Message) -> str:
    """A question's text, the files that go with it before it."""
    blocks = []
    for a in message.attachments:
        fence = fence_for(a.text)
        body = a.text if a.text.endswith("\n") or not a.text else a.text + "\n"
        name = " ".join(a.path.replace("`", "'").split())
        blocks.append(f"{fence}{name}\n{body}{fence}")
    return "\n\n".join([*blocks, message.text] if message.text or not blocks else blocks)


def _answered(message: Message, results: set[str]) -> dict[str, Any]:
    out: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.calls and all(c.id in results for c in message.calls):
        out["tool_calls"] = [
            {
                "id": c.id,
                "type": "function",
                "function": {"name": c.name, "arguments": c.arguments},
            }
            for c in message.calls
        ]
    elif message.calls:  # without results servers refuse them: the model is told in words
        said = "\n".join(f"{c.name}({c.arguments})" for c in message.calls)
        out["content"] = f"{message.text}\n{said}" if message.text.strip() else said
    return out
