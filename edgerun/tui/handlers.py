"""What the commands and the keys on a message do. One method a command: ``do_NAME``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.errors import EdgerunError, RequestError, printable
from edgerun.tui import commands
from edgerun.tui.commands import Parsed
from edgerun.tui.composer import files
from edgerun.tui.conversation import Conversation, Message
from edgerun.tui.partner import Choice
from edgerun.tui.text import one_line

if TYPE_CHECKING:
    from edgerun.tui.app import ChatApp
    from edgerun.tui.screens.knobs import Settings
    from edgerun.tui.screens.panel import ListPanel
    from edgerun.tui.screens.pulls import Pull, Pulls
    from edgerun.tui.store import Store
    from edgerun.tui.talk import Talk

__all__ = ["Handlers"]


class Handlers:
    """Attributes:
    used, estimate: tokens of the chat as shown; None = not known; counted, not used.
    computed: tokens that the model had computed when the turn began.
    """

    def __init__(self, app: ChatApp) -> None:
        self.app = app
        self.used: int | None = None
        self.estimate = False
        self.computed: int | None = None
        self._pulls: Pulls | None = None
        self._choices: list[Choice] = []
        self._counting = 0

    # -- what it stands on --------------------------------------------------------------------

    @property
    def talk(self) -> Talk:
        assert self.app.talk is not None
        return self.app.talk

    @property
    def store(self) -> Store:
        return self.talk.store

    @property
    def chat(self) -> Conversation:
        return self.talk.conversation

    def connect(self, store: Store) -> None:
        """Once there is a store: what arguments are completed from."""
        sources = self.app.chat.composer.sources
        sources["theme"] = self._themes
        sources["setting"] = self._settings
        sources["effort"] = lambda: [(e, "") for e in _EFFORTS]
        sources["copy"] = lambda: [("all", "the whole chat"), ("code", "the last code block")]
        sources["model"] = self._models

    def _themes(self) -> Sequence[tuple[str, str]]:
        from edgerun.tui import themes

        return [(n, "") for n in themes.names(self.app)]

    def _settings(self) -> Sequence[tuple[str, str]]:
        from edgerun.tui.screens.knobs import KNOBS, shown

        now = self._now()
        return [(f"{k.name} ", f"{shown(k, now)} · {k.help}") for k in KNOBS]

    def _models(self) -> Sequence[tuple[str, str]]:
        if not self._choices:
            self.app.run_worker(self._ask_choices(), group="choices", exclusive=True)
        return [(c.target, "here" if c.pulled else "to be fetched") for c in self._choices]

    async def _ask_choices(self) -> None:
        try:
            self._choices = await self.talk.keeper.partner.choices()
        except EdgerunError:
            self._choices = []

    def _now(self) -> Settings:
        return self.talk.params, self.talk.options

    def tell(self, text: str, *, bad: bool = False) -> None:
        self.app.tell(text, bad=bad)

    # -- dispatch -----------------------------------------------------------------------------

    def run(self, parsed: Parsed) -> None:
        """Do what was asked for; what is wrong with it is told."""
        if parsed.command is None:
            near = commands.nearest(parsed.word)
            word = printable(parsed.word, 40)
            hint = f"did you mean /{near}?" if near else "/help lists them"
            self.tell(f"there is no command /{word}: {hint}", bad=True)
            return
        if parsed.command.needs_args and not parsed.rest:
            self.tell(f"{parsed.command.usage}: {parsed.command.help}")
            return
        try:
            getattr(self, f"do_{parsed.command.name}")(parsed.rest)
        except EdgerunError as e:
            self.tell(printable(e, 400), bad=True)

    def pick(self, message_id: str, action: str) -> None:
        """A key was pressed on a message."""
        message = self.chat.messages.get(message_id)
        if message is None:
            return
        if action == "edit":
            self.app.edit(message_id)
        elif action == "retry":
            self.talk.retry(message_id)
        elif action == "continue":
            self.talk.resume(message_id)
        elif action in ("previous", "next"):
            self.talk.switch(message_id, -1 if action == "previous" else 1)
        elif action == "copy":
            self.app.copy(message.text, "the message")
        elif action == "copy_code":
            self._copy_code([message])

    # -- answers ------------------------------------------------------------------------------

    def do_retry(self, rest: str) -> None:
        self.talk.retry()

    def do_continue(self, rest: str) -> None:
        self.talk.resume()

    def do_stop(self, rest: str) -> None:
        if not self.talk.stop() and not self.talk.keeper.cancel():
            self.tell("nothing is being written")

    def do_edit(self, rest: str) -> None:
        from edgerun.tui.talk import Question

        head = self.chat.head
        question = self.chat.question(head) if head else None
        if question is None:
            self.tell("there is no question to edit")
        elif rest:
            asked = Question(rest, edits=question.id)
            self.talk.when_stopped(lambda: self.talk.ask(asked))
        else:
            self.app.edit(question.id)

    def do_undo(self, rest: str) -> None:
        self.talk.undo()

    def do_redo(self, rest: str) -> None:
        self.talk.redo()

    def do_prev(self, rest: str) -> None:
        self.talk.switch(None, -1)

    def do_next(self, rest: str) -> None:
        self.talk.switch(None, 1)

    def do_unqueue(self, rest: str) -> None:
        question = self.talk.take_back()
        if question is None:
            self.tell("nothing waits")
        elif not self.app.chat.composer.draft:
            self.app.chat.composer.write(question.text)

    # -- chats --------------------------------------------------------------------------------

    def open_chat(self, conversation: Conversation) -> None:
        """Show another chat; what is typed in this one is kept there."""

        def go() -> None:
            self.app.keep_draft()
            self.talk.queue.clear()
            self.talk.conversation = conversation
            self.app.editing = None
            composer = self.app.chat.composer
            composer.write("")
            self.app.run_worker(self.app.restore_draft(), group="draft", exclusive=True)
            self.app.show_chat()
            composer.area.focus()

        self.talk.when_stopped(go)

    def open_session(self, session: str, message_id: str | None = None) -> None:
        try:
            conversation = self.store.open(session)
        except KeyError:
            self.tell("this chat is gone", bad=True)
            return
        if message_id in conversation.messages:
            conversation.show(str(message_id))
        self.open_chat(conversation)

    def do_new(self, rest: str) -> None:
        self.open_chat(self.app.new_chat(self.store))

    def do_sessions(self, rest: str) -> None:
        if rest:
            found = self.store.find(rest)
            if found is None:
                self.tell(f"no chat has {printable(rest, 40)!r}", bad=True)
            else:
                self.open_session(found)
            return
        self._sessions("")

    def do_search(self, rest: str) -> None:
        self._sessions(rest)

    def _sessions(self, words: str) -> None:
        from edgerun.tui.screens.sessions import Opened, SessionScreen

        def chosen(opened: Opened | None) -> None:
            if opened is None:
                return
            if opened.session == self.chat.id and opened.message_id is None:
                return
            self.open_session(opened.session, opened.message_id)

        def changed(session: str) -> None:
            if session == self.chat.id:
                self._renamed_outside()

        screen = SessionScreen(self.store, self.chat.id, changed=changed, folder=self.app.folder)
        self.app.push_screen(screen, chosen)
        if words:
            self.app.call_after_refresh(_filter, screen, words)

    def _renamed_outside(self) -> None:
        """The list has renamed or deleted the chat that is open."""
        try:
            stored = self.store.open(self.chat.id)
        except KeyError:
            self.do_new("")
        else:
            self.chat.title, self.chat.named = stored.title, stored.named

    def do_rename(self, rest: str) -> None:
        if rest:
            self._rename(rest)
            return
        from edgerun.tui.screens.dialogs import Prompt

        self.app.push_screen(
            Prompt("Title of this chat", self.chat.title),
            lambda title: self._rename(title) if title else None,
        )

    def _rename(self, title: str) -> None:
        self.chat.rename(title)
        self.store.save(self.chat)
        self.tell(f"this chat is called {self.chat.title!r}")

    def do_delete(self, rest: str) -> None:
        if not self.chat.messages:
            self.tell("there is nothing to delete")
            return
        gone = self.chat.id
        self.store.delete(gone)
        self.do_new("")
        self.tell("the chat is deleted; ctrl+z in ctrl+r's list brings it back until you leave")

    def do_export(self, rest: str) -> None:
        from edgerun.tui.export import to_json, to_markdown

        name = rest or _file_name(self.chat.title)
        path = self.app.folder / Path(name).expanduser()
        text = to_json(self.chat) if path.suffix.lower() == ".json" else to_markdown(self.chat)
        if not path.suffix:
            path = path.with_suffix(".md")
        try:
            with path.open("x", encoding="utf-8") as f:
                f.write(text)
        except FileExistsError:
            self.tell(f"{printable(path)} is there already: name another file", bad=True)
        except OSError as e:
            self.tell(f"cannot write {printable(path)}: {e.strerror}", bad=True)
        else:
            self.tell(f"written to {one_line(str(path))}")

    # -- model --------------------------------------------------------------------------------

    def do_model(self, rest: str) -> None:
        if rest:
            self.change_model(rest)
            return
        from edgerun.tui.screens.models import ModelScreen

        keeper = self.talk.keeper
        current = keeper.about.model if keeper.about else ""
        self.app.push_screen(
            ModelScreen(keeper.partner.choices, self.pulls, current),
            lambda target: self.change_model(target) if target else None,
        )

    def change_model(self, target: str) -> None:
        self.talk.when_stopped(lambda: self.talk.keeper.load(target) and None)

    @property
    def pulls(self) -> Pulls:
        """The downloads beside the chat."""
        if self._pulls is None:
            from edgerun.tui.screens.pulls import Pulls

            self._pulls = Pulls(self.talk.keeper.partner.pull, self._pulled)
        return self._pulls

    @property
    def pulling(self) -> bool:
        return self._pulls is not None and bool(self._pulls.running)

    def _pulled(self, pull: Pull) -> None:
        if pull.state == "done":
            self.tell(f"{one_line(pull.name)} is here: /model {one_line(pull.target)} uses it")
        elif pull.state == "failed":
            self.tell(f"{one_line(pull.name)}: {pull.error}", bad=True)
        self.app.show_state()

    async def close(self) -> None:
        """End the downloads."""
        if self._pulls is not None:
            await self._pulls.close()

    def do_pull(self, rest: str) -> None:
        self.pulls.start(rest, rest)
        self.tell(f"fetching {printable(rest, 80)}; the chat goes on")

    def do_set(self, rest: str) -> None:
        from edgerun.tui.screens import knobs

        if rest:
            name, _, value = rest.replace("=", " ", 1).partition(" ")
            knob = _knob(name)
            if not value.strip():
                self.tell(f"{knob.name} is {knobs.shown(knob, self._now())}: {knob.help}")
                return
            now = knobs.put(knob, self._now(), knobs.read(knob, value.strip()))
            self._set(now)
            self.tell(f"{knob.name} is {knobs.shown(knob, now)}, from the next answer on")
            return
        from edgerun.tui.screens.sampling import SamplingScreen

        self.app.push_screen(SamplingScreen(self._now(), self._set))

    def _set(self, settings: Settings) -> None:
        self.talk.params, self.talk.options = settings
        if self.app.remembered is not None:
            self.app.remembered.set_sampling(settings)

    def do_think(self, rest: str) -> None:
        self.do_set(f"reasoning_effort {rest}".strip())

    def do_system(self, rest: str) -> None:
        if rest:
            self._system("" if rest in ("-", "none") else rest)
            return
        from edgerun.tui.screens.presets import PresetScreen

        self.app.push_screen(
            PresetScreen(self.store, self.chat.system),
            lambda preset: self._system(preset.text) if preset else None,
        )

    def _system(self, text: str) -> None:
        self.chat.system = text
        if self.chat.messages:
            self.store.save(self.chat)
        self.recount()
        self.tell("system prompt set, from the next answer on" if text else "no system prompt")

    def do_stats(self, rest: str) -> None:
        self._panel("Figures", "stats")

    def do_tokens(self, rest: str) -> None:
        self._panel("Context", "tokens")

    def _panel(self, title: str, what: str) -> None:
        from edgerun.tui import figures

        self.app.run_worker(figures.show(self.app, title, what), group="figures", exclusive=True)

    def recount(self) -> None:
        """The tokens of the chat as it is shown: what the model said, or a count."""
        path = self.chat.path()
        self.computed = self.talk.keeper.partner.live().computed
        last = path[-1] if path else None
        if last is not None and last.role == "assistant" and last.usage is not None:
            self.used, self.estimate = last.usage.total_tokens or None, False
            return
        self.used, self.estimate = None, True
        self._counting += 1
        if (path or self.chat.system) and self.talk.keeper.ready:
            self.app.run_worker(self._count(self._counting), group="count", exclusive=True)

    async def _count(self, number: int) -> None:
        used = await self.talk.keeper.partner.count_prompt(self.chat.wire())
        if number == self._counting and self.estimate:
            self.used = used
            self.app.show_state()

    # -- texts --------------------------------------------------------------------------------

    def do_attach(self, rest: str) -> None:
        base = self.app.folder
        path = rest.strip('"')
        found = files.expand(path, base)
        refused = [f for p in found[:1] if (f := files.read(p, base)).refusal]
        if not found:
            self.tell(f"there is no file {printable(path, 120)}", bad=True)
        elif refused:
            self.tell(f"{printable(path, 120)}: {refused[0].refusal}", bad=True)
        else:
            composer = self.app.chat.composer
            space = "" if not composer.draft or composer.draft[-1].isspace() else " "
            composer.write(composer.draft + space + files.quoted(path) + " ")

    def do_copy(self, rest: str) -> None:
        answers = [m for m in self.chat.path() if m.role == "assistant" and m.text]
        if rest in ("all", "chat"):
            from edgerun.tui.export import to_markdown

            self.app.copy(to_markdown(self.chat), "the chat")
        elif rest == "code":
            self._copy_code(answers)
        elif rest:
            self.tell("/copy, /copy code or /copy all")
        elif answers:
            self.app.copy(answers[-1].text, "the answer")
        else:
            self.tell("there is no answer to copy")

    def _copy_code(self, messages: Sequence[Message]) -> None:
        for m in reversed(messages):
            blocks = code_blocks(m.text)
            if blocks:
                self.app.copy(blocks[-1], "the code")
                return
        self.tell("there is no code block")

    def do_editor(self, rest: str) -> None:
        from edgerun.tui.composer.editor import write_in_editor

        composer = self.app.chat.composer
        text, wrong = write_in_editor(self.app, composer.draft)
        if wrong:
            self.tell(wrong, bad=True)
        elif text is not None:
            composer.write(text)
        composer.area.focus()

    # -- this program -------------------------------------------------------------------------

    def do_theme(self, rest: str) -> None:
        from edgerun.tui import themes

        if rest and rest not in self.app.available_themes:
            known = ", ".join(t.name for t in themes.OWN)
            self.tell(f"no theme {printable(rest, 40)!r}: {known}; /theme lists all", bad=True)
        elif rest:
            self.app.theme = rest
            self._keep_theme(rest)
        else:
            from edgerun.tui.screens.theme import ThemeScreen

            self.app.push_screen(ThemeScreen(), self._keep_theme)

    def _keep_theme(self, name: str | None) -> None:
        if name and self.app.remembered is not None:
            self.app.remembered.theme = name

    def do_help(self, rest: str) -> None:
        from edgerun.tui import keys

        screen = keys.help_screen()
        self.app.push_screen(screen)
        if rest:
            self.app.call_after_refresh(_filter, screen, rest)

    def do_quit(self, rest: str) -> None:
        self.app.quit()

    def palette(self) -> None:
        """All commands to choose from; one that needs more is put into the composer."""
        from edgerun.tui.keys import Palette

        def chosen(name: str | None) -> None:
            command = commands.find(name) if name else None
            if command is None:
                return
            if command.needs_args:
                self.app.chat.composer.area.write(f"/{command.name} ")
            else:
                self.run(Parsed(command.name, "", command))

        self.app.push_screen(Palette(), chosen)


_EFFORTS = ("auto", "none", "minimal", "low", "medium", "high")
_SHORT = {"temp": "temperature", "t": "temperature", "n": "max_tokens", "max": "max_tokens",
          "rep": "repeat_penalty", "think": "reasoning_effort"}  # fmt: skip


def _knob(name: str) -> Any:
    from edgerun.tui.screens.knobs import KNOBS

    wanted = _SHORT.get(name, name).replace("-", "_").lower()
    hits = [k for k in KNOBS if k.name == wanted] or [
        k for k in KNOBS if k.name.replace("_", "").startswith(wanted.replace("_", ""))
    ]
    if len(hits) != 1:
        known = ", ".join(k.name for k in KNOBS)
        raise RequestError(f"no setting {printable(name, 40)!r}: {known}")
    return hits[0]


def _filter(screen: ListPanel[Any], words: str) -> None:
    screen.filter.value = words
    screen.filter.cursor_position = len(words)


def _file_name(title: str) -> str:
    kept = "".join(c if c.isalnum() or c in " -_" else " " for c in title)
    return ("-".join(kept.split())[:60] or "chat") + ".md"


def code_blocks(text: str) -> list[str]:
    """The contents of the fenced blocks of a Markdown text, a last open one among them."""
    blocks: list[str] = []
    fence, lines, indent = "", [], 0  # type: tuple[str, list[str], int]
    for line in text.splitlines():
        bare = line.lstrip(" ")
        if fence:
            if bare.startswith(fence) and not bare.strip(fence[0] + " "):
                blocks.append("\n".join(lines))
                fence = ""
            else:
                lines.append(line[min(indent, len(line) - len(bare)) :])
        elif bare.startswith(("```", "~~~")):
            fence = bare[: len(bare) - len(bare.lstrip(bare[0]))]
            lines, indent = [], len(line) - len(bare)
    if fence:
        blocks.append("\n".join(lines))
    return blocks
