"""System prompts kept under a name: picked, written, changed, deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Static, TextArea

from edgerun.tui.screens.lines import Span, clean, found, mark
from edgerun.tui.screens.panel import Hint, Hints, ListPanel, Panel, field
from edgerun.tui.screens.rowlist import Column, Row

__all__ = ["Preset", "PresetEditor", "PresetScreen", "Presets"]

#: Rows that are no preset; a name cannot begin with a space.
_NONE, _CURRENT = " none", " current"


class Presets(Protocol):
    """What this screen needs of :class:`~edgerun.tui.store.Store`."""

    def put_preset(self, name: str, text: str) -> None: ...
    def delete_preset(self, name: str) -> None: ...


class Preset(NamedTuple):
    """``name`` is "" for a text that is not kept."""

    name: str
    text: str


class PresetScreen(ListPanel[Preset]):
    """Dismissed with the system prompt to use; its text is "" for none.

    Args:
        presets: where they are kept.
        known: those that are there, by name.
        current: the system prompt in use.
    """

    NAME = "System prompts"
    PLACEHOLDER = "filter"
    COLUMNS: ClassVar[Sequence[Column]] = (
        Column("mark", 1),
        Column("name", -28),
        Column("text"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+o", "new", "write a new one", show=False, priority=True),
        Binding(
            "ctrl+e,f2", "edit", "change it, or keep this chat's own", show=False, priority=True
        ),
        Binding("ctrl+d", "delete", "delete it", show=False, priority=True),
        Binding("ctrl+z", "restore", "bring a deleted one back", show=False, priority=True),
    ]

    def __init__(self, presets: Presets, known: Mapping[str, str], current: str = "") -> None:
        super().__init__()
        self._presets, self._current = presets, current
        self._known: dict[str, str] = dict(known)
        self._deleted: list[Preset] = []

    def on_mount(self) -> None:
        same = (name for name, text in self._known.items() if text == self._current)
        self.reload(next(same, _CURRENT) if self._current else _NONE)

    # -- the list

    def rows(self, words: list[str]) -> list[Row]:
        rows = []
        if not words:
            rows.append(self._row(_NONE, "none", "", "the model's own way"))
            if self._current and self._current not in self._known.values():
                rows.append(self._row(_CURRENT, "this chat's own", self._current))
        for name in sorted(self._known, key=str.casefold):
            text = self._known[name]
            if found(f"{name} {text}", words):
                rows.append(self._row(name, name, text, words=words))
        return rows

    def _row(
        self, key: str, name: str, text: str, told: str = "", words: Sequence[str] = ()
    ) -> Row:
        special = key in (_NONE, _CURRENT)
        glyph: list[Span] = [("●", "accent")] if text == self._current else []
        name_style = "muted" if special else ""
        return Row(
            key,
            {
                "mark": glyph,
                "name": mark(clean(name, 60), words, name_style),
                "text": mark(clean(told or text, 200), words, "muted"),
            },
        )

    def empty(self, words: list[str]) -> str:
        return "no system prompt holds that: ctrl+o writes a new one"

    def detail(self, key: str | None) -> str:
        if not self._known and not self.words:
            return "none are kept yet: ctrl+o writes one, ctrl+e keeps this chat's own"
        return ""

    def hints(self, row: Row | None) -> list[Hint]:
        out: list[Hint] = [("enter", "use", "choose")] if row else []
        if self._deleted:
            out.append(("^z", "undelete", "restore"))
        out.append(("^o", "new", "new"))
        if row is not None and row.key != _NONE:
            keep = row.key == _CURRENT
            out.append(("^e", "keep" if keep else "edit", "edit"))
            out += [] if keep else [("^d", "delete", "delete")]
        return [*out, ("esc", "close", "close")]

    # -- doing

    def choose(self, key: str) -> None:
        if key == _NONE:
            self.dismiss(Preset("", ""))
        elif key == _CURRENT:
            self.dismiss(Preset("", self._current))
        else:
            self.dismiss(Preset(key, self._known[key]))

    def action_new(self) -> None:
        self._edit(Preset("", ""))

    def action_edit(self) -> None:
        if self.key == _CURRENT:
            self._edit(Preset("", self._current))
        elif self.key is not None and self.key != _NONE:
            self._edit(Preset(self.key, self._known[self.key]))

    def _edit(self, preset: Preset) -> None:
        def done(new: Preset | None) -> None:
            if new is None:
                return
            if preset.name and preset.name != new.name:
                self._presets.delete_preset(preset.name)
                self._known.pop(preset.name, None)
            self._presets.put_preset(new.name, new.text)
            self._known[new.name] = new.text
            self.reload(new.name)
            self.say(f"kept: {clean(new.name, 60)}")

        taken = [n for n in self._known if n != preset.name]
        self.app.push_screen(PresetEditor(preset, taken), done)

    def action_delete(self) -> None:
        key = self.key
        if key is None or key not in self._known:
            return
        self._deleted.append(Preset(key, self._known.pop(key)))
        self._presets.delete_preset(key)
        self.reload()
        self.say(f"deleted: {clean(key, 40)} · ctrl+z brings it back")

    def action_restore(self) -> None:
        if self._deleted:
            preset = self._deleted.pop()
            self._presets.put_preset(*preset)
            self._known[preset.name] = preset.text
            self.reload(preset.name)
            self.say(f"restored: {clean(preset.name, 60)}")


class PresetEditor(Panel[Preset]):
    """A name and a text; Ctrl+S keeps them.

    Args:
        preset: what stands there at first.
        taken: names that others have.
    """

    DEFAULT_CSS = """
    PresetEditor {
        & TextArea { height: 1fr; min-height: 4; margin-top: 1; border: none; padding: 0;
                     background: $surface; color: $text; }
        & TextArea:focus { border: none; }
        & .text-area--placeholder { color: $text-muted; }
        & TextArea:light .text-area--cursor {
            color: $input-cursor-foreground; background: $input-cursor-background;
        }
        & > #panel { height: 80%; }
        &.-low > #panel { height: 100%; }
        &.-low TextArea { margin-top: 0; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "keep", "keep it", show=False, priority=True),
        Binding("escape", "close", show=False, priority=True),
    ]

    def __init__(self, preset: Preset, taken: Sequence[str] = ()) -> None:
        super().__init__()
        self._preset, self._taken = preset, taken
        self._asked = False

    def compose(self) -> ComposeResult:
        self.name_field = field(self._preset.name, placeholder="name", id="name")
        self.text = TextArea(self._preset.text, id="text", compact=True, tab_behavior="focus")
        self.text.cursor_blink = False
        self.text.placeholder = "what the model is told before every chat"
        self.note = Static("", classes="wrong", markup=False)
        hints = Hints()
        hints.show([("^s", "keep", "keep"), ("tab", "name and text", ""),
                    ("esc", "cancel", "close")])  # fmt: skip
        yield self.box("System prompt", self.name_field, self.text, self.note, hints)

    def on_mount(self) -> None:
        if self._preset.name:
            self.text.focus()

    @on(Input.Submitted, "#name")
    def _to_text(self) -> None:
        self.text.focus()

    def action_keep(self) -> None:
        name, text = clean(self.name_field.value, 60).strip(), self.text.text.strip()
        wrong = None
        if not name:
            wrong = "it needs a name"
        elif name in self._taken:
            wrong = "another one has that name"
        elif not text:
            wrong = "the text is empty"
        if wrong:
            self.note.update(wrong)
        else:
            self.dismiss(Preset(name, text))

    def action_close(self) -> None:
        changed = self.text.text != self._preset.text
        if changed and not self._asked:  # a text is not lost to one key
            self._asked = True
            self.note.update("changed and not kept: esc again drops it, ctrl+s keeps it")
            return
        self.dismiss(None)
