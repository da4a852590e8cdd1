"""The page at / in a real browser. Screenshots are kept under build/screenshots."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.browser import Browser
from helpers.http import Endpoint
from helpers.paths import ROOT

SHOTS = ROOT / "build" / "screenshots"
EVIL = "<img src=x onerror=document.title='bad'>"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tells a story without an end."""
    words = ["Once ", "upon ", "a ", "time, "]
    after = dict(zip(words, [*words[1:], words[0]], strict=True))
    start = dict.fromkeys(range(3, 500), words[0])
    folder = tmp_path_factory.mktemp("m")
    return gb.scripted_model(folder / "tiny.gguf", {**start, **after}, n_ctx=100_000)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def browser(started: Browser) -> Browser:
    started.problems.clear()
    return started


def test_a_chat_streams(path: Path, browser: Browser) -> None:
    with Endpoint({"tiny": path}) as server:
        browser.open(server.url + "/")
        browser.until("document.getElementById('health').textContent === 'ready'")
        browser.until("document.getElementById('model').value === 'tiny'")
        assert browser.value("document.activeElement.id") == "text"
        browser.type(f"Hello {EVIL}\n")
        browser.until("document.querySelectorAll('.turn.assistant').length === 1")
        # It grows while it is written: what is seen early is not all there will be.
        size = "document.querySelector('.turn.assistant').textContent.length"
        browser.until(f"{size} > 20")
        early = browser.value(size)
        browser.screenshot(SHOTS / "chat-streaming.png")
        browser.until(f"{size} > {early + 50}")
        browser.value("document.getElementById('stop').click()")
        browser.until("!document.getElementById('send').disabled")
        assert EVIL in browser.value("document.querySelector('.turn.user').textContent")
        assert browser.value("document.querySelectorAll('.turn img').length") == 0
        assert browser.value("document.title") == "edgerun"
        browser.screenshot(SHOTS / "chat.png")
        browser.value("document.getElementById('fresh').click()")
        assert browser.value("document.querySelectorAll('.turn').length") == 0
        assert browser.problems == []
    assert (SHOTS / "chat.png").stat().st_size > 5000


def test_a_key_is_asked_for(path: Path, browser: Browser) -> None:
    with Endpoint({"tiny": path}, api_keys=("secret",)) as server:
        browser.open(server.url + "/")
        browser.until("!document.getElementById('key-form').hidden")
        browser.value("document.getElementById('key').focus()")
        browser.type("secret\n")
        browser.until("document.getElementById('model').value === 'tiny'")
        assert browser.value("document.getElementById('key-form').hidden") is True


def test_the_documentation_is_drawn(path: Path, browser: Browser) -> None:
    with Endpoint({"tiny": path}) as server:
        browser.open(server.url + "/docs")
        browser.until("document.querySelectorAll('section').length > 5")
        assert "/v1/chat/completions" in browser.value("document.body.textContent")
        browser.screenshot(SHOTS / "docs.png")
        assert browser.problems == []
