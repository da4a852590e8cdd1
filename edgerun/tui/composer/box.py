"""The composer: the text area with its completion and the files that its text names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message
from textual.timer import Timer

from edgerun.amounts import size_text
from edgerun.tui.composer import files
from edgerun.tui.composer.area import Area
from edgerun.tui.composer.chips import Chip, Chips
from edgerun.tui.composer.complete import Item, Wanted, commands_for, values_for, wanted
from edgerun.tui.composer.popup import Popup
from edgerun.tui.status import count_text
from edgerun.tui.text import width

if TYPE_CHECKING:
    from edgerun.tui.conversation import Attachment

__all__ = ["Composer"]

#: Seconds of quiet after which the files that a text names are looked for.
_QUIET = 0.15

#: The values that a command's argument can have, each with what it is.
Source = Callable[[], Sequence[tuple[str, str]]]


class Composer(Vertical):
    """Posts :class:`Submitted` and :class:`Changed`.

    Args:
        hints: shown while there is no text, as many of them as fit.
        base: the folder that relative paths start from.
    """

    DEFAULT_CSS = """
    Composer {
        height: auto; background: $surface;
        & > #line { height: auto; background: $surface; }
        & Area {
            height: auto; max-height: 33vh; min-height: 1; padding: 0 1; border: none;
            background: $surface; color: $foreground;
        }
        & Area:focus { border: none; }
        & .text-area--placeholder { color: $text-muted; }
        & Area:light .text-area--cursor {
            color: $input-cursor-foreground; background: $input-cursor-background;
        }
    }
    """

    class Submitted(Message):
        """A question, or a command; ``attachments`` are the files that it names."""

        def __init__(self, text: str, attachments: tuple[Attachment, ...]) -> None:
            super().__init__()
            self.text = text
            self.attachments = attachments

    class Changed(Message):
        """The text is another one now."""

    class Refused(Message):
        """Nothing was sent, because of a file."""

        def __init__(self, why: str) -> None:
            super().__init__()
            self.why = why

    def __init__(
        self,
        hints: Sequence[str] = (),
        *,
        base: Path | None = None,
        id: str | None = None,  # noqa: A002
    ) -> None:
        super().__init__(id=id)
        self._hints = hints
        self.area = Area(id="area")
        self.popup, self.chips = Popup(), Chips()
        self.base = base or Path.cwd()
        self.listing = files.Listing(self.base)
        self.sources: dict[str, Source] = {}
        #: Tokens of a text; None while that cannot be told.
        self.count: Callable[[str], Awaitable[int | None]] | None = None
        self._notes: tuple[Chip, ...] = ()
        self._files: tuple[Chip, ...] = ()
        self._counted: dict[tuple[str, int, int], int | None] = {}
        self._closed_at: str | None = None  # the text at which Esc closed the popup
        self._offered: Wanted | None = None  # what the popup's rows are for
        self._quiet: Timer | None = None

    def compose(self) -> ComposeResult:
        self.area.placeholder = fitting(self._hints, self.app.size.width - 4)
        yield self.popup
        yield self.chips
        yield self.area
        self.area.keys = self._key

    # -- the draft ----------------------------------------------------------------------------

    def on_resize(self, event: events.Resize) -> None:
        self.area.placeholder = fitting(self._hints, event.size.width - 4)

    @property
    def draft(self) -> str:
        return self.area.draft

    def write(self, draft: str) -> None:
        """Replace the draft, without offering completions for it."""
        self._closed_at = draft
        self.area.write(draft)

    def show_notes(self, notes: Sequence[Chip]) -> None:
        """Chips of the program's own, before those of the files."""
        self._notes = tuple(notes)
        self.chips.show((*self._notes, *self._files))

    @on(Area.Changed)
    def _changed(self, event: Area.Changed) -> None:
        event.stop()
        self._offer()
        if self._quiet is not None:
            self._quiet.stop()
        if "@" in self.area.text or self._files:
            self._quiet = self.set_timer(_QUIET, self._find_files)
        self.post_message(self.Changed())

    @on(Area.SelectionChanged)
    def _moved(self, event: Area.SelectionChanged) -> None:
        event.stop()
        if self.popup.display:
            self._offer()

    # -- completion ---------------------------------------------------------------------------

    def _offer(self) -> None:
        row, column = self.area.cursor_location
        want = wanted(self.area.document[row], column, row == 0)
        if self.area.text == self._closed_at or not self.area.selection.is_empty:
            want = None
        else:
            self._closed_at = None
        if want is None:
            self.popup.hide()
        elif want.kind == "command":
            self._offered = want
            self.popup.show(commands_for(want.text), first=bool(want.text))
        elif want.kind == "file" or (want.command and want.command.values == "file"):
            self.run_worker(self._offer_files(want), group="offer", exclusive=True)
        else:
            assert want.command is not None
            source = self.sources.get(want.command.values)
            items = values_for(want.text, source() if source else (), files.score_of)
            hint = f"{want.command.usage}  {want.command.help}"
            self._offered = want
            self.popup.show(items, first=bool(want.text), hint=hint)

    async def _offer_files(self, want: Wanted) -> None:
        text = want.text
        outside = text.startswith(("/", "~", "."))
        if outside:
            names = await asyncio.to_thread(files.in_folder, text, self.base)
        else:
            every = await asyncio.to_thread(self.listing.names)
            names = files.rank(every, text)
        if self._here() != want:
            return
        mention = want.kind == "file"
        items = []
        for name in names[:50]:
            folder = name.endswith("/")
            insert = (f"@{name}" if folder else files.quoted(name) + " ") if mention else name
            items.append(Item(insert, name, "", open=folder))
        self._offered = want
        self.popup.show(items, first=bool(text))

    def _here(self) -> Wanted | None:
        row, column = self.area.cursor_location
        return wanted(self.area.document[row], column, row == 0)

    def _key(self, key: str) -> bool:
        """Keys that belong to the popup while it is open."""
        popup = self.popup
        if not popup.display:
            return False
        if key in ("tab", "enter") and self._here() != self._offered:
            popup.hide()  # keys were faster than the files: its rows are for what stood there
            return False
        if key == "escape":
            self._closed_at = self.area.text
            popup.hide()
        elif key in ("up", "down", "ctrl+p", "ctrl+n") and popup.open:
            popup.move(1 if key in ("down", "ctrl+n") else -1)
        elif key == "tab" and popup.open:
            self._accept(popup.item or popup.items[0])
        elif key == "enter" and popup.item is not None:
            want, item = self._here(), popup.item
            whole = want is not None and _same(want, item)
            if not whole:
                self._accept(item)
            command = want is not None and want.kind != "file"
            if whole or (command and not item.open and not item.insert.endswith(" ")):
                popup.hide()
                self.area.action_submit()
        elif key == "enter" and popup.open and self.area.text == "/":
            popup.move(1)
        else:
            return False
        return True

    @on(Popup.Chosen)
    def _clicked(self, event: Popup.Chosen) -> None:
        event.stop()
        self._accept(event.item)
        self.area.focus()

    def _accept(self, item: Item) -> None:
        want = self._here()
        if want is None:
            return
        row = self.area.cursor_location[0]
        insert = item.insert
        rest = self.area.document[row][want.end :]
        if insert.endswith(" ") and rest.startswith(" "):
            insert = insert[:-1]
        self.area.replace(
            insert, (row, want.start), (row, want.end), maintain_selection_offset=False
        )
        if not item.open:
            self._closed_at = None
            self.popup.hide()

    # -- files --------------------------------------------------------------------------------

    def _find_files(self) -> None:
        self.run_worker(self._show_files(), group="files", exclusive=True)

    async def _show_files(self) -> None:
        found = await asyncio.to_thread(_read_all, self.area.text, self.base)
        chips = []
        for f in found:
            if f.refusal:
                chips.append(Chip("bad", f"{f.path}: {f.refusal}", f.path))
                continue
            n = await self._tokens(f)
            tokens = f" · {count_text(n)} tokens" if n is not None else ""
            chips.append(Chip("file", f"{f.path}  {size_text(f.size, 2)}{tokens}", f.path))
        self._files = tuple(chips)
        self.chips.show((*self._notes, *self._files))

    async def _tokens(self, f: files.Found) -> int | None:
        key = (f.path, f.size, hash(f.text))
        if self._counted.get(key) is None:
            self._counted[key] = None if self.count is None else await self.count(f.text)
        return self._counted[key]

    @on(Chips.Removed)
    def _removed(self, event: Chips.Removed) -> None:
        """A file's cross: its name goes from the text."""
        text = self.area.text
        named = [m for m in files.mentions(text) if event.key in files.expand(m.path, self.base)]
        if not named:
            return  # the program's own chip: the message goes on to it
        event.stop()
        for m in reversed(named):
            text = text[: m.start].rstrip(" ") + text[m.end :]
        self.area.replace(text, (0, 0), self.area.document.end, maintain_selection_offset=False)

    # -- sending ------------------------------------------------------------------------------

    @on(Area.Submitted)
    def _submitted(self, event: Area.Submitted) -> None:
        event.stop()
        if event.text.startswith("/") or "@" not in event.shown:
            self.post_message(self.Submitted(event.text, ()))
        else:
            self.run_worker(self._send(event.text, event.shown), group="send")

    async def _send(self, text: str, shown: str) -> None:
        from edgerun.tui.conversation import Attachment

        found = await asyncio.to_thread(_read_all, shown, self.base)
        refused = next((f for f in found if f.refusal), None)
        if refused is None:
            attached = [
                Attachment(f.path, f.text, self._counted.get((f.path, f.size, hash(f.text))))
                for f in found
            ]
            self.post_message(self.Submitted(text, tuple(attached)))
            return
        since = self.draft
        self.write(f"{text}\n{since}" if since.strip() else text)
        self.post_message(self.Refused(f"{refused.path}: {refused.refusal}"))


def fitting(hints: Sequence[str], cells: int) -> str:
    """The ``hints`` on one line, whole ones, from the first on."""
    line = ""
    for hint in hints:
        longer = f"{line}   {hint}" if line else hint
        if line and width(longer) > cells:
            break
        line = longer
    return line


def _same(want: Wanted, item: Item) -> bool:
    """Whether what was typed is the whole of what was chosen."""
    typed = {"command": f"/{want.text}", "file": f"@{want.text}"}.get(want.kind, want.text)
    return typed == item.insert.strip()


def _read_all(text: str, base: Path) -> list[files.Found]:
    """The files that a text names, each once."""
    paths = dict.fromkeys(p for m in files.mentions(text) for p in files.expand(m.path, base))
    if len(paths) > files.MAX_FILES:
        first = next(iter(paths))
        return [files.Found(first, refusal=f"one of more than {files.MAX_FILES} files")]
    return [files.read(p, base) for p in paths]
