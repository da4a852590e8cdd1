"""The transcript on a screen: what it shows, what keys and the mouse do, where it scrolls."""

from __future__ import annotations

import asyncio
import statistics
import time
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region
from textual.pilot import Pilot

from edgerun.chat import ToolCall, ToolCallDelta
from edgerun.core import Usage
from edgerun.tui.conversation import Attachment, Message
from edgerun.tui.transcript import Transcript
from edgerun.tui.transcript.entry import Entry

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


@pytest.fixture(autouse=True)
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMUX", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("edgerun.tui.clipboard.tools", lambda env: [])


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
        streamed = view.text()
        view.show([])
        await settle(pilot)
        assert view.text() == ""
        view.show([answer(text)])
        await settle(pilot)
        assert view.text() == streamed

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
        rows = view.text()
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


def test_following_the_end() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.add(answer(state="streaming"))
        for i in range(30):
            view.feed("a", f"line {i}\n\n")
        await settle(pilot)
        assert view.following
        assert "line 29" in app.screen_rows()[-2]
        await pilot.press("pageup")
        await pilot.pause(0.4)
        assert not view.following
        before = app.screen_rows()
        assert before[-1].endswith("↓ more · End")
        view.feed("a", "and more\n\n" * 9)
        await settle(pilot)
        assert app.screen_rows() == before, "what is read stays where it is"
        await pilot.press("end")
        await settle(pilot)
        assert view.following
        assert "and more" in app.screen_rows()[-2]
        view.feed("a", "the last")
        await settle(pilot)
        assert "the last" in app.screen_rows()[-2]

    run(test)


def test_a_resize_keeps_the_place() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        text = "\n\n".join(f"Paragraph {i} with some words to fold at its end" for i in range(60))
        view.show([user("x"), answer(text)])
        await settle(pilot)
        view.scroll_to(y=60, animate=False)
        await settle(pilot)
        top = next(row for row in app.screen_rows() if "Paragraph" in row)
        await pilot.resize_terminal(40, 12)
        await settle(pilot)
        number = int(top.split()[1])
        near = [int(r.split()[1]) for r in app.screen_rows() if "Paragraph" in r]
        assert abs(near[0] - number) < 8
        view.action_follow()
        await pilot.resize_terminal(25, 8)
        await settle(pilot)
        assert view.following
        assert view.scroll_offset.y == view.max_scroll_y

    run(test)


def test_keys() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.show([user("Hello"), answer(CODE, "a"), user("More", "q2"), answer("Yes", "b")])
        await settle(pilot)
        await pilot.press("c")
        assert app.sent == ["Yes"]  # without a cursor: the last
        await pilot.press("up", "up", "up")
        assert view.cursor == "a"
        await settle(pilot)
        assert sum(row.startswith("▌") for row in app.screen_rows()) == 11
        await pilot.press("c", "y", "y", "1", "7")
        assert app.sent[1:] == [CODE, "ls", "print(1)", "print(1)"]
        await pilot.press("e", "r", "left_square_bracket", "right_square_bracket", ">")
        actions = ["edit", "retry", "previous", "next", "continue"]
        assert [x for x in app.seen if x[0] == "a"] == [("a", x) for x in actions]
        assert ("code block", "there is no code block 7") in app.seen
        await pilot.press("ctrl+u", "ctrl+u")
        assert view.scroll_offset.y == 0
        await pilot.press("ctrl+d")
        assert view.scroll_offset.y == view.size.height // 2
        await pilot.press("down", "down", "down", "down")
        assert view.cursor == "b"
        await pilot.press("y")
        assert app.seen[-1] == ("code block", "there is no code block")

    run(test)


def test_the_mouse() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        message = answer("one two\nthree", reasoning="hm", state="done")
        view.show([message], lambda _: (2, 3))
        await settle(pilot)
        await pilot.click(Transcript, offset=(12, 0))
        await pilot.click(Transcript, offset=(17, 0))
        assert app.seen == [("a", "previous"), ("a", "next")]
        assert view.cursor == "a"
        await pilot.click(Transcript, offset=(5, 1))
        await settle(pilot)
        assert app.screen_rows()[1:3] == ["▌ ▾ Thought", "▌ hm"]
        await pilot.mouse_down(Transcript, offset=(6, 4))
        await pilot.hover(Transcript, offset=(4, 5))
        await pilot.mouse_up(Transcript, offset=(4, 5))
        await settle(pilot)
        assert app.sent == ["two\nthr"]
        assert ("selection", "") in app.seen
        await pilot.press("c")
        assert app.sent == ["two\nthr"] * 2  # what is selected, not the message
        view.screen.clear_selection()
        await pilot.press("c")
        assert app.sent[-1] == "one two\nthree"

    run(test)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("words that are so long that they fold here", None),
        ("日本語の文章はここで折り返されますけれど", None),
        ("- item\n- second", "item\nsecond"),
        ("> quoted", "quoted"),
        ("```py\nif x:\n    y\n```", "\nif x:\n    y"),
    ],
)
def test_what_is_selected_is_the_text(text: str, expected: str | None) -> None:
    """Folded lines are whole again; markers, bars and padding stay behind."""

    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.show([answer(text)])
        await settle(pilot)
        assert "日" not in text or view.virtual_size.height > 3
        view.text_select_all()
        await settle(pilot)
        view.copy_selection()
        assert app.sent == ["\n" + (text if expected is None else expected) + "\n"]

    run(test, (26, 12))


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
        assert "\u200d" not in {row[-1:] for row in view.text().split("\n")}

    run(test, (23, 30))


@pytest.mark.parametrize("theme", ["textual-light", "textual-dark", "ansi-dark", "nord"])
def test_themes(theme: str) -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.show([user("x"), answer("# T\n`c` **b**\n```py\nx = 1\n```")])
        await settle(pilot)
        before = view.text()
        app.theme = theme
        await settle(pilot)
        styles = {
            (style.color, style.bgcolor)
            for strip in view.render_lines(Region(0, 0, 59, 9))
            for text, style, _ in strip
            if style is not None and text.strip()
        }
        assert view.text() == before
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
        assert "old" not in view.text()
        message.state = "streaming"  # "continue": the same message goes on
        view.update(message)
        view.feed("a", " and on")
        await settle(pilot)
        assert "end and on" in view.text()

    run(test)


def rows_of(view: Transcript, ids: Sequence[str]) -> list[int]:
    return [id(view._stack.get(i)) for i in ids]


def test_showing_a_branch_keeps_what_is_common() -> None:
    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.show([user("x"), answer("long " * 100), user("y", "q2")])
        await settle(pilot)
        kept = rows_of(view, ["q", "a"])
        view.pick("q2")
        view.show([user("x"), answer("long " * 100), user("z", "q3")], lambda _: (2, 2))
        await settle(pilot)
        assert rows_of(view, ["q", "a"]) == kept
        assert view.cursor is None
        assert "y" not in view.text()
        assert "z" in view.text()

    run(test)


SOME = "- item with **bold**\n- `code`\n\n|a|b|\n|-|-|\n|1|2|\n\nText of some words.\n\n" * 2 + (
    "```py\nfor i in range(3):\n    print(i)\n```\n\n1. one\n2. two\n\n"
)


def test_a_chunk_costs_the_same_after_5000_lines() -> None:
    """In processor time, from the chunk to the rows; benchmarks/chat.py measures the screen too."""

    def median(view: Transcript) -> float:
        costs = []
        for at in range(0, 4 * len(SOME), 4):
            chunk = (SOME * 4)[at : at + 4]
            began = time.process_time()
            view.feed("a", chunk)
            view.paint()
            costs.append(time.process_time() - began)
        return statistics.median(costs)

    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        view.add(answer(SOME, state="streaming"))
        await settle(pilot)
        first = median(view)
        text = SOME * (5000 // SOME.count("\n") + 1)
        for at in range(0, len(text), 500):
            view.feed("a", text[at : at + 500])
            view.paint()
        assert view.virtual_size.height > 4500
        again = min(median(view) for _ in range(2))
        assert again < 1.5 * first, (first, again)

    run(test, (80, 24))


def test_a_long_chat_opens_at_once() -> None:
    """Rows are made where one looks; the others follow, and nothing moves meanwhile."""

    async def test(app: Rig, view: Transcript, pilot: Pilot[None]) -> None:
        chat = [answer(f"# Answer {i}\n\n" + SOME * 4, f"a{i}") for i in range(40)]
        view.show(chat)
        view.paint()
        made = sum(bool(e.cells) for e in view._stack.entries)
        assert made < 10
        assert app.screen_rows()[-2].endswith("2. two")
        await settle(pilot)
        view.pick("a20")
        await settle(pilot)
        before = app.screen_rows()
        assert before[:2] == ["▌ smollm2", "▌ Answer 20"]
        for _ in range(100):
            if not view._stack.waiting:
                break
            await pilot.pause(0.05)
            assert app.screen_rows() == before
        assert all(e.cells for e in view._stack.entries)
        await pilot.press("home")
        await pilot.pause(0.5)
        assert app.screen_rows()[1].endswith("Answer 0")

    run(test, (80, 24))


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
