"""What is done with the program itself."""

from __future__ import annotations

from functools import partial

from edgerun.errors import printable
from edgerun.tui import commands, themes
from edgerun.tui.actions.base import Base, filtered
from edgerun.tui.commands import Parsed

__all__ = ["ProgramActions"]


class ProgramActions(Base):
    """Commands of the group "This program"."""

    def do_theme(self, rest: str) -> None:
        if rest and rest not in self.app.available_themes:
            known = ", ".join(t.name for t in themes.OWN)
            self.tell(f"no theme {printable(rest, 40)!r}: {known}; /theme lists all", bad=True)
        elif rest:
            self.app.theme = rest
            self._keep_theme(rest)
        else:
            from edgerun.tui.screens.theme import ThemeScreen

            self.app.push_screen(ThemeScreen(), self._keep_theme)

    def _keep_theme(self, name: str | None) -> None:
        if name and self.app.remembered is not None:
            self.app.remembered.theme = name
            keep = partial(themes.keep, self.app.theme_file, name)
            self.app.run_worker(keep, thread=True, group="theme")

    def do_help(self, rest: str) -> None:
        from edgerun.tui import keys

        screen = keys.help_screen()
        self.app.push_screen(screen)
        filtered(self.app, screen, rest)

    def do_quit(self, rest: str) -> None:
        self.app.quit()

    def palette(self) -> None:
        """All commands to choose from; one that needs more is put into the composer."""
        from edgerun.tui.keys import Palette

        def chosen(name: str | None) -> None:
            command = commands.find(name) if name else None
            if command is None:
                return
            if command.needs_args:
                self.app.chat.composer.area.write(f"/{command.name} ")
            else:
                self.app.handlers.run(Parsed(command.name, "", command))

        self.app.push_screen(Palette(), chosen)
