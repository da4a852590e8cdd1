"""What is done with whole chats."""

from __future__ import annotations

from pathlib import Path

from edgerun.errors import printable
from edgerun.tui.actions.base import Base, filtered
from edgerun.tui.conversation import Conversation
from edgerun.tui.text import one_line

__all__ = ["ChatActions"]


class ChatActions(Base):
    """Commands of the group "Chats"."""

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

    def open_session(self, session: str, message_id: str | None = None) -> None:
        try:
            conversation = self.store.open(session)
        except KeyError:
            self.tell("this chat is gone", bad=True)
            return
        if message_id in conversation.messages:
            conversation.show(str(message_id))
        self.open_chat(conversation)

    def do_new(self, rest: str) -> None:
        self.open_chat(self.app.opening.new_chat())

    def do_sessions(self, rest: str) -> None:
        if rest:
            found = self.store.find(rest)
            if found is None:
                self.tell(f"no chat has {printable(rest, 40)!r}", bad=True)
            else:
                self.open_session(found)
            return
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
            self.open_session(opened.session, opened.message_id)

        def changed(session: str) -> None:
            if session == self.chat.id:
                self._renamed_outside()

        screen = SessionScreen(self.store, self.chat.id, changed=changed, folder=self.app.folder)
        self.app.push_screen(screen, chosen)
        filtered(self.app, screen, words)

    def _renamed_outside(self) -> None:
        """The list has renamed or deleted the chat that is open."""
        try:
            stored = self.store.open(self.chat.id)
        except KeyError:
            self.do_new("")
        else:
            self.chat.title, self.chat.named = stored.title, stored.named

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
        gone = self.chat.id
        self.store.delete(gone)
        self.do_new("")
        self.tell("the chat is deleted; ctrl+z in ctrl+r's list brings it back until you leave")

    def do_export(self, rest: str) -> None:
        from edgerun.tui.export import to_json, to_markdown

        name = rest or _file_name(self.chat.title)
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


def _file_name(title: str) -> str:
    kept = "".join(c if c.isalnum() or c in " -_" else " " for c in title)
    return ("-".join(kept.split())[:60] or "chat") + ".md"
