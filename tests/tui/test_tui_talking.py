"""Turns under the user's hands: stopped, asked again, edited, branched, undone, queued."""

from __future__ import annotations

from helpers.tui import FakePartner, Gate, Think
from helpers.tui_app import Driver, chat, play
from textual import events

from edgerun.errors import ContextLengthError
from edgerun.tui.conversation import Attachment
from edgerun.tui.talk import Question, _carried


def held(text: str = "old ") -> list[object]:
    """An answer that begins and does not end by itself."""
    return [text, Gate()]


async def streaming(d: Driver, text: str = "q") -> None:
    """Ask, and wait until something of the answer is there."""
    await d.say(text, wait=False)
    await d.until(lambda: d.app.talk.busy and d.path[-1].text)


def test_ctrl_c_stops_the_turn_and_not_the_program() -> None:
    async def go() -> None:
        async with chat(held(), "new answer") as d:
            await d.idle()
            await streaming(d)
            await d.press("ctrl+c")
            await d.idle()
            assert d.app.is_running
            assert d.path[-1].state == "stopped"
            assert d.path[-1].text.startswith("old ")
            assert (d.partner.running, d.partner.stopped) == (0, 1)
            await d.say("again")
            assert d.path[-1].text == "new answer"  # nothing of the old turn in the new
            assert [m.state for m in d.path] == ["done", "stopped", "done", "done"]

    play(go)


def test_escape_stops_too_and_typing_goes_on_meanwhile() -> None:
    async def go() -> None:
        async with chat(held()) as d:
            await d.idle()
            await streaming(d)
            await d.press(*"next")
            assert d.draft == "next"
            await d.press("escape")
            await d.idle()
            assert d.path[-1].state == "stopped"
            assert d.draft == "next"

    play(go)


def test_what_is_sent_during_a_turn_waits_and_is_sent_after_it() -> None:
    async def go() -> None:
        gate = Gate()
        async with chat(["first", gate, " done"], "second", "third") as d:
            await d.idle()
            await streaming(d, "a")
            await d.say("b", wait=False)
            await d.say("c", wait=False)
            assert [q.text for q in d.app.talk.queue] == ["b", "c"]
            assert [c.text for c in d.app.chat.composer.chips.chips] == ["waits: b", "waits: c"]
            gate.open()
            await d.idle()
            assert [t for _, t in d.said] == ["a", "first done", "b", "second", "c", "third"]
            assert d.app.chat.composer.chips.chips == ()

    play(go)


def test_what_waits_can_be_taken_back() -> None:
    async def go() -> None:
        async with chat(held()) as d:
            await d.idle()
            await streaming(d, "a")
            for text in ("b", "c", "d"):
                await d.say(text, wait=False)
            await d.press("up")
            assert d.draft == "d"
            await d.press("ctrl+u")
            await d.pilot.click("Chips", offset=(11, 0))  # the cross of the first
            assert [q.text for q in d.app.talk.queue] == ["c"]
            await d.say("/unqueue", wait=False)
            assert d.draft == "c"
            assert d.app.talk.queue == []
            await d.press("ctrl+c")
            await d.idle()
            assert [t for r, t in d.said if r == "user"] == ["a"]

    play(go)


def test_an_error_holds_what_waits() -> None:
    async def go() -> None:
        gate = Gate()
        async with chat([gate, ContextLengthError(9000, 4096)], "fine") as d:
            await d.idle()
            await d.say("long", wait=False)
            await gate.reached.wait()
            await d.say("next", wait=False)
            gate.open()
            await d.until(lambda: not d.app.talk.busy)
            assert d.path[-1].state == "error"
            assert "9000 tokens" in d.path[-1].note
            assert "t/s" not in d.status  # an error has no speed, and no other answer's
            assert [q.text for q in d.app.talk.queue] == ["next"]
            await d.press("enter")
            await d.idle()
            assert d.path[-1].text == "fine"
            assert d.partner.asked[1][0] == [{"role": "user", "content": "next"}]

    play(go)


def test_regenerate_edit_and_branches() -> None:
    async def go() -> None:
        async with chat("one", "two", "other", "three") as d:
            await d.idle()
            await d.say("q")
            await d.say("/retry")
            assert d.said == [("user", "q"), ("assistant", "two")]
            assert d.app.talk.conversation.place(d.path[1].id) == (2, 2)
            await d.say("/prev")
            assert d.said[1] == ("assistant", "one")
            await d.say("/prev")
            assert d.notice == "this is version 1 of 2"
            # Edit the question by keys: pick it, change it, send it.
            await d.press("alt+up", "alt+up", "e")
            assert d.draft == "q"
            assert d.app.chat.composer.chips.chips[0].kind == "note"
            await d.press("2", "enter")
            await d.idle()
            assert d.said == [("user", "q2"), ("assistant", "other")]
            assert d.app.chat.composer.chips.chips == ()
            await d.say("/prev")
            assert d.said == [("user", "q"), ("assistant", "one")]
            await d.say("/next")  # of what branches last
            assert d.said == [("user", "q"), ("assistant", "two")]
            await d.press("alt+up", "alt+up", "right_square_bracket", "escape")
            assert d.said == [("user", "q2"), ("assistant", "other")]
            # An edit that is left is no edit, and the draft of before is back.
            await d.type("draft")
            await d.press("alt+up", "alt+up", "e")
            assert d.draft == "q2"
            await d.press("escape")
            assert d.draft == "draft"
            assert d.app.editing is None

    play(go)


def test_keys_on_a_message() -> None:
    async def go() -> None:
        async with chat("see\n```py\nx = 1\n```\nok", "again") as d:
            await d.idle()
            await d.say("q")
            await d.press("alt+up")
            assert d.app.chat.transcript.has_focus
            assert d.app.chat.transcript.cursor == d.path[1].id
            await d.press("y")
            assert d.app.clipboard == "x = 1"
            await d.press("c")
            assert d.app.clipboard == d.path[1].text
            await d.press("up", "c")
            assert d.app.clipboard == "q"
            await d.press("down", "r")
            await d.idle()
            assert d.said[1] == ("assistant", "again")
            await d.press("left_square_bracket")
            assert d.said[1][1].startswith("see")
            await d.press("right_square_bracket")
            assert d.said[1] == ("assistant", "again")
            await d.press("escape")
            assert d.app.chat.composer.area.has_focus

    play(go)


def test_what_is_no_key_of_a_message_begins_a_question() -> None:
    """After a click on the transcript, or with a message picked."""

    async def go() -> None:
        async with chat("see") as d:
            await d.idle()
            await d.say("q")
            await d.pilot.click("#transcript", offset=(4, 0))
            assert d.app.chat.transcript.has_focus
            for key in ("slash", "s", "e", "t"):  # e alone would edit
                d.app.post_message(events.Key(key, {"slash": "/"}.get(key, key)))
            await d.settle()
            assert d.draft == "/set"
            assert d.app.editing is None
            await d.press("ctrl+u", "alt+up", "c")
            assert d.app.clipboard == "see"
            assert d.draft == ""
            d.app.post_message(events.Paste("pasted\ntwice"))
            await d.settle()
            assert d.draft == "pasted\ntwice"
            assert d.app.chat.composer.area.has_focus

    play(go)


def test_continue() -> None:
    async def go() -> None:
        async with chat(held("a "), "and on") as d:
            await d.idle()
            await streaming(d)
            await d.press("ctrl+c")
            await d.idle()
            before = d.path[-1].text
            await d.say("/continue")
            assert len(d.path) == 2
            assert d.path[-1].text == before + "and on"
            assert d.path[-1].state == "done"
            assert d.partner.asked[1][2].continue_final

    play(go)


def test_undo_and_redo() -> None:
    async def go() -> None:
        async with chat("one", "two") as d:
            await d.idle()
            await d.say("/undo")
            assert d.notice == "there is nothing to take back"
            await d.say("a")
            await d.say("b")
            await d.say("/undo")
            assert d.said == [("user", "a"), ("assistant", "one")]
            assert d.draft == "b"
            await d.press("ctrl+u")
            await d.say("/redo")
            assert len(d.path) == 4
            await d.say("/redo")
            assert d.notice == "there is nothing to bring back"

    play(go)


def test_undo_during_a_turn_stops_it_first() -> None:
    async def go() -> None:
        async with chat(held()) as d:
            await d.idle()
            await streaming(d, "q")
            await d.say("/undo", wait=False)
            await d.until(lambda: not d.app.talk.busy)
            await d.until(lambda: d.path == [])
            assert d.draft == "q"
            assert d.partner.running == 0

    play(go)


def test_commands_that_have_nothing_to_act_on() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            for command, said in {
                "/retry": "there is no question to answer again",
                "/continue": "there is no answer to go on with",
                "/edit": "there is no question to edit",
                "/redo": "there is nothing to bring back",
                "/next": "nothing here has another version",
                "/unqueue": "nothing waits",
                "/stop": "nothing is being written",
                "/copy": "there is no answer to copy",
                "/copy code": "there is no code block",
                "/delete": "there is nothing to delete",
            }.items():
                await d.say(command)
                assert d.notice == said
            assert d.path == []

    play(go)


def test_the_status_line_during_a_turn() -> None:
    async def go() -> None:
        reading, thinking, writing = Gate(), Gate(), Gate()
        script = [reading, Think("hm"), thinking, "a", "b", writing]
        async with chat(script) as d:
            await d.idle()
            assert "fake-1b" in d.status
            await d.say("one two three", wait=False)
            await reading.reached.wait()
            await d.until(lambda: "reading 3 tokens" in d.status)
            reading.open()
            await d.until(lambda: d.status.startswith("thinking"))
            thinking.open()
            await d.until(lambda: d.status.startswith("writing"))
            assert "5/4096" in d.status or "6/4096" in d.status
            writing.open()
            await d.idle()
            assert not d.status.startswith("writing")
            assert d.path[-1].usage.total_tokens == 6
            assert "6/4096" in d.status

    play(go)


def test_nothing_moves_when_nothing_happens() -> None:
    """No timer fires while the chat is idle."""

    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.say("q")
            d.app.chat.notice.clear()
            d.app.keep_draft()
            await d.pilot.pause(0.1)
            running = [
                t
                for node in (d.app, d.app.chat, *d.app.chat.query("*"))
                for t in node._timers
                if t._active.is_set() and "auto_refresh" not in t.name
            ]
            assert running == []

    play(go)


def test_files_of_a_question_that_was_edited() -> None:
    old = (Attachment("a.py", "old", 1), Attachment("b.py", "old", 1))
    q = Question("see @a.py and @b.py", (Attachment("a.py", "new", 2),))
    assert _carried(old, q) == (Attachment("a.py", "new", 2), Attachment("b.py", "old", 1))
    assert _carried(old, Question("nothing")) == ()


def test_edit_with_text_asks_at_once() -> None:
    async def go() -> None:
        async with chat("one", "two") as d:
            await d.idle()
            await d.say("q")
            await d.say("/edit better")
            assert d.said == [("user", "better"), ("assistant", "two")]

    play(go)


def test_a_message_with_a_slash() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.say("/usr/bin is missing")
            await d.say("//help is a command")
            assert [t for r, t in d.said if r == "user"] == [
                "/usr/bin is missing",
                "/help is a command",
            ]

    play(go)


def test_a_model_that_cannot_be_loaded() -> None:

    async def go() -> None:
        from edgerun.errors import DownloadError

        partner = FakePartner("ok")
        partner.load_script[None] = [("pull", 1, 10), DownloadError("no network: try again")]
        async with chat(partner=partner) as d:
            await d.say("hello", wait=False)
            await d.until(lambda: d.app.keeper and d.app.keeper.state == "failed")
            assert d.notice == "no network: try again — enter tries again, ctrl+o picks a model"
            await d.press("enter")
            await d.until(lambda: partner.loads == [None, None])
            await d.until(lambda: d.app.keeper.state == "failed")
            assert d.status.startswith("no model")
            assert [q.text for q in d.app.talk.queue] == ["hello"]
            del partner.load_script[None]
            await d.say("/model other-1b")
            assert d.said == [("user", "hello"), ("assistant", "ok")]
            assert d.notice == ""
            assert "other-1b" in d.status

    play(go)
