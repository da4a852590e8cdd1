"""Blocks that MLX has no groups for, unpacked with MLX's own ops: exact, slower than a kernel.

The layouts are those of :mod:`edgerun.gguf.blocks`, whose numpy decoders give the same floats.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from edgerun.gguf import GGMLType
from edgerun.gguf.blocks.iquants import IQ4_VALUES

__all__ = ["UNPACKED", "unpack"]


def _f16(b: mx.array, at: int) -> mx.array:
    """The float16 at a byte of each block: float32 [n, 1]."""
    low, high = b[:, at].astype(mx.uint16), b[:, at + 1].astype(mx.uint16)
    bits: mx.array = low | high << 8
    return bits.view(mx.float16).astype(mx.float32)[:, None]


def _fields(b: mx.array, bits: int, run: int) -> mx.array:
    """``bits``-wide fields, uint8 [n, k] -> [n, k * 8 / bits]: within each ``run`` of bytes the
    lowest field of every byte first, then the next one."""
    n, k = b.shape
    shifts = mx.arange(0, 8, bits).astype(mx.uint8)[:, None]
    fields = b.reshape(n, k // run, 1, run) >> shifts
    return (fields & ((1 << bits) - 1)).reshape(n, -1)


def _groups(q: mx.array, scale: mx.array, minimum: mx.array | None = None) -> mx.array:
    """Codes [n, 256] times scales [n, g], less minima."""
    n, g = scale.shape
    y = scale[:, :, None] * q.reshape(n, g, -1)
    if minimum is not None:
        y = y - minimum[:, :, None]
    return y.reshape(n, -1)


def _f32(x: mx.array) -> mx.array:
    return x.astype(mx.float32)


def _q2_k(b: mx.array) -> mx.array:
    scales = b[:, :16]
    return _groups(
        _f32(_fields(b[:, 16:80], 2, 32)),
        _f16(b, 80) * _f32(scales & 15),
        _f16(b, 82) * _f32(scales >> 4),
    )


def _q3_k(b: mx.array) -> mx.array:
    scales = _fields(b[:, 96:104], 4, 8) | _fields(b[:, 104:108], 2, 4) << 4
    high = _f32(_fields(b[:, :32], 1, 32))
    q = _f32(_fields(b[:, 32:96], 2, 32)) - 4 * (1 - high)
    return _groups(q, _f16(b, 108) * (_f32(scales) - 32))


def _q6_k(b: mx.array) -> mx.array:
    q = _fields(b[:, :128], 4, 64) | _fields(b[:, 128:192], 2, 32) << 4
    scales = mx.contiguous(b[:, 192:208]).view(mx.int8)
    return _groups(_f32(q) - 32, _f16(b, 208) * _f32(scales))


def _iq4_nl(b: mx.array) -> mx.array:
    return _f16(b, 0) * mx.array(IQ4_VALUES)[_fields(b[:, 2:], 4, 16)]


def _iq4_xs(b: mx.array) -> mx.array:
    high = b[:, 2:4, None] >> mx.arange(0, 8, 2).astype(mx.uint8) & 3
    scales = _fields(b[:, 4:8], 4, 1) | high.reshape(-1, 8) << 4
    values = mx.array(IQ4_VALUES)[_fields(b[:, 8:], 4, 16)]
    return _groups(values, _f16(b, 0) * (_f32(scales) - 32))


_DECODERS: dict[int, Callable[[mx.array], mx.array]] = {
    GGMLType.Q2_K: _q2_k,
    GGMLType.Q3_K: _q3_k,
    GGMLType.Q6_K: _q6_k,
    GGMLType.IQ4_NL: _iq4_nl,
    GGMLType.IQ4_XS: _iq4_xs,
}

#: Types that :func:`unpack` takes.
UNPACKED = frozenset(int(t) for t in _DECODERS)


def unpack(data: mx.array, kind: int) -> mx.array:
    """uint8 [n, row_bytes] -> float32 [n, n_cols]."""
    kind = GGMLType(kind)
    blocks = mx.contiguous(data).reshape(-1, kind.type_size)
    n = data.shape[0]
    return _DECODERS[kind](blocks).reshape(n, data.shape[1] // kind.type_size * kind.block_size)
