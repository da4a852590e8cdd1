"""The status line: what the chat knows at this moment, on one line. What is not known is left out,
and what was true a moment ago is not shown as if it still were."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from edgerun.amounts import size_text
from edgerun.tui.text import fit, one_line, width

__all__ = ["Facts", "Part", "StatusLine", "count_text", "left_out", "parts", "places"]

_GAUGE = 8
#: From here on the gauge warns, and from there it is urgent.
_FULL, _BRIM = 0.75, 0.92


class Facts(NamedTuple):
    """What the line is made of; None or "" = not known, and not shown.

    Attributes:
        activity: what happens now, e.g. "loading 43 %"; ``alarm`` = it needs the user.
        share: how far that is, 0 to 1, for a bar.
        used, n_ctx: tokens of context; ``about`` marks an estimate.
        live: whether the speeds are of the answer that is being written.
        prefill, decode: tokens a second.
        cached: tokens of the last prompt that did not have to be computed.
        acceptance: share of guessed tokens that were right.
        memory: bytes.
        left_out: messages that were not sent with the last question, for want of room.
        unsaved: that the chat is not being kept, in a word or two.
    """

    model: str = ""
    backend: str = ""
    activity: str = ""
    alarm: bool = False
    share: float | None = None
    used: int | None = None
    n_ctx: int | None = None
    estimate: bool = False
    live: bool = False
    prefill: float | None = None
    decode: float | None = None
    cached: int | None = None
    acceptance: float | None = None
    memory: int | None = None
    left_out: int = 0
    unsaved: str = ""


class Part(NamedTuple):
    """A text in a style of the line; ``rank``: the highest goes first when there is no room."""

    text: str
    style: str
    rank: int


def count_text(n: int) -> str:
    """12345 as ``12.3k``."""
    if n < 10_000:
        return str(n)
    return f"{n / 1000:.1f}k" if n < 99_950 else f"{n / 1000:.0f}k"


def left_out(n: int) -> str:
    """``1 message left out``."""
    return f"{count_text(n)} message{'s' if n > 1 else ''} left out"


def _speed(x: float) -> str:
    return f"{x:.1f}" if x < 100 else f"{x:.0f}"


def _bar(share: float, cells: int = _GAUGE) -> str:
    full = round(min(max(share, 0.0), 1.0) * cells * 2)
    return "━" * (full // 2) + ("╸" if full % 2 else "") + "·" * (cells - (full + 1) // 2)


def parts(f: Facts) -> list[Part]:
    """All that could be shown, in order."""
    out: list[Part] = []
    if f.activity:
        bar = f" {_bar(f.share)}" if f.share is not None else ""
        out.append(Part(f.activity + bar, "alarm" if f.alarm else "now", 0))
    if f.model:
        out.append(Part(f.model, "model", 1))
    if f.backend:
        out.append(Part(f.backend, "text", 7))
    if f.unsaved:
        out.append(Part(f.unsaved, "alarm", 2))
    if f.used is not None:
        mark = "~" if f.estimate else ""
        if f.n_ctx:
            share = f.used / f.n_ctx
            style = "brim" if share >= _BRIM else "full" if share >= _FULL else "text"
            room = f"{mark}{count_text(f.used)}/{count_text(f.n_ctx)}"
            out.append(Part(f"{_bar(share)} {room}", style, 3))
        else:
            out.append(Part(f"{mark}{count_text(f.used)} tokens", "text", 3))
    if f.left_out:
        out.append(Part(left_out(f.left_out), "text", 4))
    speed = "now" if f.live else "text"
    if f.decode is not None:
        out.append(Part(f"{_speed(f.decode)} t/s", speed, 4))
    if f.prefill is not None:
        out.append(Part(f"read {_speed(f.prefill)} t/s", "text", 5))
    if f.cached:
        out.append(Part(f"{count_text(f.cached)} cached", "text", 6))
    if f.acceptance is not None:
        out.append(Part(f"drafts {f.acceptance:.0%}", "text", 9))
    if f.memory is not None:
        out.append(Part(size_text(f.memory, 2), "text", 8))
    return out


_BETWEEN = " · "


def places(every: Sequence[Part], cells: int) -> list[Part]:
    """What fits into ``cells``: whole parts, the least important left out first. The most important
    one is cut rather than left out."""
    kept = list(every)
    while kept and _cells(kept) > cells:
        last = max(kept, key=lambda p: p.rank)
        if len(kept) == 1:
            return [last._replace(text=fit(last.text, cells))]
        kept.remove(last)
    return kept


def _cells(kept: Sequence[Part]) -> int:
    return sum(width(p.text) for p in kept) + len(_BETWEEN) * (len(kept) - 1)


class StatusLine(Widget):
    """Shows :class:`Facts`; redrawn when they changed, and not otherwise."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "status--text", "status--model", "status--now", "status--alarm", "status--full",
        "status--brim",
    }  # fmt: skip
    DEFAULT_CSS = """
    StatusLine {
        height: 1; padding: 0 1; background: $surface;
        & > .status--text { color: $text-muted; }
        & > .status--model { color: $foreground; }
        & > .status--now { color: $text-primary; }
        & > .status--alarm { color: $text-error; text-style: bold; }
        & > .status--full { color: $text-warning; }
        & > .status--brim { color: $text-error; text-style: bold; }
    }
    """

    def __init__(self, id: str | None = None) -> None:  # noqa: A002
        super().__init__(id=id)
        self.facts = Facts()

    def show(self, facts: Facts) -> None:
        if facts != self.facts:
            self.facts = facts
            self.refresh()

    @property
    def shown(self) -> str:
        """The line as text."""
        kept = places(self._parts(), self.size.width)
        return _BETWEEN.join(p.text for p in kept)

    def _parts(self) -> list[Part]:
        return [p._replace(text=one_line(p.text)) for p in parts(self.facts)]

    def render_line(self, y: int) -> Strip:
        plain = self.get_component_rich_style("status--text")
        segments: list[Segment] = []
        for part in places(self._parts(), self.size.width):
            if segments:
                segments.append(Segment(_BETWEEN, plain))
            style: Style = self.get_component_rich_style(f"status--{part.style}")
            segments.append(Segment(part.text, style))
        return Strip(segments).adjust_cell_length(self.size.width, plain)
