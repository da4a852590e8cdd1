"""Reads a model's answer as it comes: reasoning, text and calls of tools, apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgerun.text.answer.call_format import CallFormat
from edgerun.text.answer.harmony import HARMONY_TEXTS, read_harmony
from edgerun.text.answer.pieces import Out, Piece
from edgerun.text.answer.reasoning import ReasoningTags
from edgerun.text.answer.source import Malformed, Marks, Source, Steps
from edgerun.text.answer.tools import Tools

__all__ = ["AnswerReader", "AnswerShape"]


@dataclass(frozen=True)
class AnswerShape:
    """What may stand in an answer.

    Attributes:
        tags: what the model's reasoning stands between; empty = it does none.
        opened: the prompt ends inside this block.
        format: how calls are written; None = none are read.
        tools: the tools offered; None = none.
        harmony: the answer is a row of messages in the harmony format.
        begun: the end of the prompt, where the harmony message that the answer goes on with
            was begun by it.
        sure: marks that calls begin with (a bare one begins with "") after which a grammar makes
            them what they should be; in harmony not empty = all of them.
        most_calls: None = any number.
    """

    tags: Sequence[ReasoningTags] = ()
    opened: ReasoningTags | None = None
    format: CallFormat | None = None
    tools: Tools | None = None
    harmony: bool = False
    begun: str = ""
    sure: tuple[str, ...] = ()
    most_calls: int | None = None

    @property
    def plain(self) -> bool:
        """Whether an answer is nothing but text."""
        return not (self.tags or self.format or self.harmony)

    @property
    def texts(self) -> tuple[str, ...]:
        """The markup to look for; control tokens of these texts must show."""
        out = [x for t in self.tags for x in (t.open, t.close, *t.after)]
        if self.harmony:
            out += HARMONY_TEXTS
        elif self.format is not None:
            out += self.format.texts
        return tuple(dict.fromkeys(out))


class AnswerReader:
    """One answer. The pieces of all :meth:`feed` and of :meth:`finish` are the same however the
    text is cut, but for how neighbours of a kind are cut in turn."""

    def __init__(self, shape: AnswerShape) -> None:
        self._shape = shape
        self._source = Source()
        self._out = Out(sure=shape.harmony and bool(shape.sure), most=shape.most_calls)
        self._steps: Steps[None] | None = self._read()
        self.thinking = shape.opened is not None
        if shape.begun:
            self.feed(shape.begun)

    @property
    def calls(self) -> int:
        """How many calls are complete."""
        return self._out.calls

    def feed(self, text: str) -> list[Piece]:
        """What ``text``, the next of the answer, adds to it."""
        if not text:
            return []
        self._source.add(text)
        return self._go()

    def finish(self) -> list[Piece]:
        """The rest, now that the answer has ended."""
        self._source.end()
        self._go_on()
        self._out.finish()
        return self._out.drain()

    def _go(self) -> list[Piece]:
        self._go_on()
        return self._out.drain()

    def _go_on(self) -> None:
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None

    # -- the grammar of an answer --------------------------------------------------------------

    def _read(self) -> Steps[None]:
        shape, s, out = self._shape, self._source, self._out
        if shape.harmony:
            yield from read_harmony(s, out, shape.tools)
            return
        tags = shape.opened
        if tags is None and shape.tags:
            space = yield from s.spaces()
            found = yield from s.literal(*(t.open for t in shape.tags))
            tags = next((t for t in shape.tags if t.open == found), None)
            if tags is None:
                out.text(space)
        if tags is not None:
            yield from self._reasoning(tags)
        if shape.format is not None and shape.tools is not None:
            yield from self._calls(shape.format, shape.tools)
        else:
            yield from s.until(Marks([]), out.text)

    def _reasoning(self, tags: ReasoningTags) -> Steps[None]:
        s, out = self._source, self._out
        self.thinking = True
        out.turn()
        yield from s.until(Marks([tags.close]), out.reasoning)
        self.thinking = False
        out.turn()
        while tags.after:
            yield from s.spaces()
            if (yield from s.literal(*tags.after)) is None:
                break

    def _calls(self, form: CallFormat, tools: Tools) -> Steps[None]:
        s, out = self._source, self._out
        out.trims = True
        marks = Marks(form.marks)
        if form.bare:
            space = yield from s.spaces()
            s.hold()
            # A bare beginning is not read: it is the call's own first character.
            if (yield from s.ahead(*form.bare)) and not (yield from s.ahead(*form.marks)):
                yield from self._try(form, tools, "")
            else:
                out.text(space)
            s.release()
        while True:
            mark = yield from s.until(marks, out.text)
            if mark is None:
                return
            s.hold(back=len(mark))
            yield from self._try(form, tools, mark)

    def _try(self, form: CallFormat, tools: Tools, mark: str) -> Steps[None]:
        """Read calls; what is none comes as text."""
        s, out = self._source, self._out
        before = out.calls
        out.sure = mark in self._shape.sure
        try:
            yield from form.read(s, out, tools, mark)
        except Malformed:
            if out.begun:  # cut short; what came of it has been passed on
                s.release()
                yield from s.until(Marks([]), lambda _: None)
                return
            s.rewind()
            out.abandon()
            if out.calls == before and mark:
                out.text(s.skip(len(mark)))
        else:
            out.commit()
        s.release()
