"""Matrix products on the device: how weights are packed, how work is split, which kernel runs.

The layouts are kernels_cuda/formats.cuh's and act.cuh's; the numbers here are held to the kernels' by
tests. Nothing here needs a device.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "FLOAT_TYPES",
    "QUANTIZED_TYPES",
    "Split",
    "activation_bytes",
    "packed_bytes",
    "split",
    "tile_bytes",
]

TILE = 16
CHUNK = 256
GROUP = 64
#: Bytes of eight tokens and 64 k of quantized activations.
RECORD = 1280
#: Rows of a matrix that share a block of the float kernel.
FLOAT_TILE = 32


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

QUANTIZED_TYPES = tuple(_FORMATS)
FLOAT_TYPES = tuple(_FLOATS)


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


def packed_bytes(ggml_type: int, rows: int, k: int, paired: bool = False) -> int:
    """Bytes of a matrix; ``paired``: of gate and up projection together, ``rows`` of each."""
    return -(-rows // (TILE // 2 if paired else TILE)) * tile_bytes(ggml_type, k)


def activation_bytes(tokens: int, k: int) -> int:
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
