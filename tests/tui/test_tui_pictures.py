"""What the chat itself looks like, at two sizes and in three themes, against approved pictures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest
from helpers import svg
from helpers.tui import FakePartner, Gate
from helpers.tui_app import Driver, chat
from helpers.tui_screens import CHOICES

from edgerun.core import Chunk, FinishReason, Timings, Usage
from edgerun.tui import themes
from edgerun.tui.partner import About, Live

SIZES = [(80, 24), (160, 50)]
ANSWER = """The borrow checker proves two things *before* the program runs:

1. no reference outlives what it points to;
2. nothing is changed while somebody else reads it.

```rust
fn longest<'a>(a: &'a str, b: &'a str) -> &'a str {
    if a.len() > b.len() { a } else { b } // [/not markup]
}
```

| rule | checked |
|------|---------|
| `&T` | many at once |
| `&mut T` | one, alone |
"""
LAST = Chunk(
    finish_reason=FinishReason.STOP,
    usage=Usage(812, 164, 640, 0),
    timings=Timings(0.0, 0.4, 2.0, 172, 164),
)
STATUS = Live(memory=3_100_000_000, acceptance=0.62, computed=976, cached=976)
Look = Callable[[Driver], Awaitable[None]]


def partner(*scripts: object) -> FakePartner:
    about = About("qwen3-4b", "cpu avx2", 8192, size=2_500_000_000)
    return FakePartner(*scripts, about=about, choices=CHOICES, live=STATUS)


async def first_run(d: Driver) -> None:
    await d.until(lambda: "pulling 41 %" in d.status)
    await d.type("while it is fetched, this can be written")


async def answered(d: Driver) -> None:
    await d.idle()
    await d.say("What does the borrow checker do?")


async def branched(d: Driver) -> None:
    await answered(d)
    await d.say("日本語で言ってください。 שלום 👩‍🚀")
    await d.say("/retry")


async def completing(d: Driver) -> None:
    await d.idle()
    await d.press("slash", "m")
    await d.until(lambda: d.app.screen.query("Popup"))


def pulling() -> FakePartner:
    made = partner()
    made.load_script[None] = [("pull", 40_000_000, 98_000_000), Gate()]
    return made


PICTURES: dict[str, tuple[Callable[[], FakePartner], Look]] = {
    "chat-first-run": (pulling, first_run),
    "chat-answer": (lambda: partner([ANSWER, LAST]), answered),
    "chat-branches": (
        lambda: partner([ANSWER, LAST], ["もちろんです。", LAST], ["借用チェッカーは…", LAST]),
        branched,
    ),
    "chat-commands": (partner, completing),
}

SHOTS = [(n, s) for n in PICTURES for s in SIZES if n != "chat-commands" or s == SIZES[0]]


def picture(make: Callable[[], FakePartner], look: Look, size: tuple[int, int], theme: str) -> str:
    async def play() -> str:
        async with chat(partner=make(), size=size, theme=theme) as d:
            await look(d)
            for _ in range(3):
                await d.pilot.pause(0.05)
            return str(d.app.export_screenshot(title="edgerun chat"))

    return asyncio.run(asyncio.wait_for(play(), 20))


@pytest.mark.parametrize(("name", "size"), SHOTS, ids=lambda v: v if isinstance(v, str) else v[0])
def test_the_chat_looks_as_approved(name: str, size: tuple[int, int]) -> None:
    shot = picture(*PICTURES[name], size, "edgerun-dark")
    wrong = svg.check(f"{name}-{size[0]}x{size[1]}", shot)
    assert wrong is None, wrong


@pytest.mark.parametrize("theme", ["light", "mono"])
def test_the_chat_looks_as_approved_in_other_colours(theme: str) -> None:
    shot = picture(*PICTURES["chat-answer"], (80, 24), f"edgerun-{theme}")
    wrong = svg.check(f"chat-answer-{theme}-80x24", shot)
    assert wrong is None, wrong


def test_every_word_in_every_picture_can_be_read() -> None:
    pale: dict[str, float] = {}
    for file in sorted(svg.APPROVED.glob("*.svg")):
        ours = next((t for t in themes.OWN if t.name[8:] in file.stem), themes.DARK)
        dimmed = None if file.stem.startswith("chat") else ours.background  # behind a panel
        for line in svg.cells(file.read_text(encoding="utf-8")):
            for cell in line:
                fill = re.search(r"fill: (#\w{6})", cell.style)
                if fill is None or not cell.char.isalnum() or not cell.ground:
                    continue
                ratio = themes.contrast(fill[1], cell.ground)
                if ratio < 4.5 and cell.ground.lower() != dimmed:
                    pale[f"{file.stem}: {fill[1]} on {cell.ground}"] = round(ratio, 1)
    assert not pale, "\n".join(f"{k}: {v}" for k, v in pale.items())
