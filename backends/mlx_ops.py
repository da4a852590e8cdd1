"""The ops over MLX arrays. A call builds a node of a lazy graph; nothing is computed here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import mlx.core as mx

from edgerun.backends.base import Attention, Rope
from edgerun.backends.mlx_attention import attend, attend_exactly
from edgerun.backends.mlx_kv import MLXKVPool
from edgerun.backends.mlx_step import Step
from edgerun.backends.mlx_weights import Affine, Matrix, Vector, one_by_one

__all__ = ["MLXOps", "Mode"]

#: On a CPU MLX multiplies by codes row after row; from so many rows on, unpacking once is quicker.
_FEW = 4


@dataclass(frozen=True, eq=False)
class Mode:
    """How the ops compute.

    Attributes:
        metal: on a GPU.
        narrow: whether what meets affine matrices is rounded to float16, as their scales are.
        exact: a row's bits do not depend on the rest of the batch.
        fuse: makes one kernel of a function of elements.
    """

    metal: bool
    narrow: bool
    exact: bool
    fuse: Callable[[Callable[..., mx.array]], Callable[..., mx.array]]

    def functions(self) -> dict[str, Callable[..., mx.array]]:
        return {f.__name__: self.fuse(f) for f in (silu, gelu, capped)}


def silu(gate: mx.array, up: mx.array) -> mx.array:
    return gate * mx.sigmoid(gate) * up


def gelu(gate: mx.array, up: mx.array) -> mx.array:
    z = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate * gate * gate)
    return 0.5 * gate * (1 + mx.tanh(z)) * up


def capped(x: mx.array, cap: mx.array) -> mx.array:
    return cap * mx.tanh(x / cap)


class MLXOps:
    """Implements :class:`~edgerun.backends.base.Ops` for one step."""

    def __init__(
        self,
        step: Step,
        kv: MLXKVPool,
        mode: Mode,
        functions: dict[str, Callable[..., mx.array]],
        ropes: dict[Rope, int],
    ) -> None:
        self._step = step
        self._kv = kv
        self._mode = mode
        self._functions = functions
        self._ropes = ropes
        self._unbounded: mx.array | None = None  # what may exceed float16

    def embed(self, weight: Matrix, scale: float = 1.0) -> mx.array:
        x = weight.rows(self._step.tokens)
        return x if scale == 1.0 else x * scale

    def linear(
        self, x: mx.array, *weights: Matrix, bias: Sequence[Vector | None] | None = None
    ) -> tuple[mx.array, ...]:
        biases = bias if bias is not None else [None] * len(weights)
        products = [self._product(x, w) for w in weights]
        return tuple(
            y if b is None else y + b.values for y, b in zip(products, biases, strict=True)
        )

    def _product(self, x: mx.array, w: Matrix) -> mx.array:
        """float32 [n_tokens, n_out]."""
        few = x.shape[0] <= _FEW
        if isinstance(w, Affine):
            if self._mode.exact and self._mode.metal:
                return one_by_one(x, w.product)
            if not self._mode.narrow:
                # on a CPU each row is multiplied by itself
                return w.product(x) if few or self._mode.exact or self._mode.metal else w.times(x)
            return self._narrow_product(x, w, few)
        return w.times(x, alone=self._mode.exact)

    def _narrow_product(self, x: mx.array, w: Affine, few: bool) -> mx.array:
        """In float16 with float32 sums. Norms bound their results; those of gated units are
        brought into range by the largest of a row."""
        top = None
        if x is self._unbounded:
            top = mx.abs(x).max(axis=-1, keepdims=True)
            top = mx.where(top > 0, top, 1.0)
            x = x / top
        x = x.astype(mx.float16)
        y = w.product(x) if few or self._mode.metal else w.times(x.astype(mx.float32))
        y = y.astype(mx.float32)
        return y if top is None else y * top

    def rms_norm(self, x: mx.array, weight: Vector, eps: float) -> mx.array:
        if weight.size == x.shape[-1]:
            return mx.fast.rms_norm(x, weight.values, eps)
        groups = x.reshape(x.shape[0], -1, weight.size)
        return mx.fast.rms_norm(groups, weight.values, eps).reshape(x.shape)

    def rope(self, x: mx.array, head_dim: int, rope: Rope) -> mx.array:
        turns = self._step.turns[self._ropes[rope]]
        n, half = x.shape[0], rope.n_rot // 2
        cos, sin = turns[:, None, :half], turns[:, None, half:]
        heads = x.reshape(n, -1, head_dim)
        turned, rest = heads[..., : rope.n_rot], heads[..., rope.n_rot :]
        if rope.interleaved:
            pairs = turned.reshape(n, -1, half, 2)
            a, b = pairs[..., 0], pairs[..., 1]
            turned = mx.stack([a * cos - b * sin, a * sin + b * cos], axis=-1)
            turned = turned.reshape(n, -1, rope.n_rot)
        else:
            a, b = turned[..., :half], turned[..., half:]
            turned = mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)
        if rope.n_rot < head_dim:
            turned = mx.concatenate([turned, rest], axis=-1)
        return turned.reshape(x.shape)

    def attention(
        self, q: mx.array, k: mx.array, v: mx.array, layer: int, spec: Attention
    ) -> mx.array:
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        shape = (-1, spec.n_kv_heads, spec.head_dim)
        keys.write(self._step.slots, k.reshape(shape))
        values.write(self._step.slots, v.reshape(shape))
        if self._mode.exact:
            return attend_exactly(q, keys, values, self._step, spec)
        return attend(q, keys, values, self._step, spec)

    def glu(self, gate: mx.array, up: mx.array, act: Literal["silu", "gelu"]) -> mx.array:
        self._unbounded = self._functions[act](gate, up)
        return self._unbounded

    def add(self, x: mx.array, y: mx.array) -> mx.array:
        return x + y

    def scale(self, x: mx.array, factor: float) -> mx.array:
        return x * factor

    def outputs(self, x: mx.array) -> mx.array:
        return x if self._step.outputs is None else x[self._step.outputs]

    def logits(self, x: mx.array, weight: Matrix, softcap: float = 0.0) -> mx.array:
        y = self._product(x, weight)
        return self._functions["capped"](y, mx.array(softcap)) if softcap > 0 else y

    def hidden(self, x: mx.array) -> mx.array:
        return x
