from __future__ import annotations

import gguf
import pytest

from edgerun.errors import GGUFError
from edgerun.gguf.types import FILE_TYPES, REFUSED_TYPES, GGMLType, row_bytes

# block_q8_1 of ggml-common.h is two float16 and 32 bytes; the package still counts two float32.
SIZES = gguf.GGML_QUANT_SIZES | {gguf.GGMLQuantizationType.Q8_1: (32, 2 + 2 + 32)}


def test_names_ids_and_sizes_are_the_packages() -> None:
    assert {t.name: int(t) for t in GGMLType if t != GGMLType.Q2_0} == {
        t.name: int(t) for t in gguf.GGMLQuantizationType
    }
    for t, size in SIZES.items():
        assert (GGMLType(t).block_size, GGMLType(t).type_size) == size, t


def test_file_type_names_are_the_packages() -> None:
    for t in gguf.LlamaFileType:
        if t.name != "GUESSED":
            assert FILE_TYPES[int(t)] == t.name.removeprefix("MOSTLY_").removeprefix("ALL_")


def test_every_id_is_live_or_refused_with_a_reason() -> None:
    known = {int(t) for t in GGMLType} | set(REFUSED_TYPES)
    assert known == set(range(43))
    assert all(reason for reason in REFUSED_TYPES.values())


def test_row_bytes() -> None:
    assert row_bytes(GGMLType.Q4_K, 512) == 288
    assert row_bytes(GGMLType.F32, 3) == 12
    assert GGMLType.Q8_0.bits_per_weight == 8.5
    with pytest.raises(GGUFError, match=r"Q4_K \(type id 12\).*256.*128"):
        row_bytes(GGMLType.Q4_K, 128)
