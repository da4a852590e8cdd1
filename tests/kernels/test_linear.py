"""Linear kernels of every instruction set here, against float64 over the gguf package's decoder."""

from __future__ import annotations

import ctypes
import functools

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from helpers.packed import ACT_Q8, Packed, bits, check_sets_agree, isas
from helpers.weights import gguf_rows, int8_activations
from kernels.cases import COLUMNS, LINEAR
from numpy.typing import NDArray

from edgerun.native import lib

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


@functools.cache
def case(t: T, n: int, k: int) -> tuple[NDArray[np.uint8], F32, F32, F64, F64]:
    """File rows, their float values, inputs for the widest case, the float64 outputs, and the sums
    of their terms' sizes, which bound what rounding may do."""
    rng = np.random.default_rng([int(t), n, k])
    rows = gguf_rows(t, n, k, rng)
    weights = dequantize(rows, t).astype(np.float32)
    x = rng.standard_normal((max(COLUMNS), k), dtype=np.float32)
    x[:, : k // 2] *= np.float32(3)
    x[3] = 0
    x[::2, 32:64] *= np.float32(20)  # blocks that get a second digit: one, and three in a row
    x[1::3, 160:256] *= np.float32(20)
    seen = int8_activations(x)
    ref = seen @ weights.astype(np.float64).T
    size = np.abs(seen) @ np.abs(weights).astype(np.float64).T + 1e-30
    return rows, weights, x, ref, size


def ids(row: tuple[str, T, int, int]) -> str:
    return f"{row[1].name}-{row[2]}x{row[3]}"


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("row", LINEAR, ids=ids)
def test_values_and_batch_invariance(row: tuple[str, T, int, int], isa: str) -> None:
    _, t, n, k = row
    rows, _, x, ref, size = case(t, n, k)
    packed = Packed(isa, t, rows, k)
    assert packed.act == ACT_Q8
    single = np.concatenate([packed.run(x[m : m + 1]) for m in range(x.shape[0])])
    assert (np.abs(single - ref) <= 1e-6 * size).all(), float((np.abs(single - ref) / size).max())
    for m in COLUMNS:
        same = bits(packed.run(x[:m])) == bits(single[:m])
        assert same.all(), f"{m} columns: {(~same).sum()} outputs differ from one column's"


@pytest.mark.parametrize("row", LINEAR, ids=ids)
def test_instruction_sets_agree(row: tuple[str, T, int, int]) -> None:
    _, t, n, k = row
    rows, _, x, _, size = case(t, n, k)
    sets = [Packed(isa, t, rows, k) for isa in isas()]
    for m in (1, 16):
        check_sets_agree(sets, x[:m], size[:m])


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("row", LINEAR, ids=ids)
def test_rows_come_back_bit_for_bit(row: tuple[str, T, int, int], isa: str) -> None:
    _, t, n, k = row
    rows, weights, _, _, _ = case(t, n, k)
    picked = sorted({0, n // 2, n - 1})
    assert (bits(Packed(isa, t, rows, k).rows(picked)) == bits(weights[picked])).all()


@pytest.mark.parametrize("isa", isas())
@pytest.mark.parametrize("t", [T.Q8_0, T.Q4_K])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_own_column_only(isa: str, t: T, bad: float) -> None:
    rows, _, x, _, _ = case(t, 17, 96 if t == T.Q8_0 else 768)
    packed = Packed(isa, t, rows, x.shape[1])
    for m in (2, 16):
        dirty = x[:m].copy()
        dirty[1, 40] = bad
        out = packed.run(dirty)
        assert np.isnan(out[1]).all()
        clean = [c for c in range(m) if c != 1]
        assert (bits(out[clean]) == bits(packed.run(x[:m])[clean])).all()


@functools.cache
def awkward() -> tuple[NDArray[np.uint8], F32]:
    """Forty columns of nineteen blocks, some of them zero, tiny, towering or not finite."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((40, 608), dtype=np.float32)
    x[::3, 320:352] *= np.float32(20)
    x[4::5, 576:608] *= np.float32(30)
    x[[0, 5, 33], 64:96] = 0
    x[9, 32:64] *= np.float32(1e-37)
    x[10] *= np.float32(1e-21)  # squares below the least normal number
    x[17, 130], x[20, 511], x[38, 600] = np.nan, np.inf, -np.inf
    return gguf_rows(T.Q8_0, 17, 608, rng), x


@pytest.mark.parametrize("isa", isas())
def test_awkward_blocks_give_the_same_bits_in_any_company(isa: str) -> None:
    rows, x = awkward()
    packed = Packed(isa, T.Q8_0, rows, 608)
    single = np.concatenate([packed.run(x[m : m + 1]) for m in range(len(x))])
    assert np.isnan(single).any(axis=1).tolist() == [m in (17, 20, 38) for m in range(len(x))]
    for m in (5, 8, 16, 32, 40):
        out = packed.run(x[:m])
        assert (np.isnan(out) == np.isnan(single[:m])).all()
        assert (bits(out) == bits(single[:m]))[~np.isnan(out)].all(), m


def test_instruction_sets_agree_on_awkward_blocks() -> None:
    rows, x = awkward()
    first, *others = (Packed(s, T.Q8_0, rows, 608).run(x) for s in isas() if s != "generic")
    for other in others:
        assert (np.isnan(first) == np.isnan(other)).all()
        assert (bits(first) == bits(other))[~np.isnan(first)].all()


@pytest.mark.parametrize("isa", isas())
def test_extremes_do_not_overflow(isa: str) -> None:
    """The largest codes against the largest activations of one sign: sums at their limits."""
    for t, n, k in (
        (T.Q8_0, 17, 96),
        (T.IQ4_NL, 17, 96),
        (T.Q6_K, 17, 768),
        (T.IQ4_XS, 17, 768),
        (T.Q3_K, 17, 768),
    ):
        rows = case(t, n, k)[0].copy()
        if t == T.Q8_0:
            rows.reshape(n, -1, 34)[..., 2:] = 0x80  # the code -128
        else:
            header = {
                T.IQ4_NL: slice(2, None),
                T.IQ4_XS: slice(2, None),
                T.Q6_K: slice(0, 208),
                T.Q3_K: slice(0, 108),
            }[t]
            size = {T.IQ4_NL: 18, T.IQ4_XS: 136, T.Q6_K: 210, T.Q3_K: 110}[t]
            for fill in (0x00, 0x80, 0xFF):
                rows.reshape(n, -1, size)[..., header] = fill
                _check_constant(isa, t, rows, k)
        _check_constant(isa, t, rows, k)


def _check_constant(isa: str, t: T, rows: NDArray[np.uint8], k: int) -> None:
    x = np.ones((13, k), np.float32) * np.array([[1], [-1]] * 6 + [[2]], np.float32)
    ref = x.astype(np.float64) @ dequantize(rows, t).astype(np.float64).T
    scale = np.abs(ref).max() or 1.0
    assert np.abs(Packed(isa, t, rows, k).run(x) - ref).max() / scale < 1e-6


def test_unknown_names_are_refused() -> None:
    info = (ctypes.c_int64 * 4)()
    assert lib().er_linear_info(b"mmx", int(T.Q8_0), 32, info) == -1
    assert lib().er_linear_info(isas()[0].encode(), 9999, 32, info) == -1
    assert lib().er_linear_info(isas()[0].encode(), int(T.Q8_0), 33, info) == -2
