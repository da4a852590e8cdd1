"""The transcript on a screen: keys, the mouse, where it scrolls, and what that costs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import pytest
from helpers.tui_transcript import CODE, Rig, answer, run, settle, user
from textual.pilot import Pilot

from edgerun.tui.transcript import Transcript


@pytest.fixture(autouse=True)
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMUX", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("edgerun.tui.clipboard.tools", lambda env: [])


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
        assert "y" not in app.rows()
        assert "z" in app.rows()

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
