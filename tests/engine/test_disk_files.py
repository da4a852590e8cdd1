"""The files that hold KV pages, and the folder they lie in."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest
from helpers.disk_rig import D1, D2, DATA, FILE, KEY, ONE, SIZE, TWO, files, folder

from edgerun.engine import disk_files
from edgerun.engine.prefix import digest


@pytest.fixture(autouse=True)
def tireless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests write more in a second than a disk should bear for long."""
    monkeypatch.setattr(disk_files, "_RENEW", 1e-6)


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
