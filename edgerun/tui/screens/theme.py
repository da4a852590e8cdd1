"""The theme picker: what the cursor stands on is what one sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from edgerun.tui import themes
from edgerun.tui.screens.lines import found, mark
from edgerun.tui.screens.panel import Hint, ListPanel
from edgerun.tui.screens.rowlist import Column, Row

__all__ = ["ThemeScreen"]


class ThemeScreen(ListPanel[str]):
    """Dismissed with the theme's name; after Esc the one before is back."""

    NAME = "Themes"
    PLACEHOLDER = "filter"
    DEFAULT_CSS = "ThemeScreen > #panel { max-width: 52; }"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("mark", 1),
        Column("name"),
        Column("kind", -11, "right"),
    )

    def on_mount(self) -> None:
        self._before = self.app.theme
        self.reload(self._before)

    def rows(self, words: list[str]) -> list[Row]:
        out = []
        for name in themes.names(self.app):
            theme = self.app.available_themes[name]
            own = {themes.MONO.name: "no colour"}
            kind = own.get(name) or ("dark" if theme.dark else "light")
            if found(f"{name} {kind}", words):
                here = name == self._before
                out.append(
                    Row(
                        name,
                        {
                            "mark": [("●", "accent")] if here else [],
                            "name": mark(name, words),
                            "kind": [(kind, "muted")],
                        },
                    )
                )
        return out

    def empty(self, words: list[str]) -> str:
        return "no theme of that name"

    def hints(self, row: Row | None) -> list[Hint]:
        use: list[Hint] = [("enter", "use", "choose")] if row else []
        return [*use, ("↑↓", "look", ""), ("esc", "as before", "close")]

    def moved(self) -> None:
        super().moved()
        if self.key is not None and self.key in self.app.available_themes:
            self.app.theme = self.key

    def choose(self, key: str) -> None:
        self.app.theme = key
        self.dismiss(key)

    def action_close(self) -> None:
        self.app.theme = self._before
        self.dismiss(None)
