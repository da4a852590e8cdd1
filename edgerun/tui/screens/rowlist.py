"""A list of rows in columns: only what is visible is drawn, so that thousands cost nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

from edgerun.tui import themes
from edgerun.tui.screens.lines import Span, fit, shared, spans_width

__all__ = ["Column", "Row", "RowList"]

_contrast = lru_cache(256)(themes.contrast)


def _pale(text: Style, ground: Style) -> bool:
    """Whether a text could not be read there: in themes whose cursor is a bright bar."""
    fore, back = text.color, ground.bgcolor
    if fore is None or back is None or fore.triplet is None or back.triplet is None:
        return False
    return _contrast(fore.triplet.hex, back.triplet.hex) < 3


@dataclass(frozen=True)
class Column:
    """``width`` cells, or what the widest cell needs up to -``width``, or all the rest for 0.

    ``drop``: the list's width below which the column is left out. ``least``: of a column that gets
    the rest, cells that it has rather than others.
    """

    name: str
    width: int = 0
    align: str = "left"
    drop: int = 0
    least: int = 0


@dataclass(frozen=True)
class Row:
    """``key`` tells it from others; ``cells`` by column name; ``below`` is its second line.

    The cursor passes over a ``head``, a heading or a gap.
    """

    key: str
    cells: Mapping[str, Sequence[Span]] = field(default_factory=dict)
    below: Sequence[Span] = ()
    head: bool = False


class RowList(ScrollView, can_focus=False):
    """Rows with a cursor. Focus stays with the filter above: the screen moves the cursor."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "row--plain", "row--cursor", "row--hover", "row--muted", "row--match", "row--good",
        "row--warn", "row--bad", "row--accent", "row--bar", "row--strong", "row--track",
    }  # fmt: skip
    DEFAULT_CSS = """
    RowList {
        height: 1fr; background: $surface; scrollbar-size-vertical: 1;
        scrollbar-background: $surface; scrollbar-color: $border;
        & > .row--plain { color: $text; background: $surface; }
        & > .row--cursor {
            color: $text; background: $block-cursor-background; text-style: bold;
        }
        & > .row--hover { color: $text; background: $block-hover-background; }
        & > .row--muted { color: $text-muted; }
        & > .row--match { color: $text-accent; text-style: bold underline; }
        & > .row--good { color: $text-success; }
        & > .row--warn { color: $text-warning; }
        & > .row--bad { color: $text-error; }
        & > .row--accent { color: $text-primary; }
        & > .row--strong { color: $text; text-style: bold; }
        & > .row--bar { color: $text-primary; }
        & > .row--track { color: $border; }
        &:ansi > .row--cursor {
            color: ansi_default; background: ansi_default; text-style: bold reverse;
        }
    }
    """

    cursor: reactive[int] = reactive(0)
    hovered: reactive[int] = reactive(-1)

    class Chosen(Message):
        """A row was clicked that had the cursor already."""

        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    class Moved(Message):
        """The cursor stands on another row; ``key`` is None if there are none."""

        def __init__(self, key: str | None) -> None:
            super().__init__()
            self.key = key

    def __init__(self, columns: Sequence[Column], *, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.columns = tuple(columns)
        self.rows: tuple[Row, ...] = ()
        self._two = False
        self._widths: dict[tuple[int, int], list[tuple[Column, int]]] = {}
        self._version = 0

    # -- what is shown

    @property
    def row(self) -> Row | None:
        """The one under the cursor."""
        return self.rows[self.cursor] if 0 <= self.cursor < len(self.rows) else None

    def show(self, rows: Sequence[Row], keep: str | None = None) -> None:
        """Show ``rows``; the cursor goes to the key ``keep``, or stays on its key if that is there
        still, or goes to the first."""
        before = self.row.key if self.row else None
        self.rows = tuple(rows)
        self._two = any(r.below for r in rows)
        self._version += 1
        self._widths.clear()
        self._measure()
        keys = [r.key for r in rows]
        wanted = next((k for k in (keep, before) if k is not None and k in keys), None)
        first = next((i for i, r in enumerate(rows) if not r.head), 0)
        self.set_reactive(RowList.cursor, keys.index(wanted) if wanted is not None else first)
        self.refresh(layout=True)
        self._reveal()
        now = self.row.key if self.row else None
        if now != before:
            self.post_message(self.Moved(now))

    def update(self, row: Row) -> None:
        """Replace the row of the same key, e.g. as its download goes on."""
        for i, old in enumerate(self.rows):
            if old.key == row.key:
                self.rows = (*self.rows[:i], row, *self.rows[i + 1 :])
                self._version += 1
                self._widths.clear()
                self.refresh()
                return

    @property
    def line_height(self) -> int:
        return 2 if self._two else 1

    def _measure(self) -> None:
        self.virtual_size = Size(0, len(self.rows) * self.line_height)

    def on_resize(self) -> None:
        self._measure()
        self._reveal()

    # -- moving

    def move(self, by: int) -> None:
        """Move the cursor, to the first or last row at most."""
        last = len(self.rows) - 1
        to = max(0, min(last, self.cursor + by))
        way = 1 if by > 0 else -1
        onwards = (*range(to, last + 1 if way > 0 else -1, way), *range(to, self.cursor, -way))
        self.cursor = next((i for i in onwards if not self.rows[i].head), self.cursor)

    @property
    def page(self) -> int:
        return max(1, self.size.height // self.line_height - 1)

    def watch_cursor(self) -> None:
        self._reveal()
        self.refresh()
        self.post_message(self.Moved(self.row.key if self.row else None))

    def watch_hovered(self) -> None:
        self.refresh()

    def _reveal(self) -> None:
        if self.is_mounted and self.rows:
            first = self.cursor  # with the headings above it
            while first and self.rows[first - 1].head:
                first -= 1
            height = (self.cursor - first + 1) * self.line_height
            region = Region(0, first * self.line_height, 1, min(height, self.size.height))
            self.scroll_to_region(region, animate=False, force=True, immediate=True)

    def _at(self, event: events.MouseEvent) -> int:
        offset = event.get_content_offset(self)
        if offset is None:
            return -1
        i = (offset.y + self.scroll_offset.y) // self.line_height
        return i if 0 <= i < len(self.rows) else -1

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self.hovered = self._at(event)

    def on_leave(self) -> None:
        self.hovered = -1

    def on_click(self, event: events.Click) -> None:
        i = self._at(event)
        if i < 0 or self.rows[i].head:
            return
        if i == self.cursor:
            self.post_message(self.Chosen(self.rows[i].key))
        else:
            self.cursor = i

    # -- drawing

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        i, part = divmod(y + self.scroll_offset.y, self.line_height)
        if i >= len(self.rows):
            return Strip.blank(width, self.get_component_rich_style("row--plain"))
        row, here = self.rows[i], i == self.cursor
        name = "row--cursor" if here else "row--hover" if i == self.hovered else "row--plain"
        gutter: Span = ("▌ ", "bar") if here else ("  ", "")
        if part:
            spans = [gutter, *fit([("   ", ""), *row.below], width - 2)]
        else:
            spans = [gutter]
            for n, (column, w) in enumerate(self._laid_out(width - 2)):
                spans += [("  ", "")] if n else []
                spans += fit(row.cells.get(column.name, ()), w, column.align)
        strip = Strip([Segment(t, self._style(name, s)) for t, s in spans])
        return strip.adjust_cell_length(width, self._style(name, ""))

    def _style(self, row: str, span: str) -> Style:
        """That of a span in a row: the span's colour and weight on the row's ground."""
        base = self.get_component_rich_style(row)
        if not span:
            return base
        own = self.get_component_rich_style(f"row--{span}")
        weight = self.get_component_styles(f"row--{span}").text_style
        # A reversed colour would be the ground.
        if base.reverse or (span != "track" and _pale(own, base)):
            return base + weight
        return base + Style(color=own.color) + weight

    def _laid_out(self, width: int) -> list[tuple[Column, int]]:
        """The columns that are shown, and how wide."""
        key = (width, self._version)
        if key not in self._widths:
            shown = [c for c in self.columns if width >= c.drop]
            needs = {c.name: self._needs(c) for c in shown}
            shown = [c for c in shown if needs[c.name] or not c.width]
            room = width - 2 * (len(shown) - 1)
            sizes = shared(
                room,
                [needs[c.name] for c in shown],
                [c.width for c in shown],
                max((c.least for c in shown), default=0),
            )
            self._widths[key] = list(zip(shown, sizes, strict=True))
        return self._widths[key]

    def _needs(self, column: Column) -> int:
        if column.width > 0:
            return column.width
        cells = (r.cells.get(column.name, ()) for r in self.rows)
        widest = max(map(spans_width, cells), default=0)
        return min(-column.width, widest) if column.width else widest
