"""Matrix products of kernels_cuda on the SIMT engine, launched as the backend launches them."""

from __future__ import annotations

import functools
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import cuda_experts
from edgerun.backends import cuda_weights as cw
from edgerun.backends.cuda_lowered import Choice
from helpers import simt
from helpers.cuda_act import Digits

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
I32 = np.int32

#: Kernels of many instances are compiled together: one unit of a type takes half the time of five.
_FILES = ("qmm.cu", "qgemm.cu", "repack.cu", "rows.cu")
_QUANTIZED = (
    "qmm<{0},{0},1>",
    "qmm<{0},{0},2>",
    "qgemm<{0},{0},4>",
    "qgemm_experts<{0},4>",
    "repack<{0}>",
    "unpack_rows<{0}>",
)
_FLOAT = ("fmm<{0}>", "fmm_experts<{0}>", "repack_float<{0}>", "unpack_float_rows<{0}>")


def unit(t: int) -> tuple[str, tuple[str, ...]]:
    """Source and kernels of everything a type needs."""
    is_float = t in cw.FLOAT_TYPES
    files = ("fmm.cu", "repack_float.cu") if is_float else _FILES
    names = tuple(n.format(t) for n in (_FLOAT if is_float else _QUANTIZED))
    if not is_float:  # as wide as the type allows
        names += (cuda_experts.product(t, 1, 256, 16, Choice(1, 1)).shape.name,)
    return "".join(f'#include "{f}"\n' for f in files), names


def compiled(
    t: int,
    names: tuple[str, ...] = (),
    arch: int = 890,
    sanitizer: str = "",
    folder: Path = simt.KERNELS,
) -> simt.Module:
    """Kernels of a type, all that it needs or only ``names``, compiled fast for a single use;
    ``folder`` may hold altered ones."""
    source, every = unit(t)
    path = folder / f"linear{t}.cu"
    return simt.build(
        path, names or every, source=source, arch=arch, sanitizer=sanitizer, optimize="-O0"
    )


@functools.cache
def _pool() -> dict[int, Future[Path]]:
    """Starts to compile every type, two at a time, in the background."""
    simt.compiler()
    pool = ThreadPoolExecutor(2)
    jobs = {}
    for t in cw.LINEAR_TYPES:
        source, names = unit(t)
        jobs[t] = pool.submit(simt.library, simt.KERNELS / f"linear{t}.cu", names, source=source)
    return jobs


def module(t: int) -> simt.Module:
    """The kernels of a type, in the order of threads that was set last."""
    _pool()[t].result()
    source, names = unit(t)
    return simt.build(simt.KERNELS / f"linear{t}.cu", names, source=source)


class Matrix:
    """A packed matrix, of ``rows`` [n, row bytes] as a file holds them and perhaps ``up``, the
    other half of a pair."""

    def __init__(self, m: simt.Module, t: int, rows: U8, k: int, up: U8 | None = None) -> None:
        self.m, self.t, self.k, self.n = m, int(t), k, len(rows)
        self.tiles = cw.n_tiles(self.n, up is not None)
        self.data = simt.Guarded(cw.packed_bytes(int(t), self.n, k, up is not None), np.uint8)
        g = cw.repack(int(t), self.n, k, up is not None)
        m.launch(g.name, g.grid, g.block, rows, up, self.data.array, I32(self.n), I32(k))
        self.data.check()

    def rows(self, ids: list[int], scale: float = 1.0, named: list[int] | None = None) -> F32:
        out = simt.Guarded((len(ids), self.k), np.float32)
        g = cw.unpack_rows(self.t, self.k, len(ids))
        others = None if named is None else np.array(named, I32)
        args = (np.array(ids, I32), others, out.array, I32(self.n), I32(self.k), I32(self.k))
        self.m.launch(g.name, g.grid, g.block, self.data.array, *args, np.float32(scale))
        out.check()
        return out.array

    def run(
        self,
        x: F32,
        bias: F32 | None = None,
        residual: F32 | None = None,
        epilogue: cw.Epilogue = cw.Epilogue.STORE,
        other: Matrix | None = None,
    ) -> F32:
        """y [tokens, n]; with ``other`` its rows follow, from the next multiple of 16 on."""
        tokens, more = len(x), other.tiles if other else 0
        n = self.tiles * 16 + other.n if other else self.n
        y = simt.Guarded((tokens, n), np.float32)
        g = cw.matmul(self.t, other.t if other else self.t, self.tiles, more, self.k, tokens)
        w, out = self.data.array, (bias, residual, y.array)
        tail = (I32(n), I32(n), I32(epilogue))
        if cw.takes(self.t) == "f32":
            sizes = (I32(self.tiles), I32(self.k), I32(tokens), I32(self.k))
            self.m.launch(g.name, g.grid, g.block, w, np.ascontiguousarray(x), *out, *sizes, *tail)
        else:
            act = simt.Guarded(cw.act_bytes(self.k, tokens), np.uint8)
            act.array[:] = Digits(x).packed()
            sizes = (I32(self.tiles), I32(self.tiles + more), I32(-(-self.k // 64)), I32(tokens))
            wb = other.data.array if other else w
            self.m.launch(g.name, g.grid, g.block, w, wb, act.array, *out, *sizes, *tail)
        y.check()
        return y.array
