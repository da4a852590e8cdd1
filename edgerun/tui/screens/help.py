"""Everything that keys and commands do, from the tables that make them do it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import Binding, BindingType

from edgerun.tui.screens.lines import Span, found, mark
from edgerun.tui.screens.panel import Hint, ListPanel, Panel
from edgerun.tui.screens.rowlist import Column, Row

__all__ = ["HelpScreen", "Section", "of_bindings", "of_screens"]


@dataclass(frozen=True)
class Section:
    """``rows`` are pairs: the keys or the command, and what it does."""

    title: str
    rows: Sequence[tuple[str, str]]


def of_bindings(title: str, bindings: Iterable[BindingType]) -> Section:
    """A section made of a widget's or an app's ``BINDINGS``; those without a description, and
    system ones, are left out. Keys of one action stand together."""
    rows: dict[str, list[str]] = {}
    for b in bindings:
        if isinstance(b, tuple):
            b = Binding(b[0], b[1], b[2] if len(b) > 2 else "")
        if b.description and not b.system:
            keys = [b.key_display] if b.key_display else b.key.split(",")
            rows.setdefault(b.description, []).extend(keys)
    return Section(title, [(", ".join(_key(k) for k in v), k) for k, v in rows.items()])


def of_screens() -> list[Section]:
    """What the keys do in the screens."""
    from edgerun.tui.screens.models import ModelScreen
    from edgerun.tui.screens.presets import PresetEditor, PresetScreen
    from edgerun.tui.screens.sampling import SamplingScreen, Value
    from edgerun.tui.screens.sessions import SessionScreen

    lists = of_bindings("In lists", [*ListPanel.BINDINGS, *Panel.BINDINGS])
    return [
        Section(
            lists.title,
            [("any letter", "filter"), ("enter, second click", "choose the row"), *lists.rows],
        ),
        of_bindings("In the list of chats", SessionScreen.BINDINGS),
        of_bindings("In the list of models", ModelScreen.BINDINGS),
        of_bindings("In the list of system prompts", PresetScreen.BINDINGS),
        of_bindings("Writing a system prompt", PresetEditor.BINDINGS),
        of_bindings("In the sampling panel", [*SamplingScreen.BINDINGS, *Value.BINDINGS]),
    ]


_NAMES = {
    "escape": "esc", "pageup": "page up", "pagedown": "page down", "up": "↑", "down": "↓",
    "left": "←", "right": "→", "question_mark": "?", "left_square_bracket": "[",
    "right_square_bracket": "]", "slash": "/", "backslash": "\\",
}  # fmt: skip


def _key(key: str) -> str:
    """``ctrl+up`` as ``ctrl+↑``."""
    *mods, last = key.strip().split("+")
    return "+".join([*mods, _NAMES.get(last, last)])


class HelpScreen(ListPanel[None]):
    """Filtered as one types: by key, by command, by what it does."""

    NAME = "Help"
    PLACEHOLDER = "what do you want to do?"
    COLUMNS: ClassVar[Sequence[Column]] = (Column("keys", -26), Column("does", least=17))

    def __init__(self, sections: Sequence[Section]) -> None:
        super().__init__()
        self._sections = sections

    def rows(self, words: list[str]) -> list[Row]:
        out: list[Row] = []
        for s in self._sections:
            hits = [(k, d) for k, d in s.rows if found(f"{k} {d} {s.title}", words)]
            if not hits:
                continue
            if out:
                out.append(Row(f"{s.title}/", head=True))
            out.append(Row(s.title, {"keys": [(s.title, "strong")]}, head=True))
            for n, (keys, does) in enumerate(hits):
                cells: dict[str, list[Span]] = {
                    "keys": mark(keys, words, "accent"),
                    "does": mark(does, words),
                }
                out.append(Row(f"{s.title}/{n}", cells))
        return out

    def detail(self, key: str | None) -> str:
        """The whole of what does not fit on its line."""
        title, _, n = (key or "").rpartition("/")
        for s in self._sections:
            if s.title == title and n.isdecimal():
                hits = [r for r in s.rows if found(f"{r[0]} {r[1]} {s.title}", self.words)]
                if int(n) < len(hits) and cell_len(hits[int(n)][1]) > 36:
                    return hits[int(n)][1]
        return ""

    def empty(self, words: list[str]) -> str:
        return "nothing does that; fewer letters find more"

    def hints(self, row: Row | None) -> list[Hint]:
        return [("↑↓", "scroll", ""), ("esc", "close", "close")]

    def choose(self, key: str) -> None:
        self.dismiss(None)
