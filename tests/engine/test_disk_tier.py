"""The thread that moves KV pages to disk and back, and the engine with it."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import fake_program as fp
from helpers.disk_rig import BYTES, FILE, LONG, SIZE, Rig, check_files, files, run, same, wait_until

from edgerun.core import FinishReason
from edgerun.engine import Limits, disk_files
from edgerun.engine.disk_files import PageFolder
from edgerun.engine.metrics import DiskCount


@pytest.fixture(autouse=True)
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests write more in a second than a disk should bear for long."""
    monkeypatch.setattr(disk_files, "_RENEW", 1e-6)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    r = Rig(tmp_path / "kv")
    yield r
    r.close()


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


def test_what_went_to_disk_and_came_back_is_counted(rig: Rig) -> None:
    assert fp.engine().metrics().disk is None
    first = rig()
    run(first, LONG)
    first.disk.close()
    n = first.disk.n_written
    assert n >= 20
    assert first.metrics().disk == DiskCount(pages_written=n, bytes_written=n * BYTES)
    broken = files(rig.root)[0]  # the last page of the text: the longest unused
    broken.write_bytes(broken.read_bytes()[:-1])
    e = rig()
    run(e, LONG)
    run(e, LONG)  # from memory this time
    disk = e.metrics().disk
    assert disk is not None
    assert disk.pages_read == e.disk.n_restored
    assert disk.pages_read in (19, 20)
    assert (disk.bytes_read, disk.hit_tokens) == (disk.pages_read * BYTES, disk.pages_read * SIZE)
    assert disk.errors == (disk.pages_read == 19)
    assert e.metrics().to_dict()["disk"]["hit_tokens"] == disk.hit_tokens


def test_a_text_that_went_from_memory_comes_back(rig: Rig) -> None:
    e = rig(n_pages=26)
    run(e, LONG)
    wait_until(lambda: e.disk.n_written >= 20)
    other = LONG[::-1]
    same(run(e, other), other)
    assert same(run(e, LONG), LONG) == 80


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
        f"KV pages are no longer kept on disk: {os.strerror(error)}"
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
    """Restarts, little memory, little disk, cancels, on a host or a device: outputs as alone,
    accounts exact."""
    rng = np.random.default_rng(4)
    starts = [rng.integers(1, 61, 60).tolist() for _ in range(4)]
    restored = 0
    for round_ in range(25):
        limits = Limits(max_rows=4, budget=int(rng.integers(3, 40)))
        e = rig(n_pages=int(rng.integers(20, 48)), limit=int(rng.integers(10, 90)) * FILE,
                limits=limits, slots=(0, 3, 30)[round_ % 3])  # fmt: skip
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
