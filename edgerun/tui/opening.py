"""From the first paint to a chat that can be used: what takes time, in the order it is seen."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from edgerun.chat import ChatOptions
from edgerun.core import SamplingParams
from edgerun.errors import EdgerunError, printable
from edgerun.tui.conversation import Conversation
from edgerun.tui.keeper import ModelKeeper
from edgerun.tui.partner import Partner
from edgerun.tui.settings import Remembered
from edgerun.tui.talk import Question, Talk

if TYPE_CHECKING:
    from edgerun.tui.app import ChatApp
    from edgerun.tui.store import Store

__all__ = ["Opening"]


class Opening:
    """Makes what the program stands on.

    Args:
        app: the program.
        open_partner: makes who answers.
        path: where chats are kept; None = the data folder.
    """

    def __init__(
        self, app: ChatApp, open_partner: Callable[[], Partner], path: Path | None
    ) -> None:
        self.app, self._open_partner, self._path = app, open_partner, path

    async def run(self) -> None:
        """All of it."""
        app, options = self.app, self.app.options
        self._listen()
        app.store = store = await asyncio.to_thread(self._open_store)
        app.remembered = await asyncio.to_thread(Remembered, store)
        if options.theme is None:
            app.theme = app.chosen_theme()
        conversation = await asyncio.to_thread(self._first_chat, store)
        partner = self._open_partner()
        app.keeper = ModelKeeper(partner, app.stage.model_changed)
        base = (options.params or SamplingParams(), ChatOptions())
        params, chat = app.remembered.sampling(base, options.given)
        app.talk = Talk(conversation, store, app.keeper, app.stage, params, chat)
        app.chat.composer.count = partner.count
        app.handlers.connect()
        app.stage.show_chat()
        gc.freeze()  # what is there now stays: collections need not look at it
        gc.enable()
        app.keeper.load(options.model or app.remembered.model(options.where))
        await self.restore_draft()
        if options.question:
            app.talk.ask(Question(options.question))
        app.do_what_waited()
        app.chat.composer.area.asked.load(await asyncio.to_thread(store.asked))

    def _listen(self) -> None:
        """Signals that ask to end save and leave."""
        loop = asyncio.get_running_loop()
        for name in ("SIGTERM", "SIGHUP", "SIGINT"):
            with contextlib.suppress(AttributeError, NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(getattr(signal, name), self.app.quit)

    def _open_store(self) -> Store:
        """On a thread."""
        import edgerun.tui.transcript.entry  # noqa: F401  the first message needs it
        from edgerun.tui.store import Store

        return Store(self._path, memory=not self.app.options.save, notify=self._say)

    def _say(self, text: str) -> None:
        """On a thread: something went wrong."""
        with contextlib.suppress(RuntimeError):  # the program is over
            self.app.call_from_thread(self._tell, text)

    def _tell(self, text: str) -> None:
        self.app.tell(text, bad=True)
        self.app.stage.show_state()

    def _first_chat(self, store: Store) -> Conversation:
        """On a thread: the one that was asked for, or a new one."""
        wanted, conversation = self.app.options.resume, None
        if wanted is not None:
            session = store.find(wanted) if wanted else store.latest()
            try:
                conversation = store.open(session) if session else None
                none = f"there is no chat {printable(wanted)!r}" if wanted else "there is none yet"
            except (EdgerunError, KeyError) as e:
                none = printable(e)
            if conversation is None:
                self._say(f"{none}: this is a new chat")
        if conversation is None:
            conversation = self.new_chat()
        if self.app.options.system is not None:
            conversation.system = self.app.options.system
        return conversation

    def new_chat(self) -> Conversation:
        """One with the system prompt of the command line."""
        return Conversation(system=self.app.options.system or "")

    async def restore_draft(self) -> None:
        """What was typed in this chat and not sent."""
        talk, composer = self.app.talk, self.app.chat.composer
        assert talk is not None
        draft = await asyncio.to_thread(talk.store.get_draft, talk.conversation.id)
        if draft and not composer.draft:
            composer.write(draft)
