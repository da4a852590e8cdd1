"""Mixtures of experts: which experts a token has is known to the device alone, so every product
names its expert by an array."""

from __future__ import annotations

import math
from collections.abc import Callable

import mlx.core as mx

from edgerun.backends import mlx_metal
from edgerun.backends.base import Experts, ExpertWeights
from edgerun.backends.mlx_mode import Mode
from edgerun.backends.mlx_weights import Floats, Grouped, Matrix, Packed, Vector

__all__ = ["TILE", "Stack", "mixed", "routed"]

#: Pairs of a token and an expert from which on MLX's kernels are quicker with experts in order.
_SORTED = 64
#: Pairs to an expert from which on unpacking all experts moves less than reading them pair by pair.
_UNPACKED = 8
#: Most bytes of float32 that experts are unpacked to at once, without kernels.
TILE = 16 << 20


class Stack:
    """Experts' matrices of [n_out, n_in], one behind another in ``matrix``."""

    def __init__(self, matrix: Matrix, n_experts: int) -> None:
        self.matrix = matrix
        self.n_experts = n_experts
        self.n_out = matrix.n_out // n_experts
        self.n_in = matrix.n_in

    def arrays(self) -> list[mx.array]:
        return self.matrix.arrays()


def routed(logits: mx.array, spec: Experts) -> tuple[mx.array, mx.array]:
    """Of each token its experts by rank, int32 [n_tokens, n_used], and what they weigh. NaN among
    the logits makes the weights NaN."""
    bad = mx.isnan(logits)
    order = mx.argsort(mx.where(bad, math.inf, -logits), axis=-1)  # equals stay in order
    chosen = order[:, : spec.n_used].astype(mx.int32)
    scores = mx.take_along_axis(logits, chosen, axis=-1)
    if spec.gating == "softmax":
        share = mx.take_along_axis(mx.softmax(logits, axis=-1, precise=True), chosen, axis=-1)
        if spec.normalize:
            share = share / share.sum(axis=-1, keepdims=True)
    else:
        share = mx.softmax(scores, axis=-1, precise=True)
    share = mx.where(bad.any(axis=-1, keepdims=True), math.nan, share)
    return chosen, share if spec.scale == 1.0 else share * spec.scale


def mixed(
    x: mx.array, logits: mx.array, weights: ExpertWeights, spec: Experts, mode: Mode
) -> mx.array:
    """The weighed sum of the experts that ``logits`` choose: float32 [n_tokens, n_out]."""
    if not x.shape[0]:  # of a step that wants no logits
        return mx.zeros((0, weights.down.n_out))
    chosen, share = routed(logits, spec)
    n, used = chosen.shape
    ids, back = chosen.reshape(-1), None
    if mode.metal and not mode.exact and n * used >= _SORTED:
        order = mx.argsort(ids)
        back = mx.argsort(order)
        x, ids = x[order // used], ids[order]
    gate, up = (
        _biased(_product(_narrowed(x, mode), w, ids, mode), w, bias, ids)
        for w, bias in ((weights.gate, weights.gate_bias), (weights.up, weights.up_bias))
    )
    y, top = mode.fused.glu[spec.act](gate, up), None
    if mode.narrow:
        y, top = mode.fused.narrowed(y)  # it may exceed float16
    y = _product(y, weights.down, ids, mode)
    if top is not None:
        y = mode.fused.widened(y, top)
    y = _biased(y, weights.down, weights.down_bias, ids)
    if back is not None:
        y = y[back]
    y = y.reshape(n, used, -1) * share[:, :, None]
    out = y[:, 0]
    for rank in range(1, used):  # in this order, whatever the batch
        out = out + y[:, rank]
    return out


def _narrowed(x: mx.array, mode: Mode) -> mx.array:
    return x.astype(mx.float16) if mode.narrow else x


def _biased(y: mx.array, w: Stack, bias: Vector | None, ids: mx.array) -> mx.array:
    return y if bias is None else y + bias.values.reshape(w.n_experts, w.n_out)[ids]


def _product(x: mx.array, w: Stack, ids: mx.array, mode: Mode) -> mx.array:
    """float32 [pairs, n_out] of ``x`` [pairs / shared, n_in], where consecutive pairs may share
    one, and experts ``ids`` [pairs]."""
    m, pairs = w.matrix, ids.shape[0]
    if isinstance(m, Grouped) and not (mode.exact and mode.metal):
        return _gathered(x, ids, lambda x, ids, order: m.products(x, ids, w.n_experts, order))
    if not (mode.kernels and mlx_metal.takes(m)):
        return _unpacked(x, w, ids)
    if mode.exact or pairs <= _UNPACKED * w.n_experts:
        return mlx_metal.experts(x, m, ids, w.n_experts).astype(mx.float32)
    if isinstance(m, Packed):
        rows = mlx_metal.unpacked(m, "float16" if mode.narrow else "float32")
    else:
        assert isinstance(m, Floats)
        rows = m.values.astype(x.dtype)
    columns = rows.reshape(w.n_experts, w.n_out, w.n_in).swapaxes(1, 2)
    return _gathered(
        x, ids,
        lambda x, ids, order: mx.gather_mm(x, columns, rhs_indices=ids, sorted_indices=order),
    )  # fmt: skip


def _gathered(
    x: mx.array, ids: mx.array, multiply: Callable[[mx.array, mx.array, bool], mx.array]
) -> mx.array:
    """By one of MLX's own products: it gets [rows, 1, 1, n_in] and the experts of each row."""
    rows = x.shape[0]
    in_order = rows == ids.shape[0] and rows >= _SORTED
    y = multiply(x[:, None, None], ids.reshape(rows, -1), in_order)
    return y.reshape(ids.shape[0], -1).astype(mx.float32)


def _unpacked(x: mx.array, w: Stack, ids: mx.array) -> mx.array:
    """Without kernels: every pair's expert is unpacked, some at a time. Bits depend on the pair
    alone."""
    pairs = ids.shape[0]
    step = max(1, TILE // (4 * w.n_out * w.n_in))
    every, parts = mx.arange(w.n_out), []
    x = x.astype(mx.float32)[mx.arange(pairs) // (pairs // x.shape[0])]
    for i in range(0, pairs, step):
        rows = ids[i : i + step, None] * w.n_out + every
        tiles = w.matrix.rows(rows.reshape(-1)).reshape(-1, w.n_out, w.n_in)
        parts.append((tiles @ x[i : i + step, :, None])[..., 0])
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
