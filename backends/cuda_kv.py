"""KV pages on the device: one block of memory, a page holding its tokens for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgerun.backends import base
from edgerun.backends.cuda_attention import kv_part_bytes
from edgerun.backends.cuda_device import ALIGN, Device, aligned
from edgerun.errors import OutOfMemoryError

__all__ = ["CudaKVPool"]


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

    def _page(self, page: int) -> int:
        if not 0 <= page < self.n_pages:
            raise IndexError(f"page {page} of a pool of {self.n_pages}")
        return self.ptr + page * self.page_bytes

    def copy_page(self, src: int, dst: int) -> None:
        self._device.copy(self._page(dst), self._page(src), self.page_bytes)

    def export_page(self, page: int) -> bytes:
        data = np.empty(self.page_bytes, np.uint8)
        self._device.download(data, self._page(page))
        return data.tobytes()

    def import_page(self, page: int, data: bytes) -> None:
        if len(data) != self.page_bytes:
            raise ValueError(f"a page has {self.page_bytes} bytes, not {len(data)}")
        self._device.upload(self._page(page), np.frombuffer(data, np.uint8))

    def close(self) -> None:
        if self.ptr:
            self._device.free(self.ptr)
            self.ptr = 0
