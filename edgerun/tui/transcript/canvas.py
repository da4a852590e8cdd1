"""The part of the transcript that paints: entries as rows, rows as strips of the screen."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.color import Color
from textual.geometry import Region, Size, Spacing
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from edgerun.tui.transcript.lines import Run, Style
from edgerun.tui.transcript.selecting import SELECTED, highlighted
from edgerun.tui.transcript.stack import Stack
from edgerun.tui.transcript.styles import CSS, NAMES

if TYPE_CHECKING:
    from edgerun.tui.transcript.entry import Entry

__all__ = ["GUTTER", "MORE", "Canvas"]

#: Columns before the text: the cursor bar and a blank.
GUTTER = 2
#: At the end of the last row in view while there is more below it.
MORE = " ↓ more · End "

#: Seconds between repaints while text streams.
_FRAME = 1 / 16
#: Seconds between looks at the clock while a model reasons.
_TICK = 0.25
#: Text is never wider: longer rows are hard to read.
_MAX_WIDTH = 120
#: Seconds of work on rows out of view at a time, and between two such times.
_SLICE, _PAUSE = 0.01, 0.03
_MAX_STRIPS = 1000


#: Runs, cells to the right of them, and the style of these.
_Look: TypeAlias = tuple[tuple[Run, ...], int, Style]


class Canvas(ScrollView):
    """Entries below each other. Rows are made when their entry changes or the width does, strips
    when they come into view; what is at the end or at the top of the view stays there."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"transcript--{name}" for name in NAMES}
    DEFAULT_CSS = f"""
Canvas {{
    overflow-x: hidden;
    overflow-y: scroll;
    scrollbar-size-vertical: 1;
    background: $background;
{CSS}
}}
"""

    def __init__(
        self,
        *,
        name: str | None = None,
        id: str | None = None,  # noqa: A002  Textual's name
        classes: str | None = None,
    ) -> None:
        super().__init__(name=name, id=id, classes=classes)
        self._stack = Stack()
        self._cursor: str | None = None
        self._following = True
        self._dirty = False
        self._strips: dict[int, tuple[_Look, Strip]] = {}  # by row
        self._styles: dict[tuple[Style, str], RichStyle] = {}
        self._ground: Color | None = None
        self._bar: object = None  # what the scrollbar looks like
        self._selected: Selection | None = None
        self._painted = 0.0
        self._next: Timer | None = None  # the next repaint
        self._ticks: Timer | None = None  # the next look at the clock
        self._work: Timer | None = None  # on rows that are not in view

    @property
    def following(self) -> bool:
        """Whether the end stays in view as text comes."""
        return self._following

    @property
    def allow_select(self) -> bool:
        """Text can be selected with the mouse."""
        return True

    @property
    def _columns(self) -> int:
        """Of the view, without the scrollbar."""
        return self.scrollable_content_region.width

    @property
    def _cells(self) -> int:
        return max(min(self._columns - GUTTER, _MAX_WIDTH), 1)

    def on_mount(self) -> None:
        """Paint what was shown before there was a screen."""
        if self._dirty:
            self._mark()

    def _mark(self, message_id: str | None = None) -> None:
        """Something has changed: show it now, or when the last repaint is long enough ago."""
        self._dirty = True
        if message_id is not None:
            self._stack.touch(self._stack.index[message_id])
        if self._next is None and self.is_attached:
            wait = max(self._painted + _FRAME - time.monotonic(), 0.001)  # none would never end
            self._next = self.set_timer(wait, self._frame)

    def _frame(self) -> None:
        self._next = None
        if self._dirty and self._columns:
            self.paint()
        if self._ticks is None and self._thinking:
            self._ticks = self.set_timer(_TICK, self._tick)

    @property
    def _thinking(self) -> bool:
        return bool(self._stack.entries) and self._stack.entries[-1].thinking

    def _tick(self) -> None:
        """The seconds of reasoning go on without any text."""
        self._ticks = None
        if self._thinking:
            self._mark(self._stack.entries[-1].message.id)

    def paint(self) -> None:
        """Show now what has come, instead of at the next repaint."""
        self._dirty = False
        self._painted = time.monotonic()
        self._change(lambda i: self._stack.lay(self._cells, self.size.height, i))
        if self._stack.waiting and self._work is None:
            self._work = self.set_timer(_PAUSE, self._go_on)

    def _go_on(self) -> None:
        """Rows that are not in view are made bit by bit."""
        self._work = None
        if self._stack.waiting and self._columns:
            if self._selected is None:  # it is known by rows, which must not move
                self._change(lambda _: self._stack.work(_SLICE))
            self._work = self.set_timer(_PAUSE, self._go_on)

    def _finish(self) -> None:
        """Make all rows now."""
        self._change(lambda i: self._stack.lay(self._cells, self.size.height, i))
        self._change(lambda _: self._stack.finish())

    def _change(self, make: Callable[[int | None], None]) -> None:
        """Have ``make`` make rows, given the entry at the top of the view or None at the end, and
        paint what looks different. What is at the top, or at the end, stays there."""
        stack, height, cells = self._stack, self._stack.height, self._stack.cells
        held = None if self._following or not height else stack.at(self.scroll_offset.y)
        old = stack.entries[held[0]].height if held else 0
        make(held[0] if held else None)
        size = Size(self._columns, stack.height)
        if size != self.virtual_size:
            # Assigned, it would lay out and paint the whole screen for each new row.
            self.set_reactive(Widget.virtual_size, size)
        if self._following:
            self.scroll_to(y=self.max_scroll_y, animate=False)
        elif held and held[0] < len(stack.entries):
            self._stay(*held, old, scaled=cells != stack.cells)
        else:
            self.scroll_y = self.validate_scroll_y(self.scroll_y)
        self._move_bar()
        if stack.changed is not None:
            self._refresh_rows(stack.changed, max(height, stack.height))
            stack.changed = None

    def _stay(self, i: int, y: int, old: int, *, scaled: bool) -> None:
        """Keep row ``y`` of the i-th entry, once ``old`` rows high, at the top of the view."""
        height = self._stack.entries[i].height
        if scaled:  # another width: about the same words
            y = round(y * height / max(old, 1))
        y = self._stack.start(i) + min(y, max(height - 1, 0))
        if y != self.scroll_offset.y:
            self.scroll_to(y=y, animate=False)

    def _refresh_rows(self, first: int, last: int) -> None:
        """Paint of the rows from ``first`` up to ``last`` those in view that look different."""
        top, view = self.scroll_offset.y, self.size.height
        if len(self._strips) > _MAX_STRIPS:
            self._strips.clear()
        for y in [y for y in self._strips if y >= first and not top <= y < top + view]:
            del self._strips[y]
        changed = []
        for y in range(max(first, top), min(last, top + view)):
            known = self._strips.get(y)
            if known is None or known[0] != self._look(y):
                self._strips.pop(y, None)
                changed.append(y - top)
        if changed:
            rows = changed[-1] - changed[0] + 1
            self.refresh(Region(0, changed[0], self._columns, rows))

    def _move_bar(self) -> None:
        """Let the scrollbar tell where the view is. Painting it costs as much as the text, so at
        the end of a growing text only its height in halves of a row counts."""
        view, height = self.size.height, max(self._stack.height, 1)
        look = (view, round(2 * view * view / height), None if self._following else height)
        bar = self.vertical_scrollbar
        if look != self._bar or not self._following:
            self._bar = look
            bar.window_size, bar.window_virtual_size = view, self._stack.height
            bar.position = self.scroll_y

    def render_lines(self, crop: Region) -> list[Strip]:
        """The rows of the view within ``crop``. A row is drawn, and filtered, once."""
        if self.styles.gutter != Spacing() or self.opacity != 1:
            return super().render_lines(crop)
        top, height, view = self.scroll_offset.y, self._stack.height, self.size.height
        columns = self._columns
        strips = []
        for y in crop.line_range:
            if (known := self._strips.get(top + y)) is None:
                look = self._look(top + y)
                known = self._strips[top + y] = look, self._filtered(self._draw(look, columns))
            strip = known[1]
            if crop.height == 1:  # the mouse asks which character it is on
                strip = strip.apply_offsets(0, top + y)
            if y == view - 1 and not self._following and top + y < height - 1:
                strip = self._with_label(strip, columns)
            strips.append(strip)
        start, end = crop.column_span
        if (start, end) != (0, columns):
            strips = [strip.crop(start, end) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """One row of the view."""
        y += self.scroll_offset.y
        return self._draw(self._look(y), self._columns).apply_offsets(0, y)

    def _filtered(self, strip: Strip) -> Strip:
        if self._ground is None:
            self._ground = self.background_colors[1]
        for line_filter in self.get_line_filters():
            strip = strip.apply_filter(line_filter, self._ground)
        return strip

    def _with_label(self, strip: Strip, cells: int) -> Strip:
        """``strip``, the last in view, with a mark that there is more below."""
        if len(MORE) >= cells:
            return strip
        more = self._filtered(Strip([Segment(MORE, self._style(("more",)))], len(MORE)))
        return Strip.join([strip.crop(0, cells - len(MORE)), more])

    def _look(self, y: int) -> _Look:
        """All that row ``y`` is drawn from."""
        entry, _, row = self._stack.row(y)
        runs = [_gutter(entry, focused=self._is_cursor(entry)), *row.runs]
        if self._selected is not None and (span := self._selected.get_span(y)) is not None:
            runs = highlighted(runs, max(span[0], GUTTER), span[1])
        return tuple(runs), max(self._stack.cells - row.cells, 0), row.fill

    def _draw(self, look: _Look, cells: int) -> Strip:
        runs, room, fill = look
        segments = [Segment(r.text, self._style(r.style, r.link)) for r in runs]
        if fill and room:
            segments.append(Segment(" " * room, self._style(fill)))
        return Strip(segments).adjust_cell_length(cells, self._style(()))

    def _is_cursor(self, entry: Entry | None) -> bool:
        return entry is not None and entry.message.id == self._cursor

    def _style(self, style: Style, link: str = "") -> RichStyle:
        found = self._styles.get((style, link))
        if found is None:
            found = self._blend(style)
            if link:
                found += RichStyle(link=link)
            self._styles[style, link] = found
        return found

    def _blend(self, names: Iterable[str]) -> RichStyle:
        """Component styles laid over each other and over the widget's own."""
        _, _, background, color = self.colors
        auto, text = False, self.styles.text_style
        for name in names:
            if name == SELECTED:
                styles = self.screen.get_component_styles("screen--selection")
            else:
                styles = self.get_component_styles(f"transcript--{name}")
            if styles.has_rule("background"):
                background += styles.background
            if styles.has_rule("color") and (styles.color.a or styles.auto_color):
                color, auto = styles.color, styles.auto_color
            text += styles.text_style
        if auto:
            color = background.get_contrast_text(color.a)
        return text + RichStyle.from_color((background + color).rich_color, background.rich_color)

    def selection_updated(self, selection: Selection | None) -> None:
        """Show what the mouse has selected."""
        self._selected = selection
        self._strips.clear()
        self.refresh()

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
        self._following = new_value >= self.max_scroll_y
        self._move_bar()
        if self._stack.waiting:
            self._mark()  # rows that were out of view may be missing
        if round(old_value) != round(new_value):
            self.refresh(self.size.region)


def _gutter(entry: Entry | None, *, focused: bool) -> Run:
    if focused:
        return Run("▌ ", ("cursor",))
    if entry is not None and entry.message.role == "user":
        return Run("│ ", ("gutter",))
    return Run("  ")
