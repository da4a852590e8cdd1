"""What an answer consists of, as it is found."""

from __future__ import annotations

import secrets
from typing import NamedTuple

from edgerun.chat import ToolCallDelta

__all__ = ["Out", "Piece"]


class Piece(NamedTuple):
    """A piece of an answer; one of the three is there."""

    text: str = ""
    reasoning: str = ""
    call: ToolCallDelta | None = None


class Out:
    """Collects the pieces of one answer.

    White space between reasoning, text and calls belongs to the format, not to the text; texts
    on both sides of a call are kept apart by an empty line.

    Args:
        sure: calls are what they begin as, because a grammar forces it: their arguments are
            passed on as they come. Otherwise only when the call is complete.
        most: how many calls count; further ones are dropped. None = all.
    """

    def __init__(self, *, sure: bool = False, most: int | None = None) -> None:
        self.sure = sure
        self._most = most
        self._pieces: list[Piece] = []
        self._pending: list[Piece] = []
        self._space = ""  # at the end of the text so far
        self._fresh = False
        self._said = False
        self._calls = 0  # begun, those that wait for their end included
        self.trims = False  # whether the white space at the end of the text may be the format's
        self.calls = 0  # complete

    def drain(self) -> list[Piece]:
        """The pieces since the last time, neighbours of a kind joined."""
        out: list[Piece] = []
        for piece in self._pieces:
            last = out[-1] if out else Piece()
            if piece.text and last.text:
                out[-1] = Piece(text=last.text + piece.text)
            elif piece.reasoning and last.reasoning:
                out[-1] = Piece(reasoning=last.reasoning + piece.reasoning)
            elif piece.call and last.call and piece.call.index == last.call.index:
                both = last.call.arguments + piece.call.arguments
                out[-1] = Piece(
                    call=ToolCallDelta(last.call.index, both, last.call.id, last.call.name)
                )
            else:
                out.append(piece)
        self._pieces.clear()
        return out

    def text(self, text: str) -> None:
        """Text that is for the reader."""
        if self._fresh:
            text = text.lstrip()
            if not text:
                return
            # Calls do not show between two texts: they must not run together.
            text = "\n\n" + text if self._said else text
            self._fresh = False
        text = self._space + text
        kept = text.rstrip() if self.trims else text
        self._space = text[len(kept) :]
        if kept:
            self._said = True
            self._pieces.append(Piece(text=kept))

    def reasoning(self, text: str) -> None:
        """Reasoning, without the white space around it."""
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        if not text:
            return
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._pieces.append(Piece(reasoning=kept))

    def turn(self) -> None:
        """Something else comes: white space around here is dropped."""
        self._space, self._fresh = "", True

    def finish(self) -> None:
        """The end: white space that was held back was text."""
        if self._space and self.trims:
            self._pieces.append(Piece(text=self._space))
        self._space = ""

    # -- calls --------------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """A call of ``name``; its arguments follow."""
        call_id = "call_" + secrets.token_hex(12)
        self._add(ToolCallDelta(self._calls, id=call_id, name=name))
        self._calls += 1

    def arguments(self, text: str) -> None:
        """More of the last call's arguments."""
        if text:
            self._add(ToolCallDelta(self._calls - 1, text))

    @property
    def begun(self) -> bool:
        """Whether a call was passed on that is not complete."""
        return self.sure and self._calls > self.calls

    def commit(self) -> None:
        """The calls so far are what they seemed to be."""
        if self._calls > self.calls:
            self.turn()
        self._pieces += self._pending
        self._pending.clear()
        self.calls = self._calls

    def abandon(self) -> None:
        """What was begun since the last :meth:`commit` is no call."""
        self._pending.clear()
        if not self.sure:
            self._calls = self.calls

    def _add(self, delta: ToolCallDelta) -> None:
        if self._most is not None and delta.index >= self._most:
            return
        if self.sure:
            if delta.id is not None:
                self.turn()
            self._pieces.append(Piece(call=delta))
        else:
            self._pending.append(Piece(call=delta))
