"""The Metal products on the SIMT engine, as MLX generates their source: every type against float64
over the gguf package's decoder, and bit for bit against numpy."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from helpers import simt
from helpers.metal import Bfloat16, Modules
from helpers.metal_oracle import product, product_of_floats
from helpers.weights import gguf_rows
from kernels.cases import LINEAR
from numpy.typing import NDArray

from edgerun.backends import mlx_kernels as mk
from edgerun.errors import BackendError
from edgerun.gguf import GGMLType

F32 = NDArray[np.float32]
CASES = tuple((t, n, k) for _, t, n, k in LINEAR)
TYPES = sorted({t for t, _, _ in CASES})
BY_ID = (T.Q4_K, T.Q8_0)  # of which single rows are taken too
FLOATS = (T.F32, T.F16, T.BF16)
#: Every width of the kernel, one that it fills in part, and more than it takes at once.
TOKENS = (1, 2, 3, 8, 11, 12, 15)
#: Types met at every width, and those of other blocks, at two; the others at the widest.
ALL_WIDTHS = (T.Q4_K, T.Q6_K)
TWO_WIDTHS = (T.Q4_0, T.Q8_0, *ALL_WIDTHS)


def bits(x: F32) -> NDArray[np.uint32]:
    return x.view(np.uint32)


@functools.cache
def case(t: T, n: int, k: int) -> tuple[NDArray[np.uint8], F32, F32]:
    """File rows, their float values, inputs for the widest case."""
    rng = np.random.default_rng([int(t), n, k])
    rows = np.ascontiguousarray(gguf_rows(t, n, k, rng)).view(np.uint8)
    x = rng.standard_normal((max(TOKENS), k), dtype=np.float32)
    x[:, : k // 2] *= np.float32(3)
    x[3] = 0
    return rows, dequantize(rows, t).astype(np.float32), x


def small(t: T) -> tuple[NDArray[np.uint8], F32, F32]:
    return case(t, 17, 96 if (t, 17, 96) in CASES else 768)


def kernel(t: T, tokens: int) -> mk.Launch:
    """A launch that names what ``tokens`` tokens run; its arrays do not matter."""
    rows, _, x = small(t)
    return mk.launch_linear(rows, GGMLType(t), x[:tokens])


@pytest.fixture(scope="module")
def metal() -> Modules:
    """All kernels of these tests, compiled at once."""
    modules = Modules()
    launches = [kernel(t, 12) for t in TYPES] + [kernel(t, 1) for t in TWO_WIDTHS]
    launches += [kernel(t, m) for t in ALL_WIDTHS for m in TOKENS]
    rows, _, x = small(T.Q6_K)
    for inputs in (x.astype(np.float16), Bfloat16.of(x)):
        launches.append(mk.launch_linear(rows, GGMLType.Q6_K, inputs))
    ids_ = np.zeros(7, np.int32)
    for t in TYPES:
        rows, _, x = small(t)
        launches.append(mk.launch_all_rows(rows, GGMLType(t), x.shape[1], "float32"))
        if t in BY_ID:
            launches.append(mk.launch_rows(rows, GGMLType(t), x.shape[1], ids_, "float32"))
    launches += [
        mk.launch_linear(floats(t, 5, 9)[0], GGMLType(t), np.zeros((m, 9), np.float32))
        for t, m in [*((t, 12) for t in FLOATS), (T.F16, 1)]
    ]
    modules.prepare(launches)
    return modules


def floats(t: T, n: int, k: int) -> tuple[object, F32]:
    """A matrix as it is stored, and its values."""
    w = np.random.default_rng(k).standard_normal((n, k), dtype=np.float32)
    if t == T.F16:
        return w.astype(np.float16), w.astype(np.float16).astype(np.float32)
    if t == T.BF16:
        return Bfloat16.of(w), Bfloat16.of(w).floats()
    return w, w


def run(m: Modules, t: T, rows: NDArray[np.uint8], x: F32) -> F32:
    y: F32 = m.run(mk.launch_linear(rows, GGMLType(t), x))
    return y


def ids(row: tuple[T, int, int]) -> str:
    return f"{row[0].name}-{row[1]}x{row[2]}"


@pytest.mark.parametrize("row", CASES, ids=ids)
def test_values_and_bits(row: tuple[T, int, int], metal: Modules) -> None:
    t, n, k = row
    rows, weights, x = case(t, n, k)
    y = run(metal, t, rows, x[:11] if n > 1 else x)
    x = x[: len(y)]
    ref = x.astype(np.float64) @ weights.astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T + 1e-30
    assert (np.abs(y - ref) <= 1e-6 * size).all(), float((np.abs(y - ref) / size).max())
    if t in TWO_WIDTHS:
        assert (bits(run(metal, t, rows, x[1:2])) == bits(y[1:2])).all()
    assert (bits(product(t, rows, x[:5])) == bits(y[:5])).all()


@pytest.mark.parametrize("t", ALL_WIDTHS, ids=lambda t: t.name)
def test_a_tokens_bits_do_not_depend_on_the_others(t: T, metal: Modules) -> None:
    rows, _, x = case(t, 50, 1280)
    whole = run(metal, t, rows, x)
    for m in TOKENS:
        assert (bits(run(metal, t, rows, x[2 : 2 + m])) == bits(whole[2 : 2 + m])).all(), m


@pytest.mark.parametrize("order", simt.ORDERS[1:], ids=["falling", "random1", "random2"])
def test_bits_do_not_depend_on_the_order_of_threads(order: tuple[int, int], metal: Modules) -> None:
    rows, _, x = case(T.Q6_K, 17, 768)
    want = run(metal, T.Q6_K, rows, x)
    metal.order = order
    try:
        assert (bits(run(metal, T.Q6_K, rows, x)) == bits(want)).all()
    finally:
        metal.order = (0, 1)


@pytest.mark.parametrize("t", FLOATS, ids=lambda t: t.name)
@pytest.mark.parametrize(("n", "k"), [(1, 8), (5, 127), (17, 259), (6, 576)])
def test_matrices_of_floats(t: T, n: int, k: int, metal: Modules) -> None:
    stored, w = floats(t, n, k)
    x = np.random.default_rng(1).standard_normal((11, k), dtype=np.float32)
    y = metal.run(mk.launch_linear(stored, GGMLType(t), x))
    assert (bits(y) == bits(product_of_floats(w, x))).all()
    if t == T.F16:
        one = metal.run(mk.launch_linear(stored, GGMLType(t), x[4:5]))
        assert (bits(one) == bits(y[4:5])).all()


@pytest.mark.parametrize("shared", [1, 3])
@pytest.mark.parametrize("t", [T.Q6_K, T.F16], ids=lambda t: t.name)
def test_an_experts_product_has_the_bits_of_one_alone(t: T, shared: int, metal: Modules) -> None:
    """Of 4 experts whose 6 rows lie one behind another, more than a threadgroup's; tokens of 1 and
    of 3 experts each."""
    stored: NDArray[np.generic]
    if t == T.F16:
        stored, k = floats(t, 24, 259)[0], 259
    else:
        stored, k = gguf_rows(t, 24, 768, np.random.default_rng(2)).view(np.uint8), 768
    stored = np.ascontiguousarray(stored.reshape(24, -1))
    x = np.random.default_rng(1).standard_normal((9 // shared, k), dtype=np.float32)
    chosen = np.array([3, 0, 2, 1, 1, 3, 0, 0, 2], np.int32)
    y = metal.run(mk.launch_experts(stored, GGMLType(t), x, chosen, 4))
    every = metal.run(mk.launch_linear(stored, GGMLType(t), x)).reshape(len(x), 4, 6)
    assert (bits(y) == bits(every[np.arange(9) // shared, chosen])).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_inputs(dtype: str, metal: Modules) -> None:
    """Sums are float32 all the same, and rounded once, at the end."""
    rows, _, x = case(T.Q6_K, 17, 768)
    inputs: object = x.astype(np.float16) if dtype == "float16" else Bfloat16.of(x)
    seen = inputs.floats() if isinstance(inputs, Bfloat16) else inputs.astype(np.float32)  # type: ignore[attr-defined]
    y = metal.run(mk.launch_linear(rows, GGMLType.Q6_K, inputs))
    want = product(T.Q6_K, rows, seen)
    if dtype == "float16":
        assert (y.view(np.uint16) == want.astype(np.float16).view(np.uint16)).all()
    else:
        u = want.view(np.uint32)
        assert (y == (u + 0x7FFF + (u >> 16 & 1)) >> 16).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_spoil_their_own_token_only(bad: float, metal: Modules) -> None:
    rows, _, x = case(T.Q4_K, 17, 768)
    dirty = x.copy()
    dirty[1, 40] = bad
    out, clean = run(metal, T.Q4_K, rows, dirty), run(metal, T.Q4_K, rows, x)
    assert not np.isfinite(out[1]).any()
    others = [c for c in range(len(x)) if c != 1]
    assert (bits(out[others]) == bits(clean[others])).all()


def test_a_broken_scale_shows_in_its_row_only(metal: Modules) -> None:
    rows, _, x = case(T.Q6_K, 17, 768)
    rows = rows.copy()
    rows[7, 208:210] = np.array([np.nan], np.float16).view(np.uint8)
    y = run(metal, T.Q6_K, rows, x)
    assert np.isnan(y[:, 7]).all()
    assert np.isfinite(np.delete(y, 7, 1)).all()


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.name)
def test_rows_come_back_bit_for_bit(t: T, metal: Modules) -> None:
    rows, weights, x = small(t)
    k = x.shape[1]
    every = metal.run(mk.launch_all_rows(rows, GGMLType(t), k, "float32"))
    assert (bits(every) == bits(weights)).all()
    if t not in BY_ID:
        return
    picked = np.array([16, 0, 3, 3, -1, 17, 2**30], np.int32)
    found = metal.run(mk.launch_rows(rows, GGMLType(t), k, picked, "float32"))
    assert (bits(found[:4]) == bits(weights[picked[:4]])).all()
    assert np.isnan(found[4:]).all()


def test_refusals() -> None:
    rows, _, x = case(T.Q6_K, 17, 768)
    with pytest.raises(BackendError, match="no Metal kernel reads IQ2_XS"):
        mk.launch_linear(rows, GGMLType.IQ2_XS, x)
    with pytest.raises(BackendError, match="rows of 630 bytes are not 512 values of Q6_K"):
        mk.launch_linear(rows, GGMLType.Q6_K, x[:, :512])
    with pytest.raises(BackendError, match="not 256"):
        mk.launch_all_rows(rows[:, :100], GGMLType.Q4_K, 256, "float32")
    with pytest.raises(BackendError, match="rows of 3 F32 values are not 768"):
        mk.launch_linear(np.zeros((4, 3), np.float32), GGMLType.F32, x)
    with pytest.raises(BackendError, match="8 values or more, not 3"):
        mk.launch_linear(np.zeros((4, 3), np.float32), GGMLType.F32, x[:, :3])
