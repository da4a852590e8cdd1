"""Activations as the CUDA kernels read them, made by numpy: int8 digits with scales and sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]


class Digits:
    """Activations [tokens, k] as first and second digits: ``q``, ``q2`` int [tokens, blocks, 32];
    ``d``, ``d2``, ``x``, ``x1`` float32 [tokens, blocks]."""

    def __init__(self, x: F32) -> None:
        v = x.reshape(x.shape[0], -1, 32)
        amax = np.abs(v).max(-1)
        finite = np.isfinite(v).all(-1)
        used = finite & (amax >= np.float32(1e-36))
        a = np.where(used, amax, np.float32(1)).astype(np.float32)
        with np.errstate(all="ignore"):
            bar = np.float32(3) * (amax * amax).mean(-1, keepdims=True, dtype=np.float32)
            towers = used & (amax * amax > bar)
        v = np.where(used[..., None], v, np.float32(0))
        one = np.float32(127)
        self.d = np.where(used, a / one, np.float32(0)).astype(np.float32)
        self.q = np.rint(v * (one / a)[..., None]).astype(np.int64)
        rest = v - self.d[..., None] * self.q.astype(np.float32)
        self.d2 = np.where(towers, self.d / np.float32(254), np.float32(0)).astype(np.float32)
        with np.errstate(all="ignore"):
            second = np.rint(rest * (np.float32(254) / self.d)[..., None])
        self.q2 = np.where(towers[..., None], second, 0).astype(np.int64)
        first, self.x1 = (
            self.d * self.q[..., h].sum(-1).astype(np.float32)
            + self.d2 * self.q2[..., h].sum(-1).astype(np.float32)
            for h in (slice(0, 16), slice(16, 32))
        )
        self.x = first + self.x1
        for part in (self.d, self.x, self.x1):
            part[~finite] = np.nan

    def values(self) -> NDArray[np.float64]:
        """What the digits stand for, float64 [tokens, k]."""
        d, d2 = self.d.astype(np.float64), self.d2.astype(np.float64)
        both = self.q * d[..., None] + self.q2 * d2[..., None]
        return both.reshape(len(d), -1)

    def packed(self, junk: int = 0xFF) -> U8:
        """The bytes of act.cuh; what no kernel may use holds ``junk``."""
        tokens, blocks = self.d.shape
        groups, tiles = -(-blocks // 2), -(-tokens // 8)

        def padded(part: NDArray[Any]) -> NDArray[Any]:
            full = np.zeros((tokens, groups * 2, *part.shape[2:]), part.dtype)
            full[:, :blocks] = part
            return full

        # token, group, digit, then within its 64 bytes t, j, h, i
        digits = np.full((tiles * 8, groups, 2, 4, 2, 2, 4), junk, np.uint8)
        flagged = padded(self.d2).reshape(tokens, groups, 1, 2, 1, 1) != 0
        for digit, q in enumerate((self.q, self.q2)):
            codes = padded(q.astype(np.int8)).view(np.uint8).reshape(tokens, groups, 2, 2, 4, 4)
            written = True if digit == 0 else flagged
            place = digits[:tokens, :, digit]
            place[:] = np.where(written, codes.transpose(0, 1, 4, 2, 3, 5), place)
        lines = np.full((tiles, groups, 2, 32), np.nan, np.float32)
        pair = np.arange(8) // 2 * 4 + np.arange(8) % 2  # where d of a token lies in its line
        places = (pair, pair + 2, 16 + np.arange(8), 24 + np.arange(8))
        for where, part in zip(places, (self.d, self.x, self.x1, self.d2), strict=True):
            values = np.full((tiles * 8, groups * 2), np.nan, np.float32)
            values[:tokens] = padded(part)
            lines[..., where] = values.reshape(tiles, 8, groups, 2).transpose(0, 2, 3, 1)
        by_tile = digits.reshape(tiles, 8, groups, 2, 64).transpose(0, 2, 3, 1, 4)
        by_tile = by_tile.reshape(tiles, groups, 2, 512)
        middle = lines.view(np.uint8).reshape(tiles, groups, 256)
        record = np.concatenate([by_tile[:, :, 0], middle, by_tile[:, :, 1]], -1)
        return np.ascontiguousarray(record).reshape(-1)


def fma(a: NDArray, b: NDArray, c: NDArray) -> F32:
    """float32 a * b + c, rounded once (to a part in 2^40: the sum is rounded at 64 bits before)."""
    return (a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(
        np.float32
    )
