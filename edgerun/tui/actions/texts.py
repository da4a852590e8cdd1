"""What is done with texts: files, clipboard, editor."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from edgerun.errors import printable
from edgerun.tui.actions.base import Base
from edgerun.tui.composer import files
from edgerun.tui.conversation import Message

__all__ = ["TextActions"]


class TextActions(Base):
    """Commands of the group "Texts"."""

    def do_attach(self, rest: str) -> None:
        self.app.run_worker(self._attach(rest.strip('"')), group="send")

    async def _attach(self, path: str) -> None:
        base = self.app.folder
        found = await asyncio.to_thread(files.expand, path, base)
        first = await asyncio.to_thread(files.read, found[0], base) if found else None
        if first is None:
            self.tell(f"there is no file {printable(path, 120)}", bad=True)
        elif first.refusal:
            self.tell(f"{printable(path, 120)}: {first.refusal}", bad=True)
        else:
            composer = self.app.chat.composer
            space = "" if not composer.draft or composer.draft[-1].isspace() else " "
            composer.write(composer.draft + space + files.quoted(path) + " ")

    def do_copy(self, rest: str) -> None:
        answers = [m for m in self.chat.path() if m.role == "assistant" and m.text]
        if rest in ("all", "chat"):
            from edgerun.tui.export import to_markdown

            self.app.copy(to_markdown(self.chat), "the chat")
        elif rest == "code":
            self._copy_code(answers)
        elif rest:
            self.tell("/copy, /copy code or /copy all")
        elif answers:
            self.app.copy(answers[-1].text, "the answer")
        else:
            self.tell("there is no answer to copy")

    def _copy_code(self, answers: Sequence[Message]) -> None:
        for m in reversed(answers):
            blocks = self.app.chat.transcript.codes(m.id)
            if blocks:
                self.app.copy(blocks[-1], "the code")
                return
        self.tell("there is no code block")

    def do_editor(self, rest: str) -> None:
        from edgerun.tui.composer.editor import write_in_editor

        composer = self.app.chat.composer
        text, wrong = write_in_editor(self.app, composer.draft)
        if wrong:
            self.tell(wrong, bad=True)
        elif text is not None:
            composer.write(text)
        composer.area.focus()
