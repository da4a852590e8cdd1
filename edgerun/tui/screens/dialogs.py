"""Two small questions: yes or no, and one line of text."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static

from edgerun.tui.screens.panel import Hints, Panel, field

__all__ = ["Confirm", "Prompt"]


class Confirm(Panel[bool]):
    """A question to be answered by ``y`` or Enter, ``n`` or Esc."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "yes", "yes", show=False),
        Binding("n,escape", "close", "no", show=False),
    ]

    def __init__(self, title: str, detail: str = "", *, yes: str = "yes", no: str = "no") -> None:
        super().__init__()
        self._texts = (title, detail, yes, no)

    def compose(self) -> ComposeResult:
        title, detail, yes, no = self._texts
        hints = Hints()
        hints.show([("y", yes, "yes"), ("n", no, "close")])
        yield self.box(title, Static(detail, classes="note", markup=False), hints, small=True)

    def action_yes(self) -> None:
        self.dismiss(True)

    def action_close(self) -> None:
        self.dismiss(False)


class Prompt(Panel[str]):
    """One line of text; dismissed with it, or with None.

    Args:
        title: what is asked.
        value: what stands there at first.
        check: what is wrong with a text, or None; it must be None for Enter to take it.
        note: one line on what happens with it.
    """

    def __init__(
        self,
        title: str,
        value: str = "",
        *,
        placeholder: str = "",
        note: str = "",
        check: Callable[[str], str | None] = lambda text: None,
    ) -> None:
        super().__init__()
        self._title, self._value, self._placeholder = title, value, placeholder
        self._note, self._check = note, check

    def compose(self) -> ComposeResult:
        self.input = field(self._value, placeholder=self._placeholder, id="answer")
        self.note = Static(self._note, classes="note", markup=False)
        hints = Hints()
        hints.show([("enter", "ok", "ok"), ("esc", "cancel", "close")])
        yield self.box(self._title, self.input, self.note, hints, small=True)

    @on(Input.Changed, "#answer")
    def _changed(self) -> None:
        self._tell()

    def _tell(self) -> str | None:
        wrong = self._check(self.input.value.strip())
        self.note.update(wrong or self._note)
        self.note.set_classes("wrong" if wrong else "note")
        return wrong

    @on(Input.Submitted, "#answer")
    def action_ok(self) -> None:
        text = self.input.value.strip()
        if text and not self._tell():
            self.dismiss(text)
