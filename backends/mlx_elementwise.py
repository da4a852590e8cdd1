"""What the ops do element by element, each a function that MLX makes one kernel of on a GPU: else
every operation in it would read its operands from memory and write its result back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mlx.core as mx

from edgerun.backends.base import Activation

__all__ = ["Elementwise"]

Function = Callable[..., Any]


class Elementwise:
    """The functions below, fused or as they are.

    Args:
        fuse: let MLX compile them, for arrays of any size; on a CPU it would run a C++ compiler.
    """

    def __init__(self, fuse: bool) -> None:
        def made(function: Function) -> Function:
            return mx.compile(function, shapeless=True) if fuse else function

        self.glu: dict[Activation, Function] = {
            "silu": made(_silu), "gelu": made(_gelu), "swiglu_oai": made(_swiglu_oai),
        }  # fmt: skip
        self.capped = made(_capped)
        self.turned = made(_turned)
        self.best = made(_best)
        self.falling = made(_falling)
        self.narrowed = made(_narrowed)
        self.widened = made(_widened)
        self.quantized = made(_quantized)


def _silu(gate: mx.array, up: mx.array) -> mx.array:
    return gate * mx.sigmoid(gate) * up


def _gelu(gate: mx.array, up: mx.array) -> mx.array:
    z = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate * gate * gate)
    return 0.5 * gate * (1 + mx.tanh(z)) * up


def _swiglu_oai(gate: mx.array, up: mx.array) -> mx.array:
    gate, up = mx.minimum(gate, 7.0), mx.clip(up, -7.0, 7.0)
    return gate * mx.sigmoid(1.702 * gate) * (up + 1)


def _capped(x: mx.array, cap: mx.array) -> mx.array:
    return cap * mx.tanh(x / cap)


def _turned(a: mx.array, b: mx.array, cos: mx.array, sin: mx.array) -> tuple[mx.array, mx.array]:
    """Pairs (a, b) turned by an angle."""
    return a * cos - b * sin, a * sin + b * cos


def _best(logits: mx.array) -> mx.array:
    """int32 [n]: the id of each row's largest, -1 where some is not finite."""
    finite = mx.isfinite(logits).all(axis=1)
    return mx.where(finite, mx.argmax(logits, axis=1).astype(mx.int32), -1)


def _falling(x: mx.array) -> mx.array:
    """What to sort by for the largest first, NaN last."""
    return mx.where(mx.isnan(x), math.inf, -x)


def _narrowed(x: mx.array) -> tuple[mx.array, mx.array]:
    """Rows in float16 that are divided by their largest magnitude, float32 [n, 1]."""
    top = mx.abs(x).max(axis=-1, keepdims=True)
    top = mx.where(top > 0, top, 1.0)
    return (x / top).astype(mx.float16), top


def _widened(y: mx.array, top: mx.array) -> mx.array:
    return y.astype(mx.float32) * top


def _quantized(blocks: mx.array) -> tuple[mx.array, mx.array]:
    """int8 codes of ``blocks`` [..., 32] and their scales float16 [..., 1]: the largest magnitude
    / 127; one that is not finite makes the block NaN."""
    top = mx.abs(blocks).max(axis=-1, keepdims=True)
    # max may drop NaN; a sum does not
    top = mx.where(mx.isnan(blocks.sum(axis=-1, keepdims=True)), math.nan, top)
    d = (top / 127).astype(mx.float16)
    usable = mx.isfinite(d) & (d > 0)
    inverse = 1 / mx.where(usable, d.astype(mx.float32), 1.0)
    codes = mx.clip(mx.round(mx.where(usable, blocks, 0.0) * inverse), -127, 127)
    return codes.astype(mx.int8), d
