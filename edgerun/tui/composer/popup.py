"""The list above the composer from which a command, a value or a file is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from edgerun.tui.text import fit, one_line, width

if TYPE_CHECKING:
    from edgerun.tui.composer.complete import Item

__all__ = ["Popup"]

_ROWS = 8


class Popup(Widget):
    """Floats over the transcript, so that nothing moves when it opens."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "popup--label", "popup--detail", "popup--at", "popup--at-detail",
    }  # fmt: skip
    DEFAULT_CSS = """
    Popup {
        display: none; height: auto; width: 100%; background: $panel;
        overlay: screen; constrain: none inside;
        & > .popup--label { color: $foreground; background: $panel; }
        & > .popup--detail { color: $text-muted; background: $panel; }
        & > .popup--at { color: $block-cursor-foreground; background: $block-cursor-background;
                         text-style: bold; }
        & > .popup--at-detail { color: $block-cursor-foreground;
                                background: $block-cursor-background; }
    }
    """

    class Chosen(Message):
        """A row was clicked."""

        def __init__(self, item: Item) -> None:
            super().__init__()
            self.item = item

    def __init__(self) -> None:
        super().__init__()
        self.items: list[Item] = []
        self.hint = ""
        self.at: int | None = None
        self._top = 0

    @property
    def open(self) -> bool:
        return bool(self.items)

    @property
    def item(self) -> Item | None:
        """The row the cursor is on."""
        return self.items[self.at] if self.at is not None and self.at < len(self.items) else None

    def show(self, items: Sequence[Item], *, first: bool = True, hint: str = "") -> None:
        """``first``: whether the cursor stands on a row from the start. ``hint``: a line when there
        are no rows."""
        before = self.item
        self.items, self.hint = list(items), hint if not items else ""
        self.at = 0 if first and items else None
        if before is not None and self.at is not None and before in self.items:
            self.at = self.items.index(before)
        self._top = 0
        self._scroll()
        rows = min(len(self.items), _ROWS) + bool(len(self.items) > _ROWS) or bool(self.hint)
        self.display = bool(rows)
        self.styles.height = rows
        self.styles.offset = (0, -rows)
        self.refresh()

    def hide(self) -> None:
        if self.display:
            self.show(())

    def move(self, by: int) -> None:
        """Around the ends."""
        if self.items:
            if self.at is None:
                self.at = 0 if by > 0 else len(self.items) - 1
            else:
                self.at = (self.at + by) % len(self.items)
            self._scroll()
            self.refresh()

    def _scroll(self) -> None:
        at = self.at or 0
        self._top = min(max(self._top, at - _ROWS + 1), at)

    def render_line(self, y: int) -> Strip:
        cells = self.size.width
        detail = self.get_component_rich_style("popup--detail")
        if not self.items or y == _ROWS:
            text = self.hint or f"{(self.at or 0) + 1} of {len(self.items)}"
            line = Segment(" " + fit(text, cells - 2), detail)
            return Strip([line]).adjust_cell_length(cells, detail)
        i = self._top + y
        if i >= len(self.items):
            return Strip.blank(cells, detail)
        at = "at" if i == self.at else "label"
        one = self.get_component_rich_style(f"popup--{at}")
        two = self.get_component_rich_style("popup--at-detail") if i == self.at else detail
        labels = [width(one_line(item.label)) for item in self.items[self._top : self._top + _ROWS]]
        column = min(max(labels) + 2, cells * 3 // 5)
        label = fit(one_line(self.items[i].label), column - 1)
        text = fit(one_line(self.items[i].detail), max(cells - column - 2, 0))
        gap = " " * (column - width(label))
        row = [Segment(f" {label}{gap}", one), Segment(text, two)]
        return Strip(row).adjust_cell_length(cells, two)

    def on_click(self, event: events.Click) -> None:
        i = self._top + event.y
        if event.y < _ROWS and i < len(self.items):
            self.post_message(self.Chosen(self.items[i]))

    def on_mouse_scroll_down(self) -> None:
        self.move(1)

    def on_mouse_scroll_up(self) -> None:
        self.move(-1)
