"""The model picker: filter, verdicts, pulls that go on behind the chat, and switching."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from helpers.tui import FakePartner, Gate
from helpers.tui_screens import CHOICES, Stage, on_stage, shown, typed, until
from textual.pilot import Pilot

from edgerun.errors import DownloadError
from edgerun.tui.partner import Choice
from edgerun.tui.screens.models import ModelScreen, verdict
from edgerun.tui.screens.pulls import Pull, Pulls


class _Rig:
    """A picker over a partner that plays scripts; made inside the loop it runs on."""

    def __init__(self, choices: list[Choice] | None = None, **pulls: list[Any]) -> None:
        self.partner = FakePartner(choices=CHOICES if choices is None else choices)
        self.partner.pull_script.update(pulls)
        self.pulls = Pulls(self.partner.pull)

    def __call__(self) -> ModelScreen:
        return ModelScreen(self.partner.choices, self.pulls, "smollm2-135m")


def test_models_are_shown_with_size_and_verdict_and_filtered() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "llama-3.3-70b" in shown(app))
        lines = {
            w: li for li in shown(app).splitlines() for w in ("qwen3", "70b", "3.1-8b") if w in li
        }
        assert "2.5 GB" in lines["qwen3"]
        assert "fits" in lines["qwen3"]
        assert "too big" in lines["70b"]
        assert "tight" in lines["3.1-8b"]
        await pilot.press(*"lla 7")
        assert "qwen3" not in shown(app)
        assert "llama-3.3-70b" in shown(app)
        assert "needs 45 GB, 6.1 GB are free" in shown(app)
        await pilot.press("ctrl+u", "down", "enter")

    assert on_stage(_Rig(), script) == ["/home/me/models/mine-finetuned.Q8_0.gguf"]


def test_a_pull_shows_progress_in_place_and_the_model_is_chosen_after_it() -> None:
    gate, seen = Gate(), []
    rig = _Rig(**{"qwen3-4b": [("pull", 1_000_000_000, 2_500_000_000), gate]})

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "qwen3" in shown(app))
        await typed(app, pilot, "qwen")
        await pilot.press("enter")
        await gate.reached.wait()
        await until(pilot, lambda: "40%" in shown(app))
        seen.append(len(app.results))
        await pilot.press("escape")  # the download goes on without the screen
        rig.partner.known = [Choice("qwen3-4b", "qwen3-4b", 2_500_000_000, pulled=True, fits=True)]
        app.open()
        await pilot.pause()
        await until(pilot, lambda: "40%" in shown(app))
        gate.open()
        await until(pilot, lambda: "qwen3-4b: is here" in shown(app))
        await until(pilot, lambda: "switch" in shown(app))
        await pilot.press("enter")

    assert on_stage(rig, script) == [None, "qwen3-4b"]
    assert seen == [0]
    assert rig.partner.pulls == ["qwen3-4b"]


def test_a_pull_is_cancelled_and_taken_up_again() -> None:
    gate = Gate()
    rig = _Rig(**{"gemma3-1b": [("pull", 1, None), gate]})

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "gemma3" in shown(app))
        await typed(app, pilot, "gemma")
        await until(pilot, lambda: "go on pulling 806 MB" in shown(app))
        await pilot.press("enter", "enter")  # twice is once
        await gate.reached.wait()
        await pilot.press("ctrl+x")
        await until(pilot, lambda: "gemma3-1b: cancelled" in shown(app))
        assert not rig.pulls.running
        await until(pilot, lambda: "go on pulling" in shown(app))

    assert on_stage(rig, script) == []
    assert rig.partner.pulls == ["gemma3-1b"]


def test_a_failed_pull_says_why_and_the_way_out() -> None:
    error = DownloadError("huggingface.co cannot be reached: check the network and pull again")
    rig = _Rig(**{"qwen3-4b": [error]})

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "qwen3" in shown(app))
        await typed(app, pilot, "qwen")
        await pilot.press("enter")
        await until(pilot, lambda: "the pull failed" in shown(app))
        await until(pilot, lambda: "check the network" in shown(app))

    on_stage(rig, script)


def test_what_does_not_fit_is_pulled_only_after_a_question() -> None:
    rig = _Rig()

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "70b" in shown(app))
        await typed(app, pilot, "70b")
        await pilot.press("enter")
        await until(pilot, lambda: "Pull llama-3.3-70b all the same?" in shown(app))
        assert "needs 45 GB, 6.1 GB are free" in shown(app)
        await pilot.press("n")
        await until(pilot, lambda: "Models" in shown(app))
        assert not rig.partner.pulls
        await pilot.press("enter")
        await until(pilot, lambda: "all the same?" in shown(app))
        await pilot.press("y")
        await until(pilot, lambda: rig.partner.pulls == ["llama-3.3-70b"])

    on_stage(rig, script)


def test_a_path_or_source_that_is_typed_can_be_used() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "qwen3" in shown(app))
        await typed(app, pilot, "hf:a/b/c.gguf")
        await until(pilot, lambda: "use hf:a/b/c.gguf" in shown(app))
        await pilot.press("enter")

    assert on_stage(_Rig(), script) == ["hf:a/b/c.gguf"]


def test_no_models_or_no_answer_says_what_to_do() -> None:
    async def none(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "no models here yet" in shown(app))
        await pilot.press("enter", "down", "ctrl+x", "escape")

    assert on_stage(_Rig([]), none) == [None]

    async def refused() -> list[Choice]:
        raise DownloadError("http://box:1 refused: is the server running?")

    async def told(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "is the server running?" in shown(app))

    on_stage(lambda: ModelScreen(refused, Pulls(FakePartner().pull)), told)


@pytest.mark.parametrize("size", [(60, 16), (80, 24), (30, 8)])
def test_hostile_long_and_wide_names_stay_in_their_columns(size: tuple[int, int]) -> None:
    names = ["[/red]\x1b[31mx", "模型" * 40, "نموذج عربي", "a\u202egguf.exe", "x" * 300]
    choices = [Choice(n, f"/m/{i}.gguf", 10**9, source="file") for i, n in enumerate(names)]

    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "[/red]" in shown(app))
        text = shown(app)
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert len(text.splitlines()) == size[1]

    on_stage(_Rig(choices), script, size)


def test_the_mouse_moves_then_chooses() -> None:
    async def script(app: Stage, pilot: Pilot[Any]) -> None:
        await until(pilot, lambda: "qwen3" in shown(app))
        await pilot.click("#rows", offset=(6, 1))
        assert app.results == []
        assert app.screen.list.cursor == 1
        await pilot.click("#rows", offset=(6, 1))

    assert on_stage(_Rig(), script) == ["/home/me/models/mine-finetuned.Q8_0.gguf"]


def test_the_verdict_of_a_choice() -> None:
    told = {
        "": Choice("m", "m", 1, fits=None),
        "fits": Choice("m", "m", 1, fits=True),
        "tight": Choice("m", "m", 1, fits=True, tight=True),
        "too big": Choice("m", "m", 1, fits=False),
        "unusable": Choice("m", "m", 1, fits=False, runs=False),
    }
    assert {word: verdict(choice)[0] for word, choice in told.items()} == {w: w for w in told}


def test_speed_and_time_left_are_those_of_the_last_seconds() -> None:
    pull = Pull("t", "n", total=1000)
    assert pull.per_second is None
    assert pull.left is None
    assert pull.share == 0.0
    for second in range(20):
        pull.note(second * 10, None, float(second))
    assert pull.per_second == pytest.approx(10.0)
    assert pull.left == pytest.approx(81.0)
    pull.note(5000, None, 20.0)
    assert pull.share == 1.0


def test_closing_ends_every_pull() -> None:
    async def play() -> None:
        gate = Gate()
        partner = FakePartner()
        partner.pull_script["*"] = [gate]
        changes: list[str] = []
        pulls = Pulls(partner.pull, lambda p: changes.append(p.state))
        first = pulls.start("a", "a")
        await gate.reached.wait()
        await asyncio.wait_for(pulls.close(), 1)
        assert first.state == "cancelled"
        assert changes == ["running", "cancelled"]

    asyncio.run(play())
