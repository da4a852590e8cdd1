"""Sampling, system prompts, help, themes, and the two small questions."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.tui_screens import FakePresets, Stage, on_stage, shown, typed, until
from textual.binding import Binding
from textual.pilot import Pilot
from textual.widgets import Input

from edgerun.chat import ChatOptions
from edgerun.core import SamplingParams
from edgerun.tui import themes
from edgerun.tui.screens.dialogs import Confirm, Prompt
from edgerun.tui.screens.help import HelpScreen, Section, of_bindings, of_screens
from edgerun.tui.screens.presets import Preset, PresetScreen
from edgerun.tui.screens.sampling import SamplingScreen
from edgerun.tui.screens.theme import ThemeScreen

SETTINGS = (SamplingParams(temperature=0.35, n_keep=7), ChatOptions(template_args={"x": 1}))


def test_sampling_takes_each_valid_value_at_once_and_refuses_others_by_name() -> None:
    told: list[Any] = []

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await pilot.press("end", "5")
        assert told[-1][0].temperature == 0.355
        await pilot.press("x")
        await until(pilot, lambda: "temperature must be a number, not '0.355x'" in shown(app))
        assert "in use: 0.355" in shown(app)
        assert told[-1][0].temperature == 0.355
        await pilot.press("backspace")
        assert "must be" not in shown(app)
        await pilot.press("down", "shift+up")
        assert told[-1][0].top_k == 45
        await typed(app, pilot, "-7")
        await until(pilot, lambda: "top_k must be -1 or more, not -7" in shown(app))
        await pilot.press("ctrl+d")
        assert told[-1][0].top_k == 40
        await pilot.press(*["down"] * 6, "space")
        assert told[-1][0].context_shift is True
        await pilot.press("down", "right", "right", "q")
        assert told[-1][1].reasoning_effort == "minimal"
        await pilot.press("down")
        await typed(app, pilot, "0")
        await pilot.press("escape")

    ((params, options),) = on_stage(lambda: SamplingScreen(SETTINGS, told.append), script)
    assert params == SamplingParams(temperature=0.355, context_shift=True, n_keep=7)
    assert options == ChatOptions(
        reasoning_effort="minimal", reasoning_budget=0, template_args={"x": 1}
    )


def test_sampling_is_reset_as_a_whole() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        assert "usually 0.8" in shown(app)
        assert "•" in shown(app)
        await typed(app, pilot, "hot")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "•" not in shown(app) and "hot" not in shown(app))
        await pilot.press("escape")

    ((params, options),) = on_stage(lambda: SamplingScreen(SETTINGS), script, (60, 16))
    assert params == SamplingParams(n_keep=7)
    assert options == ChatOptions(template_args={"x": 1})


def test_a_click_turns_a_switch() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await pilot.click("#context_shift")
        await pilot.click("#temperature")
        await pilot.press("escape")

    ((params, _),) = on_stage(lambda: SamplingScreen(SETTINGS), script)
    assert params.context_shift
    assert params.temperature == 0.35


def presets() -> FakePresets:
    return FakePresets(reviewer="You review code.", translator="Translate into German.")


def preset_screen(kept: FakePresets, current: str = "") -> PresetScreen:
    return PresetScreen(kept, kept.kept, current)


def test_a_system_prompt_is_picked_by_typing() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        assert "the model's own way" in shown(app)
        await pilot.press(*"ger")
        assert "reviewer" not in shown(app)
        await pilot.press("enter")
        app.open()
        await pilot.pause()
        await pilot.press("enter")

    got = on_stage(lambda: preset_screen(presets()), script)
    assert got == [("translator", "Translate into German."), ("", "")]


def test_a_system_prompt_is_written_changed_renamed_deleted_and_undeleted() -> None:
    kept = presets()

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        assert "this chat's own" in shown(app)
        await pilot.press("ctrl+e")  # keeps this chat's own under a name
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "it needs a name" in shown(app))
        await typed(app, pilot, "reviewer")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "another one has that name" in shown(app))
        await typed(app, pilot, "pirate")
        await pilot.press("enter", "end", *"!", "ctrl+s")
        await until(pilot, lambda: "kept: pirate" in shown(app))
        assert kept.kept["pirate"] == "Answer like a pirate.!"
        assert app.screen.key == "pirate"  # type: ignore[attr-defined]
        await pilot.press("ctrl+e", "shift+tab")
        await typed(app, pilot, "[b]corsair")
        await pilot.press("ctrl+s")
        await until(pilot, lambda: "kept: [b]corsair" in shown(app))
        assert "pirate" not in kept.kept
        await pilot.press("ctrl+d")
        assert "[b]corsair" not in kept.kept
        await pilot.press("ctrl+z")
        assert kept.kept["[b]corsair"] == "Answer like a pirate.!"
        await pilot.press("ctrl+o", *"x", "enter", *"y", "escape")
        await until(pilot, lambda: "esc again drops it" in shown(app))
        await pilot.press("escape")
        assert "x" not in kept.kept
        await until(pilot, lambda: "System prompts" in shown(app))
        await pilot.press("enter")

    got = on_stage(lambda: preset_screen(kept, "Answer like a pirate."), script)
    assert got == [Preset("[b]corsair", "Answer like a pirate.!")]


def test_no_system_prompts_says_how_to_write_one() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        assert "ctrl+o writes one" in shown(app)
        await pilot.press("ctrl+d", "ctrl+e", "ctrl+z")
        await typed(app, pilot, "zzz")
        assert "ctrl+o writes a new one" in shown(app)

    on_stage(lambda: preset_screen(FakePresets()), script)


HELP = [
    Section("Chat", [("enter", "send"), ("ctrl+c", "stop the answer")]),
    Section("Commands", [("/model NAME", "switch to another model " * 4)]),
]


def test_help_is_made_of_bindings_and_searched() -> None:
    made = of_bindings(
        "Keys",
        [
            Binding("ctrl+r", "sessions", "chats"),
            Binding("escape,ctrl+up", "stop", "stop"),
            Binding("f9", "stop", "stop"),
            Binding("x", "hidden", ""),
            ("question_mark", "help", "this"),
            Binding("a", "b", "c", key_display="^A"),
        ],
    )
    assert list(made.rows) == [
        ("ctrl+r", "chats"), ("esc, ctrl+↑, f9", "stop"), ("?", "this"), ("^A", "c"),
    ]  # fmt: skip

    for section in of_screens():
        assert section.rows, section.title
    told = {keys: does for s in of_screens() for keys, does in s.rows}
    assert told["f2, ctrl+r"] == "rename the chat"
    assert told["ctrl+x"] == "cancel the pull"

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        assert "enter" in shown(app)
        await typed(app, pilot, "another")
        text = shown(app)
        assert "/model NAME" in text
        assert "stop the answer" not in text
        # what does not fit on the line is said in full below
        await until(pilot, lambda: shown(app).count("switch to another") > 2)
        await typed(app, pilot, "")
        keys = []
        for key in ("", "down", "down", "down", "up", "up", "up", "ctrl+end", "ctrl+home"):
            await pilot.press(*filter(None, [key]))
            keys.append(app.screen.key)  # type: ignore[attr-defined]
        assert keys == [  # headings are passed over
            "Chat/0", "Chat/1", "Commands/0", "Keys/0", "Commands/0", "Chat/1", "Chat/0", "Keys/3",
            "Chat/0",
        ]  # fmt: skip
        await typed(app, pilot, "zzz")
        assert "nothing does that" in shown(app)
        await pilot.press("escape")

    assert on_stage(lambda: HelpScreen([*HELP, made]), script) == [None]


def test_a_theme_is_seen_before_it_is_chosen_and_esc_returns() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        assert app.theme == "edgerun-dark"
        await pilot.press("down")
        await until(pilot, lambda: app.theme == "edgerun-light")
        await pilot.press("escape")
        await until(pilot, lambda: app.theme == "edgerun-dark")
        app.open()
        await pilot.pause()
        await typed(app, pilot, "nord")
        await until(pilot, lambda: app.theme == "nord")
        await pilot.press("enter")
        await pilot.pause()
        assert app.theme == "nord"

    assert on_stage(ThemeScreen, script) == [None, "nord"]


def test_a_question_is_answered_by_key_or_mouse() -> None:
    async def keys(app: Stage, pilot: Pilot[Any]) -> None:
        for key in ("y", "enter", "n", "escape"):
            await pilot.press(key)
            app.open()
            await pilot.pause()
        await pilot.click("Hints", offset=(1, 0))

    got = on_stage(lambda: Confirm("Sure?", "[/x] is gone then", yes="delete"), keys)
    assert got == [True, True, False, False, True]


def test_a_prompt_takes_only_what_is_right() -> None:
    def check(text: str) -> str | None:
        return "no spaces, please" if " " in text else None

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        assert "one word" in shown(app)
        await typed(app, pilot, "two words")
        await pilot.press("enter")
        await until(pilot, lambda: "no spaces, please" in shown(app))
        assert not app.results
        await typed(app, pilot, " word ")
        await pilot.press("enter")

    assert on_stage(lambda: Prompt("Name", note="one word", check=check), script) == ["word"]


@pytest.mark.parametrize("theme", themes.OWN, ids=lambda t: t.name)
def test_every_text_can_be_read_on_every_ground(theme: Any) -> None:
    v = theme.to_color_system().generate()
    grounds = ("background", "surface", "panel", "block-cursor-background",
               "block-hover-background")  # fmt: skip
    colours = ("text-muted", "text-primary", "text-secondary", "text-success", "text-warning",
               "text-error", "text-accent", "primary", "accent", "success", "warning",
               "error")  # fmt: skip
    for ground in grounds:
        assert themes.contrast(v["text"], v[ground]) >= 7, ground
        assert themes.contrast(v["foreground"], v[ground]) >= 7, ground
        for colour in colours:
            assert themes.contrast(v[colour], v[ground]) >= 4.5, (colour, ground)
    for kind in ("input", "screen"):
        fore, back = v[f"{kind}-selection-foreground"], v[f"{kind}-selection-background"]
        assert themes.contrast(fore, back) >= 4.5


def test_contrast_is_that_of_wcag() -> None:
    # The published examples: black on white, and the grey that just fails and just passes AA.
    assert themes.contrast("#000000", "#ffffff") == pytest.approx(21.0)
    assert themes.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)
    assert themes.contrast("#ffffff", "#767676") == pytest.approx(4.54, abs=0.005)


def test_the_theme_to_begin_with() -> None:
    known = {"edgerun-dark": 1, "nord": 1}
    assert themes.choose(None, known, {}) == "edgerun-dark"
    assert themes.choose("nord", known, {}) == "nord"
    assert themes.choose("gone", known, {"COLORFGBG": "0;15"}) == "edgerun-light"
    assert themes.choose(None, known, {"COLORFGBG": "15;default;0"}) == "edgerun-dark"
    assert themes.choose("nord", known, {"NO_COLOR": "1"}) == "edgerun-mono"
    assert themes.choose("nord", known, {"NO_COLOR": ""}) == "nord"


@pytest.mark.parametrize("theme", ["edgerun-mono", "ansi-dark", "textual-light", "dracula"])
def test_every_theme_draws_every_screen(theme: str) -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await pilot.press("down")
        assert "reviewer" in shown(app)
        app.push_screen(SamplingScreen(SETTINGS))
        await until(pilot, lambda: "temperature" in shown(app))
        assert isinstance(app.focused, Input)

    on_stage(lambda: preset_screen(presets()), script, theme=theme)
