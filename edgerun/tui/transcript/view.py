"""The widget that shows a conversation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, TypeAlias

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message as Event
from textual.selection import Selection

from edgerun.chat import ToolCall, ToolCallDelta
from edgerun.tui import clipboard
from edgerun.tui.conversation import Message
from edgerun.tui.transcript.canvas import GUTTER, MORE, Canvas
from edgerun.tui.transcript.selecting import selected

__all__ = ["Action", "Transcript"]

Action: TypeAlias = Literal["edit", "retry", "previous", "next", "continue"]

#: Seconds within which a second "copy code" means the block before.
_AGAIN = 2.0


class Transcript(Canvas, can_focus=True):
    """The messages of a conversation, the last of which may be streaming.

    Only visible rows are drawn; rows are made when text comes or the width changes. ``feed`` marks
    what has changed, and at most 16 times a second it is shown.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "pick(-1)", "Previous message", show=False),
        Binding("down", "pick(1)", "Next message", show=False),
        Binding("k", "scroll_up", "Scroll up", show=False),
        Binding("j", "scroll_down", "Scroll down", show=False),
        Binding("pageup,ctrl+b", "page_up", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page_down", "Page down", show=False),
        Binding("ctrl+u", "half(-1)", "Half a page up", show=False),
        Binding("ctrl+d", "half(1)", "Half a page down", show=False),
        Binding("home,g", "scroll_home", "First message", show=False),
        Binding("end,G", "follow", "Follow the end", show=False),
        Binding("enter,space,o", "fold", "Fold"),
        Binding("c", "copy", "Copy message"),
        Binding("y", "copy_code", "Copy code block"),
        Binding("1", "copy_code(1)", "Copy the code block of that number", key_display="1 to 9"),
        *(Binding(str(n), f"copy_code({n})", show=False) for n in range(2, 10)),
        Binding("e", "act('edit')", "Edit"),
        Binding("r", "act('retry')", "Retry"),
        Binding("left_square_bracket", "act('previous')", "Other answer", key_display="["),
        Binding("right_square_bracket", "act('next')", "Next answer", key_display="]"),
        Binding("greater_than_sign", "act('continue')", "Continue", key_display=">"),
    ]  # fmt: skip

    class Picked(Event):
        """Something is to be done with a message."""

        def __init__(self, message_id: str, action: Action) -> None:
            super().__init__()
            self.message_id = message_id
            self.action = action

    class Copied(Event):
        """``what`` ("message", "code block 2", "selection") was copied, ``size`` characters of it;
        or nothing was, and ``problem`` says why."""

        def __init__(self, what: str, size: int, problem: str = "") -> None:
            super().__init__()
            self.what = what
            self.size = size
            self.problem = problem

    #: What was copied last: of which message, which code block, when.
    _copied: tuple[str, int, float] = ("", 0, 0.0)

    # -- what is shown ------------------------------------------------------------------------

    def show(
        self,
        messages: Sequence[Message],
        siblings: Callable[[str], tuple[int, int]] = lambda _: (1, 1),
    ) -> None:
        """Show ``messages`` instead of what is shown; those that stay keep their rows.

        ``siblings`` gives of a message's id that it is the i-th (from 1) of n beside each other.
        """
        from edgerun.tui.transcript.entry import Entry  # Markdown: not before the first paint

        old = {e.message.id: e for e in self._stack.entries}
        entries = []
        for message in messages:
            entry = old.get(message.id)
            if entry is None:
                entry = Entry(message, siblings(message.id))
            else:
                entry.update(message, siblings(message.id))
            entries.append(entry)
        self._stack.replace(entries)
        if self._cursor not in self._stack.index:
            self._cursor = None
        self._following = True
        self._strips.clear()
        self._clear_selection()
        self.refresh()
        self._mark()

    def add(self, message: Message, place: tuple[int, int] = (1, 1)) -> None:
        """Show one more message at the end, and follow it."""
        from edgerun.tui.transcript.entry import Entry

        self._stack.append(Entry(message, place))
        self._following = True
        self._mark()

    def feed(
        self,
        message_id: str,
        text: str = "",
        reasoning: str = "",
        calls: Iterable[ToolCallDelta | ToolCall] = (),
    ) -> None:
        """More of a message that streams. Unknown ids are ignored: an old turn's last words."""
        entry = self._stack.get(message_id)
        if entry is not None and entry.streaming:
            entry.feed(text, reasoning, calls)
            self._mark(message_id)

    def finish(self, message: Message) -> None:
        """A message is complete: its state, note and usage are final."""
        entry = self._stack.get(message.id)
        if entry is not None:
            entry.finish(message)
            self._mark(message.id)

    def update(self, message: Message, place: tuple[int, int] | None = None) -> None:
        """Show a message as it is now; one that streams again goes on from its text."""
        entry = self._stack.get(message.id)
        if entry is not None:
            entry.update(message, place or entry.place)
            self._mark(message.id)

    @property
    def cursor(self) -> str | None:
        """The id of the message that keys act on."""
        return self._cursor

    def codes(self, message_id: str) -> list[str]:
        """The code blocks of a message, in order."""
        entry = self._stack.get(message_id)
        return entry.codes() if entry is not None else []

    # -- keys and mouse -----------------------------------------------------------------------

    def action_pick(self, step: int) -> None:
        """Move the cursor to the next or previous message."""
        stack, last = self._stack, len(self._stack.entries) - 1
        if last < 0:
            return
        if self._cursor is not None:
            i = min(max(stack.index[self._cursor] + step, 0), last)
        else:
            i = last if self._following else stack.at(self.scroll_offset.y)[0]
        self._clear_selection()
        self.pick(stack.entries[i].message.id)

    def pick(self, message_id: str | None, *, scroll: bool = True) -> None:
        """Put the cursor on a message, and show it; None = on none."""
        self._cursor = message_id if message_id in self._stack.index else None
        self._strips.clear()
        self.refresh()
        if self._cursor is None or not scroll:
            return
        i = self._stack.index[self._cursor]
        self._change(lambda _: self._stack.lay(self._cells, self.size.height, i))
        start, end, view = self._stack.start(i), self._stack.start(i + 1), self.size.height
        if start < self.scroll_offset.y or end - start > view:
            self.scroll_to(y=start, animate=False)
        elif end > self.scroll_offset.y + view:
            self.scroll_to(y=end - view, animate=False)

    def action_half(self, step: int) -> None:
        """Scroll by half of what is in view."""
        self.scroll_relative(y=step * max(self.size.height // 2, 1), animate=False)

    def action_follow(self) -> None:
        """Go to the end and stay there."""
        self._following = True
        self._mark()

    def action_fold(self, message_id: str | None = None, part: str | None = None) -> None:
        """Fold a message's reasoning, calls or long text in or out."""
        entry = self._stack.get(message_id or self._target())
        if entry is not None and entry.toggle(part):
            if not entry.streaming:
                self._following = False
            self._mark(entry.message.id)

    def _target(self) -> str | None:
        """The message that keys act on: under the cursor, else the last one."""
        if self._cursor is not None:
            return self._cursor
        return self._stack.entries[-1].message.id if self._stack.entries else None

    def action_act(self, action: Action) -> None:
        """Have somebody else do something with the message."""
        if (target := self._target()) is not None:
            self.post_message(self.Picked(target, action))

    def action_copy(self) -> None:
        """Copy what is selected, or else the message."""
        if self.copy_selection():
            return
        entry = self._stack.get(self._target())
        if entry is not None:
            self._copy("message", entry.text)

    def action_copy_code(self, number: int = 0) -> None:
        """Copy code block ``number``; 0 = the last one, and the one before when asked again."""
        target = self._target()
        codes = self.codes(target) if target else []
        if not 0 <= number <= len(codes) or not codes:
            problem = f"there is no code block {number}" if number else "there is no code block"
            self.post_message(self.Copied("code block", 0, problem))
            return
        now = time.monotonic()
        if not number:
            who, last, when = self._copied
            again = who == target and now - when < _AGAIN
            number = (last - 2) % len(codes) + 1 if again else len(codes)
        self._copied = (target or "", number, now)
        self._copy(f"code block {number}", codes[number - 1])

    def copy_selection(self) -> bool:
        """Copy what the mouse has selected; False if that is nothing. For ``TextSelected``."""
        selection = self.text_selection
        text = self.get_selection(selection)[0] if selection is not None else ""
        if text:
            self._copy("selection", text)
        return bool(text)

    def _copy(self, what: str, text: str) -> None:
        done = clipboard.copy(self.app, text)
        problem = "" if done else "it is too long for the terminal's clipboard"
        self.post_message(self.Copied(what, len(text), problem))

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        """What is selected, with rows joined that were one line."""
        if selection.start is None or selection.end is None:  # all of it
            self._finish()
        stack = self._stack
        return selected(lambda y: stack.row(y)[2], stack.height, selection, GUTTER), "\n"

    def _clear_selection(self) -> None:
        if self.is_mounted and self.text_selection is not None:
            self.screen.clear_selection()

    def on_blur(self) -> None:
        """Who selects elsewhere does not mean this selection any more; it has been copied."""
        self._clear_selection()

    def on_click(self, event: events.Click) -> None:
        """Fold, step through branches, or put the cursor where the mouse is."""
        if self.text_selection is not None:
            return
        on_label = event.y == self.size.height - 1 and event.x >= self._columns - len(MORE)
        if on_label and not self._following:
            self.action_follow()
            return
        entry, part, row = self._stack.row(event.y + self.scroll_offset.y)
        if entry is None:
            return
        self.pick(entry.message.id, scroll=False)
        x = event.x - GUTTER
        if part == "head" and entry.place[1] > 1 and x < row.cells:
            middle = row.cells - len(row.runs[-1].text) // 2
            if x >= row.cells - len(row.runs[-1].text):
                self.action_act("previous" if x < middle else "next")
        elif part in ("reasoning", "calls") or (part == "rest" and row.runs[0].style == ("fold",)):
            self.action_fold(entry.message.id, part)
