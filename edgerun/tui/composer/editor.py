"""A draft written in the user's own editor."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.errors import printable

if TYPE_CHECKING:
    from textual.app import App

__all__ = ["command", "write_in_editor"]


def command() -> list[str] | None:
    """``$VISUAL``, ``$EDITOR``, or the first usual one there is."""
    for name in ("VISUAL", "EDITOR"):
        if os.environ.get(name, "").strip():
            try:
                return shlex.split(os.environ[name], posix=os.name == "posix")
            except ValueError:
                return [os.environ[name]]
    usual = ("notepad",) if os.name == "nt" else ("sensible-editor", "nano", "vim", "vi")
    return next(([found] for e in usual if (found := shutil.which(e))), None)


def write_in_editor(app: App[Any], draft: str) -> tuple[str | None, str]:
    """What the user made of ``draft``, or None if nothing; and what went wrong, or ""."""
    from textual.app import SuspendNotSupported

    argv = command()
    if argv is None:
        return None, "there is no editor: set $EDITOR"
    fd, name = tempfile.mkstemp(prefix="edgerun-", suffix=".md")
    path = Path(name)
    try:
        with os.fdopen(fd, "w", encoding="utf-8", newline="\n") as f:
            f.write(draft)
        with app.suspend():
            done = subprocess.run([*argv, name], check=False, stderr=sys.__stderr__)
        if done.returncode:
            return None, f"{printable(argv[0])} ended with status {done.returncode}: nothing taken"
        text = path.read_text("utf-8", errors="replace")
        return text.removesuffix("\n"), ""
    except SuspendNotSupported:
        return None, "this terminal cannot be handed to an editor"
    except OSError as e:
        return None, f"cannot run {printable(argv[0])}: {e.strerror}; set $EDITOR"
    finally:
        path.unlink(missing_ok=True)
