from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from helpers.models import gemma3, smollm2

from edgerun.errors import GGUFError, UnsupportedModelError
from edgerun.gguf import GGMLType, GGUFFile, dequantize, dequantize_rows
from edgerun.gguf.blocks import DECODABLE, grid
from edgerun.gguf.blocks.grids import GRIDS

# What the package decodes; Q1_0 it names but does not decode.
JUDGED = sorted(DECODABLE - {GGMLType.Q1_0})
MODULE = {
    "iq2xxs": gguf.quants.IQ2_XXS,
    "iq2xs": gguf.quants.IQ2_XS,
    "iq2s": gguf.quants.IQ2_S,
    "iq3xxs": gguf.quants.IQ3_XXS,
    "iq3s": gguf.quants.IQ3_S,
    "iq1s": gguf.quants.IQ1_S,
}


def oracle(data: np.ndarray, t: GGMLType) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType(int(t)))


def assert_same_bits(a: np.ndarray, b: np.ndarray) -> None:
    assert a.dtype == b.dtype == np.float32
    assert a.shape == b.shape
    # A NaN's sign and payload are the machine's affair.
    same = (a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))
    assert same.all(), f"{(~same).sum()} of {same.size} differ"


def test_all_types_of_the_package_decode() -> None:
    every = set(gguf.quants._type_traits) | {
        gguf.GGMLQuantizationType.F32,
        gguf.GGMLQuantizationType.F16,
    }
    assert {int(t) for t in every} == {int(t) for t in JUDGED}


@pytest.mark.parametrize("t", JUDGED, ids=lambda t: t.name)
def test_random_bytes_decode_bit_exactly(t: GGMLType) -> None:
    rng = np.random.default_rng(int(t))
    # More blocks than one internal chunk holds, so that the seams are covered too.
    n = 3 * (1 << 15) // t.block_size + 5
    data = rng.integers(0, 256, (2, n * t.type_size), np.uint8)
    assert_same_bits(dequantize(data, t), oracle(data, t))


@pytest.mark.parametrize("t", JUDGED, ids=lambda t: t.name)
@pytest.mark.parametrize("byte", [0x00, 0xFF, 0x80, 0x7F])
def test_uniform_bytes_decode_bit_exactly(t: GGMLType, byte: int) -> None:
    data = np.full((3, 2 * t.type_size), byte, np.uint8)
    assert_same_bits(dequantize(data, t), oracle(data, t))


@pytest.mark.parametrize("t", [GGMLType.MXFP4, GGMLType.NVFP4], ids=lambda t: t.name)
def test_every_scale_byte(t: GGMLType) -> None:
    data = np.full((256, t.type_size), 0x71, np.uint8)
    data[:, : 1 if t is GGMLType.MXFP4 else 4] = np.arange(256)[:, None]
    assert_same_bits(dequantize(data, t), oracle(data, t))


def test_every_float16_and_bfloat16() -> None:
    data = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(1, -1)
    for t in (GGMLType.F16, GGMLType.BF16):
        assert_same_bits(dequantize(data, t), oracle(data, t))


def test_q1_0_by_hand() -> None:
    # float16 0.5, then 128 bits, lowest first: set = +0.5, clear = -0.5.
    data = np.frombuffer(struct.pack("<e", 0.5) + bytes([0b101] + [0] * 14 + [0x80]), np.uint8)
    expected = np.full(128, -0.5, np.float32)
    expected[[0, 2, 127]] = 0.5
    np.testing.assert_array_equal(dequantize(data, GGMLType.Q1_0), expected)


@pytest.mark.parametrize("name", GRIDS)
def test_grids_are_the_packages(name: str) -> None:
    module = MODULE[name]
    module.init_grid()
    ours = grid(name)
    assert ours.dtype == np.int8
    assert not ours.flags.writeable
    np.testing.assert_array_equal(ours, module.grid.reshape(module.grid_shape))


def test_shapes() -> None:
    t = GGMLType.Q4_0
    assert dequantize(np.zeros(36, np.uint8), t).shape == (64,)
    assert dequantize(np.zeros((2, 3, 18), np.uint8), t).shape == (2, 3, 32)
    assert dequantize(np.zeros((0, 18), np.uint8), t).shape == (0, 32)
    strided = np.arange(4 * 36, dtype=np.uint8).reshape(4, 36)[::2, :18]
    assert_same_bits(dequantize(strided, t), oracle(strided.copy(), t))


def test_rows() -> None:
    data = np.random.default_rng(0).integers(0, 256, (9, 34), np.uint8)
    every = dequantize(data, GGMLType.Q8_0)
    ids = [[3, 0], [8, 3]]
    np.testing.assert_array_equal(dequantize_rows(data, GGMLType.Q8_0, ids), every[ids])
    for bad in (9, -1):
        with pytest.raises(GGUFError, match=f"row {bad} .* 9 rows"):
            dequantize_rows(data, GGMLType.Q8_0, [0, bad])


def test_wrong_sizes_and_types() -> None:
    with pytest.raises(GGUFError, match=r"Q4_0 blocks take 18 bytes.*\[2, 17\]"):
        dequantize(np.zeros((2, 17), np.uint8), GGMLType.Q4_0)
    with pytest.raises(GGUFError, match=r"uint8, not float32"):
        dequantize(np.zeros((2, 18), np.float32), GGMLType.Q4_0)
    with pytest.raises(UnsupportedModelError, match=r"I32 \(type id 26\)"):
        dequantize(np.zeros((2, 4), np.uint8), GGMLType.I32)


@pytest.mark.parametrize("model", [smollm2, gemma3])
def test_real_weights_decode_bit_exactly(model) -> None:  # type: ignore[no-untyped-def]
    seen: dict[GGMLType, int] = {}
    with GGUFFile.open(model()) as f:
        for name, info in f.tensors.items():
            if seen.setdefault(info.type, 0) < 3:
                seen[info.type] += 1
                rows = f.rows(name)[-32:]
                assert_same_bits(dequantize(rows, info.type), oracle(rows, info.type))
    assert len(seen) >= 3
