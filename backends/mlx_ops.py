"""The ops over MLX arrays. A call builds a node of a lazy graph; nothing is computed here."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from edgerun.backends import mlx_metal
from edgerun.backends.base import Activation, Attention, Experts, ExpertWeights, Rope
from edgerun.backends.mlx_attention import attend, attend_exactly
from edgerun.backends.mlx_experts import mixed
from edgerun.backends.mlx_kv import MLXKVPool
from edgerun.backends.mlx_mode import Mode
from edgerun.backends.mlx_step import Step
from edgerun.backends.mlx_weights import Grouped, Matrix, Packed, Vector, one_by_one

__all__ = ["MLXOps"]

#: On a CPU MLX multiplies by codes row after row; from so many rows on, unpacking once is quicker.
_FEW = 16


class MLXOps:
    """Implements :class:`~edgerun.backends.base.Ops` for one step."""

    def __init__(
        self,
        step: Step,
        kv: MLXKVPool,
        mode: Mode,
        ropes: dict[Rope, int],
        factors: dict[int, mx.array],
    ) -> None:
        self._step = step
        self._kv = kv
        self._mode = mode
        self._ropes = ropes
        self._factors = factors  # of each layer, once it was met
        self._unbounded: mx.array | None = None  # what may exceed float16
        self._wide: mx.array | None = None  # what was narrowed last, and to what
        self._narrow: tuple[mx.array, mx.array | None]
        self.attended: list[mx.array] = []  # by each layer, in order

    def embed(self, weight: Matrix, scale: float = 1.0) -> mx.array:
        tokens = self._step.tokens
        if self._mode.kernels and isinstance(weight, Packed):
            x = mlx_metal.rows(weight, tokens)
        else:
            x = weight.rows(tokens)
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
        mode, n = self._mode, x.shape[0]
        if n == 0:  # of a step that wants no logits
            return mx.zeros((0, w.n_out))
        if mode.kernels and mlx_metal.takes(w):
            if mode.exact or n <= mlx_metal.FEW:
                return mlx_metal.linear(x, w)
            if isinstance(w, Packed):
                x, top = self._narrowed(x)
                if n <= mlx_metal.SOME:
                    return self._widened(mlx_metal.tiled(x, w), top)
                kind = "float16" if mode.narrow else "float32"
                return self._widened(x @ mlx_metal.unpacked(w, kind).T, top)
        if not isinstance(w, Grouped):
            return w.times(x, alone=mode.exact)
        if mode.exact:  # on a CPU each row is multiplied by itself anyway
            return one_by_one(x, w.product) if mode.metal else w.product(x)
        by_codes = mode.metal or n <= _FEW
        x, top = self._narrowed(x)
        return self._widened(w.product(x) if by_codes else w.times(x.astype(mx.float32)), top)

    def _narrowed(self, x: mx.array) -> tuple[mx.array, mx.array | None]:
        """``x`` as products take it, and what to multiply their results by. Norms bound what they
        give; what gated units give is brought into float16's range by the largest of a row."""
        if not self._mode.narrow:
            return x, None
        if self._wide is not x:  # several matrices may share it
            if x is self._unbounded:
                self._narrow = self._mode.fused.narrowed(x)
            else:
                self._narrow = (x.astype(mx.float16), None)
            self._wide = x
        return self._narrow

    def _widened(self, y: mx.array, top: mx.array | None) -> mx.array:
        wide: mx.array = y.astype(mx.float32) if top is None else self._mode.fused.widened(y, top)
        return wide

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
            both = self._mode.fused.turned(pairs[..., 0], pairs[..., 1], cos, sin)
            turned = mx.stack(both, axis=-1).reshape(n, -1, rope.n_rot)
        else:
            both = self._mode.fused.turned(turned[..., :half], turned[..., half:], cos, sin)
            turned = mx.concatenate(both, axis=-1)
        if rope.n_rot < head_dim:
            turned = mx.concatenate([turned, rest], axis=-1)
        return turned.reshape(x.shape)

    def attention(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        layer: int,
        spec: Attention,
        sinks: Vector | None = None,
    ) -> mx.array:
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        shape = (-1, spec.n_kv_heads, spec.head_dim)
        keys.write(self._step.slots, k.reshape(shape))
        values.write(self._step.slots, v.reshape(shape))
        out = self._attend(q, layer, spec, None if sinks is None else sinks.values)
        self.attended.append(out)
        return out

    def _attend(self, q: mx.array, layer: int, spec: Attention, sinks: mx.array | None) -> mx.array:
        step, keys, values = self._step, self._kv.keys[layer], self._kv.values[layer]
        if not self._mode.kernels or spec.head_dim % 4:
            every = attend_exactly if self._mode.exact else attend
            return every(q, keys, values, step, spec, sinks)
        n_rows = len(step.rows) if self._mode.exact else step.n_short(mlx_metal.FEW)
        out = []
        if n_rows:  # those that generate come first
            short = q[: step.rows[n_rows - 1].span.stop]
            factors = self._factors.get(layer)
            if factors is None:
                factors = self._factors[layer] = mlx_metal.factors(spec, sinks)
            out.append(mlx_metal.attention(short, keys, values, step, n_rows, spec, factors))
        if n_rows < len(step.rows):
            out.append(attend(q, keys, values, step, spec, sinks, n_rows))
        return out[0] if len(out) == 1 else mx.concatenate(out, axis=0)

    def glu(self, gate: mx.array, up: mx.array, act: Activation) -> mx.array:
        self._unbounded = self._mode.fused.glu[act](gate, up)
        return self._unbounded

    def moe(self, x: mx.array, weights: ExpertWeights, spec: Experts) -> mx.array:
        (logits,) = self.linear(x, weights.router, bias=[weights.router_bias])
        return mixed(x, logits, weights, spec, self._mode)

    def add(self, x: mx.array, y: mx.array) -> mx.array:
        return x + y

    def scale(self, x: mx.array, factor: float) -> mx.array:
        return x * factor

    def outputs(self, x: mx.array) -> mx.array:
        return x if self._step.outputs is None else x[self._step.outputs]

    def logits(self, x: mx.array, weight: Matrix, softcap: float = 0.0) -> mx.array:
        y = self._product(x, weight)
        return self._mode.fused.capped(y, mx.array(softcap)) if softcap > 0 else y

    def hidden(self, x: mx.array) -> mx.array:
        return x
