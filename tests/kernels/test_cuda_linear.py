"""The CUDA matrix products on the SIMT engine: every type against float64 over the gguf package's
decoder, and bit for bit against numpy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from helpers import simt
from helpers.cuda_act import Digits
from helpers.cuda_linear import Matrix, compiled, module
from helpers.cuda_oracle import product
from helpers.weights import gguf_rows
from kernels.cases import LINEAR
from kernels.cases_float import FLOATS, LINEAR_FLOAT
from numpy.typing import NDArray

from edgerun.backends import cuda_weights as cw

F32 = NDArray[np.float32]
#: Around the column tiles of 8, and the kernels for 8, 16 and 32 tokens.
COLUMNS = (1, 2, 8, 9, 16, 17, 30)
CASES = tuple((t, n, k) for _, t, n, k in (*LINEAR, *LINEAR_FLOAT) if int(t) in cw.LINEAR_TYPES)
QUANTIZED = sorted({t for t, _, _ in CASES if t not in FLOATS})


def bits(x: F32) -> NDArray[np.uint32]:
    return x.view(np.uint32)


@functools.cache
def case(t: T, n: int, k: int) -> tuple[NDArray[np.uint8], F32, F32]:
    """File rows, their float values, inputs for the widest case."""
    rng = np.random.default_rng([int(t), n, k])
    rows = gguf_rows(t, n, k, rng)
    x = rng.standard_normal((max(COLUMNS), k), dtype=np.float32)
    x[:, : k // 2] *= np.float32(3)
    x[3] = 0
    x[::2, 32:64] *= np.float32(20)  # a block that gets a second digit
    return np.ascontiguousarray(rows).view(np.uint8), dequantize(rows, t).astype(np.float32), x


def ids(row: tuple[T, int, int]) -> str:
    return f"{row[0].name}-{row[1]}x{row[2]}"


def check_values(t: T, weights: F32, x: F32, y: F32) -> None:
    seen = x.astype(np.float64) if t in FLOATS else Digits(x).values()
    ref = seen @ weights.astype(np.float64).T
    size = np.abs(seen) @ np.abs(weights).astype(np.float64).T + 1e-30
    assert (np.abs(y - ref) <= 1e-6 * size).all(), float((np.abs(y - ref) / size).max())


@pytest.mark.parametrize("row", CASES, ids=ids)
def test_values_bits_and_batch_invariance(row: tuple[T, int, int]) -> None:
    t, n, k = row
    rows, weights, x = case(t, n, k)
    w = Matrix(module(t), t, rows, k)
    single = np.concatenate([w.run(x[m : m + 1]) for m in range(len(x))])
    check_values(t, weights, x, single)
    for m in COLUMNS:
        same = bits(w.run(x[:m])) == bits(single[:m])
        assert same.all(), f"{m} tokens: {(~same).sum()} outputs differ from one token's"
    if t not in FLOATS:
        assert (bits(product(t, rows, Digits(x))) == bits(single)).all()


@pytest.mark.parametrize("row", CASES, ids=ids)
def test_rows_come_back_bit_for_bit(row: tuple[T, int, int]) -> None:
    t, n, k = row
    rows, weights, _ = case(t, n, k)
    w = Matrix(module(t), t, rows, k)
    picked = sorted({0, n // 2, n - 1})
    assert (bits(w.rows(picked)) == bits(weights[picked])).all()
    assert (bits(w.rows(picked, 0.25)) == bits(weights[picked] * np.float32(0.25))).all()
    assert np.isnan(w.rows([-1, n, 2**30])).all()
    found = w.rows([-3, 0, -1, -2], named=[n - 1, -1, n // 2])  # what a step before it found
    assert (bits(found[[0, 1, 2]]) == bits(weights[[n // 2, 0, n - 1]])).all()
    assert np.isnan(found[3]).all()


@pytest.mark.parametrize("order", simt.ORDERS[1:], ids=["falling", "random1", "random2"])
@pytest.mark.parametrize("t", QUANTIZED + list(FLOATS), ids=lambda t: t.name)
def test_bits_do_not_depend_on_the_order_of_threads(t: T, order: tuple[int, int]) -> None:
    _, n, k = next(c for c in CASES if c[0] == t and c[1] == 50)
    rows, _, x = case(t, n, k)
    w = Matrix(module(t), t, rows, k)
    want = [bits(w.run(x[:m])) for m in (5, 30)]
    with simt.ordered(module(t), order):
        again = Matrix(module(t), t, rows, k)
        assert (again.data.array == w.data.array).all()
        for m, y in zip((5, 30), want, strict=True):
            assert (bits(again.run(x[:m])) == y).all(), m


@pytest.mark.parametrize(("t", "k"), [(T.Q4_K, 4864), (T.Q8_0, 4448)], ids=lambda v: str(v))
def test_rows_of_more_chunks_than_warps(t: T, k: int) -> None:
    """Warps take turns: chunk i belongs to warp i % 8, and the last one is short."""
    rows, weights, x = case(t, 17, k)
    w = Matrix(module(t), t, rows, k)
    y = w.run(x[:20])
    check_values(t, weights, x[:20], y)
    assert (bits(product(t, rows, Digits(x[:20]))) == bits(y)).all()
    for m in (1, 10):
        assert (bits(w.run(x[:m])) == bits(y[:m])).all()


@pytest.mark.parametrize("t", [T.Q4_K, T.Q6_K], ids=lambda t: t.name)
def test_cards_without_the_newer_instructions_give_the_same_bits(t: T) -> None:
    _, n, k = next(c for c in CASES if c[0] == t and c[1] == 50)
    rows, _, x = case(t, n, k)
    names = tuple(n.format(int(t)) for n in ("qmm<{0},{0},1>", "qgemm<{0},{0},4>", "repack<{0}>"))
    old, new = (Matrix(m, t, rows, k) for m in (compiled(int(t), names, arch=750), module(t)))
    for m in (7, 20):
        assert (bits(old.run(x[:m])) == bits(new.run(x[:m]))).all()


@pytest.mark.parametrize("t", [T.Q4_K, T.Q2_K], ids=lambda t: t.name)
def test_the_widest_kernel_gives_the_same_bits(t: T) -> None:
    """64 tokens a block: what prompts of more than 32 run, here over two blocks."""
    n, k = 100, 1280
    rows, _, x = case(t, n, k)
    x = np.concatenate([x, x[::-1], x[:10]])
    wide = compiled(int(t), (f"qgemm<{int(t)},{int(t)},8>", f"repack<{int(t)}>"))
    w = Matrix(wide, t, rows, k)
    narrow = Matrix(module(t), t, rows, k)
    want = np.concatenate([narrow.run(x[i : i + 5]) for i in range(0, len(x), 5)])
    assert (bits(w.run(x)) == bits(want)).all()


@pytest.mark.parametrize("tokens", [3, 12, 20])
def test_two_tensors_of_two_types_in_one_launch(tokens: int) -> None:
    a, b = T.Q4_K, T.Q6_K
    pair = f"{int(a)},{int(b)}"
    m = compiled(int(a), (f"qmm<{pair},1>", f"qmm<{pair},2>", f"qgemm<{pair},4>"))
    (rows_a, _, x), (rows_b, _, _) = case(a, 50, 1280), case(b, 50, 1280)
    one, two = Matrix(module(a), a, rows_a, 1280), Matrix(module(b), b, rows_b, 1280)
    alone = [w.run(x[:tokens]) for w in (one, two)]
    one.m = m
    both = one.run(x[:tokens], other=two)
    assert (bits(both[:, :50]) == bits(alone[0])).all()
    assert (both[:, 50:64] == 0).all()
    assert (bits(both[:, 64:]) == bits(alone[1])).all()


@pytest.mark.parametrize("t", [T.Q4_0, T.F16], ids=lambda t: t.name)
@pytest.mark.parametrize("tokens", [5, 20])
def test_bias_and_residual(t: T, tokens: int) -> None:
    _, n, k = next(c for c in CASES if c[0] == t and c[1] == 50)
    rows, _, x = case(t, n, k)
    w = Matrix(module(t), t, rows, k)
    plain = w.run(x[:tokens])
    rng = np.random.default_rng(3)
    bias = rng.standard_normal(w.tiles * 16, dtype=np.float32)
    residual = rng.standard_normal(plain.shape, dtype=np.float32)
    assert (bits(w.run(x[:tokens], bias)) == bits(plain + bias[:n])).all()
    full = w.run(x[:tokens], bias, residual)
    assert (bits(full) == bits((plain + bias[:n]) + residual)).all()


@pytest.mark.parametrize("t", [T.Q4_K, T.Q5_1, T.BF16], ids=lambda t: t.name)
@pytest.mark.parametrize("act", [cw.Epilogue.SILU_MUL, cw.Epilogue.GELU_MUL])
@pytest.mark.parametrize("n", [8, 37])
def test_gate_and_up_in_one_launch(t: T, act: cw.Epilogue, n: int) -> None:
    k = 256
    rng = np.random.default_rng(int(t))
    gate, up = (np.ascontiguousarray(gguf_rows(t, n, k, rng)).view(np.uint8) for _ in range(2))
    x = rng.standard_normal((20, k), dtype=np.float32) * np.float32(0.1)
    pair = Matrix(module(t), t, gate, k, up)
    g, u = (Matrix(module(t), t, r, k).run(x).astype(np.float64) for r in (gate, up))
    inner = g if act == cw.Epilogue.SILU_MUL else 1.5957691216057308 * (g + 0.044715 * g**3)
    with np.errstate(over="ignore"):
        want = g / (1 + np.exp(-inner)) * u
    y = pair.run(x, epilogue=act)
    assert np.abs(y - want).max() <= 2e-6 * np.abs(want).max()
    for m in (1, 9):
        assert (bits(pair.run(x[:m], epilogue=act)) == bits(y[:m])).all()


@pytest.mark.parametrize("t", [T.Q8_0, T.Q4_K, T.F16], ids=lambda t: t.name)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_own_token_only(t: T, bad: float) -> None:
    k = 96 if t != T.Q4_K else 768
    rng = np.random.default_rng(1)
    rows = np.ascontiguousarray(gguf_rows(t, 17, k, rng)).view(np.uint8)
    x = rng.standard_normal((20, k), dtype=np.float32)
    w = Matrix(module(t), t, rows, k)
    for m in (2, 20):
        dirty = x[:m].copy()
        dirty[1, 40] = bad
        out = w.run(dirty)
        assert not np.isfinite(out[1]).any()
        clean = [c for c in range(m) if c != 1]
        assert (bits(out[clean]) == bits(w.run(x[:m])[clean])).all()


@pytest.mark.parametrize("t", [T.Q8_0, T.Q4_K, T.Q6_K], ids=lambda t: t.name)
def test_a_broken_scale_shows_in_its_row_only(t: T) -> None:
    _, n, k = next(c for c in CASES if c[0] == t and c[1] == 50)
    rows, _, x = case(t, n, k)
    rows = rows.copy()
    at = 208 if t == T.Q6_K else 0
    rows[7, at : at + 2] = np.array([np.nan], np.float16).view(np.uint8)
    for m in (2, 20):
        y = Matrix(module(t), t, rows, k).run(x[:m])
        assert np.isnan(y[:, 7]).all()
        assert np.isfinite(np.delete(y, 7, 1)).all()


@pytest.mark.parametrize(
    "t", [T.Q8_0, T.IQ4_NL, T.Q6_K, T.Q3_K, T.Q2_K, T.Q5_K], ids=lambda t: t.name
)
@pytest.mark.parametrize("fill", [0x00, 0x80, 0xFF])
def test_extremes_do_not_overflow(t: T, fill: int) -> None:
    """The largest codes against the largest activations of one sign: sums at their limits."""
    k = 96 if t in (T.Q8_0, T.IQ4_NL) else 768
    rows = case(t, 17, k)[0].copy()
    size = {T.Q8_0: 34, T.IQ4_NL: 18, T.Q6_K: 210, T.Q3_K: 110, T.Q2_K: 84, T.Q5_K: 176}[t]
    halves = {T.Q6_K: (208,), T.Q3_K: (108,), T.Q2_K: (80, 82), T.Q5_K: (0, 2)}.get(t, (0,))
    blocks = rows.reshape(17, -1, size)
    kept = [blocks[..., at : at + 2].copy() for at in halves]
    blocks[:] = fill
    for at, value in zip(halves, kept, strict=True):
        blocks[..., at : at + 2] = value
    x = np.ones((20, k), np.float32) * np.array([[1], [-1]] * 10, np.float32)
    x[0, :32] *= 9
    check_values(t, dequantize(rows, t).astype(np.float32), x, Matrix(module(t), t, rows, k).run(x))


def test_sizes_and_refusals() -> None:
    assert cw.tile_bytes(12, 4096) == 16 * 16 * 144  # the file's own size
    assert cw.tile_bytes(8, 4096) == 16 * 128 * 34
    assert cw.packed_bytes(2, 17, 64) == 2 * (256 + 512)
    assert cw.split(256) == (1, 8)
    assert cw.split(768) == (3, 2)
    assert cw.split(14336) == (8, 1)
    with pytest.raises(ValueError, match="blocks of 256"):
        cw.tile_bytes(12, 128)
    for t in cw.QUANTIZED_TYPES:
        assert cw.tile_bytes(t, 2560) % 16 == 0
