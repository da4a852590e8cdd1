"""What stands between the start and the first paint: it is short because little is imported and
laid out before it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import environment
from helpers.tui import FakePartner
from helpers.tui_app import chat, play
from textual.app import App

from edgerun.tui.app import ChatApp, Options

#: All of edgerun that is imported before the first paint. Whatever joins it costs each start.
NEEDED = """
edgerun edgerun.amounts edgerun.cli edgerun.cli.chat edgerun.cli.options edgerun.errors
edgerun.folders edgerun.tui edgerun.tui.app edgerun.tui.commands edgerun.tui.composer
edgerun.tui.composer.area edgerun.tui.composer.box edgerun.tui.composer.chips
edgerun.tui.composer.complete edgerun.tui.composer.files edgerun.tui.composer.folding
edgerun.tui.composer.history edgerun.tui.composer.popup edgerun.tui.options edgerun.tui.screen
edgerun.tui.sight edgerun.tui.stage edgerun.tui.status edgerun.tui.terminal edgerun.tui.text
edgerun.tui.themes
"""
#: Of others: each takes milliseconds.
HEAVY = """
numpy sqlite3 httpx jinja2 pygments.lexers markdown_it psutil tomllib tomli
email http.client urllib.request multiprocessing huggingface_hub
"""

SCRIPT = f"""
import json, sys
import edgerun.cli.chat as chat
from edgerun.cli import main
chat._capable = lambda: True
from edgerun.tui.app import ChatApp
laid = []
ChatApp.refresh_css = lambda self, animate=True: laid.append(1)
def painted(self):
    seen = {{
        "own": sorted(m for m in sys.modules if m.split(".")[0] == "edgerun"),
        "heavy": sorted(set({HEAVY.split()!r}) & set(sys.modules)),
        "widgets": sorted(type(w).__name__ for w in self.chat.query("*")),
        "placeholder": str(self.chat.composer.area.placeholder),
        "laid": len(laid),
    }}
    print(json.dumps(seen), file=sys.__stdout__, flush=True)
    self.exit()
ChatApp._open = painted
sys.exit(main(["chat", "--no-save"]))
"""


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What there is when the first paint is done."""
    env = environment(
        EDGERUN_HOME=str(tmp_path_factory.mktemp("home")),
        TEXTUAL_DRIVER="textual.drivers.headless_driver:HeadlessDriver",
    )
    run = [sys.executable, "-c", SCRIPT]
    out = subprocess.run(run, capture_output=True, text=True, env=env, timeout=60, check=True)
    seen: dict[str, Any] = json.loads(out.stdout)
    return seen


def test_the_first_paint_needs_little(painted: dict[str, Any]) -> None:
    assert set(painted["own"]) <= set(NEEDED.split())
    assert painted["heavy"] == []


def test_what_is_not_seen_is_not_laid_out(painted: dict[str, Any]) -> None:
    assert "Area" in painted["widgets"]
    assert "Transcript" not in painted["widgets"]
    assert painted["placeholder"].startswith("Ask anything")  # not a frame later
    assert painted["laid"] == 0  # styles once, not for another theme before


@pytest.mark.parametrize("name", ["edgerun-light", "edgerun-mono", "nord"])
def test_a_theme_to_begin_with_is_as_one_that_is_chosen(name: str) -> None:
    def looks(app: App[Any]) -> object:
        return app.theme, app.current_theme, app.classes, dict(app.stylesheet._variables)

    async def go(given: str | None) -> object:
        async with chat(theme=given) as d:
            await d.idle()
            app, composer = d.app, d.app.chat.composer
            app.theme = name
            await d.settle()
            return looks(app), composer.styles.background, composer.area.rich_style

    async def both() -> None:
        assert await go(name) == await go(None)

    play(both)


def test_a_chat_begins_with_the_theme_of_the_last_one(tmp_path: Path) -> None:
    """It would be seen: dark, and then light."""
    path, file = tmp_path / "chats.db", tmp_path / "chat.theme"

    def first(**options: Any) -> str:
        return ChatApp(Options(**options), FakePartner, path=path).theme

    async def choose() -> None:
        async with chat(path=path) as d:
            await d.idle()
            assert not file.exists()
            await d.say("/theme edgerun-light")
            await d.until(lambda: file.exists() and file.read_text() == "edgerun-light")

    play(choose)
    assert first() == "edgerun-light"
    assert first(save=False) == "edgerun-dark"  # nor is anything else of the last one there
    assert first(theme="nord") == "nord"
    for junk in (b"", b"\xff\0", b"no such theme", b"x" * 1_000_000):
        file.write_bytes(junk)
        assert first() == "edgerun-dark"

    async def again() -> None:
        async with chat(path=path) as d:
            await d.idle()
            assert d.app.theme == "edgerun-light"
            await d.until(lambda: file.read_text() == "edgerun-light")

    play(again)


def test_the_transcript_is_there_once_it_is_looked_at(tmp_path: Path) -> None:
    async def go() -> None:
        async with chat("an answer") as d:
            await d.idle()
            await d.say("a question")
            screen = d.app.chat
            assert [type(w).__name__ for w in screen.children][:2] == ["Welcome", "Transcript"]
            assert screen.transcript.display
            assert screen.transcript is screen.query_one("#transcript")

    play(go)
