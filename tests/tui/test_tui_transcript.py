"""The transcript on a screen: what it shows."""

from __future__ import annotations

import asyncio
import unicodedata
from typing import Any

import pytest
from helpers.tui_transcript import CODE, Rig, answer, run, settle, user
from textual.geometry import Region
from textual.pilot import Pilot

from edgerun.chat import ToolCall, ToolCallDelta
from edgerun.core import Usage
from edgerun.tui.conversation import Attachment, Message
from edgerun.tui.transcript import Transcript
from edgerun.tui.transcript.entry import Entry


def test_who_says_what() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        question = user("Why [/]?\n\n  two\tx")
        question.attachments = (Attachment("src/\x1b[1ma.py", "…", 1204),)
        view.show([question, answer("**Because.**")], lambda i: (2, 3) if i == "a" else (1, 1))
        await settle(pilot)
        assert app.screen_rows() == [
            "│ You",
            "│ @src/\ufffd[1ma.py · 1 204 tokens",
            "│ Why [/]?",
            "│",
            "│   two   x",
            "│",
            "  smollm2  ‹ 2/3 ›",
            "  Because.",
            "",
            "",
            "",
            "",
        ]

    run(test)


def test_streaming_equals_showing_even_when_resized() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        message = answer(state="streaming")
        view.add(message)
        text = CODE + "\n- a\n- b\n\n|x|y|\n|-|-|\n|1|2|\n\n" + "words " * 40
        for i in range(0, len(text), 3):
            view.feed("a", text[i : i + 3])
            if i == 99:
                await pilot.resize_terminal(30, 9)
            if i % 30 == 0:
                await pilot.pause()
        message.text, message.state = text, "done"
        view.finish(message)
        await pilot.resize_terminal(50, 12)
        await settle(pilot)
        streamed = app.rows()
        view.show([])
        await settle(pilot)
        assert app.rows() == ""
        view.show([answer(text)])
        await settle(pilot)
        assert app.rows() == streamed

    run(test)


def test_the_last_words_come_within_a_frame_and_repaints_keep_their_distance() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        paints: list[int] = []
        paint = view.paint
        view.paint = lambda: (paints.append(1), paint())[1]  # type: ignore[method-assign]
        view.add(answer(state="streaming"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        for i in range(100):
            view.feed("a", f"{i} ")
            await asyncio.sleep(0.002)
        view.feed("a", "last")
        took = loop.time() - began
        await settle(pilot)
        assert any("last" in row for row in app.screen_rows())
        assert len(paints) <= (took + 0.07) * 30 + 2

    run(test)


def test_nothing_raw_reaches_the_screen() -> None:
    evil = "\x1b]52;c;aGk=\x07 \x1b[2J \x9b1m \u202e [@click=app.quit]x[/] [/] [b + x [/#888888] "
    evil += (
        "`\x1b[31m` [l](http://x.y/\x1b]0;t\x07)\n\n```\x1b[1m\n\x1b[2J\n```\n\n|\x1b|\n|-|\n|\x9d|"
    )

    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        calls = (ToolCall("1", f"f{evil}", f'{{"a": "{evil}"}}'),)
        message = answer(evil, reasoning=evil, calls=calls, state="error", note=evil)
        message.model = evil
        tool = Message("t", "a", "tool", evil)
        view.show([user(evil), message, tool], lambda _: (1, 2))
        for target in ("a", "t"):
            view.action_fold(target)
        await settle(pilot)
        rows = app.rows()
        assert {c for c in rows if unicodedata.category(c) in ("Cc", "Cs")} <= {"\n"}
        assert "\u202e" not in rows
        for text in ("[@click=app.quit]x[/]", "[b + x [/#888888]", "[/]"):
            assert rows.count(text) >= 3
        view.scroll_to(y=0, animate=False)
        await settle(pilot)
        for strip in view.render_lines(Region(0, 0, 119, 60)):
            for text, style, control in strip:
                assert not control
                assert not any(unicodedata.category(c) == "Cc" for c in text)
                assert style is None or (style.link or "").isprintable()
                assert style is None or set(style.meta) <= {"offset"}

    run(test, (120, 60))


def test_reasoning_is_folded_and_timed() -> None:
    now = [100.0]
    entry = Entry(answer(state="streaming"), clock=lambda: now[0])

    def rows() -> list[str]:
        entry.lay(40)
        return [entry.row(y)[1].text for y in range(entry.height)]

    entry.feed(reasoning="Let me **see**")
    assert rows() == ["smollm2", "▸ Thinking… 0 s", "", ""]
    now[0] += 3.2
    assert entry.stale(40)
    assert rows()[1] == "▸ Thinking… 3 s"
    assert not entry.stale(40)
    entry.feed("Yes")
    now[0] += 9
    assert rows() == ["smollm2", "▸ Thought for 3 s", "", "Yes", ""]
    entry.finish(answer("Yes", reasoning="Let me **see**", usage=Usage(5, 1500, 0, 1210)))
    assert rows()[1] == "▸ Thought for 3 s · 1 210 tokens"
    assert entry.toggle("reasoning")
    assert rows() == [
        "smollm2", "▾ Thought for 3 s · 1 210 tokens", "Let me see", "", "Yes", "",
    ]  # fmt: skip
    assert entry.toggle()
    assert "▸" in rows()[1]


def test_calls_are_shown_as_they_come() -> None:
    entry = Entry(answer(state="streaming"))

    def rows() -> list[str]:
        entry.lay(40)
        return [entry.row(y)[1].text for y in range(entry.height)]

    entry.feed("I look.")
    entry.feed(calls=[ToolCallDelta(0, '{"city": ', "c1", "weather")])
    assert rows()[1:] == ["I look.", "", '▸ weather({"city":)', ""]
    entry.feed(calls=[ToolCallDelta(0, '"Bonn"}'), ToolCallDelta(1, "{}", "c2", "time")])
    assert rows()[2:] == ["", '▸ weather({"city": "Bonn"})', "▸ time({})", ""]
    assert entry.toggle("calls")
    assert rows()[3:7] == ["▾ weather", "  {", '    "city": "Bonn"', "  }"]


def test_a_tools_result_is_cut() -> None:
    entry = Entry(Message("t", "a", "tool", "\n".join(f"line {i}" for i in range(30))))
    assert entry.lay(40) == 0
    assert entry.height == 9
    assert entry.row(7)[1].text == "▸ 24 more lines"
    entry.toggle()
    entry.lay(40)
    assert entry.height == 33


@pytest.mark.parametrize(
    ("state", "note", "row"),
    [
        ("error", "no model: pull one", "Error: no model: pull one"),
        ("stopped", "", "Stopped."),
        ("length", "", "Cut short: the context or the limit on tokens is full."),
        ("done", "", ""),
    ],
)
def test_how_it_ended(state: Any, note: str, row: str) -> None:
    entry = Entry(answer("Text", state=state, note=note))
    entry.lay(60)
    assert entry.row(2)[1].text == row


def test_wide_rows_fill_the_screen_exactly() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        family = "👩\u200d👩\u200d👧"
        text = (
            f"{family * 30}\n\n- あいう {family} ❤\ufe0f العربية e\u0301\n\n```\n{'字' * 40}\n```"
        )
        view.show([user(family * 20), answer(text)])
        await settle(pilot)
        view.scroll_to(y=0, animate=False)
        await settle(pilot)
        for strip in view.render_lines(Region(0, 0, 22, 30)):
            assert strip.cell_length == 22
        assert "\u200d" not in {row[-1:] for row in app.rows().split("\n")}

    run(test, (23, 30))


@pytest.mark.parametrize("theme", ["textual-light", "textual-dark", "ansi-dark", "nord"])
def test_themes(theme: str) -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.show([user("x"), answer("# T\n`c` **b**\n```py\nx = 1\n```")])
        await settle(pilot)
        before = app.rows()
        app.theme = theme
        await settle(pilot)
        styles = {
            (style.color, style.bgcolor)
            for strip in view.render_lines(Region(0, 0, 59, 9))
            for text, style, _ in strip
            if style is not None and text.strip()
        }
        assert app.rows() == before
        assert len({c for c, _ in styles}) > 3
        same = [c for c, b in styles if c == b and not (c is None or c.is_default)]
        assert not same, "text in the colour of its ground"

    run(test)


def test_without_colours_structure_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.show([user("x"), answer("# T\n**b** *i*")])
        await settle(pilot)
        styles = [s for strip in view.render_lines(Region(0, 0, 59, 9)) for _, s, _ in strip if s]
        for color in (s.color for s in styles if s.color):
            r, g, b = color.get_truecolor()
            assert r == g == b
        assert any(s.bold and s.underline for s in styles)
        assert any(s.italic for s in styles)

    run(test)


def test_old_turns_are_not_heard() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        message = answer("end", state="streaming")
        view.show([message])
        message.state = "done"
        view.finish(message)
        view.feed("a", " of an old turn")
        view.feed("gone", "nobody")
        await settle(pilot)
        assert "old" not in app.rows()
        message.state = "streaming"  # "continue": the same message goes on
        view.update(message)
        view.feed("a", " and on")
        await settle(pilot)
        assert "end and on" in app.rows()

    run(test)


def test_a_long_question_is_folded() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.show([user("\n".join(f"line {i}" for i in range(5000)))])
        await settle(pilot)
        assert view.virtual_size.height == 63
        assert app.screen_rows()[-2] == "│ ▸ 4940 more lines"
        await pilot.click(Transcript, offset=(5, 10))
        await settle(pilot)
        assert view.virtual_size.height == 5003
        await pilot.press("c")
        assert app.sent[0].endswith("line 4999")

    run(test)
