"""What the modal screens have in common: a panel over the chat, its hints, and a list that is
filtered as one types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from edgerun.tui.screens.rowlist import Column, Row, RowList

__all__ = ["Hint", "Hints", "ListPanel", "Panel", "field"]

T = TypeVar("T")

#: A key, what it does here, and the screen's action that does it, for the mouse.
Hint = tuple[str, str, str]


def field(value: str = "", *, placeholder: str = "", id: str | None = None) -> Input:  # noqa: A002
    """An input of one line without a box of its own."""
    made = Input(value, placeholder=placeholder, id=id, compact=True, select_on_focus=False)
    made.cursor_blink = False
    return made


class Hints(Widget):
    """The keys that work here, on one line; whole ones are left out where it is narrow.

    A click on one does the same.
    """

    COMPONENT_CLASSES: ClassVar[set[str]] = {"hints--key", "hints--text"}
    DEFAULT_CSS = """
    Hints {
        height: 1; margin-top: 1; background: $surface;
        & > .hints--key { color: $text-primary; background: $surface; }
        & > .hints--text { color: $text-muted; background: $surface; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.hints: tuple[Hint, ...] = ()

    def show(self, hints: Sequence[Hint]) -> None:
        if tuple(hints) != self.hints:
            self.hints = tuple(hints)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        key_style = self.get_component_rich_style("hints--key")
        text_style = self.get_component_rich_style("hints--text")
        segments: list[Segment] = []
        left = self.size.width
        for key, text, action in self._fitting(left):
            link = Style(meta={"@click": f"screen.{action}"}) if action else Style()
            segments += [Segment("  ", text_style)] if segments else []
            segments += [Segment(key, key_style + link), Segment(f" {text}", text_style + link)]
        return Strip(segments).adjust_cell_length(left, text_style)

    def _fitting(self, width: int) -> list[Hint]:
        """From the left, as many as fit; the last, how to leave, always."""
        needs = [cell_len(f"{key} {text}") + 2 for key, text, _ in self.hints]
        if not self.hints:
            return []
        left = width + 2 - needs[-1]
        kept: list[Hint] = []
        for hint, need in zip(self.hints[:-1], needs, strict=False):
            if need > left:
                break
            left -= need
            kept.append(hint)
        return [*kept, self.hints[-1]]


class Panel(ModalScreen[T]):
    """A panel in the middle of the terminal, or all of it where that is small."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (72, "-roomy")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-low"), (20, "-tall")]  # noqa: RUF012
    AUTO_FOCUS = "Input"
    DEFAULT_CSS = """
    Panel {
        align: center middle; background: $background 55%;
        & > #panel {
            width: 88%; max-width: 100; height: auto; max-height: 86%;
            background: $surface; color: $text; padding: 1 2 0 2;
            border: round $border; border-title-color: $text; border-title-style: bold;
            border-subtitle-color: $text-muted;
        }
        & > #panel.-small { max-width: 68; }
        &.-narrow > #panel { width: 100%; padding: 0 1; }
        &.-low > #panel { max-height: 100%; padding: 0 1; }
        &.-low Hints { margin-top: 0; }
        &.-narrow Hints { margin-top: 0; }
        & Input { background: $panel; color: $text; padding: 0 1; background-tint: transparent; }
        & Input:focus { background: $panel; background-tint: transparent; }
        & .input--placeholder { color: $text-muted; }
        & .note { color: $text-muted; width: 1fr; height: auto; background: $surface; }
        & .wrong { color: $text-error; width: 1fr; height: auto; background: $surface; }
        & .field { color: $text-muted; width: auto; height: 1; background: $surface; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", show=False),
    ]

    def box(self, title: str, *children: Widget, small: bool = False) -> Vertical:
        """The panel, with ``title`` in its border."""
        panel = Vertical(*children, id="panel", classes="-small" if small else "")
        panel.border_title = Content(title).markup
        return panel

    def action_close(self) -> None:
        self.dismiss(None)


class ListPanel(Panel[T]):
    """A filter above a list. What is typed filters; arrows move; Enter chooses.

    A subclass says what the rows are, and what choosing one does.
    """

    DEFAULT_CSS = """
    ListPanel {
        & > #panel { height: 86%; max-height: 34; }
        & RowList { margin-top: 1; }
        & #empty { margin-top: 1; padding: 0 2; height: 1fr; }
        & #detail { margin-top: 1; padding: 0 2; max-height: 4; }
        &.-low > #panel { height: 100%; }
        &.-low RowList { margin-top: 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,ctrl+p", "move(-1)", "the row above", show=False),
        Binding("down,ctrl+n", "move(1)", "the row below", show=False),
        Binding("pageup", "page(-1)", "a page up", show=False),
        Binding("pagedown", "page(1)", "a page down", show=False),
        Binding("ctrl+home", "move(-1000000)", "the first row", show=False),
        Binding("ctrl+end", "move(1000000)", "the last row", show=False),
    ]
    NAME = ""
    PLACEHOLDER = "type to filter"
    COLUMNS: ClassVar[Sequence[Column]] = (Column("name"),)

    # -- a subclass's part

    def rows(self, words: list[str]) -> list[Row]:
        """The rows that hold each of ``words``, which are in lower case."""
        raise NotImplementedError

    def empty(self, words: list[str]) -> str:
        """What to say, and what to do, when there are none."""
        raise NotImplementedError

    def hints(self, row: Row | None) -> list[Hint]:
        """The keys that work on ``row``."""
        raise NotImplementedError

    def choose(self, key: str) -> None:
        """Enter, or a second click, on the row ``key``."""
        raise NotImplementedError

    def detail(self, key: str | None) -> str:
        """What there is to say of the row ``key`` below the list; "" = nothing."""
        return ""

    def filtered(self) -> None:
        """The filter's text is another one."""
        self.reload(first=True)

    def moved(self) -> None:
        """The cursor is on another row."""
        self.retell()

    # -- the screen

    def compose(self) -> ComposeResult:
        self.filter = field(placeholder=self.PLACEHOLDER, id="filter")
        self.list = RowList(self.COLUMNS, id="rows")
        self.note = Static("", id="empty", classes="note", markup=False)
        self.detail_line = Static("", id="detail", classes="note", markup=False)
        self.detail_line.display = False
        self.bar = Hints()
        yield self.box(self.NAME, self.filter, self.list, self.note, self.detail_line, self.bar)

    def on_mount(self) -> None:
        self.reload()

    @property
    def words(self) -> list[str]:
        return self.filter.value.lower().split()

    @property
    def key(self) -> str | None:
        """That of the row under the cursor."""
        return self.list.row.key if self.list.row else None

    def reload(self, keep: str | None = None, *, first: bool = False) -> None:
        """Show what there is now; the cursor stays on its row, or goes to ``keep``, or to the
        first."""
        rows = self.rows(self.words)
        self.list.show(rows, next((r.key for r in rows if not r.head), None) if first else keep)
        self.list.display = bool(rows)
        self.note.display = not rows
        if not rows:
            self.note.update(self.empty(self.words))
        self.retell()

    def retell(self) -> None:
        """Say again what can be done here, and what there is to say of the row."""
        self.bar.show(self.hints(self.list.row))
        text = self.detail(self.key)
        self.detail_line.display = bool(text)
        self.detail_line.update(text)

    def say(self, text: str) -> None:
        """One line in the panel's lower border, until the next."""
        self.query_one("#panel").border_subtitle = Content(text).markup

    @on(Input.Changed, "#filter")
    def _filtered(self) -> None:
        self.filtered()

    @on(Input.Submitted, "#filter")
    def _submitted(self) -> None:
        if self.key is not None:
            self.choose(self.key)

    @on(RowList.Chosen)
    def _clicked(self, event: RowList.Chosen) -> None:
        self.choose(event.key)

    @on(RowList.Moved)
    def _moved(self) -> None:
        self.moved()

    def action_choose(self) -> None:
        self._submitted()

    def action_move(self, by: int) -> None:
        self.list.move(by)

    def action_page(self, by: int) -> None:
        self.list.move(by * self.list.page)
