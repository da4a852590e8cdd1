"""The cases every kernel backend is held to: one table, so that cpu, cuda and metal agree.

A row is ``(op, type, shapes...)``. For ``linear`` the shape is ``(n_rows, k)`` of a weight matrix;
the column counts it meets are ``COLUMNS``. Shapes hold what trips kernels: rows that fill no tile,
an odd number of blocks, of two- and four-block units, of K slices, and rows of one block only.
"""

from __future__ import annotations

from gguf import GGMLQuantizationType as T

#: Around every boundary of the column kernels: one, the direct ones, more passes, blocks of 4, 6.
COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 18, 24, 30, 31, 36, 37, 43, 64, 130)

#: Types with blocks of 32, and of 256.
BLOCK_32 = (T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.IQ4_NL, T.MXFP4)
BLOCK_256 = (T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_XS)

_SHAPES_32 = ((1, 32), (17, 96), (50, 576), (32, 1056))
_SHAPES_256 = ((1, 256), (17, 768), (50, 1280))

LINEAR: tuple[tuple[str, T, int, int], ...] = tuple(
    ("linear", t, n, k)
    for types, shapes in ((BLOCK_32, _SHAPES_32), (BLOCK_256, _SHAPES_256))
    for t in types
    for n, k in shapes
)

#: Products with experts, ``("experts", type, n_rows, k)``: rows that fill no tile, of one expert.
EXPERTS: tuple[tuple[str, T, int, int], ...] = tuple(
    ("experts", t, 17, k) for types, k in ((BLOCK_32, 352), (BLOCK_256, 768)) for t in types
)
