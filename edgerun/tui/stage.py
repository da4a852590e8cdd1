"""What is on the screen at this moment, made of what is so."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from edgerun.tui.composer.chips import Chip
from edgerun.tui.sight import facts, notice, welcome
from edgerun.tui.text import clean

if TYPE_CHECKING:
    from textual.timer import Timer

    from edgerun.core import Chunk
    from edgerun.tui.app import ChatApp
    from edgerun.tui.conversation import Message

__all__ = ["Stage"]

#: Seconds between two looks at figures that change by themselves, while they do.
_LOOK = 0.25


class Stage:
    """The :class:`~edgerun.tui.talk.View` of the program's screen."""

    def __init__(self, app: ChatApp) -> None:
        self.app, self.screen = app, app.chat
        self._look: Timer | None = None
        self._moving = False

    def begin(self) -> None:
        """Once the program runs."""
        self._look = self.app.set_interval(_LOOK, self.show_state, pause=True)

    def show_chat(self) -> None:
        assert self.app.talk is not None
        c = self.app.talk.conversation
        path = c.path()
        self.screen.set_class(bool(path), "-talking")
        self.screen.transcript.show(path, c.place)
        self.app.handlers.recount()
        self.show_state()

    def show_new(self, message: Message) -> None:
        assert self.app.talk is not None
        self.screen.set_class(True, "-talking")
        self.screen.transcript.add(message, self.app.talk.conversation.place(message.id))

    def show_piece(self, message: Message, chunk: Chunk) -> None:
        self.screen.transcript.feed(message.id, chunk.text, chunk.reasoning, chunk.tool_calls)

    def show_end(self, message: Message) -> None:
        self.screen.transcript.finish(message)
        self.app.handlers.recount()

    def took_back(self, question: Message) -> None:
        if not self.screen.composer.draft.strip():
            self.screen.composer.write(question.text)
        self.screen.composer.area.focus()

    def tell(self, text: str, *, bad: bool = False) -> None:
        self.screen.notice.tell(clean(text), bad=bad)

    def failed(self, error: Exception) -> None:
        self.app.fail(error)

    def show_state(self) -> None:
        """Chips, status line and lasting notice. While something goes on they are looked at again
        from time to time, and else not."""
        talk, keeper = self.app.talk, self.app.keeper
        if talk is None or keeper is None:
            return
        chips = []
        if self.app.editing:
            chips.append(
                Chip("note", "editing: enter sends it as another version, esc leaves it as it was")
            )
        for i, q in enumerate(talk.queue):
            chips.append(Chip("queued", "waits: " + " ".join(q.text.split())[:60], f"queue {i}"))
        self.screen.composer.show_notes(chips)
        self.screen.status.show(facts(talk, keeper, self.app.handlers))
        text, bad = notice(keeper)
        self.screen.notice.last(text, bad=bad)
        self.screen.welcome.show(*welcome(keeper))
        moving = talk.busy or keeper.state == "loading" or self.app.handlers.pulling
        if self._look is not None and moving != self._moving:
            self._moving = moving
            (self._look.resume if moving else self._look.pause)()

    def model_changed(self) -> None:
        """A load began, went on, or ended."""
        keeper, talk = self.app.keeper, self.app.talk
        if keeper is None or talk is None:
            return
        if keeper.state == "loading":
            if not self._moving:
                self.show_state()
            return  # progress is shown at the next look
        if keeper.about is not None:
            gc.freeze()
            if keeper.error:
                self.tell(keeper.error, bad=True)
            elif self.app.remembered is not None:
                name = keeper.target or keeper.about.model
                self.app.remembered.set_model(name, self.app.options.where)
            self.app.handlers.recount()
            talk.pump()
        self.show_state()
