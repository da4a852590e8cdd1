"""The text area that questions are written in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.document._document import Location, Selection
from textual.message import Message
from textual.strip import Strip
from textual.widgets._text_area import TextArea

from edgerun.tui.composer.folding import Folds
from edgerun.tui.composer.history import History
from edgerun.tui.text import clean, graphemes

__all__ = ["Area"]

#: Without a width: joiners and direction marks, which no ``str.isprintable`` lets through.
_JOINERS = ("\u200c", "\u200d", "\u200e", "\u200f", "\u061c")


class Area(TextArea):
    """Enter sends, Shift+Enter begins a line; long pastes fold; up and down reach the history;
    the cursor moves over whole characters, however many code points they have."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "send", show=False),
        Binding("shift+enter,ctrl+j,alt+enter", "newline", "new line (or \\ at a line's end)"),
        Binding("up", "cursor_up", "earlier question, on the first line", show=False),
        Binding("down", "cursor_down", "later question, on the last line", show=False),
        Binding("tab", "complete", "complete", show=False),
        Binding("ctrl+a", "cursor_line_start", "start of line", show=False),
        Binding("ctrl+e", "cursor_line_end", "end of line", show=False),
        Binding("ctrl+w,alt+backspace", "delete_word_left", "delete a word", show=False),
        Binding("ctrl+u", "delete_to_start_of_line", "delete to the start of the line", show=False),
        Binding(
            "ctrl+k", "delete_to_end_of_line_or_delete_line", "delete to the end of the line",
            show=False,
        ),
        Binding("ctrl+d", "delete_or_leave", "leave, if nothing is typed"),
        Binding("ctrl+z", "undo", "undo typing", show=False),
        Binding("ctrl+y", "redo", "redo typing", show=False),
        Binding("alt+left", "cursor_word_left", show=False),
        Binding("alt+right", "cursor_word_right", show=False),
    ]  # fmt: skip

    class Submitted(Message):
        """``text`` is to be sent; the draft is empty now. ``shown`` has long pastes folded: what
        looks like a file's name in them is none."""

        def __init__(self, text: str, shown: str) -> None:
            super().__init__()
            self.text = text
            self.shown = shown

    class Edge(Message):
        """A key that has nothing to do here: Tab, Enter and up without text."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self, placeholder: str = "", id: str | None = None) -> None:  # noqa: A002
        super().__init__(
            placeholder=placeholder, id=id, compact=True, highlight_cursor_line=False,
            tab_behavior="indent", max_checkpoints=200,
        )  # fmt: skip
        self.asked = History()
        #: Asked first about each key; True = it was dealt with.
        self.keys: Callable[[str], bool] | None = None
        self.folds = Folds()
        self.cursor_blink = False
        self.match_cursor_bracket = False

    # -- the draft ----------------------------------------------------------------------------

    @property
    def draft(self) -> str:
        """The text, folded pastes whole."""
        return self.folds.unfold(self.text)

    def write(self, draft: str) -> None:
        """Replace the draft; the cursor goes to its end. Can be undone."""
        self._put(clean(draft))

    def _put(self, text: str) -> None:
        folded = self.folds.fold(text)
        self.replace(folded, (0, 0), self.document.end, maintain_selection_offset=False)
        self.move_cursor(self.document.end)

    def insert_text(self, text: str) -> None:
        """At the cursor, in place of what is selected."""
        result = self._replace_via_keyboard(text, *self.selection)
        if result is not None:
            self.move_cursor(result.end_location)

    def take(self) -> str:
        """The draft; it is empty then."""
        draft = self.draft
        self.clear()
        self.folds.clear()
        self.history.clear()
        return draft

    # -- keys ---------------------------------------------------------------------------------

    async def _on_key(self, event: events.Key) -> None:
        """Each key has done its work before the next one is looked at. Left to Textual, bindings
        run after the letters typed behind them, which matters where keys come in bursts."""
        if self.keys is not None and self.keys(event.key):
            event.stop()
            event.prevent_default()
        elif event.is_printable:
            self.asked.leave()  # and the base inserts it
        elif _joins(event.character):
            event.stop()
            event.prevent_default()
            self.asked.leave()
            self.insert_text(event.character or "")
        else:
            event.prevent_default()
            for binding in self._bindings.key_to_bindings.get(event.key, ()):
                event.stop()
                await self.run_action(binding.action)

    async def _on_paste(self, event: events.Paste) -> None:
        # Terminals send a line's end as CR. One paste is one change, and never sends anything.
        event.prevent_default()
        event.stop()
        self.asked.leave()
        self.insert_text(self.folds.fold(clean(event.text)))
        self.focus()

    def action_submit(self) -> None:
        row, column = self.cursor_location
        line = self.document[row]
        if line.endswith("\\") and not line.endswith("\\\\") and column == len(line):
            self.replace("\n", (row, column - 1), (row, column), maintain_selection_offset=False)
            return
        draft = self.draft
        if draft.strip():
            self.asked.add(draft)
            shown = self.text
            self.take()
            self.post_message(self.Submitted(draft, shown))
        else:
            self.post_message(self.Edge("enter"))

    def action_delete_or_leave(self) -> None:
        if self.text:
            self.action_delete_right()
        else:
            self.post_message(self.Edge("ctrl+d"))

    def action_newline(self) -> None:
        self.insert_text("\n")

    def action_complete(self) -> None:
        self.post_message(self.Edge("tab"))

    def action_paste(self) -> None:
        self.insert_text(self.folds.fold(clean(self.app.clipboard)))

    def action_cursor_up(self, select: bool = False) -> None:
        if select or not self.cursor_at_first_line:
            super().action_cursor_up(select)
        elif not self.text and not self.asked.browsing:
            self.post_message(self.Edge("up"))
        else:
            self.recall_older()

    def recall_older(self) -> None:
        older = self.asked.older(self.draft)
        if older is None:
            super().action_cursor_up()
        else:
            self._put(older)

    def action_cursor_down(self, select: bool = False) -> None:
        newer = None if select or not self.cursor_at_last_line else self.asked.newer()
        if newer is None:
            super().action_cursor_down(select)
        else:
            self._put(newer)

    def action_delete_left(self) -> None:
        row, column = self.cursor_location
        folded = self.folds.ending(self.document[row][:column]) if self.selection.is_empty else 0
        self.asked.leave()
        if folded:
            self.delete((row, column - folded), (row, column), maintain_selection_offset=False)
        else:
            super().action_delete_left()

    # -- whole characters ---------------------------------------------------------------------

    def clamp_visitable(self, location: Location) -> Location:
        row, column = super().clamp_visitable(location)
        line = self.document[row] if row < self.document.line_count else ""
        if line.isascii() or column in (0, len(line)):
            return row, column
        for start, end, _ in graphemes(line):
            if start <= column < end:
                return row, start
        return row, column

    def get_cursor_right_location(self) -> Location:
        row, column = self.selection.end
        line = self.document[row]
        if not line.isascii():
            for start, end, _ in graphemes(line):
                if start <= column < end:
                    return row, end
        return super().get_cursor_right_location()

    def get_cursor_left_location(self) -> Location:
        return self.clamp_visitable(super().get_cursor_left_location())

    def _validate_selection(self, selection: Selection) -> Selection:
        return Selection(*map(self.clamp_visitable, selection))

    def _recompute_cursor_offset(self) -> None:
        # An undo takes lines away, and looks at scrollbars, before it moves the cursor off them.
        with suppress(ValueError):
            super()._recompute_cursor_offset()  # type: ignore[no-untyped-call]

    def render_line(self, y: int) -> Strip:
        return joined(super().render_line(y))


def _joins(character: str | None) -> bool:
    """Whether a key is a joiner or a direction mark: nothing by itself, but part of emoji, and of
    Persian and other scripts, so that keyboards have it."""
    return character is not None and character in _JOINERS


def joined(strip: Strip) -> Strip:
    """The strip with no character cut in two by a change of style: the cursor's is put on one code
    point, and the rest of an emoji behind it would count as nothing."""
    if all(s.text.isascii() for s in strip):
        return strip
    out: list[Segment] = []
    for segment in strip:
        text, style, control = segment
        if out and text and not text.isascii():
            before = out[-1].text
            spans = graphemes(before + text)
            inside = next((end for start, end, _ in spans if start < len(before) < end), None)
            if inside is not None:
                cut = inside - len(before)
                out[-1] = Segment(before + text[:cut], out[-1].style, out[-1].control)
                text = text[cut:]
        if text or control:
            out.append(Segment(text, style, control))
    width = strip.cell_length
    return Strip(out).adjust_cell_length(width, out[-1].style if out else None)
