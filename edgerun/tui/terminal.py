"""What comes from the terminal: Textual's driver, with pastes taken in one piece and bytes that are
no text forgiven."""

from __future__ import annotations

import contextlib
import os
import selectors
from codecs import getincrementaldecoder
from collections.abc import Iterable

from textual import events
from textual._xterm_parser import XTermParser
from textual.drivers.linux_driver import LinuxDriver
from textual.message import Message

__all__ = ["PasteParser", "TerminalDriver"]

_START, _END = "\x1b[200~", "\x1b[201~"
#: Bytes read at once, and seconds between two looks at whether the program has ended.
_READ, _LOOK = 65536, 0.1


class PasteParser(XTermParser):
    """Textual's parser looks at each character of a paste, seconds for a megabyte, and stumbles
    over escapes in it; what stands between the marks of a paste goes past it here."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._paste: list[str] | None = None
        self._start = ""  # what may be the beginning of a paste's mark
        self._tail = ""  # of a paste: what may be the beginning of its end

    def feed(self, data: str) -> Iterable[Message]:
        """Events of more input; "" ends it."""
        if not data:
            yield from super().feed(data)
            return
        data, self._start = self._start + data, ""
        while data:
            if self._paste is None:
                before, start, data = data.partition(_START)
                if not start:
                    # A read may end inside the mark; Esc and alt+[ are keys, not that.
                    cut = next((n for n in (5, 4, 3) if before.endswith(_START[:n])), 0)
                    if cut:
                        before, self._start = before[:-cut], before[-cut:]
                if before:
                    yield from super().feed(before)
                if start:
                    self._paste, self._tail = [], ""
                continue
            text, end, rest = (self._tail + data).partition(_END)
            if not end:
                keep = len(_END) - 1
                self._paste.append(text[:-keep])
                self._tail = text[-keep:]
                return
            self._paste.append(text)
            pasted, self._paste, data = "".join(self._paste), None, rest
            yield events.Paste(pasted.replace("\0", ""))


class TerminalDriver(LinuxDriver):
    """As Textual's, but for the loop that reads, and the size."""

    def _get_terminal_size(self) -> tuple[int, int]:
        """The terminal's own word. Textual's believes ``$COLUMNS`` and ``$LINES``, which some
        export, and then never sees a resize."""
        with contextlib.suppress(OSError):
            columns, lines = os.get_terminal_size(self.fileno)
            if columns and lines:
                return columns, lines
        return super()._get_terminal_size()

    def run_input_thread(self) -> None:
        """Read until the program ends. What is no UTF-8 becomes U+FFFD; Textual would end."""
        parser = PasteParser(self._debug)
        decode = getincrementaldecoder("utf-8")(errors="replace").decode
        with selectors.DefaultSelector() as selector:
            selector.register(self.fileno, selectors.EVENT_READ)
            while not self.exit_event.is_set():
                if selector.select(_LOOK):
                    try:
                        data = os.read(self.fileno, _READ)
                    except OSError:
                        data = b""
                    if not data:  # the terminal is gone
                        self._loop.call_soon_threadsafe(getattr(self._app, "quit", self._app.exit))
                        return
                    for message in parser.feed(decode(data)):
                        self.process_message(message)
                for message in parser.tick():
                    self.process_message(message)
