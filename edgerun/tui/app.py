"""The terminal chat: one program around a chat, who answers it, and where it is kept."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual import events, on
from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen
from textual.timer import Timer

from edgerun.tui import commands, themes
from edgerun.tui.composer.area import Area
from edgerun.tui.composer.box import Composer
from edgerun.tui.composer.chips import Chip, Chips
from edgerun.tui.options import Options
from edgerun.tui.screen import ChatScreen
from edgerun.tui.stage import Stage

if TYPE_CHECKING:
    from textual.driver import Driver

    from edgerun.tui.actions import Handlers
    from edgerun.tui.keeper import ModelKeeper
    from edgerun.tui.opening import Opening
    from edgerun.tui.partner import Partner
    from edgerun.tui.settings import Remembered
    from edgerun.tui.store import Store
    from edgerun.tui.talk import Talk
    from edgerun.tui.transcript import Transcript

__all__ = ["ChatApp", "Options"]

log = logging.getLogger(__name__)

#: Seconds in which a second Ctrl+C leaves.
_TWICE = 2.0
#: Seconds that a model may take to close.
_PATIENCE = 1.4
#: Seconds of quiet after which a draft is kept.
_QUIET = 0.5


class ChatApp(App[object]):
    """The program.

    Args:
        options: what was asked for.
        open_partner: makes who answers; called after the first paint.
        title: the program's name and version.
        path: where chats are kept; None = the data folder.
    """

    TITLE = "edgerun"
    ENABLE_COMMAND_PALETTE = False

    # Textual's own would be Ctrl+Q, which lies beside Ctrl+W.
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+c,super+c", "interrupt", "copy, stop, clear; twice: leave", priority=True),
        Binding("ctrl+q", "nothing", show=False, priority=True),
    ]

    def __init__(
        self,
        options: Options,
        open_partner: Callable[[], Partner],
        title: str = "edgerun",
        path: Path | None = None,
    ) -> None:
        # Without colours means none at all: Textual would still send greys.
        super().__init__(ansi_color=True if os.environ.get("NO_COLOR") else None)
        self.options = options
        self.chat = ChatScreen(title)
        self.store: Store | None = None
        self.talk: Talk | None = None
        self.keeper: ModelKeeper | None = None
        self.remembered: Remembered | None = None
        self.stage = Stage(self)
        self._open_partner, self._path = open_partner, path
        self.editing: str | None = None
        self._before_edit = ""
        self._waiting: list[Composer.Submitted] = []
        self._early = ""
        self._typed: list[events.Event] | None = []
        self._finished = False
        self._interrupted = -1e9
        self._keep: Timer | None = None
        self.failure: BaseException | None = None
        themes.register(self)
        themes.begin_with(self, self.chosen_theme(options.theme))

    def get_driver_class(self) -> type[Driver]:
        if os.name != "posix" or os.environ.get("TEXTUAL_DRIVER"):
            return super().get_driver_class()
        from edgerun.tui.terminal import TerminalDriver

        return TerminalDriver

    # -- beginning ----------------------------------------------------------------------------

    def get_default_screen(self) -> ChatScreen:
        return self.chat

    def on_mount(self) -> None:
        self.stage.begin()
        self.call_after_refresh(self._open)

    async def on_event(self, event: events.Event) -> None:
        """What is typed before there is a place for it waits."""
        if self._typed is not None and isinstance(event, (events.Key, events.Paste)):
            self._typed.append(event)
        else:
            await super().on_event(event)

    def _open(self) -> None:
        self.chat.composer.area.focus()
        self.call_later(self._type)
        self.run_worker(self._begin(), group="open")

    async def _begin(self) -> None:
        # What the first paint does without, a third of all modules, is imported after it, and on a
        # thread: keys are answered meanwhile.
        await asyncio.to_thread(importlib.import_module, "edgerun.tui.opening")
        await self.opening.run()

    @cached_property
    def opening(self) -> Opening:
        from edgerun.tui.opening import Opening

        return Opening(self, self._open_partner, self._path)

    @cached_property
    def handlers(self) -> Handlers:
        """What commands and keys do."""
        from edgerun.tui.actions import Handlers

        return Handlers(self)

    def chosen_theme(self, name: str | None = None) -> str:
        """A theme that there is; None = the one that was chosen before."""
        saved = self.remembered.theme if self.remembered else None
        return themes.choose(name or saved, self.available_themes, os.environ)

    def _type(self) -> None:
        typed, self._typed = self._typed, None
        for event in typed or ():
            self.post_message(event)

    def do_what_waited(self) -> None:
        """What was sent and pressed before there was a chat."""
        waiting, self._waiting = self._waiting, []
        for submitted in waiting:
            self._act(submitted)
        if self._early:
            self.action_do(self._early)

    # -- the composer -------------------------------------------------------------------------

    def tell(self, text: str, *, bad: bool = False) -> None:
        """One line to the user, for a while."""
        self.stage.tell(text, bad=bad)

    @on(Composer.Submitted)
    def _submitted(self, event: Composer.Submitted) -> None:
        if self.talk is None:
            self._waiting.append(event)
            self.chat.composer.show_notes([Chip("queued", "waits: " + event.text[:60])])
        else:
            self._act(event)

    def _act(self, event: Composer.Submitted) -> None:
        assert self.talk is not None
        parsed = commands.parse(event.text)
        if parsed is None:
            from edgerun.tui.talk import Question

            edits, self.editing = self.editing, None
            text = event.text[1:] if event.text.startswith("//") else event.text
            question = Question(text, event.attachments, edits)
            if edits is None:
                self.talk.ask(question)
            else:
                self.talk.when_stopped(lambda: self.talk.ask(question))  # type: ignore[union-attr]
                self.chat.composer.write(self._before_edit)
        else:
            self.handlers.run(parsed)
        self.stage.show_state()

    @on(Composer.Refused)
    def _refused(self, event: Composer.Refused) -> None:
        self.tell(f"not sent: {event.why}", bad=True)

    @on(Composer.Changed)
    def _draft_changed(self) -> None:
        if self._keep is not None:
            self._keep.stop()
        self._keep = self.set_timer(_QUIET, self.keep_draft)

    def keep_draft(self) -> None:
        """Store what is typed, with what waits before it."""
        if self._keep is not None:
            self._keep.stop()
            self._keep = None
        if self.talk is not None and self.editing is None:
            texts = [*(q.text for q in self.talk.queue), self.chat.composer.draft]
            draft = "\n\n".join(t for t in texts if t.strip())
            self.talk.store.set_draft(self.talk.conversation.id, draft)

    @on(Chips.Removed)
    def _chip_removed(self, event: Chips.Removed) -> None:
        word, _, number = event.key.partition(" ")
        if word == "queue" and self.talk is not None and int(number) < len(self.talk.queue):
            del self.talk.queue[int(number)]
            self.stage.show_state()

    @on(Area.Edge)
    def _edge(self, event: Area.Edge) -> None:
        if event.key == "ctrl+d":
            self.quit()
        elif self.talk is None:
            return
        elif event.key == "enter":
            keeper = self.talk.keeper
            if keeper.state == "failed":
                keeper.load(keeper.target)
            self.talk.pump()
        elif event.key == "up":
            question = self.talk.take_back()
            if question is not None:
                self.chat.composer.write(question.text)
            else:
                self.chat.composer.area.recall_older()
        elif event.key == "tab":
            self.action_pick(-1)

    def edit(self, message_id: str) -> None:
        """Put a message into the composer, to be sent as another version."""
        assert self.talk is not None
        if self.editing is None:
            self._before_edit = self.chat.composer.draft
        self.editing = message_id
        self.chat.composer.write(self.talk.conversation.messages[message_id].text)
        self.chat.composer.area.focus()
        self.stage.show_state()

    def _leave_edit(self) -> bool:
        if self.editing is None:
            return False
        self.editing = None
        self.chat.composer.write(self._before_edit)
        self.stage.show_state()
        return True

    # -- the transcript -----------------------------------------------------------------------

    def on_transcript_picked(self, event: Transcript.Picked) -> None:
        self.handlers.pick(event.message_id, event.action)

    def on_transcript_copied(self, event: Transcript.Copied) -> None:
        if event.problem:
            self.tell(event.problem, bad=True)
        else:
            self.tell(f"copied the {event.what}")

    @on(events.TextSelected)
    def _selected(self) -> None:
        self.chat.transcript.copy_selection()

    def action_pick(self, step: int) -> None:
        """To the message above or below; below the last is the composer."""
        transcript = self.chat.transcript
        if self.talk is None or self.talk.conversation.head is None:
            return
        here = transcript.has_focus
        if here and step > 0 and transcript.cursor == self.talk.conversation.head:
            self._to_composer()
        elif here or step < 0:
            transcript.focus()
            transcript.action_pick(step)

    def _to_composer(self) -> None:
        self.chat.transcript.pick(None)
        self.chat.composer.area.focus()

    def action_scroll(self, where: str) -> None:
        getattr(self.chat.transcript, f"scroll_{where}")(animate=False)

    # -- keys ---------------------------------------------------------------------------------

    def action_nothing(self) -> None:
        self.tell("ctrl+d leaves")

    def action_do(self, name: str) -> None:
        if self.talk is None:
            self._early = name  # the last one counts
        else:
            self.handlers.run(commands.Parsed(name, "", commands.find(name)))

    def action_palette(self) -> None:
        self.handlers.palette()

    def action_escape(self) -> None:
        if self.chat.focused is not self.chat.composer.area:
            self._to_composer()
        elif not self._leave_edit() and not (self.talk and self.talk.stop()):
            self.chat.notice.clear()

    def action_interrupt(self) -> None:
        area = self.chat.composer.area
        if isinstance(self.screen, ModalScreen):
            close = getattr(self.screen, "action_close", None)
            if close is not None:
                close()
            else:
                self.screen.dismiss(None)
        elif self.copy_selection():
            pass
        elif self.talk is not None and self.talk.stop():
            self._interrupted = -1e9
        elif self._leave_edit():
            pass
        elif area.text:
            area.asked.add(area.draft)
            area.take()
            self.tell("cleared; ↑ brings it back")
        elif time.monotonic() - self._interrupted < _TWICE:
            self.quit()
        else:
            self._interrupted = time.monotonic()
            self.tell("ctrl+c again, or ctrl+d, leaves")

    def copy_selection(self) -> bool:
        """Copy what is selected, in the composer or the transcript; whether something was."""
        area = self.chat.composer.area
        if area.selected_text:
            self.copy(area.selected_text, "the selection")
            area.move_cursor(area.cursor_location)
            return True
        if self.chat.transcript.copy_selection():
            self.chat.clear_selection()
            return True
        return False

    def copy(self, text: str, what: str) -> None:
        """To the clipboard, through the terminal."""
        from edgerun.tui import clipboard

        if clipboard.copy(self, text):
            self.tell(f"copied {what}")
        else:
            self.tell(f"{what} is too long for the terminal's clipboard: /export", bad=True)

    # -- end ----------------------------------------------------------------------------------

    async def action_quit(self) -> None:
        self.quit()

    def quit(self) -> None:
        """Save and leave, whatever goes on."""
        self.keep_draft()
        if self.talk is not None:
            self.talk.stop()
        self.exit()

    async def finish(self) -> None:
        """After the screen is gone: end the turn, the model and the store, within two seconds.
        Idempotent."""
        if self._finished:
            return
        self._finished = True
        try:
            await asyncio.wait_for(self._end(), _PATIENCE)
        except asyncio.TimeoutError:
            log.warning("the model took too long to close")
        if self.store is not None:
            await asyncio.to_thread(self.store.close)

    async def _end(self) -> None:
        if self.talk is not None:
            await self.talk.settle()
        await self.handlers.close()
        if self.keeper is not None:
            self.keeper.cancel()
            await self.keeper.partner.close()

    def fail(self, error: Exception) -> None:
        """End the program because of a bug: one line and a log."""
        if self.failure is None:
            self.failure = error
            log.error("the chat failed", exc_info=error)
        self._return_code = 1
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()

    def _handle_exception(self, error: Exception) -> None:
        self.fail(error)  # instead of Textual's page of local variables

    def panic(self, *renderables: object) -> None:
        self.fail(RuntimeError("the terminal's input broke off"))

    def on_app_blur(self, event: events.AppBlur) -> None:
        self.keep_draft()

    @property
    def folder(self) -> Path:
        """Where relative paths start."""
        return self.chat.composer.base
