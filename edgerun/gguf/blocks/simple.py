"""Plain floats and the 32-column integer formats.

Source: block_q4_0 … block_q8_0, block_q1_0 of ggml-common.h, as facts.
"""

from __future__ import annotations

import numpy as np

from edgerun.gguf.blocks._base import F32, Blocks, Decoder, bits, column, f32, layout, split
from edgerun.gguf.types import GGMLType

__all__ = ["DECODERS"]


def _float(b: Blocks) -> F32:
    return column(b["x"])


def _bf16(b: Blocks) -> F32:
    return (b["x"].astype(np.uint32) << 16).view(np.float32)[:, None]


def _q4_0(b: Blocks) -> F32:
    return column(b["d"]) * (f32(split(b["qs"], 4, 16)) - 8)


def _q4_1(b: Blocks) -> F32:
    return column(b["d"]) * f32(split(b["qs"], 4, 16)) + column(b["m"])


def _codes5(b: Blocks) -> F32:
    return f32(split(b["qs"], 4, 16) | bits(b["qh"]) << 4)


def _q5_0(b: Blocks) -> F32:
    return column(b["d"]) * (_codes5(b) - 16)


def _q5_1(b: Blocks) -> F32:
    return column(b["d"]) * _codes5(b) + column(b["m"])


def _q8_0(b: Blocks) -> F32:
    return column(b["d"]) * f32(b["qs"])


def _q1_0(b: Blocks) -> F32:
    d = column(b["d"])
    return np.where(bits(b["qs"]) != 0, d, -d)


DECODERS: dict[GGMLType, Decoder] = {
    GGMLType.F32: Decoder(layout(("x", "<f4")), _float),
    GGMLType.F16: Decoder(layout(("x", "<f2")), _float),
    GGMLType.BF16: Decoder(layout(("x", "<u2")), _bf16),
    GGMLType.Q4_0: Decoder(layout(("d", "<f2"), ("qs", "u1", 16)), _q4_0),
    GGMLType.Q4_1: Decoder(layout(("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)), _q4_1),
    GGMLType.Q5_0: Decoder(layout(("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)), _q5_0),
    GGMLType.Q5_1: Decoder(
        layout(("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)), _q5_1
    ),
    GGMLType.Q8_0: Decoder(layout(("d", "<f2"), ("qs", "i1", 32)), _q8_0),
    GGMLType.Q1_0: Decoder(layout(("d", "<f2"), ("qs", "u1", 16)), _q1_0),
}
