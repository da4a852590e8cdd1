"""K-quants: superblocks of 256 columns in groups of 16 or 32, with quantized group scales.

Source: block_q2_K … block_q6_K of ggml-common.h, as facts.
"""

from __future__ import annotations

import numpy as np

from edgerun.gguf.blocks._base import F32, U8, Blocks, Decoder, column, f32, layout, split
from edgerun.gguf.types import GGMLType

__all__ = ["DECODERS", "scales_mins"]


def _groups(q: F32, scale: F32, minimum: F32 | None = None) -> F32:
    """``q`` [n, 256] times ``scale`` [n, g], less ``minimum`` [n, g], group by group."""
    n, g = scale.shape
    y = scale[:, :, None] * q.reshape(n, g, -1)
    if minimum is not None:
        y -= minimum[:, :, None]
    return y.reshape(n, -1)


def _q2_k(b: Blocks) -> F32:
    scales = b["scales"]
    return _groups(
        f32(split(b["qs"], 2, 32)),
        column(b["d"]) * f32(scales & 15),
        column(b["dmin"]) * f32(scales >> 4),
    )


def _q3_k(b: Blocks) -> F32:
    # 16 scales of 6 bits: the low 4 in 8 bytes, the high 2 in 4 bytes.
    packed = b["scales"]
    scales = split(packed[:, :8], 4, 8) | split(packed[:, 8:], 2, 4) << 4
    # A clear bit of hmask means minus 4.
    high = split(b["hmask"], 1, 32)
    q = f32(split(b["qs"], 2, 32)) - 4 * (1 - f32(high))
    return _groups(q, column(b["d"]) * (f32(scales) - 32))


def scales_mins(packed: U8) -> tuple[U8, U8]:
    """Q4_K's and Q5_K's 6-bit scales and mins: uint8 [n, 12] -> two of [n, 8].

    Bytes 0-3 hold scales 0-3 and bytes 4-7 mins 0-3 in their low six bits, with the top bits
    of scales and mins 4-7 above; bytes 8-11 hold the low nibbles of those.
    """
    a, m, low = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([a & 63, low & 15 | (a >> 6) << 4], axis=1)
    mins = np.concatenate([m & 63, low >> 4 | (m >> 6) << 4], axis=1)
    return scales, mins


def _q45_k(b: Blocks, q: U8) -> F32:
    scales, mins = scales_mins(b["scales"])
    return _groups(f32(q), column(b["d"]) * f32(scales), column(b["dmin"]) * f32(mins))


def _q4_k(b: Blocks) -> F32:
    return _q45_k(b, split(b["qs"], 4, 32))


def _q5_k(b: Blocks) -> F32:
    high: U8 = split(b["qh"], 1, 32) << np.uint8(4)
    return _q45_k(b, split(b["qs"], 4, 32) | high)


def _q6_k(b: Blocks) -> F32:
    q = split(b["ql"], 4, 64) | split(b["qh"], 2, 32) << 4
    return _groups(f32(q) - 32, column(b["d"]) * f32(b["scales"]))


DECODERS: dict[GGMLType, Decoder] = {
    GGMLType.Q2_K: Decoder(
        layout(("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")), _q2_k
    ),
    GGMLType.Q3_K: Decoder(
        layout(("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")), _q3_k
    ),
    GGMLType.Q4_K: Decoder(
        layout(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)), _q4_k
    ),
    GGMLType.Q5_K: Decoder(
        layout(
            ("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)
        ),
        _q5_k,
    ),
    GGMLType.Q6_K: Decoder(
        layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")), _q6_k
    ),
}
