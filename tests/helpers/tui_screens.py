"""An app with one modal screen over it, and what the screens are shown in tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widgets import Input, Static

from edgerun.tui import themes
from edgerun.tui.partner import Choice
from edgerun.tui.store import Hit, SessionInfo

#: A Monday, noon, in local time: dates in pictures must not move.
NOW = time.mktime((2026, 3, 9, 12, 0, 0, 0, 0, -1))
HOUR, DAY = 3600.0, 86400.0

BEHIND = "\n".join(
    [
        "what does the borrow checker do?",
        "",
        "It proves, before the program runs, that no reference outlives what it",
        "points to, and that nothing is changed while somebody else reads it.",
    ]
)

CHOICES = [
    Choice("smollm2-135m", "smollm2-135m", 98_362_432, True, True, "", "catalogue", 8192,
           "the default: tiny and quick, for trying things out", quant="Q4_1"),
    Choice("qwen3-4b", "qwen3-4b", 2_500_000_000, False, True, "", "catalogue", 40960,
           "reasons and calls tools", quant="Q4_K_M"),
    Choice("llama-3.1-8b", "llama-3.1-8b", 4_920_000_000, False, True,
           "2 048 tokens of context fit now", "catalogue", 131072, "a good all-rounder",
           quant="Q4_K_M", tight=True),
    Choice("llama-3.3-70b", "llama-3.3-70b", 42_500_000_000, False, False,
           "needs 45 GB, 6.1 GB are free", "catalogue", 131072, "for large machines",
           quant="Q4_K_M"),
    Choice("mine-finetuned.gguf", "/home/me/models/mine-finetuned.Q8_0.gguf", 1_320_000_000,
           True, True, "", "file", 4096, quant="Q8_0"),
    Choice("gemma3-1b", "gemma3-1b", 806_000_000, False, True, "", "catalogue", 32768,
           "small, many languages", partial=310_000_000, quant="Q4_K_M"),
]  # fmt: skip

SESSIONS = [
    SessionInfo("s1", "What does the borrow checker do?", NOW - 2 * HOUR, 6, "qwen3-4b"),
    SessionInfo("s2", "Regex for ISO dates", NOW - 1 * DAY, 14, "smollm2-135m"),
    SessionInfo("s3", "日本語の敬語を説明してください", NOW - 3 * DAY, 4, "gemma3-1b"),
    SessionInfo("s4", "كيف أكتب رسالة رسمية؟", NOW - 5 * DAY, 2, "gemma3-1b"),
    SessionInfo("s5", "Tidy up this shell script, please: it has grown over the years and nobody "
                "dares to touch it any more", NOW - 20 * DAY, 31, "llama-3.1-8b"),
    SessionInfo("s6", "[/red] [bold]not markup[/bold]", NOW - 400 * DAY, 2, "smollm2-135m"),
]  # fmt: skip

TEXTS = {
    "s1": "the borrow checker proves that no reference outlives what it points to",
    "s2": "a regex for dates: [0-9]{4}-[0-9]{2}-[0-9]{2}",
    "s3": "敬語には尊敬語、謙譲語、丁寧語の三種類があります",
    "s4": "تبدأ الرسالة الرسمية بتحية مناسبة",
    "s5": "set -euo pipefail makes a script stop at the first error",
    "s6": "\x1b[2Jnothing of the sort",
}


class FakeSessions:
    """A store in a dict; ``calls`` is what it was asked to change."""

    def __init__(self, sessions: list[SessionInfo] | None = None) -> None:
        self.all = {s.id: s for s in (SESSIONS if sessions is None else sessions)}
        self.gone: dict[str, SessionInfo] = {}
        self.calls: list[tuple[str, ...]] = []

    def search(self, query: str, limit: int = 50) -> list[Hit]:
        out = []
        for s in self.list(1000):
            text = TEXTS.get(s.id, "")
            at = text.lower().find(query.lower())
            if at >= 0:
                marks = ((at, at + len(query)),)
                out.append(Hit(s.id, s.title, f"m-{s.id}", text, marks, s.updated))
            if query.lower() in s.title.lower():
                out.append(Hit(s.id, s.title, None, s.title, (), s.updated))
        return out[:limit]

    def rename(self, session: str, title: str) -> None:
        self.calls.append(("rename", session, title))
        old = self.all[session]
        self.all[session] = SessionInfo(old.id, title, old.updated, old.n_messages, old.model)

    def delete(self, session: str) -> None:
        self.calls.append(("delete", session))
        self.gone[session] = self.all.pop(session)

    def restore(self, session: str) -> None:
        self.calls.append(("restore", session))
        self.all[session] = self.gone.pop(session)

    def export_markdown(self, session: str) -> str:
        return f"# {self.all[session].title}\n"

    def export_json(self, session: str) -> str:
        return json.dumps({"id": session})

    def list(self, limit: int = 100, before: float | None = None) -> list[SessionInfo]:
        newest = sorted(self.all.values(), key=lambda s: -s.updated)
        return [s for s in newest if before is None or s.updated < before][:limit]


class FakePresets:
    def __init__(self, **presets: str) -> None:
        self.kept = dict(presets)

    def put_preset(self, name: str, text: str) -> None:
        self.kept[name] = text

    def delete_preset(self, name: str) -> None:
        del self.kept[name]


class Stage(App[Any]):
    """``screen`` over a chat that stands still; ``result`` is what it was dismissed with."""

    CSS = "#behind { padding: 1 2; }"
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, make: Callable[[], Screen[Any]], theme: str = "edgerun-dark") -> None:
        super().__init__()
        self._make, self._wanted = make, theme
        self.results: list[Any] = []

    def compose(self) -> ComposeResult:
        yield Static(BEHIND, id="behind", markup=False)

    def on_mount(self) -> None:
        themes.register(self)
        self.theme = self._wanted
        self.open()

    def open(self) -> None:
        self.push_screen(self._make(), self.results.append)


def on_stage(
    make: Callable[[], Screen[Any]],
    script: Callable[[Stage, Pilot[Any]], Awaitable[None]],
    size: tuple[int, int] = (80, 24),
    theme: str = "edgerun-dark",
) -> list[Any]:
    """Play ``script`` on the screen that ``make`` makes; what it was dismissed with."""

    async def play() -> list[Any]:
        app = Stage(make, theme)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await script(app, pilot)
            await pilot.pause()
        return app.results

    return asyncio.run(play())


async def until(pilot: Pilot[Any], true: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait for ``true``; fails the test when it does not come."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come"
        await pilot.pause(0.01)


async def typed(app: App[Any], pilot: Pilot[Any], text: str) -> None:
    """Put ``text`` into the field that has the focus, at once: keys one by one cost much more."""
    field = app.focused
    assert isinstance(field, Input)
    field.value = text
    field.cursor_position = len(text)
    await pilot.pause()


def shown(app: App[Any]) -> str:
    """What stands on the terminal, line by line."""
    lines = app.screen._compositor.render_strips(app.size)
    texts = ["".join(s.text for s in line) for line in lines]
    return "\n".join(texts)
