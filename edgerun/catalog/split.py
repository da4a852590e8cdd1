"""Models split over several files, ``NAME-00001-of-00003.gguf`` and so on: they travel as one."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["is_whole", "parts"]

_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf(?:[?#]|$))")


def parts(name: str) -> list[str]:
    """The names of all files of the set that ``name`` is one of; ``[name]`` if it is no set.

    Works on file names, paths, ``hf:`` sources and URLs.
    """
    m = _PART.search(name)
    if m is None or not 1 <= int(m[1]) <= int(m[2]):
        return [name]
    numbers = range(1, int(m[2]) + 1)
    return [f"{name[: m.start()]}-{i:05d}-of-{m[2]}{name[m.end() :]}" for i in numbers]


def is_whole(path: Path, size: int | None) -> bool:
    """Whether ``path``, and of a set every file beside it, is there: ``size`` bytes, if given."""
    files = [path.with_name(name) for name in parts(path.name)]
    try:
        sizes = [f.stat().st_size for f in files if f.is_file()]
    except OSError:
        return False
    return len(sizes) == len(files) and size in (None, sum(sizes))
