"""Copying: to the terminal by OSC 52, which works over SSH, and to the desktop by its own tools.

Only text that a person chose to copy is ever sent; what models write cannot (``text.clean``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edgerun.tui.text import clean

if TYPE_CHECKING:
    from textual.app import App

__all__ = ["MAX_OSC52", "copy", "tools"]

#: Bytes of text that every terminal with OSC 52 takes: 100 000 of base64.
MAX_OSC52 = 74_994

_SECONDS = 2.0


def tools(env: Mapping[str, str], platform: str = sys.platform) -> list[list[str]]:
    """Commands that take text to copy on stdin, for this environment.

    tmux keeps OSC 52 for itself unless it is told otherwise, but hands on what it is given. Over
    SSH the desktop's clipboard is not the user's.
    """
    out = []
    if env.get("TMUX"):
        out.append(["tmux", "load-buffer", "-w", "-"])
    if env.get("SSH_CONNECTION") or env.get("SSH_TTY"):
        return out
    if platform == "darwin":
        out.append(["pbcopy"])
    elif platform == "win32":
        out.append(["clip"])
    elif env.get("WAYLAND_DISPLAY"):
        out.append(["wl-copy"])
    elif env.get("DISPLAY"):
        out += [["xclip", "-selection", "clipboard"], ["xsel", "-ib"]]
    return out


def copy(app: App[object], text: str) -> bool:
    """Put ``text`` on the clipboard; False if it is too long for the terminal and there is no
    tool. Control characters are replaced: a paste must not press keys."""
    text = clean(text)
    small = len(text.encode("utf-8")) <= MAX_OSC52
    if small:
        app.copy_to_clipboard(text)
    found = [c for c in tools(os.environ) if shutil.which(c[0])][:2]
    if found:
        app.run_worker(lambda: _run(found, text), thread=True, exit_on_error=False)
    return small or bool(found)


def _run(commands: list[list[str]], text: str) -> None:
    for command in commands:
        data = text.encode("utf-16-le" if command[0] == "clip" else "utf-8")
        try:
            subprocess.run(
                command,
                input=data,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_SECONDS,
                check=False,
            )
        except (OSError, subprocess.SubprocessError):
            continue  # OSC 52 has been sent already
