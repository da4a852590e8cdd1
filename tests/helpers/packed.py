"""Weights in one instruction set's tiles, through the library's C entry points for tests."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

from edgerun.backends.cpu_abi import isa_names
from edgerun.backends.cpu_grids import ensure_grids
from edgerun.native import lib

F32 = NDArray[np.float32]

#: What a kernel multiplies: kernels.h's Act.
ACT_Q8, ACT_F32 = 0, 1


def isas() -> list[str]:
    """The instruction sets of this build and machine, best first."""
    ensure_grids()
    return isa_names()


def pointer(a: NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(a.ctypes.data)


def bits(a: F32) -> NDArray[np.uint32]:
    return a.view(np.uint32)


class Packed:
    """One matrix of ``rows``, uint8 [n, bytes of a file row] that hold ``k`` values each."""

    def __init__(self, isa: str, type_id: int, rows: NDArray[np.uint8], k: int) -> None:
        self.name, self.n, self.k = isa, rows.shape[0], k
        self._isa, self._type = isa.encode(), int(type_id)
        info = (ctypes.c_int64 * 4)()
        assert lib().er_linear_info(self._isa, self._type, k, info) == 0
        self.act, self.tile_rows, self.block, tile_bytes = info
        size = -(-self.n // self.tile_rows) * tile_bytes
        memory = np.full(size + 64, 0xA5, np.uint8)
        start = -memory.ctypes.data % 64
        self.tiles = memory[start : start + size]
        args = (pointer(rows), ctypes.c_int64(rows.shape[1]), ctypes.c_int64(self.n), k)
        assert lib().er_pack(self._isa, self._type, *args, pointer(self.tiles)) == 0

    def run(self, x: F32, n: int | None = None) -> F32:
        """``x`` [m, k] times the first ``n`` rows (all by default): float32 [m, n]."""
        x = np.ascontiguousarray(x)
        out = np.full((x.shape[0], n or self.n), np.nan, np.float32)
        args = (pointer(self.tiles), ctypes.c_int64(out.shape[1]), self.k, pointer(x), x.shape[0])
        assert lib().er_linear_run(self._isa, self._type, *args, pointer(out)) == 0
        return out

    def rows(self, ids: list[int]) -> F32:
        """Rows decoded from the tiles: float32 [len(ids), k]."""
        out = np.full((len(ids), self.k), np.nan, np.float32)
        wanted = np.array(ids, np.int64)
        args = (pointer(self.tiles), self.k, pointer(wanted), len(ids))
        assert lib().er_unpack_rows(self._isa, self._type, *args, pointer(out)) == 0
        return out


def check_sets_agree(sets: list[Packed], x: F32, size: NDArray[np.float64]) -> None:
    """All sets give the same bits; the generic one, whose fma rounds twice, the same within what
    that may do to sums of terms that add up to ``size`` [m, n]."""
    first, *others = sets
    expected = first.run(x)
    for other in others:
        found = other.run(x)
        if "generic" in (first.name, other.name):
            assert (np.abs(found - expected) <= 1e-6 * size).all(), other.name
        else:
            differ = int((bits(expected) != bits(found)).sum())
            assert differ == 0, f"{other.name}: {differ} of {found.size} outputs"
