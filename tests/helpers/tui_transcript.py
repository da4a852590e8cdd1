"""A transcript alone on a screen, for tests of what it shows and does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.pilot import Pilot

from edgerun.tui.conversation import Message
from edgerun.tui.transcript import Transcript

__all__ = ["CODE", "Rig", "answer", "run", "settle", "user"]

CODE = "Look:\n\n```python\nprint(1)\n```\n\nor\n\n```sh\nls\n```\n"


class Rig(App[None]):
    """A transcript alone; ``seen`` holds what it posts, ``sent`` what goes to the clipboard."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        self.sent: list[str] = []

    def compose(self) -> ComposeResult:
        yield Transcript()

    @property
    def view(self) -> Transcript:
        return self.query_one(Transcript)

    def copy_to_clipboard(self, text: str) -> None:
        self.sent.append(text)

    def on_text_selected(self) -> None:
        self.view.copy_selection()

    def on_transcript_picked(self, event: Transcript.Picked) -> None:
        self.seen.append((event.message_id, event.action))

    def on_transcript_copied(self, event: Transcript.Copied) -> None:
        self.seen.append((event.what, event.problem))

    def rows(self) -> str:
        """All rows, in view or not."""
        self.view._finish()
        stack = self.view._stack
        return "\n".join(stack.row(y)[2].text for y in range(stack.height))

    def screen_rows(self) -> list[str]:
        """What is in view, from the strips that are drawn."""
        view = self.view
        size = view.scrollable_content_region.size
        return [s.text.rstrip() for s in view.render_lines(Region(0, 0, *size))]


def run(
    test: Callable[[Rig, Transcript, Pilot[None]], Awaitable[None]],
    size: tuple[int, int] = (60, 12),
) -> None:
    async def main() -> None:
        app = Rig()
        async with app.run_test(size=size) as pilot:
            app.view.focus()
            await test(app, app.view, pilot)

    asyncio.run(main())


async def settle(pilot: Pilot[None]) -> None:
    """Until the next repaint is done."""
    await pilot.pause(0.06)
    await pilot.pause()


def user(text: str, id: str = "q") -> Message:  # noqa: A002
    return Message(id, None, "user", text)


def answer(text: str = "", id: str = "a", **more: Any) -> Message:  # noqa: A002
    return Message(id, "q", "assistant", text, model="smollm2", **more)
