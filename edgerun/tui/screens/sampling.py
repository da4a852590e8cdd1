"""How answers are drawn: every value live, checked as it is typed, used from the next turn on."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import Input, Static

from edgerun.errors import RequestError
from edgerun.tui.screens import knobs
from edgerun.tui.screens.knobs import KNOBS, Knob, Settings
from edgerun.tui.screens.panel import Hints, Panel

__all__ = ["SamplingScreen", "Value"]


class Value(Input):
    """A knob's value. The arrows that an input of one line has no use for step it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("shift+up,ctrl+up", "step(1)", "a value up", show=False),
        Binding("shift+down,ctrl+down", "step(-1)", "a value down", show=False),
    ]

    def __init__(self, knob: Knob, value: str) -> None:
        super().__init__(value, id=knob.name, compact=True, select_on_focus=False)
        self.knob = knob
        self.cursor_blink = False

    def action_step(self, way: int) -> None:
        self.screen.step(self.knob, way)  # type: ignore[attr-defined]

    def on_click(self) -> None:
        if self.knob.kind in ("switch", "effort"):
            self.action_step(1)

    async def on_key(self, event: events.Key) -> None:
        # Nothing is typed into a switch: a space turns it, as anywhere.
        if self.knob.kind in ("switch", "effort"):
            ways = {"space": 1, "right": 1, "left": -1}
            if event.key in ways:
                self.action_step(ways[event.key])
            if event.key in ways or event.is_printable or event.key in ("backspace", "delete"):
                event.stop()
                event.prevent_default()


class SamplingScreen(Panel[Settings]):
    """Dismissed with the settings as they stand.

    Args:
        settings: what is in use.
        change: told of each valid change at once; the next turn is asked for with it.
        source: whose settings these are, for the panel's border.
    """

    AUTO_FOCUS = "Value"
    DEFAULT_CSS = """
    SamplingScreen {
        & #knobs { height: auto; max-height: 1fr; background: $surface;
                   scrollbar-size-vertical: 1; }
        & .knob { height: 1; background: $surface; }
        & .knob.-here { background: $block-cursor-background; }
        & .knob.-here * { background: $block-cursor-background; }
        & .mark { width: 2; color: $text-primary; }
        & .label { width: 18; color: $text; }
        & .-changed .label { text-style: bold; }
        & .-changed Value { color: $text-primary; text-style: bold; }
        & Value { width: 12; }
        & .help { width: 1fr; padding-left: 2; color: $text-muted; height: 1;
                  text-overflow: ellipsis; text-wrap: nowrap; }
        & .-wrong .help { color: $text-error; }
        & .-wrong Value { color: $text-error; }
        & #below { height: 1; margin-top: 1; }
        &.-narrow .help { display: none; }
        &.-low #below { margin-top: 0; }
        &:ansi .knob.-here, &:ansi .knob.-here * { background: transparent; }
        &:ansi .knob.-here .label { text-style: bold reverse; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "app.focus_previous", "the setting above", show=False),
        Binding("down", "app.focus_next", "the setting below", show=False),
        Binding("ctrl+r", "reset", "all settings as usual", show=False, priority=True),
        Binding("ctrl+d,f5", "reset_one", "this setting as usual", show=False, priority=True),
    ]

    def __init__(
        self,
        settings: Settings,
        change: Callable[[Settings], None] = lambda settings: None,
    ) -> None:
        super().__init__()
        self.settings = settings
        self._change = change
        self._wrong: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        self.values = {k.name: Value(k, knobs.shown(k, self.settings)) for k in KNOBS}
        rows = [
            Horizontal(
                Static("", classes="mark", markup=False),
                Static(k.label, classes="label", markup=False),
                self.values[k.name],
                Static(k.help, classes="help", markup=False),
                id=f"row-{k.name}",
                classes="knob",
            )
            for k in KNOBS
        ]
        self.below = Static("", id="below", markup=False)
        hints = Hints()
        hints.show(
            [
                ("shift+↑↓", "change", ""),
                ("^d", "default", "reset_one"),
                ("^r", "all defaults", "reset"),
                ("esc", "close", "close"),
            ]
        )
        yield self.box("Sampling", VerticalScroll(*rows, id="knobs", can_focus=False),
                       self.below, hints)  # fmt: skip

    def on_mount(self) -> None:
        panel = self.query_one("#panel")
        panel.border_subtitle = "used from the next turn on"
        for knob in KNOBS:
            self._tell(knob)

    # -- changing

    @on(Input.Submitted)
    def _next(self) -> None:
        self.focus_next()

    @on(Input.Changed)
    def _typed(self, event: Input.Changed) -> None:
        field_ = event.input
        if isinstance(field_, Value):
            self.take(field_.knob, field_.value)

    def take(self, knob: Knob, text: str) -> None:
        """What was typed: used if it is valid, else said to be wrong and not used."""
        try:
            settings = knobs.put(knob, self.settings, knobs.read(knob, text))
        except RequestError as e:
            self._wrong[knob.name] = str(e)
            self._tell(knob)
            return
        self._wrong.pop(knob.name, None)
        self._use(settings)
        self._tell(knob)

    def _use(self, settings: Settings) -> None:
        if settings != self.settings:
            self.settings = settings
            self._change(settings)

    def step(self, knob: Knob, way: int) -> None:
        self._wrong.pop(knob.name, None)
        self._use(knobs.step(knob, self.settings, way))
        self._show(knob)

    def _show(self, knob: Knob) -> None:
        value = self.values[knob.name]
        value.value = knobs.shown(knob, self.settings)
        value.cursor_position = len(value.value)
        self._tell(knob)

    def action_reset(self) -> None:
        self._wrong.clear()
        self._use(knobs.reset(self.settings))
        for knob in KNOBS:
            self._show(knob)

    def action_reset_one(self) -> None:
        if isinstance(self.focused, Value):
            knob = self.focused.knob
            self._wrong.pop(knob.name, None)
            self._use(knobs.put(knob, self.settings, knobs.default(knob)))
            self._show(knob)

    def action_close(self) -> None:
        self.dismiss(self.settings)

    # -- showing

    def _tell(self, knob: Knob) -> None:
        row = self.query_one(f"#row-{knob.name}")
        wrong = knob.name in self._wrong
        differs = knobs.changed(knob, self.settings)
        row.set_class(differs, "-changed")
        row.set_class(wrong, "-wrong")
        usual = f"usually {knobs.written(knob, knobs.default(knob))}"
        in_use = f"in use: {knobs.shown(knob, self.settings)}"
        row.query_one(".help", Static).update(in_use if wrong else usual if differs else knob.help)
        row.query_one(".mark", Static).update("!" if wrong else "•" if differs else "")
        self._tell_below()

    def _tell_below(self) -> None:
        """One line: what is wrong here or elsewhere, else what the focused one does."""
        here = self.focused.knob if isinstance(self.focused, Value) else None
        wrong = self._wrong.get(here.name) if here else None
        wrong = wrong or next(iter(self._wrong.values()), None)
        text = f"{here.help} · usually {knobs.written(here, knobs.default(here))}" if here else ""
        self.below.update(wrong or text)
        self.below.set_class(wrong is not None, "wrong")
        self.below.set_class(wrong is None, "note")

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        for row in self.query(".knob"):
            row.set_class(row.has_focus_within, "-here")
        self._tell_below()
