"""The model picker: what is here, what could be fetched, and whether it fits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from edgerun.errors import EdgerunError, why
from edgerun.tui.partner import Choice
from edgerun.tui.screens.dialogs import Confirm
from edgerun.tui.screens.lines import Span, clean, found, mark, rate, size
from edgerun.tui.screens.panel import Hint, ListPanel
from edgerun.tui.screens.pulls import Pull, Pulls
from edgerun.tui.screens.rowlist import Column, Row

__all__ = ["ModelScreen", "verdict"]

_BAR = 12


def verdict(choice: Choice) -> Span:
    """Whether it can be run here, in a word: ``fits``, ``tight``, ``too big``, ``unusable``, or
    nothing where that cannot be told."""
    if not choice.runs:
        return ("unusable", "bad")
    if choice.fits is None:
        return ("", "")
    if not choice.fits:
        return ("too big", "bad")
    return ("tight", "warn") if choice.tight else ("fits", "good")


class ModelScreen(ListPanel[str]):
    """Dismissed with the ``target`` of the model to switch to.

    Args:
        choices: what there is; asked for when the screen opens, and when a pull has ended.
        pulls: the program's downloads: they go on when this screen is closed.
        current: the name of the model that answers.
    """

    NAME = "Models"
    PLACEHOLDER = "filter, or a name, path or hf:OWNER/REPO/FILE"
    DEFAULT_CSS = """
    ModelScreen #detail { height: 2; margin-top: 1; }
    ModelScreen.-low #detail { height: 1; margin-top: 0; }
    """
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("mark", 1),
        Column("name", -30),
        Column("state"),
        Column("quant", -8, drop=66),
        Column("size", -7, "right"),
        Column("fits", -8),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+x", "cancel", "cancel the pull", show=False, priority=True),
    ]

    def __init__(
        self,
        choices: Callable[[], Awaitable[list[Choice]]],
        pulls: Pulls,
        current: str = "",
    ) -> None:
        super().__init__()
        self._ask, self._pulls, self._current = choices, pulls, current
        self._known: list[Choice] = []
        self._state = "looking for models …"
        self._unwatch: Callable[[], None] = lambda: None

    def on_mount(self) -> None:
        self._unwatch = self._pulls.watch(self._pulled)
        self.refresh_choices(self._current)

    def on_unmount(self) -> None:
        self._unwatch()

    def refresh_choices(self, keep: str | None = None) -> None:
        self.run_worker(self._fill(keep), exclusive=True, exit_on_error=False)

    async def _fill(self, keep: str | None) -> None:
        try:
            known = await self._ask()
        except (EdgerunError, OSError) as e:
            self._state = clean(why(e), 400)
        else:
            # What is here first: it is what one switches between; the rest is the catalogue.
            self._known = sorted(known, key=lambda c: not c.pulled)
            self._state = ""
        targets = {c.name: c.target for c in self._known}
        self.reload(targets.get(keep or "", keep))

    def _of(self, key: str | None) -> Choice | None:
        return next((c for c in self._known if c.target == key), None)

    # -- the list

    def rows(self, words: list[str]) -> list[Row]:
        rows = [
            self._row(c, words)
            for c in self._known
            if found(f"{c.name} {c.quant} {c.notes}", words)
        ]
        typed = self.filter.value.strip()
        if typed and not self._state and not any(typed == c.name for c in self._known):
            looks = "/" in typed or ":" in typed or typed.endswith(".gguf")
            if looks or not rows:
                told = [(f"use {clean(typed, 300)}", "accent")]
                rows.append(Row(typed, {"name": told, "mark": [("→", "accent")]}))
        return rows

    def _row(self, c: Choice, words: Sequence[str]) -> Row:
        here = c.name == self._current
        pull = self._pulls.get(c.target)
        glyph = ("●", "accent") if here else ("✓", "good") if c.pulled else ("↓", "muted")
        name = mark(clean(c.name), words, "strong" if here else "")
        state: list[Span] = [(clean(c.notes, 80), "muted")]
        if pull is not None and pull.state == "running":
            glyph, state = ("↓", "accent"), _progress(pull)
        elif pull is not None and pull.state == "failed":
            glyph, state = ("!", "bad"), [("the pull failed", "bad")]
        elif c.partial and not c.pulled:
            state = [(f"{size(c.partial)} of it are here", "muted")]
        elif c.source == "file":
            state = [("a file", "muted")]
        return Row(
            c.target,
            {
                "mark": [glyph],
                "name": name,
                "state": state,
                "quant": [(c.quant, "muted")],
                "size": [(size(c.size), "")],
                "fits": [verdict(c)],
            },
        )

    def empty(self, words: list[str]) -> str:
        if self._state or words:
            return self._state or "no model of that name"
        return "no models here yet: type a name, the path of a GGUF file, or hf:OWNER/REPO/FILE"

    def detail(self, key: str | None) -> str:
        c, pull = self._of(key), self._pulls.get(key or "")
        if pull is not None and pull.state == "failed":
            return clean(pull.error, 300)
        if c is None:
            return ""
        parts = [c.why, c.notes, f"context {c.n_ctx}" if c.n_ctx else ""]
        running = pull is not None and pull.state == "running"
        if not c.pulled and not c.why and not running:
            parts.append("enter fetches it; you can go on chatting")
        return clean(" · ".join(filter(None, parts)), 300)

    def hints(self, row: Row | None) -> list[Hint]:
        c = self._of(row.key) if row else None
        pull = self._pulls.get(row.key) if row else None
        first: list[Hint] = []
        if pull is not None and pull.state == "running":
            first = [("^x", "cancel the pull", "cancel")]
        elif c is not None and not c.pulled:
            again = "go on pulling" if c.partial else "pull"
            first = [("enter", f"{again} {size(c.size)}".strip(), "choose")]
        elif row is not None:
            first = [("enter", "stay" if c and c.name == self._current else "switch", "choose")]
        return [*first, ("↑↓", "move", ""), ("esc", "close", "close")]

    # -- doing

    def choose(self, key: str) -> None:
        c = self._of(key)
        if c is None or c.pulled:
            self.dismiss(key)
        elif (pull := self._pulls.get(key)) is None or pull.state != "running":
            self._start(c)

    def _start(self, c: Choice) -> None:
        """Pull it; one that could not be used here only after a question."""

        def answer(go: bool | None) -> None:
            if go:
                self._pulls.start(c.target, c.name, c.size)

        if c.runs and c.fits is not False:
            answer(True)
            return
        title = f"Pull {clean(c.name, 40)} all the same?"
        detail = clean(c.why, 200) or "it does not fit in this machine's memory"
        self.app.push_screen(Confirm(title, detail, yes=f"pull {size(c.size)}".strip()), answer)

    def action_cancel(self) -> None:
        if self.key is not None:
            self._pulls.cancel(self.key)

    def _pulled(self, pull: Pull) -> None:
        if not self.is_mounted:
            return
        c = self._of(pull.target)
        if c is not None:
            self.list.update(self._row(c, self.words))
        self.retell()
        if pull.state != "running":
            self.refresh_choices()
            what = {"done": "is here", "cancelled": "cancelled", "failed": "failed"}[pull.state]
            self.say(f"{clean(pull.name, 60)}: {what}")


def _progress(pull: Pull) -> list[Span]:
    """A bar, per cent, and how long it will take."""
    if pull.share is None:
        return [(f"{size(pull.done)} …", "accent")]
    full = round(pull.share * _BAR)
    speed = f" · {size(round(pull.per_second))}/s" if pull.per_second else ""
    left = f" · {rate(pull.left)}" if pull.left is not None else ""
    return [
        (f"{pull.share:.0%}".ljust(5), "accent"),
        ("━" * full, "bar"),
        ("─" * (_BAR - full), "track"),
        (speed + left, "muted"),
    ]
