"""The widget that shows a conversation."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Literal, TypeAlias

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.binding import Binding, BindingType
from textual.color import Color
from textual.geometry import Region, Size, Spacing
from textual.message import Message as Event
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer

from edgerun.chat import ToolCall, ToolCallDelta
from edgerun.tui import clipboard
from edgerun.tui.conversation import Message
from edgerun.tui.transcript.entry import Entry, Part
from edgerun.tui.transcript.lines import BLANK, Line, Run, Style
from edgerun.tui.transcript.selecting import SELECTED, highlighted, selected
from edgerun.tui.transcript.styles import CSS, NAMES

__all__ = ["Action", "Transcript"]

Action: TypeAlias = Literal["edit", "retry", "previous", "next", "continue"]

#: Seconds between repaints while text streams.
_FRAME = 1 / 25
#: Columns before the text: the cursor bar and a blank.
_GUTTER = 2
#: Text is never wider: longer rows are hard to read.
_MAX_WIDTH = 120
#: Seconds between looks at the clock while a model reasons.
_TICK = 0.25
#: Seconds within which a second "copy code" means the block before.
_AGAIN = 2.0
_MORE = " ↓ more · End "


class Transcript(ScrollView, can_focus=True):
    """The messages of a conversation, the last of which may be streaming.

    Only visible rows are drawn; rows are made when text comes or the width changes. ``feed`` marks
    what has changed, and at most 30 times a second it is shown.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"transcript--{name}" for name in NAMES}
    DEFAULT_CSS = f"""
Transcript {{
    overflow-x: hidden;
    overflow-y: scroll;
    scrollbar-size-vertical: 1;
    background: $background;
{CSS}
}}
"""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "pick(-1)", "Previous message", show=False),
        Binding("down", "pick(1)", "Next message", show=False),
        Binding("k", "scroll_up", "Scroll up", show=False),
        Binding("j", "scroll_down", "Scroll down", show=False),
        Binding("pageup,ctrl+b", "page_up", "Page up", show=False),
        Binding("pagedown,ctrl+f", "page_down", "Page down", show=False),
        Binding("home,g", "scroll_home", "First message", show=False),
        Binding("end,G", "follow", "Follow the end", show=False),
        Binding("enter,space,o", "fold", "Fold"),
        Binding("c", "copy", "Copy message"),
        Binding("y", "copy_code", "Copy code block"),
        *(Binding(str(n), f"copy_code({n})", f"Copy code block {n}", show=False)
          for n in range(1, 10)),
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

    def __init__(
        self,
        *,
        name: str | None = None,
        id: str | None = None,  # noqa: A002  Textual's name
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._entries: list[Entry] = []
        self._index: dict[str, int] = {}
        self._ends: list[int] = []  # the row after each entry
        self._cursor: str | None = None
        self._following = True
        self._dirty = False
        self._stale = 0  # the first entry whose rows may have changed
        self._laid_cells = 0
        self._strips: dict[int, Strip] = {}  # by row
        self._styles: dict[tuple[Style, str], RichStyle] = {}
        self._ground: Color | None = None
        self._painted = 0.0
        self._next: Timer | None = None  # the next repaint
        self._ticks: Timer | None = None  # the next look at the clock
        self._copied: tuple[str, int, float] = ("", 0, 0.0)

    # -- what is shown ------------------------------------------------------------------------

    def show(
        self,
        messages: Sequence[Message],
        siblings: Callable[[str], tuple[int, int]] = lambda _: (1, 1),
    ) -> None:
        """Show ``messages`` instead of what is shown; those that stay keep their rows.

        ``siblings`` gives of a message's id that it is the i-th (from 1) of n beside each other.
        """
        old = {e.message.id: e for e in self._entries}
        self._entries = []
        for message in messages:
            entry = old.get(message.id)
            if entry is None:
                entry = Entry(message, siblings(message.id))
            else:
                entry.update(message, siblings(message.id))
            self._entries.append(entry)
        self._index = {e.message.id: i for i, e in enumerate(self._entries)}
        if self._cursor not in self._index:
            self._cursor = None
        self._following = True
        self._stale = 0
        self._ends.clear()
        self._clear_selection()
        self._mark()

    def add(self, message: Message, place: tuple[int, int] = (1, 1)) -> None:
        """Show one more message at the end, and follow it."""
        self._index[message.id] = len(self._entries)
        self._stale = min(self._stale, len(self._entries))
        self._entries.append(Entry(message, place))
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
        entry = self._entry(message_id)
        if entry is not None and entry.message.state == "streaming":
            entry.feed(text, reasoning, calls)
            self._mark(message_id)

    def finish(self, message: Message) -> None:
        """A message is complete: its state, note and usage are final."""
        entry = self._entry(message.id)
        if entry is not None:
            entry.finish(message)
            self._mark(message.id)

    def update(self, message: Message, place: tuple[int, int] | None = None) -> None:  # type: ignore[override]
        """Show a message as it is now; one that streams again goes on from its text."""
        entry = self._entry(message.id)
        if entry is not None:
            entry.update(message, place or entry.place)
            self._mark(message.id)

    @property
    def allow_select(self) -> bool:
        """Text can be selected with the mouse."""
        return True

    @property
    def cursor(self) -> str | None:
        """The id of the message that keys act on."""
        return self._cursor

    @property
    def following(self) -> bool:
        """Whether the end stays in view as text comes."""
        return self._following

    def codes(self, message_id: str) -> list[str]:
        """The code blocks of a message, in order."""
        entry = self._entry(message_id)
        return entry.codes() if entry is not None else []

    def text(self) -> str:
        """All rows, as they are shown; for tests."""
        self._lay()
        return "\n".join(self._row(y)[2].text for y in range(self._height))

    def _entry(self, message_id: str | None) -> Entry | None:
        i = self._index.get(message_id or "")
        return None if i is None else self._entries[i]

    # -- painting -----------------------------------------------------------------------------

    @property
    def _cells(self) -> int:
        return max(min(self.size.width - _GUTTER, _MAX_WIDTH), 1)

    @property
    def _height(self) -> int:
        return self._ends[-1] if self._ends else 0

    def on_mount(self) -> None:
        """Paint what was shown before there was a screen."""
        super().on_mount()
        if self._dirty:
            self._mark()

    def _mark(self, message_id: str | None = None) -> None:
        """Something has changed: show it now, or when the last repaint is long enough ago."""
        self._dirty = True
        if message_id is not None:
            self._stale = min(self._stale, self._index[message_id])
        if self._next is None and self.is_attached:
            wait = max(self._painted + _FRAME - time.monotonic(), 0.001)  # none would never end
            self._next = self.set_timer(wait, self._frame)

    def _frame(self) -> None:
        self._next = None
        if self._dirty and self.size.width:
            self._paint()
        if self._ticks is None and self._thinking:
            self._ticks = self.set_timer(_TICK, self._tick)

    @property
    def _thinking(self) -> bool:
        return bool(self._entries) and self._entries[-1].thinking

    def _tick(self) -> None:
        """The seconds of reasoning go on without any text."""
        self._ticks = None
        if self._thinking:
            self._stale = min(self._stale, len(self._entries) - 1)
            self._mark()

    def _paint(self) -> None:
        self._dirty = False
        self._painted = time.monotonic()
        before, top, changed = self._height, self._top(), self._lay()
        size = Size(self.size.width, self._height)
        if size != self.virtual_size:
            self.virtual_size = size
        if self._following:
            self.scroll_to(y=self.max_scroll_y, animate=False)
        elif top is not None:
            self.scroll_to(y=self._start(top[0]) + top[1], animate=False)
        first = max(changed - self.scroll_offset.y, 0)
        last = min(max(before, self._height) - self.scroll_offset.y, self.size.height)
        if first < last:
            self.refresh(Region(0, first, self.size.width, last - first))

    def _top(self) -> tuple[int, int] | None:
        """The entry at the top of the view and how much of it is above, if rows will move."""
        if not self._ends or self._laid_cells == self._cells:
            return None
        i, y = self._at(self.scroll_offset.y)
        height = self._entries[i].height
        self._entries[i].lay(self._cells)
        return i, round(y * self._entries[i].height / max(height, 1))

    def _lay(self) -> int:
        """Make what rows are missing; the first row that may look different."""
        cells = self._cells
        if cells != self._laid_cells:
            self._stale, self._laid_cells = 0, cells
        i = min(self._stale, max(len(self._entries) - 1, 0))
        at = self._start(i)
        first = at if i < len(self._entries) else self._height
        changed: int | None = None
        del self._ends[i:]
        for entry in self._entries[i:]:
            row = entry.lay(cells)
            if changed is None:
                changed = at + row
            at += entry.height
            self._ends.append(at)
        self._stale = max(len(self._entries) - 1, 0)
        first = first if changed is None else changed
        for y in [y for y in self._strips if y >= first]:
            del self._strips[y]
        return first

    def _start(self, i: int) -> int:
        return self._ends[i - 1] if i else 0

    def _at(self, y: int) -> tuple[int, int]:
        """The entry that row ``y`` belongs to, and which of its rows that is."""
        i = min(bisect_right(self._ends, y), len(self._ends) - 1)
        return i, y - self._start(i)

    def _row(self, y: int) -> tuple[Entry | None, Part, Line]:
        """Row ``y``: the entry, the part of it, and what it shows."""
        if not 0 <= y < self._height:
            return None, "", BLANK
        i, row = self._at(y)
        return self._entries[i], *self._entries[i].row(row)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The rows of the view within ``crop``. A row is drawn, and filtered, once."""
        if self.styles.gutter != Spacing() or self.opacity != 1:
            return super().render_lines(crop)
        top, height, view = self.scroll_offset.y, self._height, self.size.height
        strips = []
        for y in crop.line_range:
            strip = self._strips.get(top + y)
            if strip is None:
                strip = self._strips[top + y] = self._filtered(self._draw(top + y))
            if y == view - 1 and not self._following and top + y < height - 1:
                strip = self._with_label(strip)
            strips.append(strip)
        start, end = crop.column_span
        if (start, end) != (0, self.size.width):
            strips = [strip.crop(start, end) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """One row of the view."""
        return self._draw(y + self.scroll_offset.y)

    def _filtered(self, strip: Strip) -> Strip:
        if self._ground is None:
            self._ground = self.background_colors[1]
        for line_filter in self.get_line_filters():
            strip = strip.apply_filter(line_filter, self._ground)
        return strip

    def _with_label(self, strip: Strip) -> Strip:
        """``strip``, the last in view, with a mark that there is more below."""
        cells = self.size.width
        if len(_MORE) >= cells:
            return strip
        more = self._filtered(Strip([Segment(_MORE, self._style(("more",)))], len(_MORE)))
        return Strip.join([strip.crop(0, cells - len(_MORE)), more])

    def _draw(self, y: int) -> Strip:
        """Row ``y`` of all."""
        cells = self.size.width
        entry, _, row = self._row(y)
        runs = [_gutter(entry, focused=self._is_cursor(entry)), *row.runs]
        selection = self.text_selection
        span = selection.get_span(y) if selection is not None else None
        if span is not None:
            runs = highlighted(runs, *span)
        segments = [Segment(r.text, self._style(r.style, r.link)) for r in runs]
        room = min(cells, self._cells + _GUTTER) - row.cells - _GUTTER
        if row.fill and room > 0:
            segments.append(Segment(" " * room, self._style(row.fill)))
        strip = Strip(segments).adjust_cell_length(cells, self._style(()))
        return strip.apply_offsets(0, y)

    def _is_cursor(self, entry: Entry | None) -> bool:
        return entry is not None and entry.message.id == self._cursor

    def _style(self, style: Style, link: str = "") -> RichStyle:
        found = self._styles.get((style, link))
        if found is None:
            found = self._blend([n for n in style if n in NAMES])
            if SELECTED in style:
                found += self.screen.get_component_rich_style("screen--selection")
            if link:
                found += RichStyle(link=link)
            self._styles[style, link] = found
        return found

    def _blend(self, names: Iterable[str]) -> RichStyle:
        """Component styles laid over each other and over the widget's own."""
        _, _, background, color = self.colors
        auto, text = False, self.styles.text_style
        for name in names:
            styles = self.get_component_styles(f"transcript--{name}")
            if styles.has_rule("background"):
                background += styles.background
            if styles.has_rule("color"):
                color, auto = styles.color, styles.auto_color
            text += styles.text_style
        if auto:
            color = background.get_contrast_text(color.a)
        return text + RichStyle.from_color((background + color).rich_color, background.rich_color)

    def notify_style_update(self) -> None:
        """Another theme: colours are looked up again, rows stay."""
        super().notify_style_update()
        self._styles.clear()
        self._strips.clear()
        self._ground = None

    def on_resize(self, event: events.Resize) -> None:
        """Rows are made for the new width at the next frame."""
        if event.size.width:
            self._strips.clear()
            self._mark()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Whoever leaves the end stops following it, whoever comes back follows again."""
        super().watch_scroll_y(old_value, new_value)
        self._following = new_value >= self.max_scroll_y

    # -- keys and mouse -----------------------------------------------------------------------

    def action_pick(self, step: int) -> None:
        """Move the cursor to the next or previous message."""
        if not self._entries:
            return
        if self._cursor is None:
            i = len(self._entries) - 1 if self._following else self._at(self.scroll_offset.y)[0]
        else:
            i = min(max(self._index[self._cursor] + step, 0), len(self._entries) - 1)
        self.pick(self._entries[i].message.id)

    def pick(self, message_id: str | None, *, scroll: bool = True) -> None:
        """Put the cursor on a message, and show it; None = on none."""
        self._cursor = message_id if message_id in self._index else None
        self._strips.clear()
        self.refresh()
        if self._cursor is None or not scroll:
            return
        self._lay()
        i = self._index[self._cursor]
        start, end, view = self._start(i), self._ends[i], self.size.height
        if start < self.scroll_offset.y or end - start > view:
            self.scroll_to(y=start, animate=False)
        elif end > self.scroll_offset.y + view:
            self.scroll_to(y=end - view, animate=False)

    def action_follow(self) -> None:
        """Go to the end and stay there."""
        self._following = True
        self._mark()

    def action_fold(self, message_id: str | None = None, part: str | None = None) -> None:
        """Fold a message's reasoning, calls or result in or out."""
        entry = self._entry(message_id or self._target())
        if entry is not None and entry.toggle(part):
            self._stale = min(self._stale, self._index[entry.message.id])
            if entry is not self._entries[-1] or self._height > self.size.height:
                self._following = False
            self._strips.clear()
            self._mark()

    def _target(self) -> str | None:
        """The message that keys act on: under the cursor, else the last one."""
        if self._cursor is not None:
            return self._cursor
        return self._entries[-1].message.id if self._entries else None

    def action_act(self, action: Action) -> None:
        """Have somebody else do something with the message."""
        if (target := self._target()) is not None:
            self.post_message(self.Picked(target, action))

    def action_copy(self) -> None:
        """Copy what is selected, or else the message."""
        if self.copy_selection():
            return
        entry = self._entry(self._target())
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
        self._lay()
        return selected(lambda y: self._row(y)[2], self._height, selection, _GUTTER), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Draw what is selected."""
        self._strips.clear()
        self.refresh()

    def _clear_selection(self) -> None:
        if self.is_mounted and self.text_selection is not None:
            self.screen.clear_selection()

    def on_click(self, event: events.Click) -> None:
        """Fold, step through branches, or put the cursor where the mouse is."""
        if self.text_selection is not None:
            return
        on_label = event.y == self.size.height - 1 and event.x >= self.size.width - len(_MORE)
        if on_label and not self._following:
            self.action_follow()
            return
        entry, part, row = self._row(event.y + self.scroll_offset.y)
        if entry is None:
            return
        self.pick(entry.message.id, scroll=False)
        x = event.x - _GUTTER
        if part == "head" and entry.place[1] > 1 and x < row.cells:
            middle = row.cells - len(row.runs[-1].text) // 2
            if x >= row.cells - len(row.runs[-1].text):
                self.action_act("previous" if x < middle else "next")
        elif part in ("reasoning", "calls") or (part == "result" and row.text[:1] in "▸▾"):
            self.action_fold(entry.message.id, part)


def _gutter(entry: Entry | None, *, focused: bool) -> Run:
    if focused:
        return Run("▌ ", ("cursor",))
    if entry is not None and entry.message.role == "user":
        return Run("│ ", ("gutter",))
    return Run("  ")
