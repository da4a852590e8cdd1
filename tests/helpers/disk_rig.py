"""Pages on disk: a folder of small ones, and engines on fake programs that use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edgerun.engine import Engine, Limits
from edgerun.engine.disk import DiskTier
from edgerun.engine.disk_files import PageFolder
from edgerun.engine.prefix import digest
from helpers import fake_program as fp

SIZE = 4  # tokens of a page
BYTES = SIZE * 8
FILE = 8 + 3 * 16 + 3 * 4 + 4 * SIZE + BYTES
KEY = bytes(range(16))
ONE, TWO = (1, 2, 3, 4), (5, 6, 7, 8)
D1 = digest(b"", ONE)
D2 = digest(D1, TWO)
DATA = bytes(range(BYTES))


def folder(root: Path, limit: int = 1 << 20, key: bytes = KEY) -> PageFolder:
    return PageFolder(root, key, SIZE, BYTES, limit)


def files(root: Path) -> list[Path]:
    return sorted(root.glob("*/*.kv"), key=lambda p: p.stat().st_mtime_ns)


class Rig:
    """Engines on fake programs of their own, one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.open: list[Engine] = []

    def __call__(
        self,
        n_pages: int = 64,
        limit: int = 1 << 20,
        key: bytes = KEY,
        program: fp.FakeProgram | None = None,
        open_folder: Callable[[], PageFolder] | None = None,
        limits: Limits | None = None,
        min_pages: int = 2,
        slots: int = 0,
    ) -> Engine:
        program = program or fp.FakeProgram(n_pages, SIZE)
        memory = program._memory

        def restore(page: int, data: bytes) -> None:
            assert program.may_write(page)
            memory[page] = np.frombuffer(data, np.int64)

        space = fp.FakeSpace(program, slots) if slots else None
        e = fp.engine(n_pages, SIZE, limits, program, space=space)
        e.disk = DiskTier(
            open_folder or (lambda: folder(self.root, limit, key)),
            lambda page: memory[page].tobytes(),
            restore,
            BYTES,
            min_pages,
        )
        self.open.append(e)
        return e

    def close(self) -> None:
        for e in self.open:
            assert e.disk is not None
            e.disk.close()


def run(e: Engine, ids: list[int], n: int = 6) -> fp.ListSink:
    s = fp.sequence(ids, n)
    e.add(s)
    fp.drain(e, most=20_000)
    return fp.sink_of(s)


def same(sink: fp.ListSink, ids: list[int], n: int = 6) -> int:
    """It said what it should; returns the cached tokens."""
    assert (sink.ids, sink.reason) == fp.greedy(ids, n)
    assert sink.usage is not None
    return sink.usage.cached_tokens


LONG = [1 + (7 * i * i) % 60 for i in range(84)]  # 21 pages, the last of which is computed


def check_files(root: Path) -> None:
    """A page of the fake program holds its own tokens."""
    for path in files(root):
        raw = path.read_bytes()
        ids = np.frombuffer(raw, "<i4", SIZE, FILE - BYTES - 4 * SIZE)
        assert np.frombuffer(raw, np.int64, SIZE, FILE - BYTES).tolist() == ids.tolist()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)
