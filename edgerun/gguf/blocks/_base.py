"""What the block families share: a decoder's type and bit-field helpers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]
Blocks = np.ndarray[Any, np.dtype[np.void]]


class Decoder(NamedTuple):
    """``layout``: one block as a numpy record; ``decode``: records [n] to float32 [n, cols]."""

    layout: np.dtype[np.void]
    decode: Callable[[Blocks], F32]


def layout(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[np.void]:
    """A packed little-endian record."""
    return np.dtype([*fields])


def f32(a: npt.NDArray[Any]) -> F32:
    return a.astype(np.float32)


def column(a: npt.NDArray[Any]) -> F32:
    """One scale per block: float32 [n, 1]."""
    return a.astype(np.float32)[:, None]


def split(bytes_: U8, bits: int, run: int) -> U8:
    """Unpack ``bits``-wide fields: uint8 [n, k] -> [n, k * 8 // bits].

    Within each ``run`` of bytes, first the lowest field of every byte, then the next one.
    """
    n, k = bytes_.shape
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = bytes_.reshape(n, k // run, 1, run) >> shifts
    low: U8 = fields & np.uint8((1 << bits) - 1)
    return low.reshape(n, -1)


def bits(bytes_: U8) -> U8:
    """Single bits, lowest first: uint8 [n, k] -> [n, 8 * k]."""
    return np.unpackbits(bytes_, axis=-1, bitorder="little")
