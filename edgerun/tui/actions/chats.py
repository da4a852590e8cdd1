"""What is done with whole chats."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.errors import EdgerunError, printable
from edgerun.tui.actions.base import Base, filtered
from edgerun.tui.conversation import Conversation
from edgerun.tui.text import one_line

if TYPE_CHECKING:
    from edgerun.tui.app import ChatApp

__all__ = ["ChatActions"]


class ChatActions(Base):
    """Commands of the group "Chats"."""

    def __init__(self, app: ChatApp) -> None:
        super().__init__(app)
        self._deleted: list[tuple[str, str]] = []  # chats, by id and title, that can come back

    def open_chat(self, conversation: Conversation) -> None:
        """Show another chat; what is typed in this one is kept there."""

        def go() -> None:
            self.app.keep_draft()
            self.talk.queue.clear()
            self.talk.conversation = conversation
            self.app.editing = None
            composer = self.app.chat.composer
            composer.write("")
            self.app.run_worker(self.app.opening.restore_draft(), group="draft", exclusive=True)
            self.app.stage.show_chat()
            composer.area.focus()

        self.talk.when_stopped(go)

    def _read(self, work: Coroutine[Any, Any, None]) -> None:
        """Do what looks into the store: its disk may be slow, the screen is not."""
        self.app.run_worker(work, group="chat", exclusive=True)

    async def _open_session(self, session: str, message_id: str | None = None) -> None:
        try:
            conversation = await asyncio.to_thread(self.store.open, session)
        except (KeyError, EdgerunError) as e:
            gone = isinstance(e, KeyError)
            self.tell("this chat is gone" if gone else printable(e, 400), bad=True)
            return
        if message_id in conversation.messages:
            conversation.show(str(message_id))
        self.open_chat(conversation)

    async def _open_found(self, words: str) -> None:
        found = await asyncio.to_thread(self.store.find, words)
        if found is None:
            self.tell(f"no chat has {printable(words, 40)!r}", bad=True)
        else:
            await self._open_session(found)

    def do_new(self, rest: str) -> None:
        self.open_chat(self.app.opening.new_chat())

    def do_sessions(self, rest: str) -> None:
        if rest:
            self._read(self._open_found(rest))
        else:
            self._sessions("")

    def do_search(self, rest: str) -> None:
        self._sessions(rest)

    def _sessions(self, words: str) -> None:
        from edgerun.tui.screens.sessions import Opened, SessionScreen

        def chosen(opened: Opened | None) -> None:
            if opened is None:
                return
            if opened.session == self.chat.id and opened.message_id is None:
                return
            self._read(self._open_session(opened.session, opened.message_id))

        def changed(session: str) -> None:
            if session != self.chat.id:
                return
            if any(session == gone for gone, _ in self._deleted):
                self.do_new("")  # what was said from now on would go with it
            else:
                self._read(self._reread_title())

        screen = SessionScreen(
            self.store, self.chat.id, changed=changed, folder=self.app.folder,
            deleted=self._deleted,
        )  # fmt: skip
        self.app.push_screen(screen, chosen)
        filtered(self.app, screen, words)

    async def _reread_title(self) -> None:
        """The list has renamed the chat that is open."""
        chat = self.chat
        with contextlib.suppress(KeyError, EdgerunError):
            stored = await asyncio.to_thread(self.store.open, chat.id)
            chat.title, chat.named = stored.title, stored.named

    def do_rename(self, rest: str) -> None:
        if rest:
            self._rename(rest)
            return
        from edgerun.tui.screens.dialogs import Prompt

        self.app.push_screen(
            Prompt("Title of this chat", self.chat.title),
            lambda title: self._rename(title) if title else None,
        )

    def _rename(self, title: str) -> None:
        self.chat.rename(title)
        self.store.save(self.chat)
        self.tell(f"this chat is called {self.chat.title!r}")

    def do_delete(self, rest: str) -> None:
        if not self.chat.messages:
            self.tell("there is nothing to delete")
            return
        self.store.delete(self.chat.id)
        self._deleted.append((self.chat.id, self.chat.title))
        self.do_new("")
        self.tell("the chat is deleted; ctrl+z in ctrl+r's list brings it back until you leave")

    def do_export(self, rest: str) -> None:
        from edgerun.tui.export import file_name, to_json, to_markdown

        name = rest or file_name(self.chat.title)
        if not Path(name).suffix:
            name += ".md"
        path = self.app.folder / Path(name).expanduser()
        text = to_json(self.chat) if path.suffix.lower() == ".json" else to_markdown(self.chat)
        try:
            with path.open("x", encoding="utf-8") as f:
                f.write(text)
        except FileExistsError:
            self.tell(f"{printable(name)} is there already: name another file", bad=True)
        except OSError as e:
            self.tell(f"cannot write {printable(name)}: {e.strerror}", bad=True)
        else:
            self.tell(f"written to {one_line(str(path))}")
