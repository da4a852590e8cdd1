"""Where the user's own files lie: models, what is built for this machine, and settings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["config_dir", "data_dir"]


def data_dir() -> Path:
    """Where models are stored: ``$EDGERUN_HOME``, else the platform's data folder."""
    return _dir("XDG_DATA_HOME", ".local/share")


def config_dir() -> Path:
    """Where the user's own ``models.toml`` lies: ``$EDGERUN_HOME``, else the config folder."""
    return _dir("XDG_CONFIG_HOME", ".config")


def _dir(xdg: str, default: str) -> Path:
    home = os.environ.get("EDGERUN_HOME")
    if home:
        return Path(home).expanduser().absolute()
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or "~/AppData/Local").expanduser() / "edgerun"
    if sys.platform == "darwin":
        return Path("~/Library/Application Support/edgerun").expanduser()
    base = os.environ.get(xdg)
    # The XDG specification has relative values ignored.
    return Path(base if base and os.path.isabs(base) else f"~/{default}").expanduser() / "edgerun"
