"""Hints that are worth giving once, not at every start."""

from __future__ import annotations

import contextlib
import hashlib

from edgerun.folders import data_dir

__all__ = ["first_time"]


def first_time(text: str) -> bool:
    """Whether this user has not been told ``text`` yet; from now on they have.

    A file in the data folder remembers it. Where none can be written it is always the first time.
    """
    name = hashlib.sha256(text.encode()).hexdigest()[:16]
    with contextlib.suppress(OSError):
        folder = data_dir() / "told"
        if (folder / name).exists():
            return False
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return True
