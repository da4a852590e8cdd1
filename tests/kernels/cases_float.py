"""Cases of the linear kernels that take float activations; the twin of ``cases.py``.

A row is ``(op, type, n_rows, k)``. Shapes hold rows that fill no tile, an odd k, more than one
panel of 128 k, more than one group of four tiles, and rows of one block only.
"""

from __future__ import annotations

from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T

#: Around every boundary: the widest direct kernels (2, 3, 8), blocks of 2, 3 and 6 columns, chunks
#: of 48 and of 64.
COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 49, 67)

FLOATS = (T.F32, T.F16, T.BF16)
CODEBOOKS = (T.IQ1_S, T.IQ1_M, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S)
SMALL = (T.TQ1_0, T.TQ2_0, T.NVFP4, T.Q1_0)

_FLOAT_SHAPES = ((1, 1), (17, 127), (50, 259), (96, 64))
_BLOCK_SHAPES = ((1, 1), (17, 3), (35, 5))  # k in blocks

LINEAR_FLOAT: tuple[tuple[str, T, int, int], ...] = (
    *(("linear", t, n, k) for t in FLOATS for n, k in _FLOAT_SHAPES),
    *(
        ("linear", t, n, blocks * GGML_QUANT_SIZES[t][0])
        for t in CODEBOOKS + SMALL
        for n, blocks in _BLOCK_SHAPES
    ),
)
