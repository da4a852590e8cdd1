"""KV pages as MLX arrays, one per layer and kind, a token a row: slot = page * 32 + place in it.

MLX arrays do not change. A write makes a new array out of the old one, in the same memory as long
as nobody else holds the old one: nothing here keeps more than the latest, and what the device has
in flight holds what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from edgerun.backends import base
from edgerun.backends.base import PAGE_SIZE
from edgerun.backends.mlx_elementwise import Elementwise
from edgerun.errors import BackendError

if TYPE_CHECKING:
    from edgerun.backends.mlx_started import StartedStep

__all__ = ["BLOCK", "KV_TYPES", "MLXKVPool", "Store", "pool_bytes"]

KV_TYPES = ("f16", "f32", "q8_0")
#: Values that share a scale in q8_0.
BLOCK = 32


class Store:
    """K or V of one layer.

    ``parts`` are [n_pages * 32, n_kv_heads, head_dim] for f16 and f32. For q8_0 they are int8
    codes, padded to whole blocks, and float16 scales [n_pages * 32, n_kv_heads, blocks].
    """

    def __init__(self, n_pages: int, layer: base.KVLayer, kv_type: str, fused: Elementwise) -> None:
        self._fused = fused
        self.head_dim = layer.head_dim
        self.kv_type = kv_type
        slots = n_pages * PAGE_SIZE
        if kv_type == "q8_0":
            blocks = -(-layer.head_dim // BLOCK)
            shapes = [
                ((slots, layer.n_kv_heads, blocks * BLOCK), np.int8),
                ((slots, layer.n_kv_heads, blocks), np.float16),
            ]
        else:
            dtype = np.float16 if kv_type == "f16" else np.float32
            shapes = [((slots, layer.n_kv_heads, layer.head_dim), dtype)]
        # From numpy, since mx.zeros would be one number until the first write copies it out.
        self.parts = [mx.array(np.zeros(s, t)) for s, t in shapes]

    def write(self, slots: mx.array, x: mx.array) -> None:
        """``x``: float32 [n_tokens, n_kv_heads, head_dim], to int32 ``slots`` [n_tokens]."""
        if self.kv_type != "q8_0":
            self.parts[0][slots] = x.astype(self.parts[0].dtype)
            return
        padding = -x.shape[-1] % BLOCK
        if padding:
            x = mx.pad(x, [(0, 0), (0, 0), (0, padding)])
        codes, scales = self._fused.quantized(x.reshape(*x.shape[:-1], -1, BLOCK))
        self.parts[0][slots] = codes.reshape(x.shape)
        self.parts[1][slots] = scales.squeeze(-1)

    def read(self, slots: mx.array) -> mx.array:
        """float32 [..., n_kv_heads, head_dim] of ``slots`` [...]."""
        x = self.parts[0][slots].astype(mx.float32)
        if self.kv_type != "q8_0":
            return x
        scales = self.parts[1][slots].astype(mx.float32)
        x = x.reshape(*scales.shape, BLOCK) * scales[..., None]
        return x.reshape(*scales.shape[:-1], -1)[..., : self.head_dim]


def pool_bytes(layers: Sequence[base.KVLayer], kv_type: str) -> int:
    """Bytes of one page over all layers."""
    total = 0
    for layer in layers:
        blocks = -(-layer.head_dim // BLOCK)
        each = {"f16": 2 * layer.head_dim, "f32": 4 * layer.head_dim, "q8_0": blocks * (BLOCK + 2)}
        total += 2 * layer.n_kv_heads * each[kv_type] * PAGE_SIZE
    return total


class MLXKVPool(base.KVPool):
    """K and V of every layer."""

    def __init__(
        self,
        layers: Sequence[base.KVLayer],
        n_pages: int,
        kv_type: str,
        fused: Elementwise,
        device: mx.Device,
    ) -> None:
        self.n_pages = n_pages
        self.kv_type = kv_type
        self.page_bytes = pool_bytes(layers, kv_type)
        self.keys = [Store(n_pages, layer, kv_type, fused) for layer in layers]
        self.values = [Store(n_pages, layer, kv_type, fused) for layer in layers]
        #: Why the pages can no longer be used: a step failed half way.
        self.lost: BaseException | None = None
        #: The step started last, unless it is known to be over.
        self.started: StartedStep | None = None
        self.device = device
        with mx.stream(device):
            mx.eval(self.arrays())

    def require(self) -> None:
        """Raise a BackendError if the pages can no longer be used."""
        if self.lost is not None:
            raise BackendError(f"the KV cache was lost: {self.lost}; load the model again")

    def settle(self) -> None:
        """Wait until nothing in flight holds the pages.

        Raises:
            BackendError, OutOfMemoryError: the step that was under way failed, or one before it.
        """
        self.require()
        last, self.started = self.started, None
        if last is not None:
            last.finish()

    def arrays(self) -> list[mx.array]:
        return [a for s in (*self.keys, *self.values) for a in s.parts]

    def _slots(self, page: int) -> mx.array:
        if not 0 <= page < self.n_pages:
            raise IndexError(f"page {page} of a pool of {self.n_pages}")
        return mx.arange(page * PAGE_SIZE, (page + 1) * PAGE_SIZE, dtype=mx.int32)

    def copy_page(self, src: int, dst: int) -> None:
        source, target = self._slots(src), self._slots(dst)
        self.settle()
        copied = [a[source] for a in self.arrays()]
        mx.eval(copied)
        mx.synchronize()  # the next write takes the pool's memory only if nobody reads it
        self._write(target, copied)

    def _write(self, slots: mx.array, pages: list[mx.array]) -> None:
        at = 0
        for store in (*self.keys, *self.values):
            for i in range(len(store.parts)):
                store.parts[i][slots] = pages[at]
                at += 1
        mx.eval(self.arrays())

    def export_page(self, page: int) -> bytes:
        slots = self._slots(page)
        self.settle()
        found = [a[slots] for a in self.arrays()]
        mx.eval(found)
        mx.synchronize()
        return b"".join(np.array(a).tobytes() for a in found)

    def import_page(self, page: int, data: bytes) -> None:
        if len(data) != self.page_bytes:
            raise BackendError(f"a KV page is {self.page_bytes} bytes, not {len(data)}")
        self.settle()
        pages = []
        at = 0
        for part in self.arrays():
            shape = (PAGE_SIZE, *part.shape[1:])
            host = np.frombuffer(data, _numpy_type(part), math.prod(shape), at).reshape(shape)
            pages.append(mx.array(host))
            at += host.nbytes
        del part  # or the write would copy the pool
        self._write(self._slots(page), pages)


def _numpy_type(part: mx.array) -> np.dtype[np.generic]:
    names = {mx.float16: np.float16, mx.float32: np.float32, mx.int8: np.int8}
    return np.dtype(names[part.dtype])
