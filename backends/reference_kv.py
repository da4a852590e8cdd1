"""How the reference backend keeps K and V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import PAGE_SIZE, KVLayer, KVPool
from edgerun.errors import BackendError

__all__ = ["ReferenceKV", "Store"]

F32: TypeAlias = npt.NDArray[np.float32]
#: Pages and slots of tokens.
Where: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]


class Store(Protocol):
    """K or V of a layer."""

    arrays: list[npt.NDArray[Any]]  # [n_pages, PAGE_SIZE, n_kv_heads, ...]

    def write(self, where: Where, x: F32) -> None:
        """``x``: [n_tokens, n_kv_heads, head_dim]."""

    def read(self, pages: npt.NDArray[np.int32]) -> F32:
        """[len(pages), PAGE_SIZE, n_kv_heads, head_dim]."""
        ...


class _Floats:
    """Plain floats."""

    def __init__(self, shape: tuple[int, ...], dtype: type[np.floating[Any]]) -> None:
        self.arrays: list[npt.NDArray[Any]] = [np.zeros(shape, dtype)]

    def write(self, where: Where, x: F32) -> None:
        self.arrays[0][where] = x

    def read(self, pages: npt.NDArray[np.int32]) -> F32:
        x: F32 = self.arrays[0][pages].astype(np.float32, copy=False)
        return x


class _Q8:
    """int8 with an fp16 scale per 32 dimensions; a head's last block may be shorter.

    A scale is the largest magnitude / 127; a block holding NaN or infinity reads as NaN.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._head_dim = shape[-1]
        blocks = (*shape[:-1], -(-shape[-1] // 32))
        codes, scales = np.zeros((*blocks, 32), np.int8), np.zeros((*blocks, 1), np.float16)
        self.arrays: list[npt.NDArray[Any]] = [codes, scales]

    def write(self, where: Where, x: F32) -> None:
        codes, scales = self.arrays
        padded = np.zeros((*x.shape[:-1], codes.shape[-2] * 32), np.float32)
        padded[..., : self._head_dim] = x
        blocks = padded.reshape(*x.shape[:-1], -1, 32)
        d = (np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)).astype(np.float16)
        usable = np.isfinite(d) & (d > 0)
        inverse = np.float32(1) / np.where(usable, d, 1).astype(np.float32)
        rounded = np.clip(np.rint(np.where(usable, blocks, 0) * inverse), -127, 127)
        codes[where], scales[where] = rounded.astype(np.int8), d

    def read(self, pages: npt.NDArray[np.int32]) -> F32:
        codes, scales = (a[pages] for a in self.arrays)
        x: F32 = codes.astype(np.float32) * scales.astype(np.float32)
        return x.reshape(*x.shape[:-2], -1)[..., : self._head_dim]


class _Q4R:
    """4-bit codes of 16 levels with an fp16 scale per 32 dimensions of the rotated head.

    As ``kernels_cpu/src/kv_q4.h`` says, and in float32 operations of the same order: the codes are
    the same. Reading turns back what writing turned, so that queries and results stay as they are.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._head_dim = shape[-1]
        blocks = (*shape[:-1], -(-shape[-1] // 32))
        codes, scales = np.zeros((*blocks, 16), np.uint8), np.zeros((*blocks, 1), np.float16)
        self.arrays: list[npt.NDArray[Any]] = [codes, scales]
        used = np.arange(blocks[-1] * 32).reshape(-1, 32) < shape[-1]
        self._used = used.astype(np.float32)

    def write(self, where: Where, x: F32) -> None:
        codes, scales = self.arrays
        padded = np.zeros((*x.shape[:-1], codes.shape[-2] * 32), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            padded[..., : self._head_dim] = rotated(x)
            found, scales[where] = self._encode(padded.reshape(*x.shape[:-1], -1, 32))
        codes[where] = found[..., :16] | found[..., 16:] << 4

    def _encode(self, x: F32) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
        top = np.abs(x).max(axis=-1, keepdims=True)
        least = np.full_like(top, np.inf)
        best_codes = np.zeros(x.shape, np.uint8)
        best_scales = np.full(top.shape, np.nan, np.float16)
        for factor in _Q4_SCALES:
            half = (top * factor).astype(np.float16)
            d = half.astype(np.float32)
            usable = np.isfinite(d) & (d != 0)
            ratio = x * np.where(usable, 1 / np.where(usable, d, 1), 0)
            found = np.searchsorted(_Q4_MIDDLES, ratio).astype(np.uint8)
            off = np.square((_Q4_LEVELS[found] * d - x) * self._used)
            for n in (16, 8, 4, 2, 1):  # halves on halves
                off = off[..., :n] + off[..., n:]
            better = off < least
            least = np.where(better, off, least)
            best_codes = np.where(better, found, best_codes)
            best_scales = np.where(better, half, best_scales)
        return best_codes, best_scales

    def read(self, pages: npt.NDArray[np.int32]) -> F32:
        both, scales = (a[pages] for a in self.arrays)
        codes = np.concatenate([both & 15, both >> 4], axis=-1)
        x: F32 = _Q4_LEVELS[codes] * scales.astype(np.float32)
        return rotated(x.reshape(*x.shape[:-2], -1)[..., : self._head_dim])


_Q4_LEVELS = np.array(
    [-127, -101, -79, -62, -47, -33, -21, -9, 2, 14, 25, 37, 50, 65, 83, 107], np.float32
)
_Q4_MIDDLES = (_Q4_LEVELS[1:] + _Q4_LEVELS[:-1]) / 2
_Q4_SCALES = np.array([0.90, 0.98, 1.08, 1.18], np.float32) / np.float32(127)
_Q4_SCALES = np.concatenate([_Q4_SCALES, -_Q4_SCALES])


def rotated(x: F32) -> F32:
    """Heads [..., head_dim] after a normalized Hadamard transform over blocks of the largest power
    of two that divides ``head_dim``; its own inverse."""
    n = x.shape[-1] & -x.shape[-1]
    y = x.reshape(*x.shape[:-1], -1, n).astype(np.float32)
    for _ in range(n.bit_length() - 1):
        a, b = y[..., 0::2], y[..., 1::2]
        y = np.concatenate([a + b, a - b], axis=-1)
    y = y * (np.float32(1) / np.sqrt(np.float32(n)))
    out: F32 = y.reshape(x.shape)
    return out


def _store(shape: tuple[int, ...], kv_type: str) -> Store:
    if kv_type == "q4r":
        return _Q4R(shape)
    if kv_type == "q8_0":
        return _Q8(shape)
    return _Floats(shape, np.float16 if kv_type == "f16" else np.float32)


class ReferenceKV(KVPool):
    """K and V of every layer."""

    def __init__(self, layers: Sequence[KVLayer], n_pages: int, kv_type: str) -> None:
        self.n_pages = n_pages
        shapes = [(n_pages, PAGE_SIZE, x.n_kv_heads, x.head_dim) for x in layers]
        self.keys = [_store(s, kv_type) for s in shapes]
        self.values = [_store(s, kv_type) for s in shapes]
        self.page_bytes = sum(a[0].nbytes for a in self._arrays()) if n_pages else 0

    def _arrays(self) -> list[npt.NDArray[Any]]:
        return [a for store in (*self.keys, *self.values) for a in store.arrays]

    def copy_page(self, src: int, dst: int) -> None:
        for a in self._arrays():
            a[dst] = a[src]

    def export_page(self, page: int) -> bytes:
        return b"".join(a[page].tobytes() for a in self._arrays())

    def import_page(self, page: int, data: bytes) -> None:
        if len(data) != self.page_bytes:
            raise BackendError(f"a KV page is {self.page_bytes} bytes, not {len(data)}")
        pos = 0
        for a in self._arrays():
            part = np.frombuffer(data, a.dtype, a[page].size, pos)
            a[page] = part.reshape(a[page].shape)
            pos += part.nbytes
