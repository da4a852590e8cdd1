"""The slash commands: the table, and what each of them does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.tui import Endless, FakePartner, Gate
from helpers.tui_app import Driver, chat, play
from textual.screen import ModalScreen

from edgerun.errors import DownloadError
from edgerun.tui.actions import Handlers
from edgerun.tui.commands import COMMANDS, find, nearest, parse
from edgerun.tui.keys import sections
from edgerun.tui.partner import Choice
from edgerun.tui.store import StoreError

CODE = "Here:\n```py\nx = 1\n```\nand\n~~~\n``` not an end\ny\n~~~\n"


def test_every_command_has_a_handler_and_a_text() -> None:
    names = [n for c in COMMANDS for n in (c.name, *c.aliases)]
    assert len(set(names)) == len(names)
    for c in COMMANDS:
        assert callable(getattr(Handlers, f"do_{c.name}")), c.name
        assert c.help
        assert c.group
    done = {n.removeprefix("do_") for n in dir(Handlers) if n.startswith("do_")}
    assert done == {c.name for c in COMMANDS}


def test_help_lists_every_command() -> None:
    listed = " ".join(usage for s in sections() for usage, _ in s.rows)
    for c in COMMANDS:
        assert c.usage in listed
        for alias in c.aliases:
            assert f"/{alias}" in listed


@pytest.mark.parametrize(
    ("text", "word", "rest", "name"),
    [
        ("/help", "help", "", "help"),
        ("/HELP me", "HELP", "me", "help"),
        ("/clear", "clear", "", "new"),
        ("/exp  a file.md ", "exp", "a file.md", "export"),
        ("/system line\nline", "system", "line\nline", "system"),
        ("/?", "?", "", "help"),
        ("/nope", "nope", "", None),
        ("/re", "re", "", None),  # retry, redo, rename, ...
    ],
)
def test_parse(text: str, word: str, rest: str, name: str | None) -> None:
    found = parse(text)
    assert found is not None
    assert (found.word, found.rest) == (word, rest)
    assert (found.command.name if found.command else None) == name


@pytest.mark.parametrize("text", ["hello", "/", "/usr/bin", "//x", " /help", "/ help", "/1", ""])
def test_no_command(text: str) -> None:
    assert parse(text) is None


def test_the_nearest_command() -> None:
    assert nearest("modle") == "model"
    assert nearest("quti") == "quit"
    assert nearest("xyzzy") is None
    assert find("") is None


async def modal(d: Driver) -> ModalScreen[object]:
    await d.until(lambda: isinstance(d.app.screen, ModalScreen))
    await d.settle()
    return d.app.screen  # type: ignore[return-value]


def panel(d: Driver) -> str:
    """The rows of the list that is open, as text."""
    return "\n".join(
        "".join(s.text for s in d.app.screen.list.render_line(y))
        for y in range(d.app.screen.list.size.height)
    )


def test_unknown_commands_suggest_and_send_nothing() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.say("/modle x")
            assert d.notice == "there is no command /modle: did you mean /model?"
            await d.say("/x\x1b[2Jy")
            assert d.notice == "there is no command /x\ufffd[2Jy: /help lists them"
            await d.say("/attach")
            assert d.notice.startswith("/attach FILE: send a file along")
            assert d.path == []
            assert d.partner.asked == []

    play(go)


def test_chats(tmp_path: Path) -> None:
    """/new, /rename, /sessions, /search, /delete, and drafts that stay with their chat."""

    async def go() -> None:
        async with chat("about apples", "about pears", path=tmp_path / "c.db") as d:
            await d.idle()
            await d.say("first question")
            first = d.app.talk.conversation.id
            await d.say("/rename My apples")
            assert d.notice == "this chat is called 'My apples'"
            await d.type("draft of the first")
            await d.press("ctrl+n")
            await d.idle()
            assert d.path == []
            assert d.draft == ""
            await d.say("second question")
            await d.say("/sessions my apples")
            assert d.app.talk.conversation.id == first
            await d.idle()
            assert d.draft == "draft of the first"
            assert d.said == [("user", "first question"), ("assistant", "about apples")]
            await d.press("ctrl+u")
            await d.say("/sessions no such words")
            assert d.notice == "no chat has 'no such words'"
            await d.say("/search pears")
            await modal(d)
            await d.until(lambda: "about pears" in panel(d))
            await d.press("enter")
            await d.idle()
            assert d.said == [("user", "second question"), ("assistant", "about pears")]
            await d.say("/delete")
            assert d.path == []
            await d.press("ctrl+r")
            await modal(d)
            await d.until(lambda: "My apples" in panel(d))
            assert "second question" not in panel(d)
            await d.press("ctrl+z")  # what /delete took comes back, too
            await d.until(lambda: "second question" in panel(d))
            await d.press("escape")
            await d.say("/rename")
            await modal(d)
            await d.press("escape")

    play(go)


def test_the_open_chat_is_deleted_in_the_list(tmp_path: Path) -> None:
    """What is said after that is no part of it, or it would go with it."""

    async def go() -> None:
        async with chat("one", path=tmp_path / "c.db") as d:
            await d.idle()
            await d.say("first question")
            await d.press("ctrl+r")
            await modal(d)
            await d.until(lambda: "first question" in panel(d))
            await d.press("ctrl+d")
            await d.until(lambda: d.path == [])
            await d.press("escape")
            await d.say("second question")
        async with chat(path=tmp_path / "c.db", resume="") as d:
            await d.idle()
            assert d.said == [("user", "second question"), ("assistant", "one")]
            await d.press("ctrl+r")
            await modal(d)
            await d.until(lambda: "second question" in panel(d))
            assert "first" not in panel(d)

    play(go)


def test_a_chat_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    async def go() -> None:
        async with chat(path=tmp_path / "c.db") as d:
            await d.idle()
            await d.say("first question")
            await d.press("ctrl+n")

            def broken(session: str) -> None:
                raise StoreError("the database of chats does not answer")

            d.app.store.open = broken
            await d.say("/sessions first")
            assert d.notice == "the database of chats does not answer"
            assert d.path == []

    play(go)


def test_export(tmp_path: Path) -> None:
    async def go() -> None:
        async with chat("**yes**", base=tmp_path) as d:
            await d.idle()
            await d.say("Is it: a/b?")
            await d.say("/export")
            assert d.notice == f"written to {tmp_path}/is-it-a-b.md"
            assert "**yes**" in (tmp_path / "is-it-a-b.md").read_text()
            await d.say("/export out.json")
            told = json.loads((tmp_path / "out.json").read_text())
            assert [m["text"] for m in told["messages"]] == ["Is it: a/b?", "**yes**"]
            await d.say("/export out.json")
            assert d.notice == "out.json is there already: name another file"
            await d.say("/export no/such/dir.md")
            assert d.notice == "cannot write no/such/dir.md: No such file or directory"

    play(go)


def test_model_and_pull() -> None:
    async def go() -> None:
        known = [Choice("big", "big-7b", 7_000_000_000, True, True)]
        partner = FakePartner(choices=known)
        gate = Gate()
        partner.pull_script = {"far": [("pull", 1, 2), gate], "gone": [DownloadError("no")]}
        async with chat(partner=partner) as d:
            await d.idle()
            await d.say("/model other")
            assert partner.loads == [None, "other"]
            assert "other" in d.status
            await d.press("ctrl+o")
            await modal(d)
            await d.until(lambda: "big" in panel(d))
            await d.press("enter")
            await d.idle()
            assert partner.loads[-1] == "big-7b"
            await d.say("/pull far")
            assert d.notice == "fetching far; the chat goes on"
            gate.open()
            await d.until(lambda: d.notice == "far is here: /model far uses it")
            await d.say("/pull gone")
            await d.until(lambda: d.notice == "gone: no")
            partner.load_script["broken"] = [DownloadError("cannot fetch it")]
            await d.say("/model broken", wait=False)
            await d.until(lambda: d.notice.startswith("cannot fetch it — "))

    play(go)


def test_a_mistyped_model_stops_no_answer() -> None:
    async def go() -> None:
        gate = Gate()
        partner = FakePartner(["half", gate, " and whole"])
        partner.missing = {"typo"}
        async with chat(partner=partner) as d:
            await d.idle()
            await d.say("question", wait=False)
            await gate.reached.wait()
            await d.say("/model typo", wait=False)
            await d.until(lambda: d.notice == "no model or file is called 'typo'")
            assert partner.running == 1
            gate.open()
            await d.idle()
            assert d.said[-1] == ("assistant", "half and whole")
            assert partner.loads == [None]

    play(go)


def test_another_model_stops_the_answer_of_the_one_before() -> None:
    async def go() -> None:
        partner = FakePartner([Endless("on ")], "yes")
        async with chat(partner=partner) as d:
            await d.idle()
            await d.say("question", wait=False)
            await d.until(lambda: bool(d.said[1:]) and "on" in d.said[-1][1])
            await d.say("/model other", wait=False)
            await d.until(lambda: partner.loads == [None, "other"])
            await d.idle()
            assert (partner.running, partner.stopped) == (0, 1)
            assert d.path[-1].state == "stopped"
            assert "other" in d.status

    play(go)


def test_settings() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.say("/set temp 0.2")
            assert d.notice == "temperature is 0.2, from the next answer on"
            await d.say("/set top-k=5")
            await d.say("/set max 7")
            await d.say("/think low")
            await d.say("q")
            _, params, options = d.partner.asked[0]
            assert (params.temperature, params.top_k, params.max_tokens) == (0.2, 5, 7)
            assert options.reasoning_effort == "low"
            await d.say("/set temp")
            assert d.notice.startswith("temperature is 0.2: ")
            await d.say("/set temp hot")
            assert "temperature" in d.notice
            assert d.app.talk.params.temperature == 0.2
            await d.say("/set top_p 7")
            assert "top_p must be between 0.0 and 1.0" in d.notice
            await d.say("/set warmth 1")
            assert d.notice.startswith("no setting 'warmth': temperature, ")
            await d.press("ctrl+s")
            await modal(d)
            await d.press("escape")

    play(go)


def test_system_prompt() -> None:
    async def go() -> None:
        async with chat(system="Be brief.") as d:
            await d.idle()
            await d.say("a")
            await d.say("/system Be kind.")
            await d.say("b")
            await d.say("/system -")
            await d.say("c")
            first = [messages[0]["content"] for messages, _, _ in d.partner.asked]
            assert first == ["Be brief.", "Be kind.", "a"]
            await d.say("/system")
            await modal(d)

    play(go)


def test_copy_attach_theme_and_figures(tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("text")
    (tmp_path / "bin").write_bytes(b"\0")

    async def go() -> None:
        async with chat(CODE, base=tmp_path, size=(100, 40)) as d:
            await d.idle()
            await d.say("/attach a b.txt")
            assert d.draft == '@"a b.txt" '
            await d.press("enter")
            await d.idle()
            await d.say("/attach bin")
            assert d.notice == "bin: not text"
            await d.say("/attach gone")
            assert d.notice == "there is no file gone"
            await d.say("/copy")
            assert d.app.clipboard == CODE
            await d.say("/copy code")
            assert d.app.clipboard == "``` not an end\ny"
            await d.say("/copy all")
            assert '@"a b.txt"' in d.app.clipboard
            await d.say("/copy that")
            assert d.notice == "/copy, /copy code or /copy all"
            await d.say("/theme edgerun-light")
            assert d.app.theme == "edgerun-light"
            await d.say("/theme nope")
            assert d.notice.startswith("no theme 'nope': edgerun-dark, edgerun-light")
            for command, words in {
                "/stats": ("fake-1b", "4096 tokens", "50% of guessed tokens", "wrote"),
                "/tokens": ("in all", "a b.txt", "user"),
                "/help": ("ctrl+c", "F1".lower()),
                "/theme": ("edgerun-mono",),
            }.items():
                await d.say(command, wait=False)
                await modal(d)
                for word in words:
                    await d.until(lambda word=word: word in panel(d), f"{word} of {command}")
                await d.press("escape")
            await d.say("/help branch", wait=False)
            await modal(d)
            await d.press("ctrl+c")  # closes it
            assert not isinstance(d.app.screen, ModalScreen)

    play(go)


def test_the_palette() -> None:
    async def go() -> None:
        async with chat("one", "two") as d:
            await d.idle()
            await d.say("q")
            await d.press("ctrl+p")
            await modal(d)
            await d.press(*"another ans")
            await d.press("enter")
            await d.idle()
            assert d.said == [("user", "q"), ("assistant", "two")]
            await d.press("ctrl+p")
            await modal(d)
            await d.press(*"pull")
            await d.press("enter")
            assert d.draft == "/pull "

    play(go)


def test_quit_command() -> None:
    async def go() -> None:
        async with chat() as d:
            await d.idle()
            await d.say("/quit", wait=False)
            await d.until(lambda: not d.app.is_running)

    play(go)
