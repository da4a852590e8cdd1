"""The line above the composer: files that go with the question, what waits, what is edited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from edgerun.tui.text import fit, one_line, width

__all__ = ["Chip", "Chips"]


class Chip(NamedTuple):
    """``kind``: ``file``, ``bad`` (a file that is refused), ``queued``, ``note``. ``key``: what a
    click on its cross takes away; "" = it has none."""

    kind: str
    text: str
    key: str = ""


class Chips(Widget):
    """As many rows as it takes, three at most."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "chips--file", "chips--bad", "chips--queued", "chips--note", "chips--ground",
    }  # fmt: skip
    DEFAULT_CSS = """
    Chips {
        display: none; height: auto; max-height: 3; padding: 0 1; background: $surface;
        & > .chips--ground { background: $surface; }
        & > .chips--file { color: $text-primary; background: $panel; }
        & > .chips--bad { color: $text-error; background: $panel; }
        & > .chips--queued { color: $text-warning; background: $panel; }
        & > .chips--note { color: $text-muted; background: $surface; }
    }
    """

    class Removed(Message):
        def __init__(self, key: str) -> None:
            super().__init__()
            self.key = key

    def __init__(self) -> None:
        super().__init__()
        self.chips: tuple[Chip, ...] = ()

    def show(self, chips: Sequence[Chip]) -> None:
        if tuple(chips) != self.chips:
            self.chips = tuple(chips)
            self.display = bool(chips)
            self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return max(1, len(self._rows(width)))

    def _rows(self, cells: int) -> list[list[tuple[Chip, str]]]:
        rows: list[list[tuple[Chip, str]]] = [[]]
        used = 0
        for chip in self.chips:
            cross = " ✕ " if chip.key else " "
            text = " " + fit(one_line(chip.text), max(cells - 5, 1)) + cross
            if used and used + 1 + width(text) > cells:
                rows.append([])
                used = 0
            rows[-1].append((chip, text))
            used += width(text) + 1
        return rows

    def render_line(self, y: int) -> Strip:
        rows = self._rows(self.size.width)
        ground = self.get_component_rich_style("chips--ground")
        segments: list[Segment] = []
        for chip, text in rows[y] if y < len(rows) else ():
            style = self.get_component_rich_style(f"chips--{chip.kind}")
            segments += [Segment(text, style + Style(meta={"chip": chip.key}))]
            segments += [Segment(" ", ground)]
        return Strip(segments).adjust_cell_length(self.size.width, ground)

    def on_click(self, event: events.Click) -> None:
        key = event.style.meta.get("chip")
        if key:
            self.post_message(self.Removed(str(key)))
