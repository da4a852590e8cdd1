"""All actions, and which of them a command or key means."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.errors import EdgerunError, printable
from edgerun.tui import commands
from edgerun.tui.actions.answers import AnswerActions
from edgerun.tui.actions.chats import ChatActions
from edgerun.tui.actions.model import EFFORTS, ModelActions
from edgerun.tui.actions.program import ProgramActions
from edgerun.tui.actions.texts import TextActions
from edgerun.tui.commands import Parsed
from edgerun.tui.transcript.view import Action

__all__ = ["Handlers"]


class Handlers(AnswerActions, ChatActions, ModelActions, TextActions, ProgramActions):
    """The actions of one program."""

    def connect(self) -> None:
        """Once there is a store: what arguments are completed from."""
        sources = self.app.chat.composer.sources
        sources["theme"] = self._themes
        sources["setting"] = self._settings
        sources["effort"] = lambda: [(e, "") for e in EFFORTS]
        sources["copy"] = lambda: [("all", "the whole chat"), ("code", "the last code block")]
        sources["model"] = self._models

    def _themes(self) -> Sequence[tuple[str, str]]:
        from edgerun.tui import themes

        return [(n, "") for n in themes.names(self.app)]

    def _settings(self) -> Sequence[tuple[str, str]]:
        from edgerun.tui.screens.knobs import KNOBS, shown

        now = self._now()
        return [(f"{k.name} ", f"{shown(k, now)} · {k.help}") for k in KNOBS]

    def _models(self) -> Sequence[tuple[str, str]]:
        if not self._choices:
            self.app.run_worker(self._ask_choices(), group="choices", exclusive=True)
        return [(c.target, "here" if c.pulled else "to be fetched") for c in self._choices]

    async def _ask_choices(self) -> None:
        try:
            self._choices = await self.talk.keeper.partner.choices()
        except EdgerunError:
            self._choices = []

    def run(self, parsed: Parsed) -> None:
        """Do what was asked for; what is wrong with it is told."""
        if parsed.command is None:
            near = commands.nearest(parsed.word)
            word = printable(parsed.word, 40)
            hint = f"did you mean /{near}?" if near else "/help lists them"
            self.tell(f"there is no command /{word}: {hint}", bad=True)
            return
        if parsed.command.needs_args and not parsed.rest:
            self.tell(f"{parsed.command.usage}: {parsed.command.help}")
            return
        try:
            getattr(self, f"do_{parsed.command.name}")(parsed.rest)
        except EdgerunError as e:
            self.tell(printable(e, 400), bad=True)

    def pick(self, message_id: str, action: Action) -> None:
        """A key was pressed on a message."""
        if message_id not in self.chat.messages:
            return
        if action == "edit":
            self.app.edit(message_id)
        elif action == "retry":
            self.talk.retry(message_id)
        elif action == "continue":
            self.talk.resume(message_id)
        elif action in ("previous", "next"):
            self.talk.switch(message_id, -1 if action == "previous" else 1)
