"""One chat as it goes on: questions that wait, the turn that runs, and what is done to both.
No widget: what is shown is asked of a :class:`View`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from edgerun.chat import ChatOptions
from edgerun.core import Chunk, SamplingParams
from edgerun.errors import RequestError
from edgerun.tui.conversation import Attachment, Conversation, Message
from edgerun.tui.keeper import ModelKeeper

if TYPE_CHECKING:
    from edgerun.tui.store import Store
    from edgerun.tui.turn import Turn

__all__ = ["Question", "Talk", "View"]

#: Seconds between two redrawings of an answer: what comes meanwhile is shown together.
FRAME = 1 / 25


@dataclass(frozen=True)
class Question:
    """What is to be asked. ``edits``: the message that it is another version of."""

    text: str
    attachments: tuple[Attachment, ...] = ()
    edits: str | None = None


class View(Protocol):
    """What shows a chat."""

    def show_chat(self) -> None:
        """The chat is another one, or its path has changed."""

    def show_new(self, message: Message) -> None: ...
    def show_piece(self, message: Message, chunk: Chunk) -> None: ...
    def show_end(self, message: Message) -> None: ...
    def show_state(self) -> None:
        """The queue, the turn, or their figures have changed."""

    def took_back(self, question: Message) -> None:
        """A question was undone: its text can be written anew."""

    def tell(self, text: str, *, bad: bool = False) -> None: ...
    def failed(self, error: Exception) -> None:
        """The program cannot go on."""


class Talk:
    """Args: where chats are kept, who answers, what shows it; and the chat to begin with.

    Attributes:
        turn: the one that runs; None = none.
        queue: what is asked once the turn has ended and a model is there.
        params, options: what the next turn is asked for with.
    """

    def __init__(
        self,
        conversation: Conversation,
        store: Store,
        keeper: ModelKeeper,
        view: View,
        params: SamplingParams | None = None,
        options: ChatOptions | None = None,
    ) -> None:
        self.conversation, self.store, self.keeper, self.view = conversation, store, keeper, view
        self.params = params or SamplingParams()
        self.options = options or ChatOptions()
        self.queue: list[Question] = []
        self.turn: Turn | None = None
        self._task: asyncio.Task[None] | None = None
        self._then: Callable[[], object] | None = None

    # -- asking -------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.turn is not None

    def ask(self, question: Question) -> None:
        """Ask now, or as soon as that can be."""
        self.queue.append(question)
        self.pump()

    def pump(self) -> None:
        """Begin with what waits, if nothing is in the way."""
        if self.queue and not self.busy and self.keeper.ready:
            self._ask(self.queue.pop(0))
        self.view.show_state()

    def take_back(self) -> Question | None:
        """The last question that waits; it does no longer."""
        question = self.queue.pop() if self.queue else None
        self.view.show_state()
        return question

    def _ask(self, q: Question) -> None:
        c = self.conversation
        if q.edits is not None and q.edits in c.messages:
            message = c.edit(q.edits, q.text)
            message.attachments = _carried(message.attachments, q)
            self.store.put(c.id, message)
            self.store.save(c)
            self.view.show_chat()
            if message.role == "assistant":
                return
        else:
            message = c.add("user", q.text, attachments=q.attachments)
            self.view.show_new(message)
        self._begin()

    def _begin(self, resume: str | None = None) -> None:
        from edgerun.tui.turn import Turn

        turn = Turn(
            self.conversation, self.keeper.partner, self.store, self.params, self.options,
            resume=resume,
        )  # fmt: skip
        self.turn = turn
        if resume is None:
            self.view.show_new(turn.message)
        else:
            self.view.show_chat()
        self._task = asyncio.ensure_future(self._run(turn))
        self._task.add_done_callback(self._ended)
        self.view.show_state()

    async def _run(self, turn: Turn) -> None:
        try:
            async with aclosing(turn.__aiter__()) as chunks:
                async for chunk in chunks:
                    self.view.show_piece(turn.message, chunk)
                    self.view.show_state()
                    await asyncio.sleep(FRAME)
        finally:
            if self.turn is turn:
                self.turn = None
                self.view.show_end(turn.message)
        then, self._then = self._then, None
        if then is not None:
            then()
        elif turn.message.state == "error" and self.queue:
            self.view.tell("what you wrote meanwhile waits: enter sends it, up takes it back")
            self.view.show_state()
        else:
            self.pump()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """What a turn raises, such as a view that cannot show it, is a bug: nobody awaits it."""
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self.view.failed(error)

    # -- the turn that runs -------------------------------------------------------------------

    def stop(self) -> bool:
        """End the turn; whether there was one."""
        if self.turn is None:
            return False
        self.turn.stop()
        return True

    def when_stopped(self, then: Callable[[], object]) -> None:
        """Do this now, or once the turn, which is stopped, has ended."""
        if self.turn is None:
            then()
        else:
            self._then = then
            self.turn.stop()

    async def settle(self) -> None:
        """Stop the turn and wait for its end."""
        self._then = lambda: None
        self.stop()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=1.8)

    # -- other ways through the chat ----------------------------------------------------------

    def retry(self, message_id: str | None = None) -> None:
        """Another answer to the question that a message is or answers; of None, to the last."""
        at = message_id or self.conversation.head

        def again() -> None:
            if at is None or self.conversation.retry(at) is None:
                self.view.tell("there is no question to answer again")
            elif self._ready():
                self.view.show_chat()
                self._begin()

        self.when_stopped(again)

    def resume(self, message_id: str | None = None) -> None:
        """Go on with an answer."""
        at = message_id or self.conversation.head
        if self.busy:
            self.view.tell("the answer is still being written")
        elif at is None or self.conversation.messages[at].role != "assistant":
            self.view.tell("there is no answer to go on with")
        elif self._ready():
            try:
                self._begin(at)
            except RequestError as e:
                self.view.tell(str(e))

    def _ready(self) -> bool:
        if not self.keeper.ready:
            self.view.tell("no model is there yet to answer")
        return self.keeper.ready

    def undo(self) -> None:
        """Take the last question back."""

        def back() -> None:
            question = self.conversation.undo()
            if question is None:
                self.view.tell("there is nothing to take back")
                return
            self._moved()
            self.view.took_back(question)

        self.when_stopped(back)

    def redo(self) -> None:
        def forth() -> None:
            if self.conversation.redo():
                self._moved()
            else:
                self.view.tell("there is nothing to bring back")

        self.when_stopped(forth)

    def switch(self, message_id: str | None, step: int) -> None:
        """Show the version of a message before or after it; of None, of the nearest that has
        several."""
        at = message_id or self._branching()
        if at is None:
            self.view.tell("nothing here has another version")
            return
        place, n = self.conversation.place(at)
        if n == 1:
            self.view.tell("this has no other version: e edits it, r asks again")
        elif not 1 <= place + step <= n:
            self.view.tell(f"this is version {place} of {n}")
        else:

            def go() -> None:
                self.conversation.switch(at, step)
                self._moved()

            self.when_stopped(go)

    def _branching(self) -> str | None:
        path = self.conversation.path()[::-1]
        return next((m.id for m in path if len(self.conversation.siblings(m.id)) > 1), None)

    def _moved(self) -> None:
        self.store.save(self.conversation)
        self.view.show_chat()
        self.view.show_state()


def _carried(old: Sequence[Attachment], q: Question) -> tuple[Attachment, ...]:
    """Files of a question that was edited: as they are now; as they were if they are gone."""
    new = {a.path: a for a in q.attachments}
    gone = [replace(a) for a in old if a.path not in new and f"@{a.path}" in q.text]
    return (*new.values(), *gone)
