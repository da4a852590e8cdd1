"""The composer: typing, pasting, history, the user's editor."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from helpers.tui_app import Driver, chat, play
from textual import events
from textual.keys import _character_to_key

from edgerun.tui.composer import editor
from edgerun.tui.composer.area import Area, joined
from edgerun.tui.composer.folding import FOLD_CHARS, FOLD_LINES, Folds
from edgerun.tui.composer.history import History
from edgerun.tui.text import width


async def paste(d: Driver, text: str) -> None:
    d.app.chat.composer.area.post_message(events.Paste(text))
    await d.settle()


def area(d: Driver) -> Area:
    return d.app.chat.composer.area


def test_enter_sends_and_other_keys_begin_a_line() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.press("a", "shift+enter", "b", "ctrl+j", "c", "alt+enter", "d")
            assert d.draft == "a\nb\nc\nd"
            await d.press("backslash", "enter", "e")
            assert d.draft == "a\nb\nc\nd\ne"
            assert d.path == []
            await d.press("enter")
            await d.idle()
            assert d.said[0] == ("user", "a\nb\nc\nd\ne")
            assert d.draft == ""

    play(go)


def test_joiners_are_typed() -> None:
    """A family is three people and two joiners; Persian has one within words."""

    async def go() -> None:
        async with chat() as d:
            await d.idle()
            text = "\U0001f468\u200d\U0001f469\u200d\U0001f467 می\u200cخواهم"
            for c in text:
                d.app.post_message(events.Key(_character_to_key(c), c))
            await d.settle()
            assert d.draft == text
            d.app.post_message(events.Key(_character_to_key("\u202e"), "\u202e"))
            await d.settle()
            assert d.draft == text

    play(go)


def test_keys_in_a_burst_keep_their_order() -> None:
    """As they come from a macro, or over a slow line: all in one go."""

    async def go() -> None:
        async with chat("one", "two") as d:
            await d.idle()
            for key in ("x", "ctrl+u", "a", "b", "enter", "c", "left", "d", "enter", "e"):
                d.app.post_message(events.Key(key, key if len(key) == 1 else None))
            await d.until(lambda: len(d.path) == 4)
            await d.idle()
            assert [t for r, t in d.said if r == "user"] == ["ab", "dc"]
            assert d.draft == "e"

    play(go)


def test_nothing_is_sent_of_blanks() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.press("enter", "space", "enter", "ctrl+j", "enter")
            await d.idle()
            assert d.path == []

    play(go)


PASTES = [
    ("one\ntwo\nthree", "one\ntwo\nthree"),
    ("ends with a line end\n", "ends with a line end\n"),
    ("mac\rand\r\nwindows\r", "mac\nand\nwindows\n"),
    ("tab\tstays", "tab\tstays"),
    ("\x1b[2J\x07bad \u202eevil", "\ufffd[2J\ufffdbad \ufffdevil"),
    ("/quit\n", "/quit\n"),
]


def test_a_paste_is_one_draft() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            for pasted, draft in PASTES:
                await paste(d, pasted)
                assert d.draft == draft
                assert d.path == []
                await d.press("ctrl+z")
                assert d.draft == ""  # one change, undone as one

    play(go)


def test_a_huge_paste_is_folded_at_once_and_sent_whole() -> None:
    huge = "".join(f"line {i} of a log\n" for i in range(60_000))
    assert len(huge) > 1_000_000

    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.type("see ")
            began = time.perf_counter()
            await paste(d, huge)
            assert time.perf_counter() - began < 5
            assert area(d).text == "see [pasted #1: 60 001 lines]"
            await d.type(" please")
            assert d.draft == f"see {huge} please"
            await d.press("enter")
            await d.idle()
            assert d.said[0] == ("user", f"see {huge} please")

    play(go)


@pytest.mark.skipif(os.name != "posix", reason="Textual reads in another way there")
def test_pastes_are_cut_out_of_the_stream() -> None:
    """Wherever a read ends; escapes in a paste are part of it."""
    from edgerun.tui.terminal import PasteParser

    stream = (
        "ab\x1b[A\x1b[200~one\rtwo\x1b[20 \x1b[200 x\x1b[201~c\x1b[200~\x1b[201~"
        "\x1b[200~\x1b[201\x1b[201~d\x1b[2~"
    )
    expected = ["a", "b", "up", "'one\\rtwo\\x1b[20 \\x1b[200 x'", "c", "''",
                "'\\x1b[201'", "d", "insert"]  # fmt: skip
    for cut in range(len(stream) + 1):
        if stream[:cut].endswith(("\x1b", "\x1b[")) and stream[cut:].startswith(("[200~", "200~")):
            continue  # might be keys
        parser = PasteParser()
        found = [m for piece in (stream[:cut], stream[cut:]) if piece for m in parser.feed(piece)]
        assert [
            repr(m.text) if isinstance(m, events.Paste) else m.key
            for m in found  # type: ignore[attr-defined]
        ] == expected, cut


def test_a_folded_paste_goes_with_one_backspace() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.type("a ")
            await paste(d, "x" * (FOLD_CHARS + 1))
            assert area(d).text == "a [pasted #1: 8 001 characters]"
            await d.press("backspace")
            assert area(d).text == "a "

    play(go)


def test_folding() -> None:
    folds = Folds()
    assert folds.fold("short") == "short"
    assert folds.fold("x" * FOLD_CHARS) == "x" * FOLD_CHARS
    assert folds.fold("x\n" * (FOLD_LINES - 1)) == "x\n" * (FOLD_LINES - 1)
    lines = "x\n" * FOLD_LINES
    mark = folds.fold(lines)
    assert mark == "[pasted #1: 101 lines]"
    assert folds.unfold(f"a {mark} b {mark}") == f"a {lines} b {lines}"
    typed = "[pasted #2: 9 lines]"
    assert folds.unfold(typed) == typed
    assert (folds.ending(f"a{mark}"), folds.ending(typed), folds.ending("]")) == (len(mark), 0, 0)
    folds.clear()
    assert folds.unfold(mark) == mark


WIDE = [
    ("あいう", [6, 4, 2, 0]),
    ("❤️ok", [4, 3, 2, 0]),
    ("a👩‍👩‍👧b", [4, 3, 1, 0]),
    ("e\u0301x", [2, 1, 0]),
    ("👍🏽!", [3, 2, 0]),
]


def test_the_cursor_moves_over_whole_characters() -> None:
    """Where the cursor is on the screen, in cells, while it goes left from the end."""

    async def go() -> None:
        async with chat() as d:
            await d.idle()
            for text, steps in WIDE:
                area(d).take()
                await walk(d, text, steps)

    async def walk(d: Driver, text: str, steps: list[int]) -> None:
        await d.type(text)
        start = area(d).content_region.x
        seen = [area(d).cursor_screen_offset.x - start]
        for _ in steps[1:]:
            await d.press("left")
            seen.append(area(d).cursor_screen_offset.x - start)
        assert seen == steps
        for _ in steps[1:]:
            await d.press("right")
        assert area(d).cursor_at_end_of_text
        # Wherever the cursor stands, the line is drawn as wide as its characters are.
        for _ in steps:
            strip = area(d).render_line(0)
            assert strip.cell_length == area(d).size.width
            assert strip.text.rstrip() == text
            assert sum(width(s.text) for s in strip) == strip.cell_length
            await d.press("left")

    play(go)


def test_backspace_takes_a_whole_character() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.type("a❤️")
            await d.press("backspace")
            assert d.draft == "a"

    play(go)


def test_a_character_is_not_cut_by_a_change_of_style() -> None:
    from rich.segment import Segment
    from rich.style import Style
    from textual.strip import Strip

    cut = Strip([Segment("a❤", Style(bold=True)), Segment("\ufe0fb   ", Style())])
    whole = joined(cut)
    assert [s.text for s in whole][:2] == ["a❤\ufe0f", "b   "[: len("b   ") - 1]]
    assert whole.cell_length == cut.cell_length


def test_it_grows_to_a_third_of_the_screen() -> None:
    async def go() -> None:
        async with chat(size=(80, 30)) as d:
            await d.idle()
            await d.until(lambda: area(d).size.height == 1)
            await d.type("\n".join("abcdefgh"[:4]))
            await d.until(lambda: area(d).size.height == 4)
            await d.type("\n" * 40)
            await d.until(lambda: area(d).size.height == 9)

    play(go)


def test_history_by_arrow_keys() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.say("first")
            await d.say("second\nof two lines")
            await d.type("draft")
            await d.press("home", "up")
            assert d.draft == "draft"  # only what begins so would be offered
            await d.press("ctrl+k")
            await d.press("up")
            assert d.draft == "second\nof two lines"
            await d.press("up")  # to its first line
            await d.press("up")
            assert d.draft == "first"
            await d.press("down")
            assert d.draft == "second\nof two lines"
            await d.press("down")
            assert d.draft == ""

    play(go)


def test_history_over_sessions(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    async def one() -> None:
        async with chat(path=path) as d:
            await d.idle()
            await d.say("from yesterday")

    async def two() -> None:
        async with chat(path=path) as d:
            await d.idle()
            await d.app.workers.wait_for_complete()
            await d.press("up")
            assert d.draft == "from yesterday"

    play(one)
    play(two)


def test_history_remembers_the_draft_and_filters_by_it() -> None:
    h = History(["apple", "bread", "apricot"])
    assert h.older("ap") == "apricot"
    assert h.older("apricot") == "apple"
    assert h.older("apple") is None
    assert h.newer() == "apricot"
    assert h.newer() == "ap"
    assert h.newer() is None
    h.add("apricot")
    h.add("cherry")
    h.load(["older"])
    assert [h.older(""), h.older("cherry"), h.older("apricot")] == ["cherry", "apricot", "bread"]


@pytest.mark.skipif(os.name != "posix", reason="a shell script as editor")
def test_the_editor_gets_the_draft_and_gives_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "ed it.sh"
    script.write_text('#!/bin/sh\ntr a-z A-Z < "$2" > "$2.new" && mv "$2.new" "$2"\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("VISUAL", f"'{script}' --wait")

    class Suspended:
        def suspend(self):  # type: ignore[no-untyped-def]
            from contextlib import nullcontext

            return nullcontext()

    assert editor.write_in_editor(Suspended(), "two\nlines") == ("TWO\nLINES", "")  # type: ignore[arg-type]
    monkeypatch.setenv("VISUAL", "false")
    text, wrong = editor.write_in_editor(Suspended(), "x")  # type: ignore[arg-type]
    assert text is None
    assert wrong == "false ended with status 1: nothing taken"
    monkeypatch.setenv("VISUAL", "/no/such/editor")
    assert editor.write_in_editor(Suspended(), "x") == (  # type: ignore[arg-type]
        None, "cannot run /no/such/editor: No such file or directory; set $EDITOR",
    )  # fmt: skip


def test_which_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", "code --wait")
    monkeypatch.setenv("EDITOR", "vim")
    assert editor.command() == ["code", "--wait"]
    monkeypatch.setenv("VISUAL", " ")
    assert editor.command() == ["vim"]
    monkeypatch.delenv("EDITOR")
    monkeypatch.setenv("PATH", "")
    assert editor.command() is None
