"""KV pages on the device: one block of memory, a page holding its tokens for all layers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgerun.backends import base
from edgerun.backends.cuda_attention import kv_part_bytes
from edgerun.backends.cuda_device import ALIGN, Bytes, Device, aligned
from edgerun.backends.swap import SwapSpace
from edgerun.errors import OutOfMemoryError

__all__ = ["CudaKVPool"]

_SLAB = 32 << 20  # bytes of host memory taken at once: pinning them takes about 10 ms
_MEASURED = 8  # pages


@dataclass(frozen=True)
class _Layer:
    k: int  # bytes from a page's start
    v: int


class CudaKVPool(base.KVPool):
    """Page ``p`` begins at ``ptr + p * page_bytes``; ``layers[i]`` says where layer i's K and V lie
    in it.

    Raises:
        OutOfMemoryError: it does not fit.
    """

    def __init__(
        self, device: Device, layers: Sequence[base.KVLayer], n_pages: int, kv_type: str
    ) -> None:
        self._device = device
        self.n_pages = n_pages
        self.kv_type = kv_type
        self.layers: list[_Layer] = []
        at = 0
        for layer in layers:
            part = kv_part_bytes(kv_type, layer.n_kv_heads, layer.head_dim)
            self.layers.append(_Layer(at, at + part))
            at += 2 * part
        self.page_bytes = aligned(at)
        size = self.page_bytes * n_pages
        try:
            self.ptr = device.alloc(max(size, ALIGN))
        except OutOfMemoryError as e:
            raise OutOfMemoryError(f"no memory for a KV cache of {n_pages} pages: {e}") from None
        # What attention multiplies by a weight of zero must not be NaN.
        device.zero(self.ptr, max(size, ALIGN))

    def address(self, page: int) -> int:
        """Where a page begins."""
        if not 0 <= page < self.n_pages:
            raise IndexError(f"page {page} of a pool of {self.n_pages}")
        return self.ptr + page * self.page_bytes

    def copy_page(self, src: int, dst: int) -> None:
        self._device.copy(self.address(dst), self.address(src), self.page_bytes)

    def export_page(self, page: int) -> bytes:
        data = np.empty(self.page_bytes, np.uint8)
        self._device.download(data, self.address(page))
        return data.tobytes()

    def import_page(self, page: int, data: bytes) -> None:
        if len(data) != self.page_bytes:
            raise ValueError(f"a page has {self.page_bytes} bytes, not {len(data)}")
        self._device.upload(self.address(page), np.frombuffer(data, np.uint8))

    def swap_space(self) -> SwapSpace:
        return _CudaSwap(self._device, self)

    def close(self) -> None:
        if self.ptr:
            self._device.free(self.ptr)
            self.ptr = 0


class _CudaSwap(SwapSpace):
    """Slots in pinned memory, which goes with the device. The device does the copies, in its order,
    and nothing else looks at the slots: so nobody waits for a copy."""

    def __init__(self, device: Device, kv: CudaKVPool) -> None:
        self._device = device
        self._kv = kv
        self._slots: list[Bytes] = []

    def grow(self, most: int) -> None:
        size, first = self._kv.page_bytes, self.n_slots
        n = min(most - first, max(1, _SLAB // size))
        if n < 1:
            return
        slab = self._device.pinned(n * size)
        self._slots += [slab[i * size : (i + 1) * size] for i in range(n)]
        self.n_slots = len(self._slots)
        if not first:
            self._measure(min(n, self._kv.n_pages, _MEASURED))

    def _measure(self, n: int) -> None:
        """Time copies to the first ``n`` slots."""
        self.save(0, 0)  # the first copy of all takes longer
        self._device.sync()
        began = time.perf_counter()
        for i in range(n):
            self.save(i, i)
        self._device.sync()
        self.copy_seconds = (time.perf_counter() - began) / n

    def save(self, page: int, slot: int) -> None:
        self._device.fetch(self._slots[slot], self._kv.address(page))

    def restore(self, slot: int, page: int) -> None:
        self._device.upload(self._kv.address(page), self._slots[slot])
