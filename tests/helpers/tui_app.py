"""The terminal chat, driven by a pilot with a partner that plays a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from textual import events
from textual.keys import _character_to_key
from textual.pilot import Pilot

from edgerun.tui import talk
from edgerun.tui.app import ChatApp, Options
from edgerun.tui.conversation import Message
from helpers.tui import FakePartner

__all__ = ["Driver", "chat", "play"]

_CHARACTERS = {"space": " ", "slash": "/", "backslash": "\\", "left_square_bracket": "[",
               "right_square_bracket": "]"}  # fmt: skip


class Driver:
    """What a test does with the program, and sees of it."""

    def __init__(self, app: ChatApp, pilot: Pilot[Any], partner: FakePartner) -> None:
        self.app, self.pilot, self.partner = app, pilot, partner

    @property
    def path(self) -> list[Message]:
        assert self.app.talk is not None
        return self.app.talk.conversation.path()

    @property
    def said(self) -> list[tuple[str, str]]:
        return [(m.role, m.text) for m in self.path]

    @property
    def draft(self) -> str:
        return self.app.chat.composer.draft

    @property
    def notice(self) -> str:
        return self.app.chat.notice.text

    @property
    def status(self) -> str:
        return self.app.chat.status.shown

    async def until(self, true: Callable[[], Any], what: str = "") -> None:
        """Wait for something to become so."""
        for _ in range(5000):
            if true():
                await self.settle()
                return
            await asyncio.sleep(0.004)
        raise AssertionError(f"never came: {what or true.__code__.co_names}")

    async def settle(self) -> None:
        """All messages, and those they led to, have been dealt with. (The pilot's own pause looks
        at the processor's time, and sleeps.)"""
        for _ in range(4):
            await self.pilot._wait_for_screen()

    async def idle(self) -> None:
        """The model is there, nothing is written, nothing waits."""
        await self.until(lambda: self.app.talk is not None and self.app.keeper.state == "ready")
        await self.until(lambda: not self.app.talk.busy and not self.app.talk.queue)
        await self.app.workers.wait_for_complete(
            [w for w in self.app.workers if w.group in ("chat", "draft", "offer", "send")]
        )
        await self.settle()

    async def type(self, text: str) -> None:
        self.app.chat.composer.area.insert_text(text)
        await self.settle()

    async def say(self, text: str, *, wait: bool = True) -> None:
        """Write and send."""
        self.app.chat.composer.write(text)
        await self.press("enter")
        if wait:
            await self.idle()

    async def press(self, *keys: str) -> None:
        for key in keys:
            name = _character_to_key(key) if len(key) == 1 else key
            character = key if len(key) == 1 else _CHARACTERS.get(key)
            self.app.post_message(events.Key(name, character))
            await self.settle()


@asynccontextmanager
async def chat(
    *scripts: Any,
    partner: FakePartner | None = None,
    path: Path | None = None,
    size: tuple[int, int] = (100, 30),
    base: Path | None = None,
    **options: Any,
) -> AsyncIterator[Driver]:
    """The program, running. ``path``: its database; without one nothing is kept."""
    talk.FRAME = 0.002  # tests need not wait to see
    partner = partner or FakePartner(*scripts)
    options.setdefault("save", path is not None)
    app = ChatApp(Options(**options), lambda: partner, path=path)
    if base is not None:
        app.chat.composer.base = base
        app.chat.composer.listing.base = base
    async with app.run_test(size=size) as pilot:
        yield Driver(app, pilot, partner)
    await app.finish()


def play(test: Callable[[], Awaitable[None]]) -> None:
    """Run a coroutine function, at most 60 s."""
    asyncio.run(asyncio.wait_for(test(), 60))
