"""The slash commands: one table, which the composer's completion, the palette, ``/help`` and the
dispatch read. No widget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["COMMANDS", "Command", "Parsed", "find", "nearest", "parse"]


class Command(NamedTuple):
    """One command.

    Attributes:
        name: without the slash.
        args: as the help shows them; "" = it takes none. In brackets: may be left out.
        help: what it does, one line.
        group: the heading it stands under.
        aliases: other names.
        values: what its argument is completed from: the name of one of the sources that the
            program has, such as ``"model"`` or ``"file"``; "" = nothing.
        keys: the keys that do the same.
    """

    name: str
    args: str
    help: str
    group: str
    aliases: tuple[str, ...] = ()
    values: str = ""
    keys: str = ""

    @property
    def usage(self) -> str:
        return f"/{self.name} {self.args}".rstrip()

    @property
    def needs_args(self) -> bool:
        return bool(self.args) and not self.args.startswith("[")


_TURN, _CHATS, _MODEL, _TEXT, _ELSE = "Answers", "Chats", "Model", "Texts", "This program"

COMMANDS = (
    Command("retry", "", "ask for another answer, beside this one", _TURN, ("regenerate",)),
    Command("continue", "", "go on with an answer that was cut short", _TURN),
    Command("stop", "", "end the answer that is being written", _TURN, keys="ctrl+c, esc"),
    Command("edit", "[TEXT]", "change your last question and ask again", _TURN),
    Command("undo", "", "take the last question and its answer back", _TURN),
    Command("redo", "", "bring back what /undo took", _TURN),
    Command("prev", "", "show the previous version of this answer or question", _TURN),
    Command("next", "", "show the next version", _TURN),
    Command("unqueue", "", "take back what waits to be sent", _TURN),
    Command("new", "", "begin a new chat; this one is kept", _CHATS, ("clear", "reset"), "",
            "ctrl+n"),
    Command("sessions", "[WORDS]", "earlier chats: resume, rename, delete", _CHATS,
            ("resume", "chats"), keys="ctrl+r"),
    Command("search", "[WORDS]", "find what was said in any chat", _CHATS),
    Command("rename", "[TITLE]", "give this chat a title", _CHATS),
    Command("delete", "", "delete this chat", _CHATS),
    Command("export", "[FILE]", "write this chat to FILE.md or FILE.json", _CHATS, (), "file"),
    Command("model", "[NAME]", "change the model, or pick one", _MODEL, ("models",), "model",
            "ctrl+o"),
    Command("pull", "NAME", "fetch a model; the chat goes on", _MODEL, (), "model"),
    Command("set", "[NAME VALUE]", "sampling: /set temp 0.2; alone: the panel", _MODEL,
            ("sampling", "params"), "setting", "ctrl+s"),
    Command("think", "[EFFORT]", "how hard to think first: auto, none, low, medium, high", _MODEL,
            (), "effort"),
    Command("system", "[TEXT]", "set the system prompt, or pick one; '-' = none", _MODEL),
    Command("stats", "", "speeds, tokens and memory", _MODEL),
    Command("tokens", "", "how full the context is, message by message", _MODEL),
    Command("attach", "FILE", "send a file along, as @FILE in the text does", _TEXT, (), "file"),
    Command("copy", "[all|code]", "copy the last answer, the chat, or the last code block", _TEXT,
            (), "copy"),
    Command("editor", "", "write in $VISUAL or $EDITOR", _TEXT, keys="ctrl+g"),
    Command("theme", "[NAME]", "change the colours", _ELSE, (), "theme"),
    Command("help", "[WORD]", "all keys and commands", _ELSE, ("?",), "", "f1"),
    Command("quit", "", "leave; everything is saved", _ELSE, ("exit", "q"), "", "ctrl+d"),
)  # fmt: skip

_BY_NAME = {n: c for c in COMMANDS for n in (c.name, *c.aliases)}


class Parsed(NamedTuple):
    """``/word rest``; ``command`` is None if there is no such command."""

    word: str
    rest: str
    command: Command | None


def find(word: str) -> Command | None:
    """The command of that name, an alias, or the only one whose name begins so."""
    word = word.lower()
    if word in _BY_NAME:
        return _BY_NAME[word]
    starts = {c.name: c for n, c in _BY_NAME.items() if n.startswith(word)} if word else {}
    return next(iter(starts.values())) if len(starts) == 1 else None


def parse(text: str) -> Parsed | None:
    """The command that ``text`` is, or None if it is a question.

    A text is a command if it begins with a slash and a word without a second slash: a path such
    as ``/usr/bin is missing`` is a question, and so is what begins with two slashes or a space.
    """
    if not text.startswith("/"):
        return None
    word, rest = _split(text[1:])
    if not word or "/" in word or not (word[0].isalpha() or word == "?"):
        return None
    return Parsed(word, rest, find(word))


def _split(text: str) -> tuple[str, str]:
    for at, c in enumerate(text):
        if c.isspace():
            return text[:at], text[at:].strip()
    return text, ""


def nearest(word: str) -> str | None:
    """The name most like a mistyped ``word``."""
    import difflib

    hits = difflib.get_close_matches(word.lower(), list(_BY_NAME), 1, 0.5)
    return hits[0] if hits else None


def by_group() -> Iterator[tuple[str, list[Command]]]:
    """The groups in order, each with its commands."""
    for group in dict.fromkeys(c.group for c in COMMANDS):
        yield group, [c for c in COMMANDS if c.group == group]
