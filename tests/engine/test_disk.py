"""Pages on disk: files, the thread that moves them, and the engine with both."""

from __future__ import annotations

import errno
import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import fake_program as fp

from edgerun.core import FinishReason
from edgerun.engine import Engine, Limits, disk_files
from edgerun.engine.disk import DiskTier
from edgerun.engine.disk_files import PageFolder
from edgerun.engine.prefix import digest

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


@pytest.fixture(autouse=True)
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests write more in a second than a disk should bear for long."""
    monkeypatch.setattr(disk_files, "_RENEW", 1e-6)


# -- files ---------------------------------------------------------------------------------------


def test_what_was_written_is_read_by_another(tmp_path: Path) -> None:
    mine = folder(tmp_path)
    assert mine.read(b"", D1, ONE) is None
    assert D1 not in mine
    assert mine.write(b"", D1, ONE, DATA, 10**18)
    assert mine.write(D1, D2, TWO, DATA[::-1], 10**18)
    other = folder(tmp_path)
    assert D1 in other
    assert other.read(b"", D1, ONE) == DATA
    assert other.read(D1, D2, TWO) == DATA[::-1]
    assert [p.stat().st_size for p in files(tmp_path)] == [FILE, FILE]


@pytest.mark.skipif(os.name != "posix", reason="permission bits")
def test_only_the_owner_reads_them(tmp_path: Path) -> None:
    root = tmp_path / "a" / "kv"
    root.mkdir(parents=True, mode=0o755)
    folder(root).write(b"", D1, ONE, DATA, 0)
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (root, *root.glob("*"), *root.glob("*/*"))]
    assert modes == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("at", [0, 8, 24, 40, 56, 60, 64, 70, 68 + 4 * SIZE, FILE - 1])
def test_a_flipped_bit_anywhere_is_a_miss_and_removes_the_file(tmp_path: Path, at: int) -> None:
    mine = folder(tmp_path)
    mine.write(b"", D1, ONE, DATA, 0)
    path = files(tmp_path)[0]
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)
    assert mine.read(b"", D1, ONE) is None
    assert not path.exists()
    assert mine.write(b"", D1, ONE, DATA, 0)
    assert mine.read(b"", D1, ONE) == DATA


@pytest.mark.parametrize("length", [0, 1, 30, 67, 68 + 4 * SIZE, FILE - 1, FILE + 1])
def test_a_torn_or_longer_file_is_a_miss(tmp_path: Path, length: int) -> None:
    mine = folder(tmp_path)
    mine.write(b"", D1, ONE, DATA, 0)
    path = files(tmp_path)[0]
    path.write_bytes((path.read_bytes() + b"x")[:length])
    assert mine.read(b"", D1, ONE) is None
    assert not path.exists()


def test_other_tokens_or_another_start_under_the_same_digest_are_a_miss(tmp_path: Path) -> None:
    mine = folder(tmp_path)
    for parent, tokens in ((b"", TWO), (D2, ONE)):
        mine.write(b"", D1, ONE, DATA, 0)
        assert mine.read(parent, D1, tokens) is None


def test_another_key_finds_nothing(tmp_path: Path) -> None:
    folder(tmp_path).write(b"", D1, ONE, DATA, 0)
    assert folder(tmp_path, key=bytes(16)).read(b"", D1, ONE) is None
    # Not even if the file is moved there.
    moved = tmp_path / bytes(16).hex() / (D1.hex() + ".kv")
    files(tmp_path)[0].rename(moved)
    assert folder(tmp_path, key=bytes(16)).read(b"", D1, ONE) is None


def test_the_least_recently_used_go_whoever_wrote_them(tmp_path: Path) -> None:
    ids = [(i, i, i, i) for i in range(40)]
    names = [digest(b"", t) for t in ids]
    other = folder(tmp_path, key=bytes(16))
    for i in range(10):
        other.write(b"", names[i], ids[i], DATA, 1000 + i)
    mine = folder(tmp_path, limit=20 * FILE)
    for i in range(10, 20):
        assert mine.write(b"", names[i], ids[i], DATA, 1000 + i)
    assert len(files(tmp_path)) == 20
    other.touch(names[0], 5000)
    assert mine.write(b"", names[20], ids[20], DATA, 6000)
    assert len(files(tmp_path)) <= 20
    assert names[0] in other
    assert names[1] not in other
    assert names[10] in mine
    assert not mine.write(b"", names[21], ids[21], DATA, 1)  # older than all that is there
    for i in range(22, 40):
        assert mine.write(b"", names[i], ids[i], DATA, 6000 + i)
        assert sum(p.stat().st_size for p in files(tmp_path)) <= 20 * FILE
    folder(tmp_path, limit=3 * FILE)
    assert len(files(tmp_path)) == 2  # room for the next one is made, too
    assert not folder(tmp_path, limit=FILE - 1).write(b"", D1, ONE, DATA, 10**18)


def test_the_bound_holds_while_another_writes(tmp_path: Path) -> None:
    two = [folder(tmp_path, limit=100 * FILE) for _ in range(2)]
    for i in range(600):
        ids = (i, 0, 0, 0)
        two[i % 2].write(b"", digest(b"", ids), ids, DATA, 1000 + i)
    assert 60 <= len(files(tmp_path)) <= 100 + 64


def test_a_disk_is_not_worn_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_files, "_RENEW", 3600.0)
    mine = folder(tmp_path, limit=10 * FILE)

    def write(n: int, first: int) -> int:
        ids = [(i, 0, 0, 0) for i in range(first, first + n)]
        stamp = time.time_ns()
        return sum(mine.write(b"", digest(b"", i), i, DATA, stamp + i[0]) for i in ids)

    assert write(40, 0) == 10
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1800.0)
    assert write(40, 100) == 5
    monkeypatch.setattr(time, "monotonic", lambda: now + 1e6)
    assert write(40, 200) == 10


def test_leavings_of_a_crash_go_and_what_is_not_ours_stays(tmp_path: Path) -> None:
    mine = folder(tmp_path)
    sub = tmp_path / KEY.hex()
    old, new, note = sub / f"{D1.hex()}.77.part", sub / f"{D2.hex()}.78.part", sub / "note.kv"
    for p in (old, new, note, tmp_path / "note"):
        p.write_bytes(b"x" * 5000)
    os.utime(old, (1, 1))
    os.utime(note, (1, 1))
    folder(tmp_path, limit=FILE)
    assert not old.exists()
    assert new.exists()
    assert note.exists()
    assert mine.write(b"", D1, ONE, DATA, 0)


def test_dropping_takes_what_was_computed_behind(tmp_path: Path) -> None:
    mine = folder(tmp_path)
    mine.write(b"", D1, ONE, DATA, 0)
    mine.write(D1, D2, TWO, DATA, 0)
    mine.write(D2, digest(D2, ONE), ONE, DATA, 0)
    mine.write(b"", digest(b"", TWO), TWO, DATA, 0)
    mine.drop_behind({D1})
    assert [p.stem for p in files(tmp_path)] == [digest(b"", TWO).hex()]


# -- the engine with it --------------------------------------------------------------------------


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
    ) -> Engine:
        program = program or fp.FakeProgram(n_pages, SIZE)
        memory = program._memory

        def restore(page: int, data: bytes) -> None:
            assert program.may_write(page)
            memory[page] = np.frombuffer(data, np.int64)

        e = fp.engine(n_pages, SIZE, limits, program)
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


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    r = Rig(tmp_path / "kv")
    yield r
    r.close()


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


def test_a_restart_computes_only_the_last_page(rig: Rig) -> None:
    first = rig()
    assert same(run(first, LONG), LONG) == 0
    first.disk.close()
    assert first.disk.n_written >= 20
    e = rig()
    assert same(run(e, LONG), LONG) == 80
    assert e.disk.n_restored == 20
    assert sum(n for _, n in e.program.widths) < 10
    assert same(run(e, LONG), LONG) == 83  # its own pages, warm
    assert same(run(e, LONG[:50] + [9] * 9), LONG[:50] + [9] * 9) == 48
    assert e.metrics().cached_tokens == 80 + 83 + 48


def test_a_text_that_went_from_memory_comes_back(rig: Rig) -> None:
    e = rig(n_pages=26)
    run(e, LONG)
    wait_until(lambda: e.disk.n_written >= 20)
    other = LONG[::-1]
    same(run(e, other), other)
    assert same(run(e, LONG), LONG) == 80


def check_files(root: Path) -> None:
    """A page of the fake program holds its own tokens."""
    for path in files(root):
        raw = path.read_bytes()
        ids = np.frombuffer(raw, "<i4", SIZE, FILE - BYTES - 4 * SIZE)
        assert np.frombuffer(raw, np.int64, SIZE, FILE - BYTES).tolist() == ids.tolist()


def test_a_page_given_away_while_it_is_copied_is_not_written(rig: Rig) -> None:
    e = rig(n_pages=23)
    copying, go = threading.Event(), threading.Event()
    export = e.disk._export

    def slow(page: int) -> bytes:
        copying.set()
        go.wait(20)
        return export(page)

    e.disk._export = slow
    run(e, LONG)
    assert copying.wait(20)
    other = LONG[::-1]
    run(e, other)  # takes the page that is being copied, among others
    go.set()
    e.disk.close()
    assert e.disk.n_written > 0
    check_files(rig.root)
    assert same(run(rig(), LONG), LONG) == 0
    assert same(run(rig(), other), other) == 80


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)


def test_short_texts_are_not_written(rig: Rig) -> None:
    e = rig(min_pages=8)
    run(e, LONG[:20])
    e.disk.close()
    assert not files(rig.root)


@pytest.mark.parametrize("broken", [0, 7, 19])
def test_a_broken_page_is_computed_and_all_behind_it(rig: Rig, broken: int) -> None:
    e = rig()
    run(e, LONG)
    e.disk.close()
    path = files(rig.root)[::-1][broken]  # the start counts as used last
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    e = rig()
    assert same(run(e, LONG), LONG) == broken * SIZE
    e.disk.close()  # what was missing has been written again
    assert same(run(rig(), LONG), LONG) == 80


def test_another_model_uses_nothing_of_it(rig: Rig) -> None:
    run(rig(), LONG)
    rig.close()
    e = rig(key=bytes(16))
    assert same(run(e, LONG), LONG) == 0


def test_the_start_of_a_text_is_what_a_small_folder_keeps(rig: Rig) -> None:
    e = rig(limit=10 * FILE)
    run(e, LONG)
    e.disk.close()
    e = rig(limit=10 * FILE)
    assert same(run(e, LONG), LONG) == 40
    other = LONG[::-1]
    run(e, other)
    e.disk.close()
    assert len(files(rig.root)) <= 10
    assert same(run(rig(), other), other) >= 36


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_disk_that_takes_nothing_switches_it_off(
    rig: Rig, error: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> bool:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(PageFolder, "write", refuse)
    e = rig()
    with caplog.at_level(logging.WARNING):
        assert same(run(e, LONG), LONG) == 0
        e.disk._thread.join(20)
        assert same(run(e, LONG), LONG) == 83
        assert same(run(e, LONG[1:]), LONG[1:]) == 0
    assert [r.message for r in caplog.records if "disk" in r.message] == [
        f"KV pages are no longer kept on disk: [Errno {error}] {os.strerror(error)}"
    ]


def test_a_folder_that_cannot_be_had(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    rig.root.write_bytes(b"a file")
    with caplog.at_level(logging.WARNING):
        assert same(run(rig(), LONG), LONG) == 0
    assert len(caplog.records) == 1


def test_reading_that_fails_half_way_costs_time_alone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(rig(), LONG)
    rig.close()
    read, n = PageFolder.read, []

    def fail(self: PageFolder, *args: object) -> bytes | None:
        n.append(1)
        if len(n) > 5:
            raise OSError(errno.EIO, "broken")
        return read(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(PageFolder, "read", fail)
    assert same(run(rig(), LONG), LONG) in range(0, 24, 4)


def test_a_slow_disk_is_not_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    run(rig(), LONG)
    rig.close()
    slow = threading.Event()
    monkeypatch.setattr(PageFolder, "read", lambda *_: slow.wait(20) and None)
    began = time.monotonic()
    assert same(run(rig(), LONG), LONG) == 0
    assert time.monotonic() - began < 5
    slow.set()


def test_others_run_while_one_waits_for_its_pages(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(rig(), LONG)
    rig.close()
    read, go = PageFolder.read, threading.Event()
    monkeypatch.setattr(PageFolder, "read", lambda *a: (go.wait(20), read(*a))[1])
    monkeypatch.setattr("edgerun.engine.disk._GRACE", 60.0)
    e = rig()
    long, twin, short = fp.sequence(LONG), fp.sequence(LONG), fp.sequence([3, 2, 1])
    for s in (long, twin, short):
        e.add(s)
    while not fp.sink_of(short).ended.is_set():
        e.step()
        e.check()
    assert not long.pages
    assert not twin.pages
    go.set()
    fp.drain(e, most=20_000)
    assert same(fp.sink_of(long), LONG, 8) == 80
    assert same(fp.sink_of(twin), LONG, 8) >= 80
    assert e.disk.n_restored == 20  # once for both


def test_a_start_that_goes_while_the_rest_is_read(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(rig(), LONG)
    rig.close()
    read, go, n = PageFolder.read, threading.Event(), []

    def halting(self: PageFolder, *args: object) -> bytes | None:
        n.append(1)
        assert len(n) <= 5 or go.wait(20)
        return read(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(PageFolder, "read", halting)
    monkeypatch.setattr("edgerun.engine.disk._GRACE", 60.0)
    e = rig(n_pages=23)
    s, other = fp.sequence(LONG), fp.sequence(LONG[::-1])
    e.add(s)
    while e.disk.n_restored < 5:
        e.step()
        e.check()
    e.add(other)
    while not fp.sink_of(other).ended.is_set():
        e.step()
        e.check()
    go.set()
    fp.drain(e, most=20_000)
    same(fp.sink_of(s), LONG, 8)
    assert same(run(e, LONG), LONG) == 83


def test_cancelled_while_it_waits(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    run(rig(), LONG)
    rig.close()
    read, go = PageFolder.read, threading.Event()
    monkeypatch.setattr(PageFolder, "read", lambda *a: (go.wait(20), read(*a))[1])
    e = rig()
    s = fp.sequence(LONG)
    e.add(s)
    e.step()
    s.cancelled = True
    e.step()
    assert e.idle
    assert fp.sink_of(s).reason == FinishReason.ABORT
    go.set()
    assert same(run(e, LONG[:3]), LONG[:3]) == 0


def test_pages_that_a_broken_batch_stood_on_leave_the_disk(rig: Rig) -> None:
    run(rig(), LONG)
    rig.close()
    broken = True

    def before(batch: object) -> None:
        if broken:
            raise RuntimeError("broken batch")

    e = rig(program=fp.FakeProgram(64, SIZE, before))
    assert run(e, LONG).error is not None
    broken = False
    assert same(run(e, LONG), LONG) == 0
    e.disk.close()
    assert same(run(rig(), LONG), LONG) == 80  # written by the second run


def test_after_a_bug_nothing_of_the_old_pool_is_written(rig: Rig) -> None:
    e = rig()
    copying, gate = threading.Event(), threading.Event()
    export = e.disk._export
    e.disk._export = lambda page: (copying.set(), gate.wait(20), export(page))[2]
    run(e, LONG)
    assert copying.wait(20)
    e.start_over(RuntimeError("bug"))
    gate.set()
    e.disk.close()
    assert not files(rig.root)


def test_random_requests_with_one_folder_and_starving_pools(rig: Rig) -> None:
    """Restarts, little memory, little disk, cancels: outputs as alone, accounts exact."""
    rng = np.random.default_rng(4)
    starts = [rng.integers(1, 61, 60).tolist() for _ in range(4)]
    restored = 0
    for _ in range(25):
        limits = Limits(max_rows=4, budget=int(rng.integers(3, 40)))
        e = rig(n_pages=int(rng.integers(20, 48)), limit=int(rng.integers(10, 90)) * FILE,
                limits=limits)  # fmt: skip
        asked = []
        for _ in range(int(rng.integers(2, 7))):
            start = starts[int(rng.integers(4))][: int(rng.integers(1, 60))]
            s = fp.sequence(start + rng.integers(1, 61, int(rng.integers(0, 6))).tolist() or [1])
            asked.append((s, list(s.ids)))
            e.add(s)
            for _ in range(int(rng.integers(0, 3))):
                e.step()
                e.check()
            s.cancelled = rng.random() < 0.1
        fp.drain(e, most=20_000)
        for s, ids in asked:
            if not s.cancelled:
                same(fp.sink_of(s), ids, 8)
        restored += e.disk.n_restored
        e.disk.close()
        check_files(rig.root)
    assert restored > 50


def test_nothing_is_written_behind_a_page_that_is_not_there(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, n = PageFolder.write, []

    def refuse_one(self: PageFolder, *args: object) -> bool:
        n.append(1)
        return len(n) != 4 and write(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(PageFolder, "write", refuse_one)
    run(rig(), LONG)
    rig.close()
    assert len(files(rig.root)) == 3
    assert same(run(rig(), LONG), LONG) == 12


def test_two_engines_share_a_folder(rig: Rig) -> None:
    a, b = rig(limit=60 * FILE), rig(limit=60 * FILE)
    run(a, LONG)
    wait_until(lambda: a.disk.n_written == 22)
    assert same(run(b, LONG), LONG) == 80  # b was open before a wrote
    b.disk.close()
    assert b.disk.n_written == 0
