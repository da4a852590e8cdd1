"""IQ formats: indices into codebooks of 4 or 8 values, signs apart; and the nonlinear 4-bit ones.

Source: block_iq1_s … block_iq4_xs of ggml-common.h, as facts. Magnitudes, signs and scales are
multiplied in any order: signs are exact, and magnitude times scale rounds once.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgerun.gguf.blocks._base import F32, U8, Blocks, Decoder, bits, column, f32, layout, split
from edgerun.gguf.blocks.grids import grid, sign_table
from edgerun.gguf.types import GGMLType

__all__ = ["DECODERS", "IQ4_VALUES"]

#: What the 16 codes of IQ4_NL and IQ4_XS stand for.
IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)

_HALF = np.float32(0.5)


def _scaled(scale: F32, values: F32) -> F32:
    """``values`` [n, …] of 256 entries a block, times ``scale`` [n, g], group by group."""
    n, g = scale.shape
    return (scale[:, :, None] * values.reshape(n, g, -1)).reshape(n, -1)


def _signs(bytes_: U8) -> F32:
    """One bit per value, set = negative: uint8 [n, 32] -> float32 [n, 256] of 1 and -1."""
    return 1 - 2 * f32(bits(bytes_))


def _pick(name: str, index: npt.NDArray[np.integer]) -> F32:
    """Codebook rows: index [n, k] -> float32 [n, k * width]."""
    values: F32 = f32(grid(name))[index]
    return values.reshape(len(index), -1)


def _nibbles(bytes_: U8) -> U8:
    """Low then high nibble of each byte: uint8 [n, k] -> [n, 2k]."""
    return split(bytes_, 4, 1)


def _index_signs(word: npt.NDArray[np.uint32]) -> F32:
    """Four 7-bit sign indices in a 32-bit word: uint32 [n, 8] -> float32 [n, 256]."""
    shifts = np.array([0, 7, 14, 21], np.uint32)
    signs: F32 = sign_table()[word[:, :, None] >> shifts & 127]
    return signs.reshape(len(word), -1)


def _iq2_xxs(b: Blocks) -> F32:
    # Eight groups of 32: four byte indices, then a word of sign indices and a 4-bit scale.
    words = b["qs"]  # [n, 16]
    index = np.ascontiguousarray(words[:, 0::2]).view(np.uint8)
    word = words[:, 1::2]
    scale = column(b["d"]) * (_HALF + f32(word >> 28)) * np.float32(0.25)
    return _scaled(scale, _pick("iq2xxs", index) * _index_signs(word))


def _iq2_xs(b: Blocks) -> F32:
    qs = b["qs"]  # [n, 32]: 9 bits of index, 7 of sign index
    scale = column(b["d"]) * (_HALF + f32(_nibbles(b["scales"]))) * np.float32(0.25)
    signs = sign_table()[qs >> 9].reshape(len(qs), -1)
    return _scaled(scale, _pick("iq2xs", qs & 511) * signs)


def _iq2_s(b: Blocks) -> F32:
    scale = column(b["d"]) * (_HALF + f32(_nibbles(b["scales"]))) * np.float32(0.25)
    index = b["qs"].astype(np.uint16) | split(b["qh"], 2, 1).astype(np.uint16) << 8
    return _scaled(scale, _pick("iq2s", index) * _signs(b["signs"]))


def _iq3_xxs(b: Blocks) -> F32:
    word = b["words"]
    scale = column(b["d"]) * (_HALF + f32(word >> 28)) * _HALF
    return _scaled(scale, _pick("iq3xxs", b["qs"]) * _index_signs(word))


def _iq3_s(b: Blocks) -> F32:
    scale = column(b["d"]) * (1 + 2 * f32(_nibbles(b["scales"])))
    index = b["qs"].astype(np.uint16) | bits(b["qh"]).astype(np.uint16) << 8
    return _scaled(scale, _pick("iq3s", index) * _signs(b["signs"]))


def _iq1_s(b: Blocks) -> F32:
    # Per 32 values: four indices of 8 + 3 bits, a 3-bit scale, and the sign of the shift by 1/8.
    qh = b["qh"]
    high = qh[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    index = b["qs"].astype(np.uint16) | high.reshape(len(qh), -1) << 8
    scale = column(b["d"]) * f32(2 * (qh >> 12 & 7) + 1)
    delta = np.where(qh & 0x8000, np.float32(-0.125), np.float32(0.125))
    values = _pick("iq1s", index).reshape(len(qh), 8, -1) + delta[:, :, None]
    return _scaled(scale, values)


def _iq1_m(b: Blocks) -> F32:
    # The block's float16 scale is spread over the top nibbles of four words of 3-bit scales.
    words = b["scales"]
    top = words >> 12 << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(top, axis=1).view(np.float16)
    three = words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16) & 7
    scale = column(d) * f32(2 * three.reshape(len(words), -1) + 1)  # [n, 16]
    qh = _nibbles(b["qh"])  # [n, 32]: 3 bits of index, 1 of shift
    index = b["qs"].astype(np.uint16) | (qh & 7).astype(np.uint16) << 8
    delta = np.where(qh & 8, np.float32(-0.125), np.float32(0.125))
    values = _pick("iq1s", index).reshape(len(qh), 32, 8) + delta[:, :, None]
    return _scaled(scale, values)


def _iq4_nl(b: Blocks) -> F32:
    return column(b["d"]) * IQ4_VALUES[split(b["qs"], 4, 16)]


def _iq4_xs(b: Blocks) -> F32:
    high = b["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    scales = _nibbles(b["scales_l"]) | high.astype(np.uint8) << 4
    return _scaled(column(b["d"]) * (f32(scales) - 32), IQ4_VALUES[split(b["qs"], 4, 16)])


DECODERS: dict[GGMLType, Decoder] = {
    GGMLType.IQ2_XXS: Decoder(layout(("d", "<f2"), ("qs", "<u4", 16)), _iq2_xxs),
    GGMLType.IQ2_XS: Decoder(layout(("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)), _iq2_xs),
    GGMLType.IQ2_S: Decoder(
        layout(
            ("d", "<f2"),
            ("qs", "u1", 32),
            ("signs", "u1", 32),
            ("qh", "u1", 8),
            ("scales", "u1", 8),
        ),
        _iq2_s,
    ),
    GGMLType.IQ3_XXS: Decoder(
        layout(("d", "<f2"), ("qs", "u1", 64), ("words", "<u4", 8)), _iq3_xxs
    ),
    GGMLType.IQ3_S: Decoder(
        layout(
            ("d", "<f2"),
            ("qs", "u1", 64),
            ("qh", "u1", 8),
            ("signs", "u1", 32),
            ("scales", "u1", 4),
        ),
        _iq3_s,
    ),
    GGMLType.IQ1_S: Decoder(layout(("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)), _iq1_s),
    GGMLType.IQ1_M: Decoder(
        layout(("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)), _iq1_m
    ),
    GGMLType.IQ4_NL: Decoder(layout(("d", "<f2"), ("qs", "u1", 16)), _iq4_nl),
    GGMLType.IQ4_XS: Decoder(
        layout(("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)), _iq4_xs
    ),
}
