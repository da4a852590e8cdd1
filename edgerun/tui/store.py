"""Conversations on disk: saved as they grow, listed, searched, taken up again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from edgerun.folders import data_dir
from edgerun.tui import tables
from edgerun.tui.conversation import Conversation, Message, title_of
from edgerun.tui.database import Database, StoreError
from edgerun.tui.rows import clean, to_row
from edgerun.tui.tables import Hit, SessionInfo
from edgerun.tui.writer import Writer

__all__ = ["Hit", "SessionInfo", "Store", "StoreError"]

T = TypeVar("T")

Sessions: TypeAlias = "list[SessionInfo]"
Hits: TypeAlias = "list[Hit]"
Texts: TypeAlias = "list[str]"


class Store:
    """Any thread may call any method. Writes return at once, and a thread of the store's own does
    them, each piece in some tenths of a millisecond; reads see all writes before them. A process
    that is killed loses what was written in its last moments at most; what it left unfinished has
    the state "stopped" when it is opened.

    A database that cannot be used is no reason to end a chat: ``notify`` hears of it, once, and
    what is said is kept in memory, and written as soon as that works again. A damaged one is moved
    aside. Two processes can use one database.

    Args:
        path: the database; None = ``chats.db`` in the data folder.
        memory: keep nothing on disk.
        notify: told in one line, on a thread of its own, what keeps chats from being saved.
    """

    def __init__(
        self,
        path: Path | None = None,
        *,
        memory: bool = False,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        self._writer = Writer(partial(_where, path, memory), notify)
        self._deleted: set[str] = set()

    # -- conversations ------------------------------------------------------------------------

    def save(self, conversation: Conversation) -> None:
        """Title, system prompt, head and the branches shown: after any of them changed."""
        c = conversation
        visited = json.dumps(_chosen(c))
        values = (c.id, clean(c.title), c.named, clean(c.system), c.head, visited, c.created)
        self._writer.write(partial(tables.save, values=values))

    def put(self, session: str, message: Message) -> None:
        """A message, new or changed as a whole: when it is added, and when its answer has ended."""
        self._writer.write(partial(tables.put, session=session, row=to_row(message)))

    def append(self, message_id: str, text: str, reasoning: str = "") -> Future[Any]:
        """More of a streaming message; the future is done when it is on disk, or cannot be. The
        cost does not depend on how long the message is."""
        return self._writer.append(message_id, clean(text), clean(reasoning))

    def open(self, session: str) -> Conversation:
        """All that is known of a session.

        Raises:
            KeyError: there is none with this id.
            StoreError: the database cannot be read.
        """
        found: Conversation | None = self._writer.read(partial(tables.open_session, session))
        if found is None:
            raise KeyError(session)
        return found

    def rename(self, session: str, title: str) -> None:
        """A title of the user's own; "" = the first question again."""
        named = title_of(clean(title))
        self._writer.write(partial(tables.rename, session=session, title=named))

    def delete(self, session: str) -> None:
        """:meth:`restore` brings it back until the store is closed; then it is gone for good."""
        self._deleted.add(session)
        self._writer.write(partial(tables.mark_deleted, session=session, at=time.time()))

    def restore(self, session: str) -> None:
        """Take a :meth:`delete` back."""
        self._deleted.discard(session)
        self._writer.write(partial(tables.mark_deleted, session=session, at=None))

    # -- finding ------------------------------------------------------------------------------

    def list(self, limit: int = 100, before: float | None = None) -> Sessions:
        """The sessions with messages, newest first; ``before`` is the ``updated`` of the last one
        of the page before."""
        work = partial(tables.list_sessions, limit=limit, before=before)
        return self._try(work, [])

    def search(self, query: str, limit: int = 50) -> Hits:
        """Names that were given to sessions, and messages, with all words of ``query``; newest
        first. Any text will do."""
        return self._try(partial(tables.search, query=query, limit=limit), [])

    def find(self, text: str) -> str | None:
        """The session that "resume TEXT" means: an id, the beginning of one, words of a title, or
        words that were said; of several the newest."""
        return self._try(partial(tables.find, text=text), None)

    def latest(self) -> str | None:
        """The session in which something was last said."""
        newest = self.list(1)
        return newest[0].id if newest else None

    def asked(self, limit: int = 500) -> Texts:
        """What was asked last, in any chat, each once, oldest first."""
        return self._try(partial(tables.asked, limit=limit), [])

    # -- small things -------------------------------------------------------------------------

    def get_draft(self, session: str) -> str:
        """What was typed there and not sent yet."""
        found = self._one("SELECT text FROM drafts WHERE session = ?", session)
        return found or ""

    def set_draft(self, session: str, text: str) -> None:
        """Keep what is typed; "" forgets it."""
        self._writer.write(
            partial(tables.set_value, table="drafts", key=session, value=clean(text) or None)
        )

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, as it was set."""
        found = self._one("SELECT value FROM settings WHERE key = ?", key)
        with contextlib.suppress(ValueError):
            return default if found is None else json.loads(found)
        return default

    def set(self, key: str, value: Any) -> None:
        """Keep a setting: anything that JSON has; None forgets it."""
        text = None if value is None else json.dumps(value)
        self._writer.write(partial(tables.set_value, table="settings", key=key, value=text))

    def set_part(self, key: str, part: str, value: Any) -> None:
        """Keep one entry of a setting that is a mapping; what other processes have set of it
        meanwhile stays."""
        text = json.dumps(value)
        self._writer.write(partial(tables.set_part, key=key, part=part, value=text))

    def presets(self) -> dict[str, str]:
        """System prompts by name, in order of name."""
        sql = "SELECT name, text FROM presets ORDER BY name COLLATE NOCASE"
        rows: list[tuple[str, str]] = []
        return dict(self._try(lambda db: db.run(sql).fetchall(), rows))

    def put_preset(self, name: str, text: str) -> None:
        """Keep a system prompt under a name."""
        work = partial(tables.set_value, table="presets", key=clean(name), value=clean(text))
        self._writer.write(work)

    def delete_preset(self, name: str) -> None:
        """Forget a system prompt."""
        self._writer.write(partial(tables.set_value, table="presets", key=clean(name), value=None))

    @property
    def saving(self) -> bool:
        """Whether what is said is kept as it was asked for; ``notify`` has heard why not."""
        return self._writer.saving

    # -- out ----------------------------------------------------------------------------------

    def export_markdown(self, session: str) -> str:
        """What is shown of a session, for people; see :func:`edgerun.tui.export.to_markdown`.

        Raises:
            KeyError, StoreError: as :meth:`open`.
        """
        from edgerun.tui.export import to_markdown

        return to_markdown(self.open(session))

    def export_json(self, session: str) -> str:
        """All of a session; :func:`edgerun.tui.export.from_json` reads it.

        Raises:
            KeyError, StoreError: as :meth:`open`.
        """
        from edgerun.tui.export import to_json

        return to_json(self.open(session))

    def close(self) -> None:
        """Write what waits and close, within two seconds. Idempotent."""
        if self._deleted:
            gone, self._deleted = sorted(self._deleted), set()
            self._writer.write(partial(tables.purge, sessions=gone))
        self._writer.close()

    # -- inside -------------------------------------------------------------------------------

    def _try(self, work: Callable[[Database], T], default: T) -> T:
        """What ``work`` reads; ``default`` where that fails, of which ``notify`` has heard."""
        try:
            return cast(T, self._writer.read(work))
        except StoreError:
            return default

    def _one(self, sql: str, key: str) -> Any:
        row: Any = self._try(lambda db: db.run(sql, (key,)).fetchone(), None)
        return None if row is None else row[0]


def _where(path: Path | None, memory: bool) -> Path | None:
    if memory or path is not None:
        return None if memory else path
    return data_dir() / "chats.db"


def _chosen(conversation: Conversation) -> dict[str, str]:
    """``visited`` without what goes without saying: the newest child."""
    newest: dict[str, str] = {}
    for message in conversation.messages.values():
        newest[message.parent or ""] = message.id
    return {k: v for k, v in conversation.visited.items() if newest.get(k) != v}
