"""Linear kernels over float activations, on every instruction set of this machine.

The judge is float64 over the gguf package's dequantizer; for Q1_0, which that cannot decode, over
edgerun's own.
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import sys

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize
from helpers.packed import ACT_F32, Packed, bits, check_sets_agree, isas, pointer
from kernels.cases_float import CODEBOOKS, COLUMNS, FLOATS, LINEAR_FLOAT
from numpy.typing import NDArray

from edgerun.backends.cpu_grids import ensure_grids
from edgerun.gguf import GGMLType
from edgerun.gguf import dequantize as own_dequantize
from edgerun.native import lib, lib_path

F32 = NDArray[np.float32]
Case = tuple[str, T, int, int]
TILE_ROWS = 16

#: Offset of the fp16 scale in a block.
_SCALE = {T.TQ1_0: 52, T.TQ2_0: 64}
by_isa = pytest.mark.parametrize("isa", ["avx512vnni", "avxvnni", "avx2", "neon", "generic"])
by_case = pytest.mark.parametrize(
    "row", LINEAR_FLOAT, ids=lambda row: f"{row[1].name}-{row[2]}x{row[3]}"
)


def need(isa: str) -> None:
    if isa not in isas():
        pytest.skip(f"this machine or build has no {isa}")


def file_rows(t: T, n: int, k: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Every code the format knows, under scales of either sign: uint8 [n, bytes of a row]."""
    if t in FLOATS:
        return quantize(rng.standard_normal((n, k), dtype=np.float32), t).view(np.uint8)
    values, size = GGML_QUANT_SIZES[t]
    blocks = rng.integers(0, 256, (n, k // values, size), dtype=np.uint8)
    if t == T.NVFP4:
        return blocks.reshape(n, -1)
    d = rng.uniform(-1, 1, (n, k // values, 1)).astype(np.float16).view(np.uint8)
    if t == T.IQ1_M:  # the scale lies in the top four bits of four uint16
        for i in range(4):
            nibble = d[..., i // 2] >> 4 * (i % 2) & 15
            blocks[..., 49 + 2 * i] = blocks[..., 49 + 2 * i] & 15 | nibble << 4
    else:
        at = _SCALE.get(t, 0)
        blocks[..., at : at + 2] = d
    return blocks.reshape(n, -1)


def decode(rows: NDArray[np.uint8], t: T) -> F32:
    if t == T.Q1_0:
        return own_dequantize(rows, GGMLType.Q1_0)
    return np.ascontiguousarray(dequantize(rows, t), dtype=np.float32)


@functools.cache
def case(t: T, n: int, k: int) -> tuple[NDArray[np.uint8], F32, F32]:
    """File rows, their values, and inputs for the widest case."""
    rng = np.random.default_rng([int(t), n, k])
    rows = file_rows(t, n, k, rng)
    x = rng.standard_normal((max(COLUMNS), k), dtype=np.float32)
    x[3] = 0
    return rows, decode(rows, t).reshape(n, k), x


@by_isa
@by_case
def test_values_and_batch_invariance(row: Case, isa: str) -> None:
    need(isa)
    _, t, n, k = row
    rows, weights, x = case(t, n, k)
    packed = Packed(isa, t, rows, k)
    assert (packed.act, packed.tile_rows) == (ACT_F32, TILE_ROWS)
    single = np.concatenate([packed.run(x[m : m + 1]) for m in range(x.shape[0])])
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T
    assert (np.abs(single - exact) <= 5e-7 * size).all()
    for m in COLUMNS:
        differ = int((bits(packed.run(x[:m])) != bits(single[:m])).sum())
        assert differ == 0, f"{m} columns: {differ} outputs differ from one column's"


@by_case
def test_instruction_sets_agree(row: Case) -> None:
    _, t, n, k = row
    rows, weights, x = case(t, n, k)
    size = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T
    sets = [Packed(isa, t, rows, k) for isa in isas()]
    for m in (2, 67):
        check_sets_agree(sets, x[:m], size[:m])


@by_isa
@by_case
def test_rows_come_back_bit_for_bit(row: Case, isa: str) -> None:
    need(isa)
    _, t, n, k = row
    rows, weights, _ = case(t, n, k)
    packed = Packed(isa, t, rows, k)
    assert (bits(packed.rows(list(range(n)))) == bits(weights)).all()
    padding = list(range(n, -(-n // TILE_ROWS) * TILE_ROWS))
    if padding:
        assert (packed.rows(padding) == 0).all()
        assert (packed.run(np.full((3, k), 1e30, np.float32), padding[-1] + 1)[:, n:] == 0).all()


@by_isa
@pytest.mark.parametrize("t", FLOATS)
def test_every_bit_pattern_survives(t: T, isa: str) -> None:
    """All halves, or floats of every exponent: subnormals, infinities, NaN and both zeros."""
    need(isa)
    every = np.arange(1 << 16, dtype=np.uint32)
    raw = (every << 16 | every[::-1]) if t == T.F32 else every.astype(np.uint16)
    rows = raw.view(np.uint8).reshape(32, -1)
    expected = decode(rows, t).reshape(32, -1)
    got = Packed(isa, t, rows, expected.shape[1]).rows(list(range(32)))
    nan = np.isnan(expected)
    assert (np.isnan(got) == nan).all()
    assert (bits(got)[~nan] == bits(expected)[~nan]).all()


@by_isa
@pytest.mark.parametrize("t", [*FLOATS, T.IQ2_XS, T.NVFP4])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_infinity_spoil_their_own_column_only(t: T, isa: str, bad: float) -> None:
    need(isa)
    k = 127 if t in FLOATS else 3 * GGML_QUANT_SIZES[t][0]
    rows, _, x = case(t, 17, k)
    packed = Packed(isa, t, rows, k)
    for m in (2, 9):
        dirty = x[:m].copy()
        dirty[1, 40] = bad
        out = packed.run(dirty)
        clean = [c for c in range(m) if c != 1]
        assert (
            not np.isfinite(out[1]).any() or t == T.NVFP4
        )  # a zero code times infinity is NaN too
        assert (bits(out[clean]) == bits(packed.run(x[:m])[clean])).all()


@by_isa
def test_an_infinite_weight_spoils_its_own_row_only(isa: str) -> None:
    need(isa)
    rows, _, x = case(T.F16, 17, 127)
    clean = Packed(isa, T.F16, rows, 127).run(x)
    halves = rows.copy().view(np.float16)
    halves[5, 126] = np.inf
    out = Packed(isa, T.F16, halves.view(np.uint8), 127).run(x)
    others = [r for r in range(17) if r != 5]
    assert not np.isfinite(out[:, 5]).any()
    assert (bits(out)[:, others] == bits(clean)[:, others]).all()


def test_codebooks_are_checked_and_set_once() -> None:
    ensure_grids()
    set_grid, size = lib().er_set_grid, lib().er_grid_bytes
    size.restype = ctypes.c_size_t
    assert [size(i) for i in range(-1, 7)] == [0, 2048, 4096, 8192, 1024, 2048, 16384, 0]
    other = np.zeros(16384, np.uint8)
    assert set_grid(6, pointer(other), 2048) == -1
    assert set_grid(-1, pointer(other), 2048) == -1
    assert set_grid(0, None, 2048) == -1
    assert set_grid(0, pointer(other), 2047) == -2
    assert set_grid(0, pointer(other), 2048) == -3
    ensure_grids.cache_clear()
    ensure_grids()


def test_no_kernel_before_its_codebook() -> None:
    """In a process that set no codebook the IQ types are refused, the others served."""
    script = """if True:
        import ctypes, sys
        so = ctypes.CDLL(sys.argv[1])
        info = (ctypes.c_int64 * 4)()
        print([so.er_linear_info(b"generic", int(t), 256, info) for t in sys.argv[2:]])
    """
    types = [str(int(t)) for t in (*CODEBOOKS, T.TQ1_0, T.F16)]
    done = subprocess.run(
        [sys.executable, "-c", script, str(lib_path()), *types],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == str([-1] * len(CODEBOOKS) + [0, 0])
