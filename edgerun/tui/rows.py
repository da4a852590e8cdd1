"""Messages as rows of the database and as JSON, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeVar, get_args

from edgerun.chat import ToolCall
from edgerun.core import Timings, Usage
from edgerun.tui.conversation import Attachment, Message, Role, State

__all__ = ["COLUMNS", "clean", "from_plain", "from_row", "to_plain", "to_row"]

T = TypeVar("T")

#: Of the table of messages, as :func:`to_row` gives and :func:`from_row` takes them.
COLUMNS = (
    "id", "parent", "role", "text", "reasoning", "calls", "attachments", "call_id", "model",
    "state", "note", "code", "usage", "timings", "created",
)  # fmt: skip


def clean(text: str) -> str:
    """``text`` as the database can hold and search it: without half characters, which some
    servers send, and without NUL, where its index would end."""
    text = text.replace("\0", "\ufffd")
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def to_plain(message: Message) -> dict[str, Any]:
    """JSON-ready; what is empty is left out."""
    return {k: v for k, v in asdict(message).items() if v not in (None, "", (), [])} | {
        "text": message.text
    }


def from_plain(data: Mapping[str, Any]) -> Message:
    """What :func:`to_plain` made.

    Raises:
        ValueError: it is no message; says why.
    """
    try:
        state, role = data.get("state", "done"), data["role"]
        if state not in get_args(State) or role not in get_args(Role):
            raise ValueError(f"role {role!r} or state {state!r} is unknown")
        strings = ("text", "reasoning", "call_id", "model", "note", "code")
        return Message(
            id=str(data["id"]),
            parent=None if data.get("parent") is None else str(data["parent"]),
            role=role,
            state=state,
            calls=tuple(_calls(data.get("calls") or ())),
            attachments=tuple(_attachments(data.get("attachments") or ())),
            usage=_of(Usage, data.get("usage")),
            timings=_of(Timings, data.get("timings")),
            created=float(data.get("created") or 0),
            **{k: str(data.get(k) or "") for k in strings},
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"a message is not as it should be: {type(e).__name__}: {e}") from None


def to_row(message: Message) -> tuple[Any, ...]:
    """The values of :data:`COLUMNS`."""
    m = message
    return (
        m.id, m.parent, m.role, clean(m.text), clean(m.reasoning), _json(m.calls),
        _json(m.attachments), clean(m.call_id), clean(m.model), m.state, clean(m.note), m.code,
        _json(m.usage), _json(m.timings), m.created,
    )  # fmt: skip


def from_row(row: tuple[Any, ...]) -> Message:
    """The message of a row of :data:`COLUMNS`.

    Raises:
        ValueError: the row is damaged.
    """
    data = dict(zip(COLUMNS, row, strict=True))
    for key in ("calls", "attachments", "usage", "timings"):
        data[key] = json.loads(data[key]) if data[key] else None
    return from_plain(data)


def _json(value: Any) -> str | None:
    if not value:
        return None
    plain = [asdict(v) for v in value] if isinstance(value, tuple) else asdict(value)
    return json.dumps(plain)


def _calls(items: Any) -> list[ToolCall]:
    return [ToolCall(str(c["id"]), str(c["name"]), str(c["arguments"])) for c in items]


def _attachments(items: Any) -> list[Attachment]:
    return [Attachment(str(a["path"]), str(a["text"]), a.get("n_tokens")) for a in items]


def _of(kind: type[T], data: Mapping[str, Any] | None) -> T | None:
    return None if data is None else kind(**data)
