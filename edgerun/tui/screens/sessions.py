"""All chats: found by any word ever said in them, renamed, exported, deleted, taken up again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from textual.binding import Binding, BindingType

from edgerun.tui.export import file_name
from edgerun.tui.screens.dialogs import Confirm, Prompt
from edgerun.tui.screens.lines import Span, ago, clean, mark
from edgerun.tui.screens.panel import Hint, ListPanel
from edgerun.tui.screens.rowlist import Column, Row
from edgerun.tui.store import Hit, SessionInfo

__all__ = ["Opened", "SessionScreen", "Sessions"]

_PAGE = 100
_PAUSE = 0.06


class Sessions(Protocol):
    """What this screen needs of :class:`~edgerun.tui.store.Store`."""

    def search(self, query: str, limit: int = 50) -> list[Hit]: ...
    def rename(self, session: str, title: str) -> None: ...
    def delete(self, session: str) -> None: ...
    def restore(self, session: str) -> None: ...
    def export_markdown(self, session: str) -> str: ...
    def export_json(self, session: str) -> str: ...
    def list(self, limit: int = 100, before: float | None = None) -> list[SessionInfo]: ...


class Opened(NamedTuple):
    """The chat to take up; ``message_id`` is where the search found it, or None."""

    session: str
    message_id: str | None = None


class SessionScreen(ListPanel[Opened]):
    """Dismissed with the chat to take up.

    Args:
        store: the chats.
        current: the one that is open.
        changed: told a chat's id after it was renamed, deleted, or restored.
        folder: where exports go unless another path is typed.
        deleted: chats, by id and title, that were deleted before and can come back.
        clock: the time now, in unix seconds.
    """

    NAME = "Chats"
    PLACEHOLDER = "search in all chats"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("mark", 1),
        Column("title"),
        Column("model", -24, drop=84),
        Column("count", -6, "right", drop=64),
        Column("date", -11, "right", drop=30),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f2,ctrl+r", "rename", "rename the chat", show=False, priority=True),
        Binding("ctrl+d", "delete", "delete the chat", show=False, priority=True),
        Binding("ctrl+z", "restore", "bring a deleted chat back", show=False, priority=True),
        Binding(
            "ctrl+e", "export", "write the chat to a .md or .json file", show=False, priority=True
        ),
    ]

    def __init__(
        self,
        store: Sessions,
        current: str | None = None,
        *,
        changed: Callable[[str], None] = lambda session: None,
        folder: Path | None = None,
        deleted: list[tuple[str, str]] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self._store, self._current, self._changed = store, current, changed
        self._folder, self._clock = folder or Path.cwd(), clock
        self._sessions: list[SessionInfo] = []
        self._hits: dict[str, list[Hit]] = {}
        self._more, self._ready = True, False
        self._deleted = [] if deleted is None else deleted  # it grows here, too

    def on_mount(self) -> None:
        self._refresh(self._current)

    # -- what there is; reading never holds up the screen

    def _refresh(self, keep: str | None = None) -> None:
        self.run_worker(self._read(keep), exclusive=True, group="read")

    async def _read(self, keep: str | None = None, first: bool = False) -> None:
        query = self.filter.value.strip()
        if query:
            await asyncio.sleep(_PAUSE)  # one search for a word that is typed fast
            hits = await asyncio.to_thread(self._store.search, query)
            self._hits = {}
            for hit in hits:
                self._hits.setdefault(hit.session, []).append(hit)
        else:
            n = max(_PAGE, len(self._sessions))
            found = await asyncio.to_thread(self._store.list, n)
            self._sessions, self._more = found, len(found) == n
        self._ready = True
        self.reload(keep, first=first)

    async def _read_on(self) -> None:
        last = self._sessions[-1].updated
        found = await asyncio.to_thread(self._store.list, _PAGE, last)
        known = {s.id for s in self._sessions}
        self._sessions += [s for s in found if s.id not in known]
        self._more = len(found) == _PAGE
        self.reload()

    def filtered(self) -> None:
        self.run_worker(self._read(first=True), exclusive=True, group="read")

    def moved(self) -> None:
        self.retell()
        near = self.list.cursor > len(self.list.rows) - 20
        if near and self._more and self._ready and not self.words and self._sessions:
            self._more = False
            self.run_worker(self._read_on(), exclusive=True, group="read")

    # -- the list

    def rows(self, words: list[str]) -> list[Row]:
        if words:
            return [self._hit(hits, words) for hits in self._hits.values()]
        return [self._session(s) for s in self._sessions]

    def _glyph(self, session: str) -> list[Span]:
        return [("●", "accent")] if session == self._current else []

    def _session(self, s: SessionInfo) -> Row:
        title = clean(s.title) or "(empty)"
        return Row(
            s.id,
            {
                "mark": self._glyph(s.id),
                "title": [(title, "strong" if s.id == self._current else "")],
                "model": [(clean(s.model, 60), "muted")],
                "count": [(str(s.n_messages), "muted")],
                "date": [(ago(s.updated, self._clock()), "muted")],
            },
        )

    def _hit(self, hits: Sequence[Hit], words: Sequence[str]) -> Row:
        first = next((h for h in hits if h.message_id is not None), hits[0])
        more = f"+{len(hits) - 1}" if len(hits) > 1 else ""
        return Row(
            first.session,
            {
                "mark": self._glyph(first.session),
                "title": mark(clean(first.title) or "(empty)", words),
                "count": [(more, "muted")],
                "date": [(ago(first.at, self._clock()), "muted")],
            },
            below=_snippet(first) if first.message_id is not None else [("in the title", "muted")],
        )

    def empty(self, words: list[str]) -> str:
        if not self._ready:
            return "reading …"
        if words:
            return "nothing found: every word must stand in the same message"
        return "no chats yet: they appear here by themselves once you have asked something"

    def hints(self, row: Row | None) -> list[Hint]:
        undo: list[Hint] = [("^z", "undelete", "restore")] if self._deleted else []
        close: Hint = ("esc", "close", "close")
        if row is None:
            return [*undo, close]
        return [
            ("enter", "open", "choose"),
            *undo,
            ("^r", "rename", "rename"),
            ("^e", "export", "export"),
            ("^d", "delete", "delete"),
            close,
        ]

    # -- doing

    def choose(self, key: str) -> None:
        hits = self._hits.get(key, []) if self.words else []
        where = next((h.message_id for h in hits if h.message_id is not None), None)
        self.dismiss(Opened(key, where))

    def _title(self, key: str) -> str:
        for s in self._sessions:
            if s.id == key:
                return s.title
        hits = self._hits.get(key)
        return hits[0].title if hits else ""

    def action_rename(self) -> None:
        key = self.key
        if key is None:
            return

        def done(title: str | None) -> None:
            if title is not None:
                self._store.rename(key, title)
                self._changed(key)
                self._refresh(key)

        self.app.push_screen(Prompt("Rename", clean(self._title(key), 200)), done)

    def action_delete(self) -> None:
        key = self.key
        if key is None:
            return
        title = self._title(key)
        self._store.delete(key)
        self._deleted.append((key, title))
        self._sessions = [s for s in self._sessions if s.id != key]
        self._hits.pop(key, None)
        i = self.list.cursor
        keys = [r.key for r in self.list.rows]
        self.reload(keys[i + 1] if i + 1 < len(keys) else keys[i - 1] if i else None)
        self.say(f"deleted: {clean(title, 40) or '(empty)'} · ctrl+z brings it back")
        self._changed(key)

    def action_restore(self) -> None:
        if self._deleted:
            key, title = self._deleted.pop()
            self._store.restore(key)
            self.say(f"restored: {clean(title, 40) or '(empty)'}")
            self._changed(key)
            self._refresh(key)

    def action_export(self) -> None:
        key = self.key
        if key is None:
            return
        prompt = Prompt(
            "Export",
            str(self._folder / file_name(self._title(key))),
            note=".md writes Markdown, .json everything: branches, models, times",
            check=_wrong_path,
        )
        self.app.push_screen(prompt, lambda path: self._export(key, path))

    def _export(self, key: str, path: str | None) -> None:
        if path is None:
            return
        file = Path(path).expanduser()

        def write(go: bool | None = True) -> None:
            if go:
                self.run_worker(self._write(key, file), group="write")

        if file.exists():
            self.app.push_screen(Confirm("Overwrite?", clean(file, 300), yes="overwrite"), write)
        else:
            write()

    async def _write(self, key: str, file: Path) -> None:
        json = file.suffix.lower() == ".json"
        make = self._store.export_json if json else self._store.export_markdown
        try:
            text = await asyncio.to_thread(make, key)
            await asyncio.to_thread(file.write_text, text, encoding="utf-8")
        except (OSError, KeyError, ValueError) as e:  # ValueError: no name for a file
            reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
            self.say(f"not written: {clean(file.name, 60)}: {clean(reason, 80)}")
        else:
            self.say(f"written: {clean(file, 200)}")


def _snippet(hit: Hit) -> list[Span]:
    """The place that was found, what matches highlighted."""
    out: list[Span] = []
    at = 0
    for start, end in hit.marks:
        out += [(clean(hit.snippet[at:start]), "muted"), (clean(hit.snippet[start:end]), "match")]
        at = end
    out.append((clean(hit.snippet[at:]), "muted"))
    return [s for s in out if s[0]]


def _wrong_path(text: str) -> str | None:
    if not text:
        return None
    file = Path(text).expanduser()
    if file.suffix.lower() not in (".md", ".json"):
        return "the name must end in .md or .json"
    if file.is_dir():
        return "that is a folder: give a file in it"
    if not file.parent.is_dir():
        return f"there is no folder {clean(file.parent, 100)}"
    return None
