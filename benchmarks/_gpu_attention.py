"""Attention on a GPU against the reference backend: every kind of head, window, cap and storage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from _gpu_cases import Open, other_bits, verdict
from _gpu_run import Case, Row
from kernels.cases_attention import ATTENTION, KV_TYPES

from edgerun.backends.base import (
    F32,
    Attention,
    Backend,
    Batch,
    KVLayer,
    Ops,
    Program,
    RawTensor,
    Rope,
    Tensor,
)
from edgerun.backends.reference import ReferenceBackend
from edgerun.gguf import GGMLType

Heads = tuple[int, int, int, int, float, int, bool, bool]


class _Layer:
    """One attention over tables of Q, K and V by token id, as a program of any backend."""

    def __init__(self, backend: Backend, case: Heads, kv_type: str, n: int, sinks: bool) -> None:
        n_heads, n_kv, dim, window, softcap, n_rot, interleaved, normed = case
        if n_heads * dim % 8:  # rows that the backend refuses
            n_heads, n_kv = 2 * n_heads, 2 * n_kv
        rng = np.random.default_rng(3)

        def vector(values: F32, name: str, role: Any = "vector") -> Any:
            raw = RawTensor(name, GGMLType.F32, values.shape, values.view(np.uint8))
            return backend.upload(raw, role)

        def normal(*shape: int) -> F32:
            return rng.standard_normal(shape, np.float32)

        tables = [
            vector(normal(n, h * dim), f"t{i}", "embedding")
            for i, h in enumerate((n_heads, n_kv, n_kv))
        ]
        norms = [vector(normal(dim).reshape(1, -1)[0], f"n{i}") for i in range(2)]
        sink = vector(3 * normal(n_heads), "sinks") if sinks else None
        freq = (1 / 10000 ** (np.arange(n_rot // 2) * 2 / max(n_rot, 1))).astype(np.float32)
        rope = Rope(freq, interleaved, 1.1)
        spec = Attention(n_heads, n_kv, dim, dim**-0.5, softcap, window)

        def forward(ops: Ops) -> Tensor:
            q, k, v = (ops.embed(t) for t in tables)
            if normed:
                q, k = (ops.rms_norm(x, w, 1e-5) for x, w in zip((q, k), norms, strict=True))
            if n_rot:
                q, k = (ops.rope(x, dim, rope) for x in (q, k))
            return ops.hidden(ops.outputs(ops.attention(q, k, v, 0, spec, sink)))

        pages = -(-n // 32)
        self._pages = np.random.default_rng(1).permutation(pages).tolist()
        kv = backend.new_kv([KVLayer(n_kv, dim, window)], pages, kv_type)
        self._program: Program = backend.prepare(forward, kv, n)

    def run(self, ends: Sequence[int]) -> F32:
        """Results of all tokens, in steps that end so."""
        parts, start = [], 0
        for end in ends:
            row = (range(start, end), start, self._pages, range(end - start))
            parts.append(np.array(self._program.run(Batch.pack([row]))))
            start = end
        return np.concatenate(parts)


def attention(opened: Open, n: int = 330, cases: Sequence[Heads] = ATTENTION) -> Iterator[Case]:
    """Prompts against the reference; chunks, verification and decode against prompts."""

    def act(case: Heads, kv_type: str, sinks: bool, name: str) -> Iterator[Row]:
        backend = opened()
        layer = _Layer(backend, case, kv_type, n, sinks)
        whole = layer.run([n])
        wanted = _Layer(ReferenceBackend(), case, kv_type, n, sinks).run([n])
        error = float(np.sqrt(np.mean((whole - wanted) ** 2)))
        bad = [] if error < 1e-3 else [f"error {error:.1e}"]
        ends = [9, 70, 135, n - 12, n - 4, *range(n - 3, n + 1)]
        bad += other_bits(layer.run(ends), whole, "pieces")
        yield verdict(name, bad)
        backend.close()

    for i, case in enumerate(cases):
        for kv_type in KV_TYPES:
            sinks = i % 2 == 0
            name = f"{kv_type} {'-'.join(map(str, case))}{' sinks' if sinks else ''}"
            yield name, partial(act, case, kv_type, sinks, name)
