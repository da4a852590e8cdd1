from __future__ import annotations

import struct
import time

import numpy as np
import pytest
from helpers.gguf_build import string

from edgerun.gguf.strings import StringArray, walk


class Refused(Exception):
    pass


def fail(message: str):  # type: ignore[no-untyped-def]
    raise Refused(message)


def read(items: list[bytes], before: bytes = b"abc", after: bytes = bytes(40)) -> list[str]:
    blob = before + b"".join(string(s) for s in items) + after
    buf = np.frombuffer(blob, np.uint8)
    starts, end = walk(buf, len(before), len(items), fail)
    assert end == len(blob) - len(after)
    strings = StringArray(buf, starts, end)
    assert len(strings) == len(items)
    assert strings.decode(3) == [s.decode("utf-8", "surrogateescape") for s in items[:3]]
    return strings.decode()


def words(rng: np.random.Generator, n: int, longest: int, alphabet: bytes) -> list[bytes]:
    lengths = rng.integers(0, longest, n)
    pool = rng.choice(np.frombuffer(alphabet, np.uint8), int(lengths.sum())).tobytes()
    ends = np.cumsum(lengths)
    return [pool[e - k : e] for e, k in zip(ends, lengths, strict=True)]


ALPHABETS = {
    "text": bytes(range(32, 127)),
    "utf8": "aé漢😀".encode(),  # shuffled bytes: mostly not UTF-8
    "control": bytes(range(256)),
    "zeros": b"\x00\x00\x00\x00\x00\x00\x01a",
    "ff": b"\xff\xffab",
}


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize(
    ("n", "longest"), [(1, 9), (700, 2), (9000, 12), (60_000, 40), (9000, 400)]
)
def test_any_strings_come_back(alphabet: str, n: int, longest: int) -> None:
    items = words(np.random.default_rng(n), n, longest, ALPHABETS[alphabet])
    assert read(items) == [s.decode("utf-8", "surrogateescape") for s in items]


def test_vocabulary_with_a_few_long_and_odd_entries() -> None:
    items = [f"▁word{i}".encode() for i in range(50_000)]
    items[7] = b""
    items[100] = "漢".encode() * 200
    items[20_000] = b"x" * (3 << 20)  # longer than several windows
    items[20_001] = b"\x00" * 30
    items[40_000:40_020] = [b""] * 20
    assert read(items) == [s.decode() for s in items]


def test_truncated_sequences_do_not_join_their_neighbours() -> None:
    items = ["é".encode()[:1], "é".encode()[1:]] * 400 + ["é".encode()]
    out = read(items)
    assert out[:2] == ["\udcc3", "\udca9"]
    assert out[-1] == "é"


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 500])
@pytest.mark.parametrize("n", [3, 20_000])
def test_cut_short(n: int, cut: int) -> None:
    blob = b"".join(string(b"token %d" % i) for i in range(n))
    if cut < len(blob):
        with pytest.raises(Refused):
            walk(np.frombuffer(blob[:-cut], np.uint8), 0, n, fail)


@pytest.mark.parametrize("at", [0, 9000, 19_999])
def test_a_length_of_2_63(at: int) -> None:
    parts = [string(b"token %d" % i) for i in range(20_000)]
    parts[at] = struct.pack("<Q", 1 << 63) + b"x"
    with pytest.raises(Refused, match=str(1 << 63)):
        walk(np.frombuffer(b"".join(parts), np.uint8), 0, 20_000, fail)


def test_a_million_empty_strings_are_quick() -> None:
    start = time.perf_counter()
    starts, end = walk(np.zeros(8 << 20, np.uint8), 0, 1 << 20, fail)
    assert (len(starts), end) == (1 << 20, 8 << 20)
    assert time.perf_counter() - start < 5
