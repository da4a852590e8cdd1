"""Experts on MLX: every way that pairs of a token and an expert are multiplied, against the
reference backend; those of a GPU on MLX's CPU device, our kernels on the SIMT engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gguf.constants import GGMLQuantizationType as T
from helpers.weights import gguf_rows

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from helpers.mlx_harness import Kernels  # noqa: E402

from edgerun.backends.base import Batch, Experts, ExpertWeights, RawTensor  # noqa: E402
from edgerun.backends.mlx import MLXBackend  # noqa: E402
from edgerun.backends.mlx_elementwise import Elementwise  # noqa: E402
from edgerun.backends.mlx_experts import mixed, routed  # noqa: E402
from edgerun.backends.reference import ReferenceBackend, _NumpyOps  # noqa: E402

F32 = npt.NDArray[np.float32]
N_EMBD, N_FF, N_EXPERTS = 256, 256, 5
#: gpt-oss's and Qwen3's ways to weigh; three experts a token.
OAI = Experts(N_EXPERTS, 3, N_FF, "swiglu_oai", "chosen")
QWEN = Experts(N_EXPERTS, 3, N_FF, "silu", "softmax", True, 2.5)


def raw(kinds: tuple[T, T, T], biases: bool) -> dict[str, tuple[RawTensor, Any]]:
    rng = np.random.default_rng(3)
    shapes = {"gate": (N_FF, N_EMBD), "up": (N_FF, N_EMBD), "down": (N_EMBD, N_FF)}
    found: dict[str, tuple[RawTensor, Any]] = {}
    for (name, (n_out, n_in)), t in zip(shapes.items(), kinds, strict=True):
        rows = gguf_rows(t, N_EXPERTS * n_out, n_in, rng).view(np.uint8)
        shape = (N_EXPERTS, n_out, n_in)
        tensor = RawTensor(name, int(t), shape, rows.reshape(N_EXPERTS * n_out, -1))
        found[name] = (tensor, name if name != "down" else "matrix")
        if biases:
            bias = rng.standard_normal((N_EXPERTS, n_out), dtype=np.float32)
            data = bias.view(np.uint8)
            found[f"{name}_bias"] = (RawTensor(f"{name}_bias", 0, bias.shape, data), "vector")
    router = rng.standard_normal((N_EXPERTS, N_EMBD), dtype=np.float32)
    found["router"] = (RawTensor("router", 0, router.shape, router.view(np.uint8)), "matrix")
    return found


def inputs(n: int) -> tuple[F32, F32]:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((40, N_EMBD), dtype=np.float32)
    return x[:n], rng.standard_normal((40, N_EXPERTS), dtype=np.float32)[:n]


def wanted(kinds: tuple[T, T, T], biases: bool, spec: Experts, n: int) -> F32:
    x, logits = inputs(n)
    weights = ReferenceBackend().upload_all(raw(kinds, biases))
    ops = _NumpyOps(Batch.pack([]), None)  # type: ignore[arg-type]
    ops.linear = lambda *args, **kw: (logits,)  # type: ignore[method-assign]
    return ops.moe(x, ExpertWeights(**weights), spec)


def found(
    backend: MLXBackend, kinds: tuple[T, T, T], biases: bool, spec: Experts, n: int, **mode: bool
) -> F32:
    x, logits = inputs(n)
    weights = ExpertWeights(**backend.upload_all(raw(kinds, biases)))
    how = dataclasses.replace(backend._mode, **mode)
    return np.array(mixed(mx.array(x), mx.array(logits), weights, spec, how))


GROUPS = (T.Q4_0, T.Q4_0, T.Q8_0)
BLOCKS = (T.MXFP4, T.MXFP4, T.Q6_K)
FLOATS = (T.BF16, T.BF16, T.F16)


@pytest.mark.parametrize("n", [4, 22], ids=["few", "in order"])
@pytest.mark.parametrize("kinds", [GROUPS, BLOCKS], ids=["groups", "blocks"])
@pytest.mark.parametrize("narrow", [False, True])
def test_mlx_s_own_products(kinds: tuple[T, T, T], narrow: bool, n: int) -> None:
    """As on a GPU, if without our kernels."""
    expected = wanted(kinds, True, OAI, n)
    y = found(MLXBackend(narrow=narrow), kinds, True, OAI, n, metal=True)
    error = np.sqrt(np.mean((y - expected) ** 2)) / np.std(expected)
    assert error < (0.01 if narrow else 2e-6), error  # MLX's CPU adds float16 up in float16


@pytest.mark.parametrize(
    ("kinds", "n", "names"),
    [
        (BLOCKS, 4, {"gemv_experts"}),
        (BLOCKS, 24, {"all_rows"}),
        (FLOATS, 4, {"gemv_float_experts"}),
        (FLOATS, 24, set()),
    ],
)  # fmt: skip
def test_with_metal_kernels(
    kinds: tuple[T, T, T], n: int, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pair by pair, and for many pairs unpacked as a whole."""
    kernels = Kernels(monkeypatch)
    expected = wanted(kinds, False, QWEN, n)
    y = found(MLXBackend(kernels=True), kinds, False, QWEN, n, metal=True)
    assert set(kernels.names) == names
    np.testing.assert_allclose(y, expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kernels", [False, True], ids=["composed", "kernels"])
def test_exact_bits_depend_on_the_token_alone(
    kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = Kernels(monkeypatch)
    backend = MLXBackend(exact=True, kernels=kernels)
    y = found(backend, BLOCKS, True, OAI, 7)
    expected = wanted(BLOCKS, True, OAI, 7)
    np.testing.assert_allclose(y, expected, atol=2e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(found(backend, BLOCKS, True, OAI, 2), y[:2])
    assert bool(ran.names) == kernels


@pytest.mark.parametrize("spec", [OAI, QWEN], ids=["chosen", "softmax"])
def test_routing_of_equals_and_of_what_is_not_a_number(spec: Experts) -> None:
    logits = np.array([[1, 2, 2, 2, 0], [3, np.nan, 1, 2, 0], [np.nan] * 5], np.float32)
    chosen, share = (np.array(a) for a in routed(mx.array(logits), spec, Elementwise(False)))
    assert chosen[0].tolist() == [1, 2, 3]
    assert chosen[1].tolist() == [0, 3, 2]
    assert sorted(chosen[2].tolist()) == [0, 1, 2]
    np.testing.assert_allclose(share[0], spec.scale / 3, rtol=1e-6)
    assert np.isnan(share[1:]).all()
