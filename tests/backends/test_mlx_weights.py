"""Weights as MLX keeps them, and the functions that it compiles, on its CPU device."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import dequantize as judge
from gguf.constants import GGMLQuantizationType as T
from helpers.golden import full
from helpers.weights import gguf_rows

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")


from edgerun.backends.base import RawTensor  # noqa: E402
from edgerun.backends.mlx import MLXBackend  # noqa: E402
from edgerun.backends.mlx_elementwise import Elementwise  # noqa: E402
from edgerun.backends.mlx_weights import Grouped, load, matrix_bytes  # noqa: E402

TYPES = [
    *(T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K),
    *(T.IQ4_NL, T.IQ4_XS, T.MXFP4, T.F32, T.F16, T.BF16, T.TQ2_0),
]


def random_rows(t: T, n: int, k: int) -> RawTensor:
    data = gguf_rows(t, n, k, np.random.default_rng(0)).view(np.uint8).reshape(n, -1)
    return RawTensor("w", int(t), (n, k), data)


@pytest.mark.parametrize("t", TYPES, ids=lambda t: t.name)
def test_weights_are_the_files(t: T) -> None:
    """Value for value, and a product by codes is that of the floats."""
    tensor = random_rows(t, 6, 512)
    matrix = load(tensor, np.float32)
    expected = judge(tensor.data, t).astype(np.float32).reshape(6, 512)
    np.testing.assert_array_equal(np.array(matrix.rows(slice(0, 6))), expected)
    np.testing.assert_array_equal(np.array(matrix.rows(mx.array([5, 0, 5]))), expected[[5, 0, 5]])
    x = np.random.default_rng(1).standard_normal((3, 512)).astype(np.float32)
    wanted = x.astype(np.float64) @ expected.T
    products = [matrix.times(mx.array(x)), matrix.times(mx.array(x), alone=True)]
    if isinstance(matrix, Grouped):
        products.append(matrix.product(mx.array(x)))
    for y in products:
        np.testing.assert_allclose(np.array(y), wanted, atol=1e-4 * np.abs(wanted).max())
    assert sum(a.nbytes for a in matrix.arrays()) == matrix_bytes(tensor, np.float32)


@pytest.mark.parametrize("t", [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.Q4_K, T.Q5_K])
def test_scales_in_float16_are_the_files_but_for_k_quants(t: T) -> None:
    """Those have products of a scale and 6 bits: they round by 2^-11 at most, each."""
    tensor = random_rows(t, 8, 512)
    matrix = load(tensor, np.float16)
    found, expected = np.array(matrix.rows(slice(0, 8))), judge(tensor.data, t).reshape(8, 512)
    if t not in (T.Q4_K, T.Q5_K):
        np.testing.assert_array_equal(found, expected)
        return
    error = np.sqrt(np.mean((found - expected) ** 2)) / np.std(expected)
    assert 0 < error < 4e-4


def test_float16_products_of_large_values() -> None:
    """What a gated unit gives may exceed float16; the product must not."""
    from edgerun.backends.mlx_ops import MLXOps

    backend = MLXBackend(narrow=True)
    w = backend.upload(random_rows(T.Q8_0, 16, 64), "matrix")
    ops = object.__new__(MLXOps)
    ops._mode, ops._wide = backend._mode, None
    gate = mx.array(np.full((2, 64), 1000.0, np.float32))
    up = mx.array(np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32) * 1000)
    x = ops.glu(gate, up, "silu")
    (y,) = ops.linear(x, w)
    wanted = np.array(x) @ np.array(w.rows(slice(0, 16))).T  # type: ignore[union-attr]
    assert np.abs(np.array(x)).max() > 65504
    np.testing.assert_allclose(np.array(y), wanted, atol=3e-3 * np.abs(wanted).max())


SHAPES = {
    "silu": [(3, 7)] * 2,
    "gelu": [(3, 7)] * 2,
    "capped": [(3, 7), ()],
    "turned": [(3, 4, 8), (3, 4, 8), (3, 1, 8), (3, 1, 8)],
    "best": [(3, 40)],
    "falling": [(3, 40)],
    "swiglu_oai": [(3, 7)] * 2,
    "narrowed": [(3, 40)],
    "widened": [(3, 7), (3, 1)],
    "quantized": [(3, 2, 2, 32)],
}


@pytest.mark.parametrize("name", SHAPES if full() else ["turned", "best"])
def test_functions_that_mlx_compiles_give_the_same(name: str) -> None:
    """As on a GPU, and for any number of tokens; MLX runs the C++ compiler here."""
    both = [Elementwise(fuse) for fuse in (False, True)]
    plain, compiled = (getattr(e, name, None) or e.glu[name] for e in both)
    rng = np.random.default_rng(0)
    for n in (3, 5):
        shapes = [(n, *s[1:]) if s else s for s in SHAPES[name]]
        x = [mx.array(rng.standard_normal(s).astype(np.float32) * 5) for s in shapes]
        try:
            found = compiled(*x)
            mx.eval(found)
        except RuntimeError as e:
            pytest.skip(f"MLX cannot compile here: {e}")
        for a, b in zip(_tuple(found), _tuple(plain(*x)), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(np.array(a), np.array(b), rtol=1e-5, atol=1e-6)


def _tuple(x: object) -> tuple[mx.array, ...]:
    return tuple(x) if isinstance(x, list | tuple) else (x,)
