"""The real program in a real terminal, with a real model: tmux types, and what it shows is read."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.cli import EDGERUN, environment
from helpers.models import smollm2

WIDTH, HEIGHT = 100, 30


class Terminal:
    """A tmux server of its own with one window, in which a program runs."""

    def __init__(self, home: Path, **env: str) -> None:
        self._env = environment(EDGERUN_HOME=str(home), TERM="xterm-256color", LANG="C.UTF-8")
        for name in ("TMUX", "NO_COLOR", "COLORFGBG"):
            self._env.pop(name, None)
        self._sockets = tempfile.mkdtemp(prefix="et")  # short: a socket's path has to be
        self._env.update(env, TMUX_TMPDIR=self._sockets)
        self._home, self._name = home, ""

    def tmux(self, *args: str) -> str:
        done = subprocess.run(
            ["tmux", "-L", self._name, "-f", "/dev/null", *args],
            env=self._env, capture_output=True, text=True, timeout=20, check=True,
        )  # fmt: skip
        return done.stdout

    def start(self, *args: str, width: int = WIDTH, height: int = HEIGHT) -> None:
        """Run ``edgerun chat`` in a new terminal. A shell notes the program's id and its status:
        tmux itself may miss the end of a program."""
        self.close()
        self._name = uuid.uuid4().hex[:8]
        for name in ("pid", "status"):
            (self._home / name).unlink(missing_ok=True)
        inner = f"echo $$ > pid.new; mv pid.new pid; exec {shlex.join([*EDGERUN, 'chat', *args])}"
        outer = f"sh -c {shlex.quote(inner)}; echo $? > status.new; mv status.new status; cat"
        size = ("-x", str(width), "-y", str(height))
        self.tmux("new-session", "-d", *size, "-c", str(self._home), outer)

    def close(self) -> None:
        if self._name:
            stop = ["tmux", "-L", self._name, "kill-server"]
            subprocess.run(stop, env=self._env, capture_output=True, timeout=20, check=False)

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def text(self, *flags: str) -> str:
        return self.tmux("capture-pane", "-p", *flags)

    def type(self, text: str, *keys: str) -> None:
        """As from a keyboard; then ``keys``, by tmux's names."""
        if text:
            self.tmux("send-keys", "-l", text)
            self.wait(lambda t: text.split()[-1] in t)  # it is there before Enter is
        if keys:
            self.tmux("send-keys", *keys)

    def wait(self, true: Callable[[str], bool], seconds: float = 60.0) -> str:
        """What is shown once it is ``true``."""
        end = time.monotonic() + seconds
        while True:
            ended = (self._home / "status").exists()
            shown = self.text()
            if true(shown):
                return shown
            assert not ended, f"the program has ended; there is:\n{shown}"
            assert time.monotonic() < end, f"it did not come; there is:\n{shown}"
            time.sleep(0.03)

    def see(self, *words: str, seconds: float = 60.0) -> str:
        return self.wait(lambda t: all(w in t for w in words), seconds)

    def still(self) -> str:
        """What is shown once that is the same for a while; of a screen that is being repainted,
        a picture may have the half."""
        seen = [""] * 4
        return self.wait(lambda t: seen.append(t) or len({*seen[-4:]}) == 1)  # type: ignore[func-returns-value]

    def signal(self, number: signal.Signals) -> None:
        os.kill(int((self._home / "pid").read_text()), number)

    def ended(self, seconds: float = 30.0) -> int:
        """The program's exit status once it has one; 128 and its number after a signal."""
        end = time.monotonic() + seconds
        while not (self._home / "status").exists():
            assert time.monotonic() < end, f"it goes on:\n{self.text()}"
            time.sleep(0.03)
        return int((self._home / "status").read_text())


@pytest.fixture
def terminal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    terminal = Terminal(tmp_path, **getattr(request, "param", {}))
    yield terminal
    terminal.remove()


def status(shown: str) -> str:
    """The last line."""
    return shown.rstrip().rpartition("\n")[2].strip()


def writing(shown: str) -> bool:
    """Whether an answer is being written."""
    return status(shown).startswith("writing")


def answered(shown: str) -> bool:
    """Whether the status line is that of an answer that has ended: the model first, its speed."""
    return bool(re.match(r"SmolLM2.* [\d.]+ t/s", status(shown)))


def said(shown: str, question: str) -> str:
    """What stands below a question, up to the line above the composer."""
    after = shown.partition(question)[2].split("────", 1)[0]
    return " ".join(after.split())


def test_a_day_in_the_terminal(terminal: Terminal) -> None:
    model = ["-m", str(smollm2()), "--temp", "0"]

    # First run: the composer is there and takes text while the model is loaded behind it.
    terminal.start(*model)
    terminal.see("Ask anything", "ctrl+c", "f1")
    terminal.type("Say hello.", "Enter")

    # A chat: the same answer as without a screen, then the figures.
    terminal.wait(answered)
    shown = terminal.still()  # the line may be there before the last words are
    run = [*EDGERUN, "run", *model, "Say hello."]
    done = subprocess.run(run, env=environment(), capture_output=True, text=True, check=True)
    assert said(shown, "Say hello.").endswith(" ".join(done.stdout.split()))
    assert "/8192" in shown

    # Stop: ctrl+c ends the answer and not the program.
    terminal.type("Write a very long story about a dragon.", "Enter")
    terminal.wait(lambda t: writing(t) and len(said(t, "about a dragon.")) > 80)
    terminal.tmux("send-keys", "C-c")
    terminal.see("Stopped.")
    assert said(terminal.still(), "about a dragon.").endswith("Stopped.")

    # Edit: the changed question stands beside the first one.
    terminal.type("/edit Name one colour.", "Enter")
    terminal.wait(lambda t: "‹ 2/2 ›" in t and answered(t))
    shown = terminal.still()
    assert "dragon" not in shown.split("‹ 2/2 ›")[1]

    # Branch: there and back.
    terminal.type("/prev", "Enter")
    terminal.see("‹ 1/2 ›", "about a dragon.", "Stopped.")
    terminal.type("/next", "Enter")
    terminal.see("‹ 2/2 ›", "Name one colour.")

    # Search: in all that was ever said, also on the branch that is not shown; it opens there.
    terminal.tmux("send-keys", "C-r")
    terminal.see("search in all chats")
    terminal.type("dragon")
    terminal.wait(lambda t: bool(re.search(r"│ +▌ .*dragon.*│", t)))
    terminal.tmux("send-keys", "Enter")
    terminal.wait(lambda t: "Chats" not in t and "‹ 1/2 ›" in t and "dragon" in t)

    # kill -9 in the middle of an answer; what was seen is there again. In a chat of its own, where
    # nothing scrolls yet: of rows on the move a picture may have one twice.
    terminal.tmux("send-keys", "C-n")
    terminal.wait(lambda t: "dragon" not in t)
    terminal.type("Write a long story about the sea.", "Enter")
    shown = terminal.wait(lambda t: writing(t) and len(said(t, "about the sea.")) > 120)
    before = said(shown, "about the sea.")
    terminal.signal(signal.SIGKILL)
    assert terminal.ended() == 128 + signal.SIGKILL
    terminal.start(*model, "--continue")
    terminal.wait(lambda t: said(t, "about the sea.").startswith(before) and "/8192" in t)

    # Leaving is quick and gives the terminal back as it was.
    began = time.monotonic()
    terminal.tmux("send-keys", "C-d")
    assert terminal.ended() == 0
    assert time.monotonic() - began < 5
    assert "Ask anything" not in terminal.text()
    assert terminal.tmux("display-message", "-p", "#{alternate_on} #{mouse_any_flag}") == "0 0\n"


@pytest.mark.parametrize("terminal", [{"NO_COLOR": "1"}], indirect=True, ids=["60x16"])
def test_a_narrow_terminal_without_colours(terminal: Terminal) -> None:
    terminal.start("-m", str(smollm2()), width=60, height=16)
    terminal.see("Ask anything")
    terminal.tmux("send-keys", "C-o")  # at once: no key is lost while the program gets ready
    terminal.see("Models", "smollm2")
    terminal.tmux("send-keys", "Escape")
    terminal.wait(lambda t: "Models" not in t)
    terminal.tmux("send-keys", "C-s")
    terminal.see("Sampling", "temperature")
    coloured = terminal.text("-e")
    # Weight and reversal, but no colour: 30-37, 38, 40-47, 48, 90-107.
    codes = {c for m in re.findall(r"\x1b\[([\d;]*)m", coloured) for c in m.split(";") if c}
    assert not [c for c in codes if 30 <= int(c) <= 38 or 40 <= int(c) <= 48 or int(c) >= 90]
