"""Files that go with a question: named ``@path`` in its text, found, read, refused. No widget."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from edgerun.amounts import size_text

__all__ = ["MAX_BYTES", "Found", "Listing", "Mention", "expand", "mentions", "quoted", "read"]

#: A larger file is refused: a megabyte is a quarter of a million tokens.
MAX_BYTES = 1_000_000
#: Files that one pattern may name.
MAX_FILES = 50

_MENTION = re.compile(r'(?:(?<=\s)|(?<=[(\[{])|^)@(?:"([^"\n]+)"|([^\s"@]+))', re.M)
#: Directories that hold nothing one would ask about.
_SKIPPED = {
    "node_modules", "__pycache__", "venv", "build", "dist", "target", "site-packages",
}  # fmt: skip


class Mention(NamedTuple):
    """``@path`` in a text, at ``start`` to ``end``."""

    path: str
    start: int
    end: int


class Found(NamedTuple):
    """A file that was named: its ``text``, or why it is refused. ``path`` as the user wrote it,
    ``size`` in bytes."""

    path: str
    text: str = ""
    refusal: str = ""
    size: int = 0


def mentions(text: str) -> list[Mention]:
    """All that looks like a named file; whether there is one is another question."""
    out = []
    for m in _MENTION.finditer(text):
        path = m[1] or m[2].rstrip(".,;:!?)]}") or m[2]
        end = m.end() if m[1] else m.start(2) + len(path)
        out.append(Mention(path, m.start(), end))
    return out


def quoted(path: str) -> str:
    """``@path`` as it has to be written."""
    plain = not re.search(r"[\s\"@]", path) and path.rstrip(".,;:!?)]}") == path
    return f"@{path}" if plain else f'@"{path}"'


def expand(path: str, base: Path) -> list[str]:
    """The files that a path or pattern names, as the user would write them; [] if none is there.

    Hidden files are named by patterns with a dot only.
    """
    try:
        where = base / Path(path).expanduser()
        if where.is_file():
            return [path]
        if where.is_dir() or not any(c in path for c in "*?["):
            return []
        hidden = any(part.startswith(".") for part in Path(path).parts)
        out: list[str] = []
        root, pattern = ("/", path.lstrip("/")) if path.startswith("/") else (base, path)
        for hit in sorted(Path(root).glob(pattern)):
            name = str(hit if root == "/" else hit.relative_to(base))
            shown = hidden or not any(_skipped(part) for part in Path(name).parts)
            if shown and hit.is_file():
                out.append(name)
            if len(out) > MAX_FILES:
                break
        return out
    except (OSError, ValueError, NotImplementedError, RuntimeError):
        return []


def read(path: str, base: Path) -> Found:
    """The text of a file, or why it cannot go with a question."""
    where = base / Path(path).expanduser()
    try:
        size = where.stat().st_size
        if not where.is_file():
            return Found(path, refusal="not a file")
        if size > MAX_BYTES:
            return Found(path, refusal=f"too large, at most {size_text(MAX_BYTES, 2)}", size=size)
        data = where.read_bytes()
    except OSError as e:
        return Found(path, refusal=(e.strerror or "cannot be read").lower())
    if b"\0" in data[:8192]:
        return Found(path, refusal="not text", size=size)
    try:
        return Found(path, data.decode("utf-8-sig"), size=size)
    except UnicodeDecodeError:
        return Found(path, refusal="not UTF-8 text", size=size)


def _skipped(name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED or name.endswith(".egg-info")


class Listing:
    """The names of the files below a directory, for completion; asked for on a thread.

    In a git repository they are those git knows or would add, else all but hidden ones and build
    outputs, up to a number and a time.
    """

    LIMIT, SECONDS, FRESH = 20_000, 0.5, 10.0

    def __init__(self, base: Path) -> None:
        self.base = base
        self._names: list[str] = []
        self._at = -1e9

    def names(self) -> list[str]:
        """Relative paths with ``/``; directories end in one."""
        if time.monotonic() - self._at > self.FRESH:
            files = self._git() or list(self._walk())
            folders = {f[: i + 1] for f in files for i, c in enumerate(f) if c == "/"}
            self._names = sorted([*files, *folders], key=lambda n: (n.count("/"), n.lower()))
            self._at = time.monotonic()
        return self._names

    def _git(self) -> list[str]:
        if not any((p / ".git").exists() for p in (self.base, *self.base.parents)):
            return []
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            done = subprocess.run(
                command, cwd=self.base, capture_output=True, timeout=2, check=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError):
            return []
        names = done.stdout.decode("utf-8", "replace").split("\0")
        shown = (n for n in names if n and not any(p.startswith(".") for p in n.split("/")))
        return list(dict.fromkeys(shown))[: self.LIMIT]

    def _walk(self) -> Iterator[str]:
        until, n = time.monotonic() + self.SECONDS, 0
        for folder, folders, files in os.walk(self.base):
            folders[:] = sorted(f for f in folders if not _skipped(f))
            at = os.path.relpath(folder, self.base).replace(os.sep, "/")
            for name in sorted(files):
                if not name.startswith("."):
                    n += 1
                    yield name if at == "." else f"{at}/{name}"
            if n >= self.LIMIT or time.monotonic() > until:
                return


def in_folder(path: str, base: Path) -> list[str]:
    """Names that begin with ``path`` in the folder it says, for paths outside the tree."""
    folder, _, start = path.rpartition("/")
    where = base / Path(f"{folder}/" if folder or path.startswith("/") else ".").expanduser()
    out: list[str] = []
    try:
        with os.scandir(where) as entries:
            for e in entries:
                if e.name.lower().startswith(start.lower()) and (
                    start.startswith(".") or not e.name.startswith(".")
                ):
                    name = f"{folder}/{e.name}" if folder or path.startswith("/") else e.name
                    out.append(name + ("/" if e.is_dir() else ""))
    except (OSError, ValueError, RuntimeError):
        return []
    return sorted(out, key=str.lower)


def rank(names: Sequence[str], wanted: str, limit: int = 50) -> list[str]:
    """The ``names`` that match what was typed, best first: a pattern's, else those that hold its
    letters in order, matches at the beginning of a name before others."""
    if any(c in wanted for c in "*?["):
        low = wanted.lower()
        hits = [n for n in names if fnmatch.fnmatchcase(n.lower(), low)]
        return hits[:limit]
    scored = []
    for n in names:
        score = score_of(n, wanted)
        if score is not None:
            scored.append((score, n.count("/"), len(n), n))
    return [s[-1] for s in sorted(scored)[:limit]]


def score_of(name: str, wanted: str) -> int | None:
    """How well letters match a name, 0 the best; None = not."""
    low, want = name.lower(), wanted.lower()
    last = low.rstrip("/").rpartition("/")[2]
    for score, hit in enumerate((
        last == want or low == want,
        last.startswith(want) or low.startswith(want),
        want in last,
        want in low,
    )):  # fmt: skip
        if hit:
            return score
    letters = iter(low)
    return 4 if all(c in letters for c in want) else None
