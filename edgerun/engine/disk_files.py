"""Files that hold KV pages: their format, the folder they lie in, and which go when it is full.

A file is one page, named by its digest, in a folder named by what the page's bits depend on::

    kv/<key>/<digest>.kv = magic, key, digest, digest of the page before (zeros: none),
        u32 tokens, u32 bytes of the page, u32 CRC-32 of all else; i32 token ids; the page

All numbers are little-endian. A file appears whole, by renaming, so processes may share a folder;
what a crash has torn fails its checksum, and a page is used only if its token ids are those asked
for. Any doubt about a file removes it: the page is computed again.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["PageFolder"]

_MAGIC = b"edgerkv1"
_HEADER = struct.Struct("<8s16s16s16sII")
_CRC = struct.Struct("<I")
_KEY = re.compile(r"[0-9a-f]{32}")
_FILE = re.compile(r"[0-9a-f]{32}\.kv")
_PART = re.compile(r"[0-9a-f]{32}\.\d+\.part")
_STALE = 3600.0  # seconds after which nobody goes on with a file that was not finished
_SPARE = 0.05  # of the limit, emptied at once, so that not every page needs a look at all files
_RENEW = 3600.0  # seconds in which all of the limit may be written anew: disks wear out
_LOOK = 64  # pages written after which others' files are looked at again


class _Entry(NamedTuple):
    stamp: int
    size: int
    path: str


class PageFolder:
    """Pages of one model in one setting, in a folder that other models and processes use as well.

    Not safe for several threads; several processes may use one folder.

    Args:
        root: the folder of all pages; made if missing, for its owner's eyes only.
        key: 16 bytes for all that a page's bits depend on.
        page_size: tokens of a page.
        page_bytes: bytes of a page.
        limit: most bytes of all files below ``root``.

    Raises:
        OSError: the folder cannot be used.
    """

    def __init__(self, root: Path, key: bytes, page_size: int, page_bytes: int, limit: int) -> None:
        self._root = root
        self._key = key
        self._page_size = page_size
        self._page_bytes = page_bytes
        self._limit = limit
        self._size = _HEADER.size + _CRC.size + 4 * page_size + page_bytes
        self._folder = root / key.hex()
        for folder in (root, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chmod(root, 0o700)  # what was said in a conversation can be read from its pages
        self._total = sum(e.size for e in self._entries())
        self._written = 0
        self.n_refused = 0  # files that were not what they should be
        self._allowed, self._since = float(limit), time.monotonic()
        self._room(0, time.time_ns())

    def __contains__(self, digest: bytes) -> bool:
        return os.path.exists(self._path(digest))

    def read(self, parent: bytes, digest: bytes, tokens: Sequence[int]) -> bytes | None:
        """The page of ``tokens`` behind ``parent``; None if there is none that is whole.

        Raises:
            OSError: the folder cannot be read.
        """
        path = self._path(digest)
        head = self._head(parent, digest, tokens)
        ids = _ids(tokens)
        try:
            with open(path, "rb", buffering=0) as f:
                start = f.read(len(head) + _CRC.size + len(ids)) or b""
                page = f.read(self._page_bytes + 1) or b""
        except FileNotFoundError:
            return None
        body = start[len(head) + _CRC.size :]
        if start[: len(head)] == head and body == ids and len(page) == self._page_bytes:
            (crc,) = _CRC.unpack_from(start, len(head))
            if crc == _crc(head, ids, page):
                return page
        self.n_refused += 1
        self.drop(digest)
        return None

    def write(
        self, parent: bytes, digest: bytes, tokens: Sequence[int], page: bytes, stamp: int
    ) -> bool:
        """Keep a page; False if there is no room for it among pages used later than ``stamp``, or
        much was written lately.

        Args:
            stamp: nanoseconds since 1970 that the page counts as used at.

        Raises:
            OSError: it cannot be written.
        """
        now = time.monotonic()
        self._allowed += (now - self._since) * self._limit / _RENEW
        self._allowed, self._since = min(self._allowed, self._limit), now
        if self._allowed < self._size or not self._room(self._size, stamp):
            return False
        head, ids = self._head(parent, digest, tokens), _ids(tokens)
        path = self._path(digest)
        part = path[: -len("kv")] + f"{os.getpid()}.part"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
            with open(os.open(part, flags, 0o600), "wb", buffering=0) as f:
                _write(f, head + _CRC.pack(_crc(head, ids, page)) + ids)
                _write(f, page)
            os.utime(part, ns=(stamp, stamp))
            os.replace(part, path)
        except BaseException as e:
            with contextlib.suppress(OSError):
                os.unlink(part)
            if isinstance(e, PermissionError) and os.path.exists(path):
                return True  # Windows: another process has written it, and someone reads it
            raise
        self._total += self._size
        self._allowed -= self._size
        self._written += 1
        return True

    def touch(self, digest: bytes, stamp: int) -> None:
        """Note that a page is used at ``stamp``, see :meth:`write`."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path(digest), ns=(stamp, stamp))

    def drop(self, digest: bytes) -> None:
        """Remove a page, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(digest))
            self._total -= self._size

    def drop_behind(self, digests: set[bytes]) -> None:
        """Remove pages, and all that were computed behind them.

        Raises:
            OSError: the folder cannot be read.
        """
        for digest in digests:
            self.drop(digest)
        followers: dict[bytes, list[bytes]] = {}
        for file in _scan(self._folder):
            if _FILE.fullmatch(file.name):
                with contextlib.suppress(FileNotFoundError), open(file.path, "rb") as f:
                    parent = _HEADER.unpack(f.read(_HEADER.size).ljust(_HEADER.size))[3]
                    followers.setdefault(parent, []).append(bytes.fromhex(file.name[:32]))
        stack = list(digests)
        while stack:
            for digest in followers.pop(stack.pop(), ()):
                self.drop(digest)
                stack.append(digest)

    # -- inside -------------------------------------------------------------------------------

    def _path(self, digest: bytes) -> str:
        return os.path.join(self._folder, digest.hex() + ".kv")

    def _head(self, parent: bytes, digest: bytes, tokens: Sequence[int]) -> bytes:
        return _HEADER.pack(_MAGIC, self._key, digest, parent, len(tokens), self._page_bytes)

    def _room(self, size: int, stamp: int) -> bool:
        """Make room for ``size`` bytes, by removing what was last used before ``stamp``."""
        if self._written >= _LOOK:
            self._written = 0
            self._total = sum(e.size for e in self._entries())
        if self._total + size <= self._limit:
            return True
        entries = sorted(self._entries())
        self._total = sum(e.size for e in entries)
        aim = self._limit - max(size, int(self._limit * _SPARE))
        if self._total + size > self._limit:
            for e in entries:
                if self._total <= aim or e.stamp >= stamp:
                    break
                with contextlib.suppress(OSError):  # another process was faster, or holds it open
                    os.unlink(e.path)
                    self._total -= e.size
        return self._total + size <= self._limit

    def _entries(self) -> Iterator[_Entry]:
        """All pages below the root. Files of other names are left alone."""
        for folder in _scan(self._root):
            if not _KEY.fullmatch(folder.name):
                continue
            empty = True
            for file in _scan(folder.path):
                empty = False
                with contextlib.suppress(FileNotFoundError):
                    s = file.stat(follow_symlinks=False)
                    if _FILE.fullmatch(file.name):
                        yield _Entry(s.st_mtime_ns, s.st_size, file.path)
                    elif _PART.fullmatch(file.name) and time.time() - s.st_mtime > _STALE:
                        os.unlink(file.path)
            if empty and folder.name != self._key.hex():
                with contextlib.suppress(OSError):
                    os.rmdir(folder.path)


def _scan(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _ids(tokens: Sequence[int]) -> bytes:
    return np.asarray(tokens, "<i4").tobytes()


def _crc(head: bytes, ids: bytes, page: bytes) -> int:
    return zlib.crc32(page, zlib.crc32(ids, zlib.crc32(head)))


def _write(file: io.FileIO, data: bytes) -> None:
    """All of ``data``: a disk that is nearly full takes a part first."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]
