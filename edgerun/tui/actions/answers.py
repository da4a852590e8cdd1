"""What is done to questions and answers."""

from __future__ import annotations

from edgerun.tui.actions.base import Base
from edgerun.tui.talk import Question

__all__ = ["AnswerActions"]


class AnswerActions(Base):
    """Commands of the group "Answers"."""

    def do_retry(self, rest: str) -> None:
        self.talk.retry()

    def do_continue(self, rest: str) -> None:
        self.talk.resume()

    def do_stop(self, rest: str) -> None:
        if not self.talk.stop() and not self.talk.keeper.cancel():
            self.tell("nothing is being written")

    def do_edit(self, rest: str) -> None:
        head = self.chat.head
        question = self.chat.question(head) if head else None
        if question is None:
            self.tell("there is no question to edit")
        elif rest:
            asked = Question(rest, edits=question.id)
            self.talk.when_stopped(lambda: self.talk.ask(asked))
        else:
            self.app.edit(question.id)

    def do_undo(self, rest: str) -> None:
        self.talk.undo()

    def do_redo(self, rest: str) -> None:
        self.talk.redo()

    def do_prev(self, rest: str) -> None:
        self.talk.switch(None, -1)

    def do_next(self, rest: str) -> None:
        self.talk.switch(None, 1)

    def do_unqueue(self, rest: str) -> None:
        question = self.talk.take_back()
        if question is None:
            self.tell("nothing waits")
        elif not self.app.chat.composer.draft:
            self.app.chat.composer.write(question.text)
