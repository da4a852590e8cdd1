"""Copying: by OSC 52 and by the desktop's tools, never more than either takes."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest
from textual.app import App

from edgerun.tui.clipboard import MAX_OSC52, copy, tools


class Copied(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.sent: list[str] = []

    def copy_to_clipboard(self, text: str) -> None:
        self.sent.append(text)


def copied(text: str) -> tuple[list[str], bool]:
    """What goes to the terminal, and whether it is said to have worked."""

    async def run() -> tuple[list[str], bool]:
        app = Copied()
        async with app.run_test():
            done = copy(app, text)
            await app.workers.wait_for_complete()
            return app.sent, done

    return asyncio.run(run())


@pytest.fixture
def desktop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A display with one tool, xclip, that writes what it gets to the file returned."""
    for name in ("TMUX", "SSH_CONNECTION", "SSH_TTY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    out = tmp_path / "clipboard"
    tool = tmp_path / "xclip"
    tool.write_text(f"#!/bin/sh\n/bin/cat > {out}\n", encoding="ascii")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DISPLAY", ":0")
    return out


@pytest.mark.parametrize(
    ("env", "platform", "expected"),
    [
        ({}, "linux", []),
        ({"DISPLAY": ":0"}, "linux", ["xclip", "xsel"]),
        ({"DISPLAY": ":0", "WAYLAND_DISPLAY": "w"}, "linux", ["wl-copy"]),
        ({"TMUX": "/tmp/t"}, "linux", ["tmux"]),
        ({"TMUX": "/tmp/t", "SSH_TTY": "x", "DISPLAY": ":10"}, "linux", ["tmux"]),
        ({"SSH_CONNECTION": "x", "DISPLAY": ":10"}, "linux", []),
        ({}, "darwin", ["pbcopy"]),
        ({}, "win32", ["clip"]),
    ],
)
def test_tools(env: dict[str, str], platform: str, expected: list[str]) -> None:
    assert [c[0] for c in tools(env, platform)] == expected


@pytest.mark.skipif(os.name != "posix", reason="the tool is a shell script")
def test_to_the_terminal_and_to_the_desktop(desktop: Path) -> None:
    assert copied("häß\tあ\n") == (["häß\tあ\n"], True)
    assert desktop.read_text(encoding="utf-8") == "häß\tあ\n"


@pytest.mark.skipif(os.name != "posix", reason="the tool is a shell script")
def test_what_is_too_long_for_a_terminal(desktop: Path) -> None:
    text = "ä" * (MAX_OSC52 // 2 + 1)
    assert copied(text) == ([], True)
    assert desktop.read_text(encoding="utf-8") == text
    (desktop.parent / "xclip").unlink()
    assert copied(text) == ([], False)
    assert copied(text[:-1]) == ([text[:-1]], True)


def test_a_paste_presses_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    sent, _ = copied("ls\x1b[201~rm -rf\r\n\ud800")
    assert sent == ["ls\ufffd[201~rm -rf\n\ufffd"]


@pytest.mark.skipif(os.name != "posix", reason="the tool is a shell script")
def test_a_tool_that_fails_or_hangs(desktop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgerun.tui.clipboard._SECONDS", 0.2)
    for body in ("exit 3", "exec /bin/sleep 9"):
        (desktop.parent / "xclip").write_text(f"#!/bin/sh\n{body}\n", encoding="ascii")
        assert copied("x") == (["x"], True)
