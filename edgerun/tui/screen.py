"""The chat's screen: transcript, composer, status line, and what is said between them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from edgerun.tui.composer.box import Composer
from edgerun.tui.status import StatusLine
from edgerun.tui.text import fit, one_line, width

if TYPE_CHECKING:
    from edgerun.tui.transcript import Transcript

__all__ = ["ChatScreen", "Notice", "Welcome"]

#: What stands in an empty composer.
HINTS = ("Ask anything", "/ commands", "@ files", "ctrl+j new line", "f1 help", "ctrl+p palette")


def wrap(text: str, cells: int) -> list[str]:
    """``text`` in lines of at most ``cells`` cells, broken at blanks where that can be."""
    lines: list[str] = []
    for word in one_line(text).split(" "):
        if lines and width(lines[-1]) + 1 + width(word) <= cells:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


class Notice(Widget):
    """Something that the program has to say, for a while or until it is no longer so."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"notice--text", "notice--bad"}
    DEFAULT_CSS = """
    Notice {
        display: none; height: auto; max-height: 4; padding: 0 1; background: $background;
        & > .notice--text { color: $text-accent; }
        & > .notice--bad { color: $text-error; }
    }
    """
    #: Seconds that a passing notice stands.
    STANDS: ClassVar[float] = 6.0

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.text, self.bad = "", False
        self._lasting = ("", False)
        self._timer: Timer | None = None

    def tell(self, text: str, *, bad: bool = False) -> None:
        """For a while; then what lasts is back."""
        if self._timer is not None:
            self._timer.stop()
        self._put(text, bad)
        self._timer = self.set_timer(self.STANDS * (2 if bad else 1), self.clear)

    def last(self, text: str, *, bad: bool = False) -> None:
        """Until it is told otherwise; "" = nothing lasts."""
        if (text, bad) != self._lasting:
            self._lasting = (text, bad)
            self.clear()

    def clear(self) -> None:
        """No passing notice any longer."""
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._put(*self._lasting)

    def _put(self, text: str, bad: bool) -> None:
        if (text, bad) != (self.text, self.bad):
            self.text, self.bad = text, bad
            self.display = bool(text)
            self.refresh(layout=True)

    def get_content_height(self, container: object, viewport: object, width: int) -> int:
        return min(len(wrap(self.text, width)), 4)

    def render_line(self, y: int) -> Strip:
        style = self.get_component_rich_style("notice--bad" if self.bad else "notice--text")
        lines = wrap(self.text, self.size.width)
        text = fit(lines[y], self.size.width) if y < len(lines) else ""
        return Strip([Segment(text, style)]).adjust_cell_length(self.size.width, style)


class Welcome(Widget):
    """Stands where the transcript will, until something is said."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"welcome--title", "welcome--key", "welcome--text"}
    DEFAULT_CSS = """
    Welcome {
        height: 1fr; padding: 1 2; background: $background;
        & > .welcome--title { color: $foreground; text-style: bold; }
        & > .welcome--key { color: $text-primary; }
        & > .welcome--text { color: $text-muted; }
    }
    """
    KEYS = (
        ("enter", "ask; shift+enter or ctrl+j begins a new line"),
        ("@", "send a file along"),
        ("/", "commands"),
        ("ctrl+c", "stop the answer"),
        ("alt+↑", "step to a message: edit, ask again, copy, branch"),
        ("ctrl+o", "models"),
        ("ctrl+r", "earlier chats"),
        ("f1", "help"),
    )

    def __init__(self, title: str, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self._title, self.lines = title, [""]

    def show(self, *lines: str) -> None:
        if list(lines) != self.lines:
            self.lines = list(lines)
            self.refresh()

    def render_line(self, y: int) -> Strip:
        title, key, text = (
            self.get_component_rich_style(f"welcome--{n}") for n in ("title", "key", "text")
        )
        cells = self.size.width
        body = [[Segment(self._title, title)]]
        body += [[Segment(fit(one_line(line), cells), text)] for line in self.lines]
        body.append([])
        body += [[Segment(f"{k:<8}", key), Segment(fit(t, cells - 8), text)] for k, t in self.KEYS]
        line = body[y] if y < len(body) else []
        return Strip(line).adjust_cell_length(cells, text)


class ChatScreen(Screen[None]):
    """Its keys; what they do is the program's, see :class:`~edgerun.tui.app.ChatApp`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "app.escape", "stop the answer, or go back to the text", show=False),
        Binding("ctrl+d", "app.quit", show=False),
        Binding("ctrl+n", "app.do('new')", "a new chat", priority=True),
        Binding("ctrl+r", "app.do('sessions')", "earlier chats", priority=True),
        Binding("ctrl+o", "app.do('model')", "models", priority=True),
        Binding("ctrl+s", "app.do('set')", "sampling", priority=True),
        Binding("ctrl+g", "app.do('editor')", "write in $EDITOR", priority=True),
        Binding("ctrl+p", "app.palette", "all commands", priority=True),
        Binding("f1", "app.do('help')", "help", priority=True),
        Binding("alt+up", "app.pick(-1)", "the message above", priority=True),
        Binding("alt+down", "app.pick(1)", "the message below", priority=True),
        Binding("pageup", "app.scroll('page_up')", "scroll up", priority=True),
        Binding("pagedown", "app.scroll('page_down')", "scroll down", priority=True),
        Binding("ctrl+home", "app.scroll('home')", "to the beginning", priority=True),
        Binding("ctrl+end", "app.scroll('end')", "to the end", priority=True),
    ]
    DEFAULT_CSS = """
    ChatScreen { background: $background; layout: vertical; }
    ChatScreen Transcript { height: 1fr; display: none; }
    ChatScreen.-talking Transcript { display: block; }
    ChatScreen.-talking Welcome { display: none; }
    ChatScreen #box { border-top: solid $border; background: $surface; }
    """
    AUTO_FOCUS = "#area"

    def __init__(self, title: str) -> None:
        super().__init__()
        self.welcome = Welcome(title, id="welcome")
        self.notice = Notice(id="notice")
        self.composer = Composer(HINTS, id="box")
        self.status = StatusLine(id="status")

    @cached_property
    def transcript(self) -> Transcript:
        """There from the first look at it on: its many styles take a tenth of the time to the first
        paint, and nothing is to be seen of it then."""
        from edgerun.tui.transcript import Transcript

        transcript = Transcript(id="transcript")
        self.mount(transcript, after=self.welcome)
        return transcript

    def compose(self) -> ComposeResult:
        yield self.welcome
        yield self.notice
        yield self.composer
        yield self.status
