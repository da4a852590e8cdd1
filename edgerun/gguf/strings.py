"""Arrays of strings in a GGUF file: find where they lie fast, decode them when asked.

A vocabulary is 262 144 strings, each behind its own 64-bit length, so the end of the array is
known only after visiting every one. The visit is vectorized: most lengths fit one byte, so a
string starts where seven zero bytes follow a byte, and one comparison checks the whole chain.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import numpy.typing as npt

__all__ = ["StringArray", "walk"]

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]

_LENGTH = struct.Struct("<Q")
_WINDOW = 1 << 17  # bytes; its arrays stay in the cache, and are not fresh memory each time
_VECTOR_MIN = 512  # strings; below that the plain loop is faster


class StringArray:
    """The strings whose length prefixes lie at ``starts``; decoded once, on first use.

    ``buf`` is the file's bytes (uint8), ``starts`` (int64 [n]) the position of each 64-bit
    length, ``end`` the position after the last string.
    """

    def __init__(self, buf: U8, starts: I64, end: int) -> None:
        self._source = (buf, starts, end)
        self._strings: list[str] | None = None

    def __len__(self) -> int:
        return len(self._source[1])

    def decode(self, n: int | None = None) -> list[str]:
        """All strings, or the first ``n``; bytes that are not UTF-8 become surrogate escapes."""
        if self._strings is None:
            buf, starts, end = self._source
            if n is not None and n < len(starts):
                return _decode(buf, starts[:n], int(starts[n]))
            self._strings = _decode(buf, starts, end)
        return self._strings if n is None else self._strings[:n]


def walk(buf: U8, pos: int, count: int, fail: Callable[[str], NoReturn]) -> tuple[I64, int]:
    """Positions of ``count`` length-prefixed strings from ``pos`` on, and the position after.

    Calls ``fail`` with a message when a string reaches past the end of ``buf``.
    """
    if count > (len(buf) - pos) // 8:
        fail(f"claims {count} strings, but only {len(buf) - pos} bytes are left")
    parts: list[I64] = []
    while count > 0:
        window = buf[pos : pos + _WINDOW]
        found = _walk_window(buf, window, pos, count) if count >= _VECTOR_MIN else None
        if found is None:
            found = _walk_plain(buf, pos, min(count, _WINDOW // 8), pos + _WINDOW, fail)
        part, pos = found
        if pos > len(buf):
            fail(f"holds a string that ends {pos - len(buf)} bytes past the end of the file")
        parts.append(part)
        count -= len(part)
    return (np.concatenate(parts) if parts else np.empty(0, np.int64)), pos


def _walk_plain(
    buf: U8, pos: int, count: int, until: int, fail: Callable[[str], NoReturn]
) -> tuple[I64, int]:
    starts = []
    end = len(buf)
    unpack = _LENGTH.unpack_from
    view = buf.data
    for _ in range(count):
        if pos >= until:
            break
        if end - pos < 8:
            fail("ends inside a string's length")
        (length,) = unpack(view, pos)
        if length > end - pos - 8:
            fail(f"holds a string of {length} bytes where {end - pos - 8} are left")
        starts.append(pos)
        pos += 8 + length
    return np.array(starts, np.int64), pos


def _walk_window(buf: U8, window: U8, base: int, count: int) -> tuple[I64, int] | None:
    """Strings that start in ``window``, at most ``count``; None where the plain loop is better."""
    if len(window) < 16:
        return None
    zero = window == 0
    pair = zero[:-1] & zero[1:]
    four = pair[:-2] & pair[2:]
    seven = four[:-3] & four[3:]
    cand = np.flatnonzero(seven[1:])  # a byte followed by seven zeros: a length below 256
    if len(cand) == 0:
        return None
    after = cand + 8 + window[cand]
    breaks = np.flatnonzero(after[:-1] != cand[1:])
    if len(cand) - len(breaks) < 4 * len(breaks) + (len(window) >> 8):
        return None
    parts: list[I64] = []
    pos = 0
    while count > 0:
        i = int(np.searchsorted(cand, pos))
        if i == len(cand):
            break
        if cand[i] != pos:  # a string of 256 bytes or more
            (length,) = _LENGTH.unpack_from(buf.data, base + pos)
            if length > len(buf) - base - pos - 8:
                break  # the plain loop says what is wrong
            parts.append(np.array([pos], np.int64))
            pos += 8 + length
            count -= 1
            continue
        b = int(np.searchsorted(breaks, i))
        last = int(breaks[b]) if b < len(breaks) else len(cand) - 1
        last = min(last, i + count - 1)
        parts.append(cand[i : last + 1])
        pos = int(after[last])
        count -= last + 1 - i
    if not parts:
        return None
    return np.concatenate(parts) + base, base + pos


def _decode(buf: U8, starts: I64, end: int) -> list[str]:
    """One decode of the joined text and one split; per string only where that cannot be exact."""
    if len(starts) == 0:
        return []
    base = int(starts[0])
    body = buf[base:end].copy()
    rel = starts - base
    keep = np.ones(len(body), np.bool_)
    for k in range(1, 8):
        keep[rel + k] = False
    body[rel] = 0xFF  # never part of valid UTF-8
    body = body[keep]
    raw = body.tobytes()
    if np.count_nonzero(body == 0xFF) == len(starts):
        sep = next((c for c in range(32) if bytes([c]) not in raw), None)
        if sep is not None:
            try:
                joined: str = raw[1:].replace(b"\xff", bytes([sep])).decode()
                return joined.split(chr(sep))
            except UnicodeDecodeError:
                pass
    bounds = [*rel.tolist(), end - base]
    blob = buf[base:end].tobytes()
    return [
        blob[a + 8 : b].decode("utf-8", "surrogateescape") for a, b in itertools.pairwise(bounds)
    ]
