"""Help and palette, made of the tables that keys and commands come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from edgerun.tui.app import ChatApp
from edgerun.tui.commands import by_group, find
from edgerun.tui.composer.area import Area
from edgerun.tui.screen import ChatScreen
from edgerun.tui.screens.help import HelpScreen, Section, of_bindings, of_screens
from edgerun.tui.screens.lines import found, mark
from edgerun.tui.screens.panel import Hint, ListPanel
from edgerun.tui.screens.rowlist import Column, Row
from edgerun.tui.transcript import Transcript

__all__ = ["Palette", "help_screen", "sections"]


def sections() -> list[Section]:
    """All keys and commands."""
    out = [
        of_bindings("Anywhere", [*ChatApp.BINDINGS, *ChatScreen.BINDINGS]),
        of_bindings("Writing", Area.BINDINGS),
        Section(
            "In a question",
            [
                ("@FILE", 'send a file along; @"a name", @src/*.py'),
                ("/COMMAND", "a command; // begins a question with a slash"),
            ],
        ),
        of_bindings("On a message", Transcript.BINDINGS),
    ]
    for group, members in by_group():
        rows = []
        for c in members:
            also = "".join(f", /{a}" for a in c.aliases)
            rows.append((c.usage + also, c.help))
        out.append(Section(group, rows))
    out += of_screens()
    return [s for s in out if s.rows]


def help_screen() -> HelpScreen:
    return HelpScreen(sections())


class Palette(ListPanel[str]):
    """Dismissed with the name of a command."""

    NAME = "Commands"
    PLACEHOLDER = "what do you want to do?"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("name", -24),
        Column("help"),
        Column("keys", -12, "right", drop=60),
    )

    def rows(self, words: list[str]) -> list[Row]:
        out = []
        for _, members in by_group():
            for c in members:
                if found(f"{c.usage} {c.help} {' '.join(c.aliases)}", words):
                    cells = {
                        "name": mark(c.usage, words, "accent"),
                        "help": mark(c.help, words),
                        "keys": [(c.keys, "muted")],
                    }
                    out.append(Row(c.name, cells))
        return out

    def empty(self, words: list[str]) -> str:
        return "nothing does that; fewer letters find more"

    def hints(self, row: Row | None) -> list[Hint]:
        do: list[Hint] = [("enter", "do", "choose")] if row else []
        return [*do, ("esc", "close", "close")]

    def choose(self, key: str) -> None:
        if find(key) is not None:
            self.dismiss(key)
