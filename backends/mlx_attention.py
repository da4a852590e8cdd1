"""Attention over pages, composed of MLX's own ops: for prompts, and where there is no Metal."""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from edgerun.backends.base import Attention
from edgerun.backends.mlx_kv import Store
from edgerun.backends.mlx_step import Row, Step

__all__ = ["attend", "attend_exactly"]

#: Tokens that :func:`attend_exactly` takes at once, at places that are multiples of it.
_SPLIT = 256


def attend(
    q: mx.array,
    keys: Store,
    values: Store,
    step: Step,
    spec: Attention,
    sinks: mx.array | None = None,
    first: int = 0,
) -> mx.array:
    """Row by row: ``q`` [n_tokens, n_heads * head_dim] -> the same for rows ``first`` and on."""
    rows = range(first, len(step.rows))
    out = [_one_row(q[step.rows[i].span], keys, values, step, i, spec, sinks) for i in rows]
    return out[0] if len(out) == 1 else mx.concatenate(out, axis=0)


def _one_row(
    q: mx.array,
    keys: Store,
    values: Store,
    step: Step,
    at: int,
    spec: Attention,
    sinks: mx.array | None,
) -> mx.array:
    row = step.rows[at]
    n = q.shape[0]
    first = max(0, row.n_past - spec.window + 1) if spec.window else 0
    slots = _shared(step, ("slots", at, first), lambda: row.slots[first:])
    k, v = (s.read(slots).astype(q.dtype).swapaxes(0, 1)[None] for s in (keys, values))
    heads = q.reshape(n, spec.n_heads, spec.head_dim).swapaxes(0, 1)[None]
    mask = None
    if n > 1 or (spec.window and row.n_total - first > spec.window):
        mask = _shared(step, ("mask", at, spec.window), lambda: ~_hidden(row, spec.window, first))
    if spec.softcap > 0:
        out = _capped(heads, k, v, mask, spec, sinks)
    else:
        out = mx.fast.scaled_dot_product_attention(
            heads, k, v, scale=spec.scale, mask=mask, sinks=sinks
        )
    return out[0].swapaxes(0, 1).reshape(n, -1)


def _shared(step: Step, key: object, make: object) -> mx.array:
    found = step.shared.get(key)
    if found is None:
        found = step.shared[key] = mx.array(make())  # type: ignore[operator]
    return found


def _hidden(row: Row, window: int, first: int, stop: int | None = None) -> np.ndarray:
    """Which of the sequence's tokens from ``first`` on each new token does not see: bool
    [n, stop - first]."""
    i = np.arange(row.n_past, row.n_total)[:, None]
    j = np.arange(first, row.n_total if stop is None else stop)[None, :]
    hidden = j > i
    if window:
        hidden |= j <= i - window
    return hidden


def _capped(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    mask: mx.array | None,
    spec: Attention,
    sinks: mx.array | None,
) -> mx.array:
    """With a soft cap, which MLX's fused attention lacks: [1, n_heads, n, head_dim]."""
    group = spec.n_heads // spec.n_kv_heads
    n = q.shape[2]
    grouped = q.reshape(spec.n_kv_heads, group * n, spec.head_dim)
    scores = (grouped @ k[0].swapaxes(1, 2)).astype(mx.float32) * spec.scale
    scores = spec.softcap * mx.tanh(scores / spec.softcap)
    scores = scores.reshape(spec.n_kv_heads, group, n, -1)
    if mask is not None:
        scores = mx.where(mask, scores, -np.inf)
    if sinks is not None:
        sink = sinks.reshape(spec.n_kv_heads, group, 1, 1)
        scores = mx.concatenate([mx.broadcast_to(sink, (*scores.shape[:3], 1)), scores], axis=-1)
    weights = mx.softmax(scores, axis=-1)
    if sinks is not None:
        weights = weights[..., 1:]
    weights = weights.reshape(spec.n_kv_heads, group * n, -1)
    out = weights.astype(v.dtype) @ v[0]
    return out.reshape(1, spec.n_heads, n, spec.head_dim)


def attend_exactly(
    q: mx.array,
    keys: Store,
    values: Store,
    step: Step,
    spec: Attention,
    sinks: mx.array | None = None,
) -> mx.array:
    """:func:`attend`, with the same bits for a token whatever else is computed with it.

    Each token is multiplied by itself, with 256 tokens of its sequence at a time; what it does not
    see adds exact zeros, so it does not matter how many of those others of its row need.
    """
    out = []
    for i, row in enumerate(step.rows):
        n, group = row.n_total - row.n_past, spec.n_heads // spec.n_kv_heads
        heads = q[row.span].reshape(n, spec.n_kv_heads, group, spec.head_dim)
        best = mx.full((n, spec.n_kv_heads, group, 1), -np.inf)
        total, summed = mx.zeros(best.shape), mx.zeros(heads.shape)
        first = max(0, row.n_past - spec.window + 1) if spec.window else 0
        for start in range(first // _SPLIT * _SPLIT, row.n_total, _SPLIT):
            k, v = _split(keys, values, step, i, start, first)
            seen = _shared(
                step, ("seen", i, spec.window, start),
                lambda r=row, s=start: ~_hidden(r, spec.window, s, s + _SPLIT),
            )  # fmt: skip
            scores = (heads @ k) * spec.scale
            if spec.softcap > 0:
                scores = spec.softcap * mx.tanh(scores / spec.softcap)
            scores = mx.where(seen[:, None, None, :], scores, -np.inf)
            top = mx.maximum(best, scores.max(axis=-1, keepdims=True))
            base = mx.where(top == -np.inf, 0.0, top)
            weights = mx.exp(scores - base)
            keep = mx.exp(best - base)
            total = total * keep + weights.sum(axis=-1, keepdims=True)
            summed = summed * keep + weights @ v
            best = top
        if sinks is not None:
            sink = sinks.reshape(1, spec.n_kv_heads, group, 1)
            top = mx.maximum(best, sink)
            keep = mx.exp(best - top)
            total, summed = total * keep + mx.exp(sink - top), summed * keep
        out.append((summed / total).reshape(n, -1))
    return out[0] if len(out) == 1 else mx.concatenate(out, axis=0)


def _split(
    keys: Store, values: Store, step: Step, at: int, start: int, first: int
) -> tuple[mx.array, mx.array]:
    """K [1, n_kv, head_dim, 256] and V [1, n_kv, 256, head_dim] of one split; zeros for what the
    row does not have or no token of it sees."""
    row = step.rows[at]

    def padded() -> np.ndarray:
        found = row.slots[start : start + _SPLIT]
        return np.pad(found, (0, _SPLIT - len(found)))

    def real() -> np.ndarray:
        j = np.arange(start, start + _SPLIT)
        return ((j >= first) & (j < row.n_total))[:, None, None]

    slots = _shared(step, ("padded", at, start), padded)
    used = _shared(step, ("used", at, start, first), real)
    k, v = (mx.where(used, s.read(slots), 0.0).swapaxes(0, 1)[None] for s in (keys, values))
    return k.swapaxes(2, 3), v
