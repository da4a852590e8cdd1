"""The Metal tile for prompts on the SIMT engine, against float64, and planted faults."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from helpers import simt
from helpers.metal import Bfloat16, Modules
from helpers.metal_oracle import product
from helpers.weights import gguf_rows
from kernels.cases import BLOCK_32
from numpy.typing import NDArray

from edgerun.backends import mlx_kernels as mk
from edgerun.gguf import GGMLType

F32 = NDArray[np.float32]
#: Every shape of a block, with and without minima; test_metal_linear.py has the types' decoding.
TYPES = (T.Q8_0, T.Q4_1, T.Q4_K, T.Q6_K, T.Q2_K)
HALF = (T.Q6_K, T.Q8_0)  # a type whose step is of four slices, one of a single slice


@functools.cache
def case(t: T) -> tuple[NDArray[np.uint8], F32, F32]:
    """Rows that fill two tiles of 32 and part of a third, and tokens of two tiles."""
    rng = np.random.default_rng(int(t))
    k = 160 if t in BLOCK_32 else 512
    rows = np.ascontiguousarray(gguf_rows(t, 67, k, rng)).view(np.uint8)
    x = rng.standard_normal((34, k), dtype=np.float32)
    return rows, dequantize(rows, t).astype(np.float32), x


def launch(t: T, x: object) -> mk.Launch:
    return mk.launch_gemm(case(t)[0], GGMLType(t), x)


@pytest.fixture(scope="module")
def metal() -> Modules:
    modules = Modules()
    halves = [launch(t, case(t)[2].astype(np.float16)) for t in HALF]
    bf16 = launch(T.Q4_1, Bfloat16.of(case(T.Q4_1)[2]))
    modules.prepare([*(launch(t, case(t)[2]) for t in TYPES), *halves, bf16])
    return modules


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.name)
def test_values(t: T, metal: Modules) -> None:
    _, weights, x = case(t)
    check(metal.run(launch(t, x)), weights, x, 1e-6)


def check(y: NDArray[np.floating], weights: F32, x: F32, part: float) -> None:
    ref = x.astype(np.float64) @ weights.astype(np.float64).T
    size = np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T + 1e-30
    assert (np.abs(y - ref) <= part * size).all(), float((np.abs(y - ref) / size).max())


@pytest.mark.parametrize("t", HALF, ids=lambda t: t.name)
@pytest.mark.parametrize("tokens", [1, 16, 33])
def test_halves(t: T, tokens: int, metal: Modules) -> None:
    """Weights and results are rounded to halves, and sums are not."""
    _, weights, x = case(t)
    half = x[:tokens].astype(np.float16)
    weights = weights.astype(np.float16).astype(np.float32)
    y = metal.run(launch(t, half)).astype(np.float32)
    ref = half.astype(np.float64) @ weights.astype(np.float64).T
    size = np.abs(half).astype(np.float64) @ np.abs(weights).astype(np.float64).T
    assert (np.abs(y - ref) <= 1e-6 * size + 2.0**-11 * np.abs(ref)).all()


def test_bfloat16(metal: Modules) -> None:
    _, weights, x = case(T.Q4_1)
    inputs = Bfloat16.of(x)
    y = Bfloat16(metal.run(launch(T.Q4_1, inputs))).floats()
    check(y, weights, inputs.floats(), 2.0**-8)


@pytest.mark.parametrize("order", simt.ORDERS[1:], ids=["falling", "random1", "random2"])
@pytest.mark.parametrize("t", HALF, ids=lambda t: t.name)
def test_bits_do_not_depend_on_the_order_of_threads(
    t: T, order: tuple[int, int], metal: Modules
) -> None:
    x = case(t)[2][:20]
    want = metal.run(launch(t, x))
    metal.order = order
    try:
        np.testing.assert_array_equal(metal.run(launch(t, x)), want)
    finally:
        metal.order = (0, 1)


_BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);\n"
_MEET, _MEET_BACK = "i = 16; i > 0; i >>= 1", "i = 1; i < 32; i <<= 1"
_FMA, _TWO = "sum = fma(s.scale[j], part, sum)", "sum = s.scale[j] * part + sum"
_STEP, _INPUTS = "at += STEP) {\n", "    UNROLL for (uint d"
_SLICE, _NO_SLICE = "if (slice > 0) threadgroup", "if (false) threadgroup"
_RESULTS = "for (uint i = me; i < RESULT"
#: Kernel, type, what stands there, the fault.
FAULTS = {
    "lanes meet the other way round": ("gemv", T.Q6_K, _MEET, _MEET_BACK),
    "minima are added": ("gemv", T.Q4_K, "fma(-s.least[j]", "fma(s.least[j]"),
    "an fma in two": ("gemv", T.Q6_K, _FMA, _TWO),
    "steps run into each other": ("gemm", T.Q6_K, _STEP + "  " + _BARRIER, _STEP),
    "slices run into each other": ("gemm", T.Q6_K, _SLICE, _NO_SLICE),
    "inputs are not awaited": ("gemm", T.Q6_K, _BARRIER + _INPUTS, _INPUTS),
    "results overwrite weights": ("gemm", T.Q6_K, "wanted.\n" + _BARRIER, "wanted.\n"),
    "results are not awaited": ("gemm", T.Q6_K, _BARRIER + _RESULTS, _RESULTS),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str) -> None:
    kernel, t, old, new = FAULTS[fault]
    assert not is_sound(kernel, t, Modules(planted=(old, new)))


def test_a_kernel_without_faults_passes_the_same_check(metal: Modules) -> None:
    assert is_sound("gemm", T.Q6_K, metal)
    metal.order = (0, 1)


def is_sound(kernel: str, t: T, m: Modules) -> bool:
    rows, weights, x = case(t)
    x = x[:3] if kernel == "gemv" else x[:20]
    for order in simt.ORDERS:
        m.order = order
        try:
            if kernel == "gemv":
                y = m.run(mk.launch_linear(rows, GGMLType(t), x))
                assert (y.view(np.uint32) == product(t, rows, x).view(np.uint32)).all()
            else:
                check(m.run(launch(t, x)), weights, x, 1e-6)
        except (AssertionError, simt.SimtError):
            return False
    return True
