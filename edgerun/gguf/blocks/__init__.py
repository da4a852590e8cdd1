"""Decode GGUF's block formats to float32, in numpy.

Bit-exact with ggml's own decoders. These are the reference the fast kernels are judged by.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgerun.errors import GGUFError, UnsupportedModelError
from edgerun.gguf.blocks import iquants, kquants, lowbit, simple
from edgerun.gguf.blocks._base import Decoder
from edgerun.gguf.blocks.grids import grid
from edgerun.gguf.types import GGMLType

__all__ = ["DECODABLE", "dequantize", "dequantize_rows", "grid"]

_DECODERS: dict[GGMLType, Decoder] = {
    **simple.DECODERS,
    **kquants.DECODERS,
    **iquants.DECODERS,
    **lowbit.DECODERS,
}

#: Types that :func:`dequantize` decodes.
DECODABLE = frozenset(_DECODERS)

# Temporaries of a few times this many columns stay in cache.
_CHUNK_COLUMNS = 1 << 15


def dequantize(data: npt.NDArray[np.uint8], ggml_type: GGMLType) -> npt.NDArray[np.float32]:
    """Decode whole rows: uint8 [..., row_bytes] -> float32 [..., n_cols].

    Raises:
        GGUFError: the last axis is not a whole number of blocks, or ``data`` is not uint8.
        UnsupportedModelError: the type is not one of weights (integers, F64, Q8_1, Q8_K), or is
            Q2_0.
    """
    ggml_type = GGMLType(ggml_type)
    decoder = _DECODERS.get(ggml_type)
    if decoder is None:
        raise UnsupportedModelError(
            f"{ggml_type.name} (type id {int(ggml_type)}) cannot be decoded to floats"
        )
    if data.dtype != np.uint8:
        raise GGUFError(f"{ggml_type.name} blocks must come as uint8, not {data.dtype}")
    if data.ndim == 0 or data.shape[-1] % ggml_type.type_size:
        raise GGUFError(
            f"{ggml_type.name} blocks take {ggml_type.type_size} bytes; "
            f"data of shape {list(data.shape)} does not hold whole ones in its last axis"
        )
    cols = data.shape[-1] // ggml_type.type_size * ggml_type.block_size
    blocks = np.ascontiguousarray(data).reshape(-1).view(decoder.layout)
    out = np.empty((len(blocks), ggml_type.block_size), np.float32)
    step = max(1, _CHUNK_COLUMNS // ggml_type.block_size)
    # Scales of hostile files overflow or are NaN; the values follow IEEE rules without a warning.
    with np.errstate(all="ignore"):
        for i in range(0, len(blocks), step):
            out[i : i + step] = decoder.decode(blocks[i : i + step])
    return out.reshape(*data.shape[:-1], cols)


def dequantize_rows(
    data: npt.NDArray[np.uint8], ggml_type: GGMLType, rows: npt.ArrayLike
) -> npt.NDArray[np.float32]:
    """Decode some rows of a matrix: uint8 [n_rows, row_bytes], ids [...] -> float32 [..., n_cols].

    Raises:
        GGUFError: a row id is outside the matrix; otherwise as :func:`dequantize`.
    """
    ids = np.asarray(rows)
    if ids.size and (ids.min() < 0 or ids.max() >= len(data)):
        bad = ids[(ids < 0) | (ids >= len(data))].flat[0]
        raise GGUFError(f"row {bad} is outside a matrix of {len(data)} rows")
    return dequantize(data[ids], ggml_type)
