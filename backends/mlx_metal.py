"""Where the ops use our own Metal kernels."""

from __future__ import annotations

import mlx.core as mx

from edgerun.backends import mlx_kernels
from edgerun.backends.base import PAGE_SIZE, Attention
from edgerun.backends.mlx_kernels import n_splits
from edgerun.backends.mlx_kv import Store
from edgerun.backends.mlx_step import Step
from edgerun.backends.mlx_weights import Floats, Matrix, Packed
from edgerun.gguf import GGMLType

__all__ = [
    "FEW", "SOME", "attention", "experts", "factors", "linear", "rows", "takes", "tiled",
    "unpacked",
]  # fmt: skip

#: Tokens of a row up to which our kernels are used for speed: decodes and checks of drafts.
FEW = 12
#: Tokens up to which unpacking tile by tile moves less than unpacking a matrix as a whole.
SOME = 128

_FLOATS = {
    mx.float32: GGMLType.F32, mx.float16: GGMLType.F16, mx.bfloat16: GGMLType.BF16,
}  # fmt: skip


def takes(w: Matrix) -> bool:
    """Whether :func:`linear` reads such a matrix."""
    if isinstance(w, Packed):
        return w.kind in mlx_kernels.QUANTIZED
    return isinstance(w, Floats) and w.n_in >= 8


def linear(x: mx.array, w: Matrix) -> mx.array:
    """``x @ w.T``, a token's bits the same for any number of them."""
    return _run(mlx_kernels.launch_linear(*_stored(w), x))


def tiled(x: mx.array, w: Packed) -> mx.array:
    """``x @ w.T`` for more tokens; other bits than :func:`linear`'s."""
    return _run(mlx_kernels.launch_gemm(*_stored(w), x))


def experts(x: mx.array, w: Matrix, ids: mx.array, n_experts: int) -> mx.array:
    """Products of pairs of a token and an expert, [pairs, n_out]: :func:`linear`'s bits."""
    return _run(mlx_kernels.launch_experts(*_stored(w), x, ids, n_experts))


def rows(w: Packed, ids: mx.array) -> mx.array:
    """Rows of a matrix in float32."""
    return _run(mlx_kernels.launch_rows(*_stored(w), w.n_in, ids, "float32"))


def unpacked(w: Packed, dtype: str) -> mx.array:
    """The whole matrix, for a product with many tokens."""
    return _run(mlx_kernels.launch_all_rows(*_stored(w), w.n_in, dtype))


def _stored(w: Matrix) -> tuple[mx.array, GGMLType]:
    if isinstance(w, Packed):
        return w.data, GGMLType(w.kind)
    assert isinstance(w, Floats)
    return w.values, _FLOATS[w.values.dtype]


def _run(launch: mlx_kernels.Launch) -> mx.array:
    out: mx.array = launch.run()
    return out


def factors(spec: Attention, sinks: mx.array | None) -> mx.array:
    """What :func:`attention` multiplies and caps scores by, and the sinks of all heads."""
    both = mx.array([spec.scale, spec.softcap], dtype=mx.float32)
    return both if sinks is None else mx.concatenate([both, sinks])


def attention(
    q: mx.array,
    keys: Store,
    values: Store,
    step: Step,
    n_rows: int,
    spec: Attention,
    factors: mx.array,
) -> mx.array:
    """Of the step's first ``n_rows`` rows, whose queries ``q`` [n_tokens, n_heads * head_dim]
    are."""
    n = q.shape[0]
    pages = [a.reshape(-1, PAGE_SIZE, *a.shape[1:]) for a in (*keys.parts, *values.parts)]
    kv = pages if len(pages) == 2 else [pages[0], pages[2], pages[1], pages[3]]
    table = (step.pages, step.row_of[:n], step.place[:n])
    splits = max(n_splits(r.n_past, r.n_total - r.n_past, spec.window) for r in step.rows[:n_rows])
    heads = q.reshape(n, spec.n_heads, spec.head_dim)
    out: mx.array = mlx_kernels.attention(heads, kv, table, spec, factors, splits)
    return out.reshape(n, -1)
