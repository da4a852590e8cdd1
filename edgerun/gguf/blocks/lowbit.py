"""Ternary formats, and the 4-bit floats of the MX and NVFP4 standards.

Source: block_tq1_0, block_tq2_0, block_mxfp4, block_nvfp4 of ggml-common.h, as facts; OCP
Microscaling Formats v1.0 for E2M1 and E8M0.
"""

from __future__ import annotations

import functools

import numpy as np

from edgerun.gguf.blocks._base import F32, U8, Blocks, Decoder, column, f32, layout, split
from edgerun.gguf.types import GGMLType

__all__ = ["DECODERS", "E2M1_DOUBLED", "e8m0_half", "ue4m3_half"]

#: Twice the values of the 16 E2M1 codes; the scales below are halved to match.
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)


@functools.cache
def e8m0_half() -> F32:
    """Half of each E8M0 scale: float32 [256], entry e = 2^(e - 128); read-only."""
    table: F32 = np.ldexp(np.float32(1), np.arange(256, dtype=np.int32) - 128).astype(np.float32)
    table.flags.writeable = False
    return table


@functools.cache
def ue4m3_half() -> F32:
    """Half of each unsigned E4M3 scale (bias 7): float32 [256]; read-only.

    The top bit is ignored, except that only 0x7F itself, the NaN code, stands for 0.
    """
    code = np.arange(256, dtype=np.int32)
    exponent, mantissa = code >> 3 & 15, f32(code & 7)
    tiny = np.ldexp(mantissa, -10)
    normal = np.ldexp(1 + mantissa / 8, exponent - 8)
    table = np.where(exponent == 0, tiny, normal).astype(np.float32)
    table[0x7F] = 0
    table.flags.writeable = False
    return table


def _trits(bytes_: U8, run: int, digits: int) -> U8:
    """``digits`` base-3 digits per byte, highest first: uint8 [n, k] -> [n, k * digits]."""
    n, k = bytes_.shape
    powers = 3 ** np.arange(digits, dtype=np.uint8)[:, None]
    # A byte is a fraction of 256; multiplying by 3^i (mod 256) drops the digits before.
    rest = bytes_.reshape(n, k // run, 1, run) * powers
    return (rest.astype(np.uint16) * 3 >> 8).astype(np.uint8).reshape(n, -1)


def _tq1_0(b: Blocks) -> F32:
    qs = b["qs"]
    q = np.concatenate(
        [_trits(qs[:, :32], 32, 5), _trits(qs[:, 32:], 16, 5), _trits(b["qh"], 4, 4)], axis=1
    )
    return column(b["d"]) * (f32(q) - 1)


def _tq2_0(b: Blocks) -> F32:
    return column(b["d"]) * (f32(split(b["qs"], 2, 32)) - 1)


def _mxfp4(b: Blocks) -> F32:
    scale: F32 = e8m0_half()[b["e"]]
    return scale[:, None] * E2M1_DOUBLED[split(b["qs"], 4, 16)]


def _nvfp4(b: Blocks) -> F32:
    scale: F32 = ue4m3_half()[b["d"]]  # [n, 4], one per 16 columns
    values: F32 = E2M1_DOUBLED[split(b["qs"], 4, 8)].reshape(len(scale), 4, 16)
    scaled: F32 = scale[:, :, None] * values
    return scaled.reshape(len(scale), -1)


DECODERS: dict[GGMLType, Decoder] = {
    GGMLType.TQ1_0: Decoder(layout(("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")), _tq1_0),
    GGMLType.TQ2_0: Decoder(layout(("qs", "u1", 64), ("d", "<f2")), _tq2_0),
    GGMLType.MXFP4: Decoder(layout(("e", "u1"), ("qs", "u1", 16)), _mxfp4),
    GGMLType.NVFP4: Decoder(layout(("d", "u1", 4), ("qs", "u1", 32)), _nvfp4),
}
