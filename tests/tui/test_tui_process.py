"""The program as a process in a terminal: signals, crashes, terminals that cannot do much."""

from __future__ import annotations

import os
import re
import select
import signal
import sqlite3
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.cli import EDGERUN, environment

if os.name != "posix":
    pytest.skip("ptys", allow_module_level=True)

#: What has to be sent for the terminal to be as it was: main screen, cursor, mouse, paste, keys.
RESTORED = ("\x1b[?1049l", "\x1b[?25h", "\x1b[?1000l", "\x1b[?2004l", "\x1b[<u")

FAILING = """
import sys
from edgerun.cli import main
from edgerun.tui.actions import Handlers
def do_stats(self, rest):
    raise ZeroDivisionError("wrong \\x1b[2J")
Handlers.do_stats = do_stats
sys.exit(main(sys.argv[1:]))
"""


class Process:
    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        import pty

        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(argv[0], argv, env)
        self.seen = ""

    def read(self, seconds: float) -> bool:
        if not select.select([self.fd], [], [], seconds)[0]:
            return True
        try:
            self.seen += os.read(self.fd, 65536).decode("utf-8", "replace")
        except OSError:  # nobody is at the other end any more
            return False
        return True

    def until(self, pattern: str) -> None:
        end = time.monotonic() + 60
        while not re.search(pattern, self.seen):
            assert time.monotonic() < end, f"{pattern!r} never came: {self.seen[-400:]!r}"
            self.read(0.1)

    def send(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> tuple[int, float]:
        """Exit status, and the seconds it took."""
        began = time.monotonic()
        while time.monotonic() - began < 30:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                while self.read(0.05) and select.select([self.fd], [], [], 0)[0]:
                    pass
                self.pid = 0
                return os.waitstatus_to_exitcode(status), time.monotonic() - began
        raise AssertionError(f"it does not end: {self.seen[-400:]!r}")

    def close(self) -> None:
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


class Rig:
    def __init__(self, home: Path, model: Path) -> None:
        self.home, self.model = home, model
        self._open: list[Process] = []

    def chat(self, *args: str, program: list[str] = EDGERUN, **env: str) -> Process:
        argv = [*program, "chat", "-m", str(self.model), "--backend", "cpu", *args]
        env = {"TERM": "xterm-256color", "EDGERUN_HOME": str(self.home), **env}
        self._open.append(Process(argv, environment(**env)))
        return self._open[-1]

    def close(self) -> None:
        for p in self._open:
            p.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It says " tick tock" without end."""
    follow: dict[str | int, str | int] = dict.fromkeys(range(259), " tick")
    follow |= {" tick": " tock", " tock": " tick"}
    path = tmp_path_factory.mktemp("m") / "m.gguf"
    return gb.scripted_model(path, follow, vocab=[" "], n_ctx=100_000)


@pytest.fixture
def rig(tmp_path: Path, model: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, model)
    yield rig
    rig.close()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_saves_and_leaves(rig: Rig, name: str) -> None:
    p = rig.chat("hello")
    p.until("tick")
    os.kill(p.pid, getattr(signal, name))
    status, seconds = p.end()
    assert status == 0
    assert seconds < 5
    assert "Traceback" not in p.seen
    for sequence in RESTORED:
        assert sequence in p.seen
    with sqlite3.connect(rig.home / "chats.db") as db:
        kept = db.execute("SELECT role, text, state FROM messages ORDER BY number").fetchall()
    assert kept[0] == ("user", "hello", "done")
    assert kept[1][1].startswith((" tick", "tick"))
    assert kept[1][2] == "stopped"


def test_a_crash_says_one_line_and_restores_the_terminal(rig: Rig) -> None:
    p = rig.chat("hello", program=[sys.executable, "-c", FAILING])
    p.until("tick")
    p.send("/stats\r")
    status, _ = p.end()
    assert status == 1
    after = p.seen.rpartition("\x1b[?1049l")[2]
    assert "Traceback" not in after
    (line,) = [s for s in after.splitlines() if "error" in s]
    assert line.endswith(f"what was said is kept, details are in {rig.home}/chat.log")
    assert r"error: the chat failed (ZeroDivisionError: wrong \x1b[2J)" in line
    for sequence in RESTORED:
        assert sequence in p.seen
    assert "ZeroDivisionError" in (rig.home / "chat.log").read_text()


def test_a_terminal_that_cannot_be_drawn_on(rig: Rig) -> None:
    p = rig.chat("-n", "2", TERM="dumb")
    p.until("> ")
    p.send("hello\n")
    p.until(r"tick tock[^>]*\n> ")  # what is sent before a prompt may be taken for the answer's
    assert "\x1b[?1049h" not in p.seen
    p.send("\x04")
    assert p.end()[0] == 0


def test_the_terminal_knows_its_size_better_than_the_environment(rig: Rig) -> None:
    """Some export COLUMNS and LINES, as xterm's ``resize`` has them do."""
    import fcntl
    import termios

    p = rig.chat(COLUMNS="80", LINES="24")
    p.until("f1 help")
    assert "ctrl+p palette" not in p.seen  # there is no room for it in 80 columns
    fcntl.ioctl(p.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    p.until(r"ctrl\+p palette")
    p.send("\x04")
    assert p.end()[0] == 0


def test_a_terminal_that_goes_away(rig: Rig) -> None:
    """Bytes that are no text do not end the program; its terminal's end does, and saves."""
    p = rig.chat("hello")
    p.until("tick")
    os.write(p.fd, b"caf\xe9 \xff\xc3(")
    p.until("caf\ufffd \ufffd\ufffd\\(")
    os.close(p.fd)
    began = time.monotonic()
    os.waitpid(p.pid, 0)
    assert time.monotonic() - began < 5
    p.pid, p.fd = 0, os.open(os.devnull, os.O_RDONLY)
    with sqlite3.connect(rig.home / "chats.db") as db:
        kept = db.execute("SELECT state FROM messages ORDER BY number").fetchall()
        drafts = db.execute("SELECT text FROM drafts").fetchall()
    assert kept == [("done",), ("stopped",)]
    assert drafts == [("caf\ufffd \ufffd\ufffd(",)]
