"""From the start of the program to its end: first run, resumed chats, drafts, crashes, quitting."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from helpers.tui import FakePartner, Gate
from helpers.tui_app import Driver, chat, play
from textual import events

from edgerun.tui.app import ChatApp, Options
from edgerun.tui.store import Store
from edgerun.tui.transcript import Transcript


def held() -> list[object]:
    return ["old ", Gate()]


def test_a_first_run_sends_what_was_typed_during_the_pull() -> None:
    async def go() -> None:
        partner = FakePartner("hello!")
        gate = Gate()
        partner.load_script[None] = [("pull", 40, 100), gate, ("load", 1, 2)]
        async with chat(partner=partner) as d:
            assert d.app.chat.composer.area.has_focus
            await d.press(*"hi")
            await d.press("enter")
            await gate.reached.wait()
            await d.until(lambda: d.status.startswith("pulling 40 %"))
            assert "fetching the default model" in d.app.chat.welcome.lines[0]
            assert [q.text for q in d.app.talk.queue] == ["hi"]
            assert d.path == []
            gate.open()
            await d.idle()
            assert d.said == [("user", "hi"), ("assistant", "hello!")]

    play(go)


def test_a_question_on_the_command_line() -> None:
    async def go() -> None:
        async with chat("yes", question="is it?") as d:
            await d.idle()
            assert d.said == [("user", "is it?"), ("assistant", "yes")]

    play(go)


def test_what_is_pressed_before_the_chat_is_there_is_not_lost() -> None:
    class Early(ChatApp):
        def on_load(self) -> None:
            self.post_message(events.Key("ctrl+o", None))

    async def go() -> None:
        app = Early(Options(save=False), lambda: FakePartner())
        async with app.run_test() as pilot:
            await Driver(app, pilot, FakePartner()).until(
                lambda: type(app.screen).__name__ == "ModelScreen"
            )
        await app.finish()

    play(go)


def test_what_is_typed_before_the_first_paint_is_not_lost() -> None:
    class Early(ChatApp):
        def on_load(self) -> None:
            for key in ("h", "i", "enter", "x"):
                self.post_message(events.Key(key, key if len(key) == 1 else None))

    async def go() -> None:
        app = Early(Options(save=False), lambda: FakePartner("hello"))
        async with app.run_test() as pilot:
            d = Driver(app, pilot, FakePartner())
            await d.until(lambda: app.talk is not None and len(d.path) == 2)
            await d.idle()
            assert d.said == [("user", "hi"), ("assistant", "hello")]
            assert d.draft == "x"
        await app.finish()

    play(go)


def test_continue_resume_and_drafts(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    async def first() -> None:
        async with chat("about apples", "about pears", path=path) as d:
            await d.idle()
            await d.say("apples?")
            await d.say("/new")
            await d.say("pears?")
            await d.type("unfinished @thought")
            d.app.quit()

    async def latest() -> None:
        async with chat(path=path, resume="") as d:
            await d.idle()
            assert d.said == [("user", "pears?"), ("assistant", "about pears")]
            assert d.draft == "unfinished @thought"
            assert " 2/4096" in d.status

    async def other() -> None:
        async with chat(path=path, resume="apples") as d:
            await d.idle()
            assert d.said[0] == ("user", "apples?")
            assert d.draft == ""

    async def none() -> None:
        async with chat(path=path, resume="nothing like it") as d:
            await d.idle()
            assert d.path == []
            assert d.notice == "there is no chat 'nothing like it': this is a new chat"

    for run in (first, latest, other, none):
        play(run)


def test_no_save_keeps_nothing(tmp_path: Path) -> None:
    async def go() -> None:
        async with chat(path=tmp_path / "chats.db", save=False) as d:
            await d.idle()
            await d.say("secret")

    play(go)
    assert list(tmp_path.iterdir()) == []


def test_what_was_chosen_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    async def first() -> None:
        async with chat(path=path) as d:
            await d.idle()
            await d.say("/theme edgerun-light")
            await d.say("/set temp 0.3")
            await d.say("/model other")

    async def second() -> None:
        async with chat(path=path) as d:
            await d.idle()
            assert d.app.theme == "edgerun-light"
            assert d.app.talk.params.temperature == 0.3
            assert d.partner.loads == ["other"]

    async def told() -> None:
        async with chat(path=path, model="mine", theme="edgerun-dark") as d:
            await d.idle()
            assert d.app.theme == "edgerun-dark"
            assert d.partner.loads == ["mine"]

    for run in (first, second, told):
        play(run)


def test_a_database_that_cannot_be_used_is_said_once_and_the_chat_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "a-folder"
    path.mkdir()

    async def go() -> None:
        async with chat("fine", path=path) as d:
            await d.until(lambda: d.notice)
            assert "a-folder" in d.notice
            await d.idle()
            await d.say("hello")
            assert d.said == [("user", "hello"), ("assistant", "fine")]
            assert "not saved" in d.status  # the notice goes, this stays

    play(go)


def test_keys_that_leave() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.type("text")
            await d.press("ctrl+d")  # deletes, at the end nothing
            await d.press("ctrl+q")
            assert d.draft == "text"
            await d.press("ctrl+c")
            assert (d.draft, d.notice) == ("", "cleared; ↑ brings it back")
            await d.press("up")
            assert d.draft == "text"
            await d.press("ctrl+c", "ctrl+c")
            assert d.app.is_running
            assert d.notice == "ctrl+c again, or ctrl+d, leaves"
            await d.press("ctrl+c")
            await d.until(lambda: not d.app.is_running)
        async with chat() as d:
            await d.idle()
            await d.press("ctrl+d")
            await d.until(lambda: not d.app.is_running)

    play(go)


def test_ctrl_c_copies_what_is_selected() -> None:
    async def go() -> None:
        async with chat(held()) as d:
            await d.idle()
            await d.say("q", wait=False)
            await d.until(lambda: d.app.talk.busy)
            await d.type("word")
            await d.press("shift+home", "ctrl+c")
            assert d.app.clipboard == "word"
            assert d.app.talk.busy
            await d.press("ctrl+c")
            await d.idle()
            assert d.draft == "word"

    play(go)


def test_quitting_in_the_middle_of_everything_is_quick(tmp_path: Path) -> None:
    """During a pull, a load and a turn, with a partner that is slow to close."""

    class Slow(FakePartner):
        async def close(self) -> None:
            await asyncio.sleep(60)

    async def go() -> None:
        for state in ("pull", "load", "turn"):
            partner = Slow(held()) if state == "turn" else FakePartner()
            gate = Gate()
            if state != "turn":
                partner.load_script[None] = [(state, 1, 9), gate]
            async with chat(partner=partner, path=tmp_path / f"{state}.db") as d:
                if state == "turn":
                    await d.idle()
                await d.say("q", wait=False)
                if state == "turn":
                    await d.until(lambda: d.app.talk.busy and d.path[-1].text)
                else:
                    await gate.reached.wait()
                began = time.monotonic()
                d.app.quit()
            assert time.monotonic() - began < 5  # 60 if it waited
        # The turn is there as it was left, and what was never sent is a draft.
        store = Store(tmp_path / "turn.db")
        kept = store.open(store.latest() or "")
        assert [(m.text, m.state) for m in kept.path()] == [("q", "done"), ("old ", "stopped")]
        store.close()

    play(go)


def test_what_waits_for_a_model_is_kept_as_a_draft(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"

    async def first() -> None:
        partner = FakePartner("an answer")
        async with chat(partner=partner, path=path) as d:
            await d.idle()
            await d.say("one")
            partner.load_script["slow"] = [Gate()]
            await d.say("/model slow", wait=False)
            await d.say("never sent", wait=False)
            await d.type("and a draft")
            d.app.quit()

    async def second() -> None:
        async with chat(path=path, resume="") as d:
            await d.idle()
            assert d.draft == "never sent\n\nand a draft"

    play(first)
    play(second)


def test_an_answer_that_cannot_be_shown_ends_the_program_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its task is nobody's: its exception would be lost, and the chat stand still."""

    async def go() -> None:
        app = ChatApp(Options(save=False, question="hello"), lambda: FakePartner())
        monkeypatch.setattr(Transcript, "feed", lambda *_: 1 / 0)
        try:
            async with app.run_test() as pilot:
                while app.failure is None:
                    await pilot.pause(0.01)
        except ZeroDivisionError:
            pass
        assert isinstance(app.failure, ZeroDivisionError)
        assert app.return_code == 1
        await app.finish()

    play(go)


def test_an_exception_ends_the_program_with_a_reason() -> None:
    async def go() -> None:
        app = ChatApp(Options(save=False), lambda: FakePartner())
        try:
            async with app.run_test() as pilot:
                await pilot.pause()
                app.call_later(lambda: 1 / 0)
                await pilot.pause(0.1)
        except ZeroDivisionError:
            pass
        assert isinstance(app.failure, ZeroDivisionError)
        assert app.return_code == 1
        assert app._exit_renderables == []  # no page of local variables
        await app.finish()

    play(go)
