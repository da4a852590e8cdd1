"""What the screens look like, at two sizes, against approved pictures in tests/fixtures/tui."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import svg
from helpers.tui import FakePartner, Gate
from helpers.tui_screens import (
    CHOICES,
    NOW,
    FakePresets,
    FakeSessions,
    Stage,
    on_stage,
    shown,
    typed,
    until,
)
from textual.pilot import Pilot
from textual.screen import Screen

from edgerun.chat import ChatOptions
from edgerun.core import SamplingParams
from edgerun.tui.screens.dialogs import Confirm
from edgerun.tui.screens.help import HelpScreen, Section
from edgerun.tui.screens.models import ModelScreen
from edgerun.tui.screens.presets import Preset, PresetEditor, PresetScreen
from edgerun.tui.screens.pulls import Pulls
from edgerun.tui.screens.sampling import SamplingScreen
from edgerun.tui.screens.sessions import SessionScreen
from edgerun.tui.screens.theme import ThemeScreen

SIZES = [(80, 24), (160, 50)]
PROMPTS = {
    "code reviewer": "You review code. Be brief, name the line, say why.",
    "rubber duck": "Ask one question at a time until I see it myself.",
    "translator": "Translate into German. Keep Markdown as it is.",
}
KEYS = Section("Keys", [("enter", "send"), ("shift+enter, ctrl+j", "begin a new line")])
COMMANDS = Section("Commands", [("/model [NAME]", "change the model, or pick one from what is "
                                 "here and what could be fetched")])  # fmt: skip
Script = Callable[[Stage, "Pilot[Any]"], Awaitable[None]]


def models() -> Screen[Any]:
    partner = FakePartner(choices=CHOICES)
    partner.pull_script["qwen3-4b"] = [("pull", 800_000_000, 2_500_000_000), Gate()]
    return ModelScreen(partner.choices, Pulls(partner.pull, clock=lambda: 0.0), "smollm2-135m")


async def pulling(app: Stage, pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: "qwen3" in shown(app))
    await pilot.press("down", "down", "enter")
    await until(pilot, lambda: "32%" in shown(app))


def sessions() -> Screen[Any]:
    return SessionScreen(FakeSessions(), "s1", clock=lambda: NOW)


async def listed(app: Stage, pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: "Regex" in shown(app))
    await pilot.press("down")


async def searching(app: Stage, pilot: Pilot[Any]) -> None:
    await until(pilot, lambda: "Regex" in shown(app))
    await typed(app, pilot, "re")
    await until(pilot, lambda: "proves that no" in shown(app))


def sampling() -> Screen[Any]:
    return SamplingScreen((SamplingParams(temperature=0.35, seed=7), ChatOptions()))


async def wrong(app: Stage, pilot: Pilot[Any]) -> None:
    await pilot.press("down")
    await typed(app, pilot, "many")


async def down(app: Stage, pilot: Pilot[Any]) -> None:
    await pilot.press("down")


async def own(app: Stage, pilot: Pilot[Any]) -> None:
    await typed(app, pilot, "edgerun")  # Textual's own themes are other ones in other versions


async def nothing(app: Stage, pilot: Pilot[Any]) -> None:
    await pilot.pause()


SCREENS: dict[str, tuple[Callable[[], Screen[Any]], Script]] = {
    "models": (models, pulling),
    "sessions": (sessions, listed),
    "search": (sessions, searching),
    "sampling": (sampling, wrong),
    "presets": (lambda: PresetScreen(FakePresets(**PROMPTS), PROMPTS, PROMPTS["translator"]), down),
    "preset": (lambda: PresetEditor(Preset("rubber duck", PROMPTS["rubber duck"])), nothing),
    "help": (lambda: HelpScreen([KEYS, COMMANDS]), nothing),
    "themes": (ThemeScreen, own),
    "question": (lambda: Confirm("Overwrite?", "notes.md exists", yes="overwrite"), nothing),
}

SMALL = {"preset", "themes", "help", "question"}  # there is no more to them in a large terminal
SHOTS = [(n, s) for n in SCREENS for s in SIZES if n not in SMALL or s == SIZES[0]]


@pytest.mark.parametrize(("name", "size"), SHOTS, ids=lambda v: v if isinstance(v, str) else v[0])
def test_a_screen_looks_as_approved(name: str, size: tuple[int, int]) -> None:
    make, script = SCREENS[name]
    pictures: list[str] = []

    async def look(app: Stage, pilot: Pilot[Any]) -> None:
        await script(app, pilot)
        await pilot.pause()
        pictures.append(app.export_screenshot(title="edgerun"))

    on_stage(make, look, size)
    wrong = svg.check(f"{name}-{size[0]}x{size[1]}", pictures[0])
    assert wrong is None, wrong


def test_a_picture_that_differs_is_told_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pictures(theme: str) -> str:
        app = Stage(lambda: Confirm("Sure?"), theme)
        async with app.run_test(size=(40, 10)) as pilot:
            await pilot.pause()
            return app.export_screenshot(title="edgerun")

    monkeypatch.setattr(svg, "APPROVED", tmp_path / "approved")
    monkeypatch.setattr(svg, "SEEN", tmp_path / "seen")
    dark, light = (asyncio.run(pictures(f"edgerun-{t}")) for t in ("dark", "light"))
    monkeypatch.delenv("EDGERUN_APPROVE", raising=False)
    assert "no approved picture" in (svg.check("p", dark) or "")
    monkeypatch.setenv("EDGERUN_APPROVE", "1")
    assert svg.check("p", dark) is None
    monkeypatch.delenv("EDGERUN_APPROVE")
    assert svg.check("p", dark) is None
    assert "ground=" in (svg.check("p", light) or "")
    assert "Sure!" in (svg.check("p", dark.replace("Sure?", "Sure!")) or "")
    assert (tmp_path / "seen" / "p.svg").exists()
    assert svg.check("p", dark.replace("terminal-", "terminal-1")) is None
