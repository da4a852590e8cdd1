"""Attention alone on a backend: q, k and v of a token are rows of three random tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import (
    PAGE_SIZE,
    Attention,
    Backend,
    Batch,
    KVLayer,
    Ops,
    Program,
    RawTensor,
    Tensor,
)
from edgerun.backends.reference_kv import rotated
from edgerun.gguf import GGMLType

F32 = npt.NDArray[np.float32]
N_VOCAB = 257


class Rig:
    """One attention layer; logits are its output. Pages are handed out in a scattered order.

    Some keys are ``loud`` times as long as the others: they move the running maximum. Queries are
    whole numbers times a constant, 127 the largest of each 32, so that int8 holds them exactly;
    for a type that rotates them, they are so after that.
    """

    def __init__(
        self,
        backend: Backend,
        spec: Attention,
        kv_type: str,
        *,
        n_pages: int = 64,
        loud: float = 3.0,
    ) -> None:
        rng = np.random.default_rng(spec.n_heads * 1000 + spec.head_dim)
        self.spec = spec
        self.n_pages = n_pages
        self._free = [int(p) for p in rng.permutation(n_pages)]
        widths = [spec.n_heads, spec.n_kv_heads, spec.n_kv_heads]
        tables = [rng.standard_normal((N_VOCAB, n * spec.head_dim), np.float32) for n in widths]
        tables[1][::50] *= loud
        whole = np.clip(np.rint(tables[0] * 32), -127, 127)
        whole.reshape(N_VOCAB, spec.n_heads, spec.head_dim)[..., ::32] = 127
        tables[0] = (whole / 64).astype(np.float32)
        if kv_type == "q4r":
            heads = tables[0].reshape(N_VOCAB, spec.n_heads, spec.head_dim)
            tables[0] = rotated(heads).reshape(N_VOCAB, -1)
        self._q, self._k, self._v = (
            backend.upload(_tensor(f"table{i}", t), "embedding") for i, t in enumerate(tables)
        )
        width = spec.n_heads * spec.head_dim
        self._eye = backend.upload(_tensor("eye", np.eye(width, dtype=np.float32)), "matrix")
        layers = [KVLayer(spec.n_kv_heads, spec.head_dim, spec.window)]
        self.kv = backend.new_kv(layers, n_pages, kv_type)
        self.program = self._prepare(backend, spec)
        self._backend = backend

    def _prepare(self, backend: Backend, spec: Attention) -> Program:
        def forward(ops: Ops) -> Tensor:
            q, k, v = (ops.embed(w) for w in (self._q, self._k, self._v))
            return ops.logits(ops.outputs(ops.attention(q, k, v, 0, spec)), self._eye)

        return backend.prepare(forward, self.kv, self.n_pages * PAGE_SIZE)

    def remember(self, ids: Sequence[int]) -> list[int]:
        """Pages with K and V of ``ids``, whose own attention sees nothing but themselves: a judge
        of the tokens after them need not compute all theirs."""
        whole, pages = self.program, []
        self.program = self._prepare(self._backend, replace(self.spec, window=1))
        for at in range(0, len(ids), PAGE_SIZE):
            self.step([(pages, ids[at : at + PAGE_SIZE], at, 0)])
        self.program = whole
        return pages

    def step(self, rows: Sequence[tuple[list[int], Sequence[int], int, int]]) -> F32:
        """``(pages, ids, n_past, n_outputs)`` a row; the last ``n_outputs`` tokens' results."""
        for pages, ids, n_past, _ in rows:
            while len(pages) * PAGE_SIZE < n_past + len(ids):
                pages.append(self._free.pop())
        batch = Batch.pack(
            [(ids, past, pages, range(len(ids) - n, len(ids))) for pages, ids, past, n in rows]
        )
        return np.array(self.program.run(batch))

    def run(
        self,
        ids: Sequence[int],
        chunks: Sequence[int],
        n_outputs: int,
        pages: list[int] | None = None,
    ) -> F32:
        """Results of the last ``n_outputs`` tokens of a sequence fed in ``chunks``, of which the
        last one is repeated: [n_outputs, n_heads * head_dim].

        ``pages`` of an earlier sequence already hold all but these tokens.
        """
        parts: list[F32] = []
        done = 0 if pages is None else len(ids) - n_outputs
        keep = pages is not None
        pages = [] if pages is None else pages
        sizes = list(chunks)
        while done < len(ids):
            size = sizes.pop(0) if len(sizes) > 1 else sizes[0]
            part = ids[done : done + size]
            wanted = max(0, min(len(part), done + len(part) - (len(ids) - n_outputs)))
            parts.append(self.step([(pages, part, done, wanted)]))
            done += len(part)
        if not keep:
            self._free.extend(pages)
        return np.concatenate(parts)


def ids_of(n: int, seed: int = 0) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, N_VOCAB, n)]


def _tensor(key: str, values: F32) -> RawTensor:
    data = np.ascontiguousarray(values, np.float32)
    return RawTensor(key, GGMLType.F32, data.shape, data.view(np.uint8))
