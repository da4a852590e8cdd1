"""ggml's tensor types and GGUF's file types: names, ids and block sizes.

Source: ``enum ggml_type`` of ggml.h, the block structs of ggml-common.h, and
``enum llama_ftype`` of llama.h (ggml-org, MIT), as facts.
"""

from __future__ import annotations

import enum

from edgerun.errors import GGUFError

__all__ = [
    "FILE_TYPES",
    "REFUSED_TYPES",
    "GGMLType",
    "row_bytes",
]


class GGMLType(enum.IntEnum):
    """A tensor's element type, by its id in the file.

    Values are stored in blocks along the row: ``block_size`` columns take ``type_size`` bytes.
    """

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    TQ1_0 = 34
    TQ2_0 = 35
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42

    @property
    def block_size(self) -> int:
        """Columns per block."""
        return _SIZES[self][0]

    @property
    def type_size(self) -> int:
        """Bytes per block."""
        return _SIZES[self][1]

    @property
    def bits_per_weight(self) -> float:
        block_size, type_size = _SIZES[self]
        return 8 * type_size / block_size


_SIZES: dict[GGMLType, tuple[int, int]] = {
    GGMLType.F32: (1, 4),
    GGMLType.F16: (1, 2),
    GGMLType.Q4_0: (32, 18),
    GGMLType.Q4_1: (32, 20),
    GGMLType.Q5_0: (32, 22),
    GGMLType.Q5_1: (32, 24),
    GGMLType.Q8_0: (32, 34),
    GGMLType.Q8_1: (32, 36),
    GGMLType.Q2_K: (256, 84),
    GGMLType.Q3_K: (256, 110),
    GGMLType.Q4_K: (256, 144),
    GGMLType.Q5_K: (256, 176),
    GGMLType.Q6_K: (256, 210),
    GGMLType.Q8_K: (256, 292),
    GGMLType.IQ2_XXS: (256, 66),
    GGMLType.IQ2_XS: (256, 74),
    GGMLType.IQ3_XXS: (256, 98),
    GGMLType.IQ1_S: (256, 50),
    GGMLType.IQ4_NL: (32, 18),
    GGMLType.IQ3_S: (256, 110),
    GGMLType.IQ2_S: (256, 82),
    GGMLType.IQ4_XS: (256, 136),
    GGMLType.I8: (1, 1),
    GGMLType.I16: (1, 2),
    GGMLType.I32: (1, 4),
    GGMLType.I64: (1, 8),
    GGMLType.F64: (1, 8),
    GGMLType.IQ1_M: (256, 56),
    GGMLType.BF16: (1, 2),
    GGMLType.TQ1_0: (256, 54),
    GGMLType.TQ2_0: (256, 66),
    GGMLType.MXFP4: (32, 17),
    GGMLType.NVFP4: (64, 36),
    GGMLType.Q1_0: (128, 18),
    GGMLType.Q2_0: (64, 18),
}

_REPACKED = "removed from GGUF: requantize to {} (layouts for a CPU are made at load time)"

#: Type ids a file is refused for, and why.
REFUSED_TYPES: dict[int, str] = {
    4: "Q4_2, removed from ggml in 2023: requantize to Q4_0 or Q4_K",
    5: "Q4_3, removed from ggml in 2023: requantize to Q4_1 or Q4_K",
    31: "Q4_0_4_4, " + _REPACKED.format("Q4_0"),
    32: "Q4_0_4_8, " + _REPACKED.format("Q4_0"),
    33: "Q4_0_8_8, " + _REPACKED.format("Q4_0"),
    36: "IQ4_NL_4_4, " + _REPACKED.format("IQ4_NL"),
    37: "IQ4_NL_4_8, " + _REPACKED.format("IQ4_NL"),
    38: "IQ4_NL_8_8, " + _REPACKED.format("IQ4_NL"),
    # Nothing in the file tells these layouts apart, so a guess would load garbage in silence.
    42: "Q2_0, an id that published files use for three layouts (Q2_0 of 64 and of 128 columns, "
    "STQ1_0): requantize to TQ2_0",
}

#: ``general.file_type`` -> name: what most of a file's matrices are stored as.
FILE_TYPES: dict[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
    41: "Q2_0",
}


def row_bytes(ggml_type: GGMLType, n_cols: int) -> int:
    """Bytes of one row of ``n_cols`` values.

    Raises:
        GGUFError: ``n_cols`` is not a whole number of blocks.
    """
    block_size, type_size = _SIZES[ggml_type]
    blocks, rest = divmod(n_cols, block_size)
    if rest or n_cols < 0:
        raise GGUFError(
            f"{ggml_type.name} (type id {int(ggml_type)}) stores blocks of {block_size} columns, "
            f"and {n_cols} columns are not a multiple of that"
        )
    return blocks * type_size
