"""Plain numpy in float32 over dequantized blocks: slow, always there, the judge of the others.

Every op runs when it is called. Sums that decide accuracy (norms, rope angles) are float64;
matrix products are the BLAS's float32, so results may differ in the last bits with batch shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.amounts import size_text
from edgerun.backends.base import (
    PAGE_SIZE,
    Activation,
    Attention,
    Backend,
    Batch,
    Experts,
    ExpertWeights,
    Feature,
    Forward,
    KVLayer,
    KVPool,
    Memory,
    Program,
    RawTensor,
    Role,
    Rope,
)
from edgerun.backends.host import host_memory
from edgerun.backends.reference_kv import ReferenceKV, Store
from edgerun.errors import BackendError, OutOfMemoryError, RequestError, UnsupportedModelError
from edgerun.gguf import GGMLType, dequantize

__all__ = ["ReferenceBackend"]

F32 = npt.NDArray[np.float32]


class ReferenceBackend(Backend):
    """numpy on the CPU. Matrices are kept in float32: four bytes a weight."""

    name = "reference"
    kv_types = ("f32", "f16", "q8_0", "q4r")
    features: frozenset[Feature] = frozenset(("moe", "sinks"))

    def memory(self) -> Memory:
        return host_memory()

    def upload(self, tensor: RawTensor, role: Role) -> F32:
        """Decode a tensor: float32 of ``tensor.shape``."""
        self._reserve(4 * math.prod(tensor.shape), f"tensor '{tensor.key}'")
        try:
            return dequantize(tensor.data, GGMLType(tensor.type)).reshape(tensor.shape)
        except UnsupportedModelError as e:
            raise UnsupportedModelError(f"tensor '{tensor.key}': {e}") from None

    def new_kv(
        self, layers: Sequence[KVLayer], n_pages: int, kv_type: str | None = None
    ) -> ReferenceKV:
        kind = kv_type or self.kv_types[0]
        if kind not in self.kv_types:
            raise BackendError(
                f"kv_type '{kind}' is not one of the reference backend's: "
                f"{', '.join(self.kv_types)}"
            )
        token = sum(layer.token_bytes(kind) for layer in layers)
        self._reserve(token * PAGE_SIZE * n_pages, f"a KV pool of {n_pages} pages")
        return ReferenceKV(layers, n_pages, kind)

    def prepare(self, forward: Forward, kv: KVPool, n_ctx: int) -> ReferenceProgram:
        if not isinstance(kv, ReferenceKV):
            raise BackendError(
                f"the reference backend needs its own KV pool, not {type(kv).__name__}"
            )
        return ReferenceProgram(forward, kv, n_ctx)

    def describe(self) -> Mapping[str, Any]:
        return {"backend": self.name, "device": "CPU", "isa": "numpy", "numpy": np.__version__}

    def _reserve(self, size: int, what: str) -> None:
        free = self.memory().free
        if size > free:
            raise OutOfMemoryError(
                f"{what} needs {size_text(size)} in float32, but {size_text(free)} are "
                "free: use the cpu backend, a smaller model or a smaller n_ctx"
            )


class ReferenceProgram(Program):
    def __init__(self, forward: Forward, kv: ReferenceKV, n_ctx: int) -> None:
        self._forward = forward
        self._kv = kv
        self._n_ctx = n_ctx
        empty = Batch.pack([])
        self.n_vocab = int(forward(_NumpyOps(empty, kv)).shape[1])

    def run(self, batch: Batch) -> F32:
        """One step.

        Raises:
            RequestError: a token id outside the vocabulary.
            BackendError: a position at or past ``n_ctx``, or a row without a page for one of its
                tokens. Nothing was written then.
        """
        if len(batch.positions) and int(batch.positions.max()) >= self._n_ctx:
            raise BackendError(
                f"position {int(batch.positions.max())} is past the context of {self._n_ctx} tokens"
            )
        # Overflow to inf is the caller's to detect: the engine fails that request alone.
        with np.errstate(over="ignore", invalid="ignore"):
            logits: F32 = self._forward(_NumpyOps(batch, self._kv))
        self.best = _best(logits) if batch.want_best else None
        return logits


def _best(logits: F32) -> npt.NDArray[np.int32]:
    """As :attr:`~edgerun.backends.base.Program.best` says."""
    finite = np.isfinite(logits).all(axis=1)
    return np.where(finite, logits.argmax(axis=1), -1).astype(np.int32)


@dataclass(frozen=True, eq=False)
class _Row:
    """A row's place in the batch and where its tokens go."""

    span: slice  # of the batch's tokens
    n_past: int
    n_total: int
    pages: npt.NDArray[np.int32]  # as many as n_total needs
    page: npt.NDArray[np.int64]  # of each new token
    slot: npt.NDArray[np.int64]


def _rows(batch: Batch) -> list[_Row]:
    rows = []
    for r in range(batch.n_rows):
        start, stop = int(batch.row_start[r]), int(batch.row_start[r + 1])
        n_past = int(batch.n_past[r])
        n_total = n_past + stop - start
        pages = batch.pages[r, : -(-n_total // PAGE_SIZE)]
        where = np.arange(n_past, n_total)
        if len(pages) * PAGE_SIZE < n_total or (pages[n_past // PAGE_SIZE :] < 0).any():
            raise BackendError(f"row {r} has {n_total} tokens but pages {pages.tolist()}")
        rows.append(
            _Row(
                slice(start, stop),
                n_past,
                n_total,
                pages,
                pages[where // PAGE_SIZE].astype(np.int64),
                where % PAGE_SIZE,
            )
        )
    return rows


class _NumpyOps:
    """Ops on numpy arrays, for one batch."""

    def __init__(self, batch: Batch, kv: ReferenceKV) -> None:
        self._batch = batch
        self._kv = kv
        self._rows = _rows(batch)
        self._turns: dict[Rope, tuple[F32, F32]] = {}

    def embed(self, weight: F32, scale: float = 1.0) -> F32:
        tokens = self._batch.tokens
        bad = tokens[(tokens < 0) | (tokens >= len(weight))]
        if len(bad):
            raise RequestError(
                f"token id {int(bad[0])} is outside the vocabulary of {len(weight)} tokens"
            )
        rows: F32 = weight[tokens] * np.float32(scale)
        return rows

    def given(self, width: int) -> F32:
        given = self._batch.given
        if given is None and not self._batch.n_tokens:
            return np.zeros((0, width), np.float32)
        if given is None or given.shape != (self._batch.n_tokens, width):
            raise BackendError(f"this program begins with states of {width} values a token")
        return given

    def linear(
        self, x: F32, *weights: F32, bias: Sequence[F32 | None] | None = None
    ) -> tuple[F32, ...]:
        biases: Sequence[F32 | None] = bias if bias is not None else [None] * len(weights)
        products = [x @ w.T for w in weights]
        return tuple(y if b is None else y + b for y, b in zip(products, biases, strict=True))

    def rms_norm(self, x: F32, weight: F32, eps: float) -> F32:
        groups = x.reshape(len(x), -1, len(weight)) if x.size else x.reshape(0, 1, len(weight))
        mean = np.mean(np.square(groups, dtype=np.float64), axis=-1, keepdims=True)
        normed = groups * (1.0 / np.sqrt(mean + eps)).astype(np.float32)
        scaled: F32 = (normed * weight).reshape(x.shape)
        return scaled

    def rope(self, x: F32, head_dim: int, rope: Rope) -> F32:
        if rope not in self._turns:  # by identity: layers share the object
            angles = self._batch.positions[:, None] * rope.inv_freq.astype(np.float64)
            self._turns[rope] = (
                (np.cos(angles) * rope.mscale).astype(np.float32)[:, None],
                (np.sin(angles) * rope.mscale).astype(np.float32)[:, None],
            )
        cos, sin = self._turns[rope]
        n_heads = x.shape[1] // head_dim
        heads = x.reshape(len(x), n_heads, head_dim)
        half = rope.n_rot // 2
        if rope.interleaved:
            first, second = slice(0, rope.n_rot, 2), slice(1, rope.n_rot, 2)
        else:
            first, second = slice(0, half), slice(half, rope.n_rot)
        out: F32 = heads.copy()
        a, b = heads[:, :, first], heads[:, :, second]
        out[:, :, first] = a * cos - b * sin
        out[:, :, second] = a * sin + b * cos
        return out.reshape(x.shape)

    def attention(
        self, q: F32, k: F32, v: F32, layer: int, spec: Attention, sinks: F32 | None = None
    ) -> F32:
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        shape = (-1, spec.n_kv_heads, spec.head_dim)
        out = np.empty_like(q)
        for row in self._rows:
            keys.write((row.page, row.slot), k[row.span].reshape(shape))
            values.write((row.page, row.slot), v[row.span].reshape(shape))
            out[row.span] = _attend(q[row.span], keys, values, row, spec, sinks)
        return out

    def glu(self, gate: F32, up: F32, act: Activation) -> F32:
        y: F32
        if act == "silu":
            y = gate * _sigmoid(gate)
        elif act == "swiglu_oai":
            gate, up = np.minimum(gate, np.float32(7)), np.clip(up, -7, 7) + np.float32(1)
            y = gate * _sigmoid(np.float32(1.702) * gate)
        else:
            z = np.float32(math.sqrt(2 / math.pi)) * (gate + np.float32(0.044715) * gate**3)
            y = np.float32(0.5) * gate * (1 + np.tanh(z))
        return y * up

    def moe(self, x: F32, weights: ExpertWeights, spec: Experts) -> F32:
        (logits,) = self.linear(x, weights.router, bias=[weights.router_bias])
        chosen, share = _route(logits, spec)
        n_out = weights.down.shape[1]
        parts = np.zeros((spec.n_used, len(x), n_out), np.float32)
        for e in np.unique(chosen):
            token, rank = np.nonzero(chosen == e)
            gate = _expert(x[token], weights.gate, weights.gate_bias, e)
            up = _expert(x[token], weights.up, weights.up_bias, e)
            y = self.glu(gate, up, spec.act)
            parts[rank, token] = _expert(y, weights.down, weights.down_bias, e)
        out = np.zeros((len(x), n_out), np.float32)
        for r, part in enumerate(parts):
            out += share[:, r, None] * part
        return out

    def add(self, x: F32, y: F32) -> F32:
        return x + y

    def scale(self, x: F32, factor: float) -> F32:
        y: F32 = x * np.float32(factor)
        return y

    def outputs(self, x: F32) -> F32:
        return x[self._batch.outputs]

    def logits(self, x: F32, weight: F32, softcap: float = 0.0) -> F32:
        return _soft_cap(x @ weight.T, softcap)

    def hidden(self, x: F32) -> F32:
        return x


def _sigmoid(x: F32) -> F32:
    e = np.exp(-np.abs(x))  # never overflows
    y: F32 = np.where(x >= 0, np.float32(1), e) / (1 + e)
    return y


def _softmax(x: F32) -> F32:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    y: F32 = e / e.sum(axis=-1, keepdims=True)
    return y


def _route(logits: F32, spec: Experts) -> tuple[npt.NDArray[np.int64], F32]:
    """Of each token its experts by rank and what they weigh, both [n_tokens, n_used]."""
    chosen = np.argsort(-logits, axis=1, kind="stable")[:, : spec.n_used]
    if spec.gating == "softmax":
        share = np.take_along_axis(_softmax(logits), chosen, axis=1)
        if spec.normalize:
            share = share / share.sum(axis=1, keepdims=True)
    else:
        share = _softmax(np.take_along_axis(logits, chosen, axis=1))
    return chosen, share * np.float32(spec.scale)


def _expert(x: F32, weight: F32, bias: F32 | None, e: int) -> F32:
    """One expert's product; ``bias`` is [n_experts, n_out]."""
    y: F32 = x @ weight[e].T
    return y if bias is None else y + bias[e]


def _soft_cap(x: F32, cap: float) -> F32:
    return np.float32(cap) * np.tanh(x / np.float32(cap)) if cap > 0 else x


def _attend(
    q: F32, keys: Store, values: Store, row: _Row, spec: Attention, sinks: F32 | None
) -> F32:
    """One row's attention: q [n, n_heads * head_dim] against its pages."""
    n, group = len(q), spec.n_heads // spec.n_kv_heads
    first = 0  # the first page any of these tokens sees
    if spec.window:
        first = max(0, row.n_past - spec.window + 1) // PAGE_SIZE
    start = first * PAGE_SIZE
    n_seen = row.n_total - start
    pages = row.pages[first:]

    def gather(pool: Store) -> F32:  # [n_kv_heads, n_seen, head_dim]
        flat = pool.read(pages).reshape(-1, spec.n_kv_heads, spec.head_dim)[:n_seen]
        return np.ascontiguousarray(flat.swapaxes(0, 1), np.float32)

    # Query heads of one KV head lie together: [n_kv_heads, group * n, head_dim].
    heads = q.reshape(n, spec.n_kv_heads, group, spec.head_dim).transpose(1, 2, 0, 3)
    heads = np.ascontiguousarray(heads).reshape(spec.n_kv_heads, group * n, spec.head_dim)
    scores = np.matmul(heads, gather(keys).swapaxes(1, 2)) * np.float32(spec.scale)
    scores = _soft_cap(scores, spec.softcap).reshape(spec.n_kv_heads, group, n, n_seen)
    i = np.arange(row.n_past, row.n_total)[:, None]
    j = np.arange(start, row.n_total)[None, :]
    hidden = j > i
    if spec.window:
        hidden |= j <= i - spec.window
    scores = np.where(hidden, np.float32(-np.inf), scores)
    top = scores.max(axis=-1, keepdims=True)
    if sinks is None:
        scores = np.exp(scores - top)
        scores /= scores.sum(axis=-1, keepdims=True)
    else:
        sink = sinks.reshape(spec.n_kv_heads, group, 1, 1)
        top = np.maximum(top, sink)
        scores = np.exp(scores - top)
        scores /= scores.sum(axis=-1, keepdims=True) + np.exp(sink - top)
    scores = scores.reshape(spec.n_kv_heads, group * n, n_seen)
    out = np.matmul(scores, gather(values)).reshape(spec.n_kv_heads, group, n, spec.head_dim)
    tokens: F32 = out.transpose(2, 0, 1, 3).reshape(n, -1)
    return tokens
