"""Conversations on disk. (Signatures only, as yet.)"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgerun.tui.conversation import Conversation, Message

__all__ = ["Hit", "SessionInfo", "Store"]


@dataclass(frozen=True)
class SessionInfo:
    """A line of the list of sessions. ``updated`` is unix seconds."""

    id: str
    title: str
    updated: float
    n_messages: int
    model: str


@dataclass(frozen=True)
class Hit:
    """A place that a search found. ``marks`` are the ranges of ``snippet`` that match;
    ``message_id`` is None where the title does. ``at`` is unix seconds."""

    session: str
    title: str
    message_id: str | None
    snippet: str
    marks: tuple[tuple[int, int], ...]
    at: float


class Store:
    """Any thread may call any method. Writes return at once; reads see all writes before them.

    Args:
        path: the database; None = ``chats.db`` in the data folder.
        memory: keep nothing on disk.
        notify: told in one line, once each, what keeps chats from being saved, and when they are
            again; called on the store's thread.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        memory: bool = False,
        notify: Callable[[str], None] | None = None,
    ) -> None: ...

    # writes
    def save(self, conversation: Conversation) -> None:
        """Title, system prompt, head and branches shown; after any of them changed."""

    def put(self, session: str, message: Message) -> None:
        """A message, new or changed as a whole: when it is added, and when its answer has ended."""

    def append(self, message_id: str, text: str, reasoning: str = "") -> Future[None]:
        """More of a streaming message; the future is done when it is on disk."""
        raise NotImplementedError

    def rename(self, session: str, title: str) -> None: ...

    def delete(self, session: str) -> None:
        """:meth:`restore` takes it back until the store is closed."""

    def restore(self, session: str) -> None: ...

    def set_draft(self, session: str, text: str) -> None: ...

    def set(self, key: str, value: Any) -> None:
        """A setting; ``value`` is anything JSON has."""

    def put_preset(self, name: str, text: str) -> None: ...

    def delete_preset(self, name: str) -> None: ...

    # reads
    def open(self, session: str) -> Conversation:
        """KeyError: there is no such session."""
        raise NotImplementedError

    def list(self, limit: int = 100, before: float | None = None) -> list[SessionInfo]:
        """Newest first; ``before`` is the ``updated`` of the last one of the page before."""
        raise NotImplementedError

    def search(self, query: str, limit: int = 50) -> list[Hit]:
        """Messages and titles with all words of ``query``, newest first."""
        raise NotImplementedError

    def find(self, text: str) -> str | None:
        """The session that ``--resume TEXT`` means: an id, its beginning, or words of a title."""
        raise NotImplementedError

    def latest(self) -> str | None:
        raise NotImplementedError

    def get_draft(self, session: str) -> str:
        raise NotImplementedError

    def get(self, key: str, default: Any = None) -> Any:
        raise NotImplementedError

    def presets(self) -> dict[str, str]:
        raise NotImplementedError

    def export_markdown(self, session: str) -> str:
        raise NotImplementedError

    def export_json(self, session: str) -> str:
        raise NotImplementedError

    def close(self) -> None:
        """Write what waits and close; at most 2 s."""
