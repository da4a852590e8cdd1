"""Mixtures of experts: which experts a token has is known to the device alone, so every product
names its expert by an array."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from edgerun.backends import mlx_metal
from edgerun.backends.base import Experts, ExpertWeights
from edgerun.backends.mlx_elementwise import Elementwise
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


def routed(logits: mx.array, spec: Experts, fused: Elementwise) -> tuple[mx.array, mx.array]:
    """Of each token its experts by rank, int32 [n_tokens, n_used], and what they weigh. NaN among
    the logits makes the weights NaN."""
    order = mx.argsort(fused.falling(logits), axis=-1)  # equals stay in order
    chosen = order[:, : spec.n_used].astype(mx.int32)
    if spec.gating == "softmax":
        share = mx.take_along_axis(mx.softmax(logits, axis=-1, precise=True), chosen, axis=-1)
        if spec.normalize:
            share = share / share.sum(axis=-1, keepdims=True)
    else:
        best = mx.take_along_axis(logits, chosen, axis=-1)
        share = mx.softmax(best, axis=-1, precise=True)
        share = share + 0 * logits.sum(axis=-1, keepdims=True)  # NaN of those not chosen
    return chosen, share if spec.scale == 1.0 else share * spec.scale


def mixed(
    x: mx.array, logits: mx.array, weights: ExpertWeights, spec: Experts, mode: Mode
) -> mx.array:
    """The weighed sum of the experts that ``logits`` choose: float32 [n_tokens, n_out]."""
    if not x.shape[0]:  # of a step that wants no logits
        return mx.zeros((0, weights.down.n_out))
    chosen, share = routed(logits, spec, mode.fused)
    n, used = chosen.shape
    pairs, back = _Pairs(chosen.reshape(-1), mode), None
    if mode.metal and not mode.exact and n * used >= _SORTED:
        order = mx.argsort(pairs.ids)
        back = mx.argsort(order)
        x, pairs = x[order // used], _Pairs(pairs.ids[order], mode, in_order=True)
    gate = pairs.product(x, weights.gate, weights.gate_bias)
    up = pairs.product(x, weights.up, weights.up_bias)
    unit = mode.fused.glu[spec.act](gate, up)
    y = pairs.product(unit, weights.down, weights.down_bias, bounded=False)
    if back is not None:
        y = y[back]
    y = y.reshape(n, used, -1) * share[:, :, None]
    if not mode.exact:
        return y.sum(axis=1)
    out = y[:, 0]
    for rank in range(1, used):  # in this order, however many tokens
        out = out + y[:, rank]
    return out


class _Pairs:
    """Pairs of a token and an expert: int32 [pairs], the experts; ``in_order`` if they rise."""

    def __init__(self, ids: mx.array, mode: Mode, in_order: bool = False) -> None:
        self.ids = ids
        self._mode = mode
        self._in_order = in_order

    def product(self, x: mx.array, w: Stack, bias: Vector | None, bounded: bool = True) -> mx.array:
        """float32 [pairs, n_out] of ``x`` [pairs / shared, n_in], where consecutive pairs may share
        one. ``bounded``: it is within float16."""
        y = self._product(x, w, bounded)
        if bias is None:
            return y
        return y + bias.values.reshape(w.n_experts, w.n_out)[self.ids]

    def _product(self, x: mx.array, w: Stack, bounded: bool) -> mx.array:
        m, mode = w.matrix, self._mode
        if isinstance(m, Grouped) and not (mode.exact and mode.metal):

            def gathered(x: mx.array, ids: mx.array) -> mx.array:
                return m.products(x, ids, w.n_experts, self._in_order)

            return self._gathered(x, gathered, bounded)
        if not (mode.kernels and mlx_metal.takes(m)):
            return _unpacked(x, w, self.ids)
        if mode.exact or self.ids.shape[0] <= _UNPACKED * w.n_experts:
            return mlx_metal.experts(x, m, self.ids, w.n_experts)
        if isinstance(m, Floats):
            rows = m.values
        else:
            assert isinstance(m, Packed)
            rows = mlx_metal.unpacked(m, "float16" if mode.narrow else "float32")
        columns = rows.reshape(w.n_experts, w.n_out, w.n_in).swapaxes(1, 2)

        def multiplied(x: mx.array, ids: mx.array) -> mx.array:
            return mx.gather_mm(
                x, columns.astype(x.dtype), rhs_indices=ids, sorted_indices=self._in_order
            )

        return self._gathered(x, multiplied, bounded)

    def _gathered(
        self, x: mx.array, multiply: Callable[[mx.array, mx.array], mx.array], bounded: bool
    ) -> mx.array:
        """By one of MLX's own products: it gets [rows, 1, 1, n_in], and the experts of each."""
        top = None
        if self._mode.narrow and bounded:
            x = x.astype(mx.float16)
        elif self._mode.narrow:
            x, top = self._mode.fused.narrowed(x)
        y = multiply(x[:, None, None], self.ids.reshape(x.shape[0], -1))
        y = y.reshape(self.ids.shape[0], -1)
        wide: mx.array = y.astype(mx.float32) if top is None else self._mode.fused.widened(y, top)
        return wide


def _unpacked(x: mx.array, w: Stack, ids: mx.array) -> mx.array:
    """Without kernels: every pair's expert is unpacked, some at a time. Bits depend on the pair
    alone."""
    pairs = ids.shape[0]
    step = max(1, TILE // (4 * w.n_out * w.n_in))
    every, parts = mx.arange(w.n_out), []
    x = x[mx.arange(pairs) // (pairs // x.shape[0])]
    for i in range(0, pairs, step):
        rows = ids[i : i + step, None] * w.n_out + every
        tiles = w.matrix.rows(rows.reshape(-1)).reshape(-1, w.n_out, w.n_in)
        parts.append((tiles @ x[i : i + step, :, None])[..., 0])
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=0)
