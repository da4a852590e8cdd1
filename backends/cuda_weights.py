"""Matrix products on the device: how weights are packed, how work is split, which kernel runs.

The layouts are those of formats.cuh and act.cuh in kernels_cuda; tests hold the numbers here to the
kernels'. Nothing here needs a device.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

__all__ = [
    "FLOAT_TYPES",
    "LINEAR_TYPES",
    "NARROW_TYPES",
    "QUANTIZED_TYPES",
    "Epilogue",
    "Geometry",
    "Split",
    "act_bytes",
    "matmul",
    "n_tiles",
    "packed_bytes",
    "repack",
    "split",
    "takes",
    "tile_bytes",
    "unpack_rows",
]

TILE = 16
CHUNK = 256
GROUP = 64
#: Row tiles of a block of the kernel for many tokens.
GEMM_WARPS = 6
#: Bytes of eight tokens and 64 k of quantized activations.
RECORD = 1280


class _Format(NamedTuple):
    block_k: int
    fixed: int  # bytes of a chunk that stay when it is the last and shorter
    group: int  # bytes of each 64 k


#: ggml type id -> layout of 16 rows by 256 k.
_FORMATS = {
    2: _Format(32, 256, 512),  # Q4_0
    3: _Format(32, 512, 512),  # Q4_1
    6: _Format(32, 256 + 512, 512),  # Q5_0
    7: _Format(32, 512 + 512, 512),  # Q5_1
    8: _Format(32, 256, 1024),  # Q8_0
    10: _Format(256, 320 + 1024, 0),  # Q2_K
    11: _Format(256, 256 + 1536, 0),  # Q3_K
    12: _Format(256, 256, 512),  # Q4_K
    13: _Format(256, 256 + 512, 512),  # Q5_K
    14: _Format(256, 288 + 1024, 512),  # Q6_K
    20: _Format(32, 256, 512),  # IQ4_NL
    23: _Format(256, 128, 512),  # IQ4_XS
    39: _Format(32, 128, 512),  # MXFP4
}
#: Bytes of a value.
_FLOATS = {0: 4, 1: 2, 30: 2}  # F32, F16, BF16

#: Types whose prompt kernel would not fit its registers at 64 tokens a block: Q4_1, Q5_1. Nor would
#: two types in one.
NARROW_TYPES = {3, 7}

QUANTIZED_TYPES = tuple(_FORMATS)
FLOAT_TYPES = tuple(_FLOATS)
#: Types that have kernels of their own.
LINEAR_TYPES = QUANTIZED_TYPES + FLOAT_TYPES


def tile_bytes(ggml_type: int, k: int) -> int:
    """Bytes of 16 rows of ``k`` values as the kernels want them."""
    if ggml_type in _FLOATS:
        return TILE * -(-k // 8) * 8 * _FLOATS[ggml_type]
    layout = _FORMATS[ggml_type]
    if k % layout.block_k:
        raise ValueError(f"rows of {k} values: type {ggml_type} has blocks of {layout.block_k}")
    whole, tail = divmod(-(-k // GROUP), 4)
    return whole * (layout.fixed + 4 * layout.group) + (
        layout.fixed + tail * layout.group if tail else 0
    )


def n_tiles(rows: int, paired: bool = False) -> int:
    """Tiles of a matrix; ``paired``: of gate and up projection together, ``rows`` of each."""
    return -(-rows // (TILE // 2 if paired else TILE))


def packed_bytes(ggml_type: int, rows: int, k: int, paired: bool = False) -> int:
    """Bytes of a packed matrix; ``paired`` as in :func:`n_tiles`."""
    return n_tiles(rows, paired) * tile_bytes(ggml_type, k)


def takes(ggml_type: int) -> Literal["acts", "f32"]:
    """What a product with weights of this type reads: quantized activations, or floats."""
    return "f32" if ggml_type in _FLOATS else "acts"


def act_bytes(k: int, tokens: int) -> int:
    """Bytes of quantized activations, in whole column tiles of eight tokens."""
    return -(-tokens // 8) * -(-k // GROUP) * RECORD


class Split(NamedTuple):
    """``warps`` share the k of a tile, ``tiles`` share a block."""

    warps: int
    tiles: int


def split(k: int) -> Split:
    """How chunks of k are dealt to warps: a function of the weight's shape alone, so that the order
    of additions, and with it every bit, is the same for any number of tokens."""
    warps = min(8, -(-k // CHUNK))
    return Split(warps, 8 // warps)


class Epilogue(IntEnum):
    """What becomes of the sums: stored, or ``silu(gate) * up``, ``gelu(gate) * up``, or gpt-oss's
    unit."""

    STORE = 0
    SILU_MUL = 1
    GELU_MUL = 2
    SWIGLU_OAI = 3


class Geometry(NamedTuple):
    """A kernel and the shape of its launch; ``name`` is a name expression of ``file``."""

    file: str
    name: str
    grid: tuple[int, int]
    block: tuple[int, int, int]


def matmul(type_a: int, type_b: int, tiles_a: int, tiles_b: int, k: int, tokens: int) -> Geometry:
    """The product of ``tokens`` tokens with ``tiles_a`` tiles of ``type_a`` and, if ``tiles_b``,
    as many of ``type_b``. Arguments, int32 but for the addresses:

    - quantized: ``wa, wb, act, bias, residual, y, tiles_a, tiles, ceil(k/64), tokens, rows, ld,
      epilogue``; one tensor: ``wb = wa`` and ``tiles = tiles_a``
    - floats, one tensor only: ``w, x, bias, residual, y, tiles, k, tokens, ldx, rows, ld,
      epilogue``

    ``bias`` (16 values a tile; of gate and up projection one behind the other) and ``residual`` (as
    ``y``) may be null; ``rows`` is how many values of a token are stored, ``ld`` the floats from
    one token of y to the next.
    """
    warps, shared = split(k)
    if type_a in _FLOATS:
        assert not tiles_b, "float products take one tensor"
        grid = (-(-tokens // 8), -(-tiles_a // (2 * shared)))
        return Geometry("fmm.cu", f"fmm<{type_a}>", grid, (32, warps, shared))
    types = f"{type_a},{type_b if tiles_b else type_a}"
    if tokens <= 16:
        grid = (-(-(tiles_a + tiles_b) // shared), 1)
        wide = 2 if tokens > 8 else 1
        return Geometry("qmm.cu", f"qmm<{types},{wide}>", grid, (32, warps, shared))
    narrow = type_a in NARROW_TYPES or (tiles_b > 0 and type_b != type_a)
    wide = 4 if tokens <= 32 or narrow else 8
    grid = (-(-tokens // (8 * wide)), -(-tiles_a // GEMM_WARPS) - (-tiles_b // GEMM_WARPS))
    return Geometry("qgemm.cu", f"qgemm<{types},{wide}>", grid, (32, GEMM_WARPS, 1))


def repack(ggml_type: int, rows: int, k: int, paired: bool = False) -> Geometry:
    """Arguments ``src, src2, dst, rows, k``: file rows, the up projection's or null, int32s."""
    grid = (-(-k // CHUNK), n_tiles(rows, paired))
    if ggml_type in _FLOATS:
        return Geometry("repack_float.cu", f"repack_float<{ggml_type}>", grid, (256, 1, 1))
    return Geometry("repack.cu", f"repack<{ggml_type}>", grid, (32, 1, 1))


def unpack_rows(ggml_type: int, k: int, n_ids: int) -> Geometry:
    """Rows as floats. Arguments ``w, ids, named, out, rows, k, ld, scale``: int32s, then a float32.
    An id ``-1 - j`` is ``named[j]``; ``named`` may be null."""
    grid = (n_ids, -(-k // CHUNK))
    if ggml_type in _FLOATS:
        name = f"unpack_float_rows<{ggml_type}>"
        return Geometry("repack_float.cu", name, grid, (256, 1, 1))
    return Geometry("rows.cu", f"unpack_rows<{ggml_type}>", grid, (32, 1, 1))
