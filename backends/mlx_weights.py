"""Matrices as MLX keeps them.

Formats of 32 or more codes to a scale become MLX's affine groups of 32: ``scale * code + bias``.
With float32 scales all of them are exact; with float16 scales, half of the memory traffic, those of
Q4_K and Q5_K are products that round (by 2^-12 of the scale at most), the others are still exact.
MXFP4 is a format of MLX's own. Formats with groups of 16 or a table of values stay as the file has
them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from edgerun.backends import base
from edgerun.backends.mlx_unpack import UNPACKED, unpack
from edgerun.errors import UnsupportedModelError
from edgerun.gguf import GGMLType, dequantize
from edgerun.gguf.blocks.kquants import scales_mins

__all__ = [
    "Floats", "Grouped", "Matrix", "Packed", "Vector", "load", "matrix_bytes", "one_by_one",
]  # fmt: skip

U8 = npt.NDArray[np.uint8]
F32 = npt.NDArray[np.float32]

GROUP = 32
#: Most bytes of float32 that a matrix is unpacked to at once.
_TILE = 64 << 20
_SLICE = 16 << 20  # bytes of the file taken over at once


class Vector:
    """float32 [size]."""

    def __init__(self, values: mx.array) -> None:
        self.values = values
        self.size: int = values.shape[0]


class Matrix(abc.ABC):
    """[n_out, n_in]; what the ops need of it."""

    def __init__(self, n_out: int, n_in: int) -> None:
        self.n_out = n_out
        self.n_in = n_in

    @abc.abstractmethod
    def arrays(self) -> list[mx.array]:
        """What it keeps in memory."""

    @abc.abstractmethod
    def rows(self, at: mx.array | slice) -> mx.array:
        """Some rows in float32: [n, n_in]."""

    def times(self, x: mx.array, alone: bool = False) -> mx.array:
        """``x @ self.T`` in float32, [n_tokens, n_out]: unpacked tile by tile.

        ``alone``: each token by itself, so that its bits do not depend on how many there are.
        """
        step = max(1, _TILE // (4 * self.n_in))
        parts = []
        for i in range(0, self.n_out, step):
            tile = self.rows(slice(i, min(i + step, self.n_out))).T
            parts.append(_by_itself(x, tile) if alone else x @ tile)
        return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=1)


def _by_itself(x: mx.array, tile: mx.array) -> mx.array:
    return one_by_one(x, lambda row: row @ tile)


def one_by_one(x: mx.array, product: Callable[[mx.array], mx.array]) -> mx.array:
    """``product`` of each token by itself: the same op on the same shape whatever the batch."""
    rows = [product(x[i : i + 1]) for i in range(x.shape[0])]
    return rows[0] if len(rows) == 1 else mx.concatenate(rows, axis=0)


class Grouped(Matrix):
    """Codes in MLX's packing, uint32 [n_out, n_in * bits / 32], and for each group of 32 a scale
    and a bias [n_out, n_in / 32]; of MXFP4 an exponent in uint8 and no bias."""

    def __init__(
        self, codes: mx.array, scales: mx.array, biases: mx.array | None, bits: int
    ) -> None:
        super().__init__(scales.shape[0], scales.shape[1] * GROUP)
        self._codes = codes
        self._scales = scales
        self._biases = biases
        mode = "mxfp4" if biases is None else "affine"
        self._how: dict[str, Any] = {"group_size": GROUP, "bits": bits, "mode": mode}

    def arrays(self) -> list[mx.array]:
        return [a for a in (self._codes, self._scales, self._biases) if a is not None]

    def rows(self, at: mx.array | slice) -> mx.array:
        scales, biases = self._scales[at], None
        if self._biases is not None:
            scales, biases = scales.astype(mx.float32), self._biases[at].astype(mx.float32)
        found = mx.dequantize(self._codes[at], scales, biases, **self._how)
        return found.astype(mx.float32)

    def product(self, x: mx.array) -> mx.array:
        """``x @ self.T`` by MLX's own kernels, which differ by how many rows ``x`` has."""
        return mx.quantized_matmul(
            x, self._codes, self._scales, self._biases, transpose=True, **self._how
        )

    def products(self, x: mx.array, ids: mx.array, n: int, in_order: bool) -> mx.array:
        """Where this is ``n`` matrices, one behind another: [..., rows, n_out / n] of
        ``x`` [..., rows, n_in] and the ones that ``ids`` [...] name; ``in_order`` if they rise."""

        def apart(a: mx.array) -> mx.array:
            return a.reshape(n, -1, a.shape[-1])

        biases = None if self._biases is None else apart(self._biases)
        return mx.gather_qmm(
            x, apart(self._codes), apart(self._scales), biases, rhs_indices=ids, transpose=True,
            sorted_indices=in_order, **self._how,
        )  # fmt: skip


class Packed(Matrix):
    """The file's own blocks, uint8 [n_out, row_bytes]."""

    def __init__(self, data: mx.array, kind: int, n_in: int) -> None:
        super().__init__(data.shape[0], n_in)
        self.data = data
        self.kind = kind

    def arrays(self) -> list[mx.array]:
        return [self.data]

    def rows(self, at: mx.array | slice) -> mx.array:
        return unpack(self.data[at], self.kind)


class Floats(Matrix):
    """Plain numbers, [n_out, n_in]."""

    def __init__(self, values: mx.array) -> None:
        super().__init__(values.shape[0], values.shape[1])
        self.values = values

    def arrays(self) -> list[mx.array]:
        return [self.values]

    def rows(self, at: mx.array | slice) -> mx.array:
        return self.values[at].astype(mx.float32)


# -- from the file's blocks -----------------------------------------------------------------------

#: Reads a tensor slice by slice, and gives each to what it is called with.
Each = Callable[[Callable[[slice, U8], None]], None]
#: Codes [n, n_in] of rows of blocks, their scales and biases [n, n_in / 32] in float32.
Split = Callable[[npt.NDArray[Any]], tuple[U8, F32, F32]]


def _layout(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype([*fields])


def _f32(x: npt.NDArray[Any]) -> F32:
    return x.astype(np.float32)


def _low_high(qs: U8) -> U8:
    """Low nibbles, then high ones: [..., k] -> [..., 2 k]."""
    return np.concatenate([qs & np.uint8(15), qs >> np.uint8(4)], axis=-1)


def _five(b: npt.NDArray[Any]) -> U8:
    top = np.unpackbits(b["qh"], axis=-1, bitorder="little")
    codes: U8 = _low_high(b["qs"]) | top << np.uint8(4)
    return codes


def _k(b: npt.NDArray[Any], codes: U8) -> tuple[U8, F32, F32]:
    """A superblock: 8 groups of 32 with 6-bit scales and minima."""
    flat = b.reshape(-1)
    scales, mins = (_f32(x).reshape(*b.shape, 8) for x in scales_mins(flat["scales"]))
    return codes, _f32(b["d"])[..., None] * scales, -(_f32(b["dmin"])[..., None] * mins)


def _k_codes(b: npt.NDArray[Any]) -> U8:
    """4-bit codes, 64 to 32 bytes: [..., 256]."""
    pairs = b["qs"].reshape(*b.shape, 4, 32)
    return _low_high(pairs).reshape(*b.shape, 256)


def _q5_k(b: npt.NDArray[Any]) -> tuple[U8, F32, F32]:
    high = b["qh"][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)
    codes: U8 = _k_codes(b) | high.reshape(*b.shape, 256) << np.uint8(4)
    return _k(b, codes)


def _zero_at(zero: int, codes: U8, b: npt.NDArray[Any]) -> tuple[U8, F32, F32]:
    d = _f32(b["d"])
    return codes, d, d * np.float32(-zero)


_T = GGMLType
#: Type -> (bits of a code, a block, how to split it).
_AFFINE: dict[int, tuple[int, np.dtype[Any], Split]] = {
    _T.Q4_0: (
        4, _layout(("d", "<f2"), ("qs", "u1", 16)), lambda b: _zero_at(8, _low_high(b["qs"]), b),
    ),
    _T.Q4_1: (
        4, _layout(("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)),
        lambda b: (_low_high(b["qs"]), _f32(b["d"]), _f32(b["m"])),
    ),
    _T.Q5_0: (
        5, _layout(("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)),
        lambda b: _zero_at(16, _five(b), b),
    ),
    _T.Q5_1: (
        5, _layout(("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)),
        lambda b: (_five(b), _f32(b["d"]), _f32(b["m"])),
    ),
    _T.Q8_0: (
        8, _layout(("d", "<f2"), ("qs", "u1", 32)),
        lambda b: _zero_at(128, b["qs"] ^ np.uint8(128), b),
    ),
    _T.Q4_K: (
        4, _layout(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)),
        lambda b: _k(b, _k_codes(b)),
    ),
    _T.Q5_K: (
        5, _layout(("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32),
                   ("qs", "u1", 128)),
        _q5_k,
    ),
}  # fmt: skip


_MXFP4 = _layout(("e", "u1"), ("qs", "u1", 16))


def _pack(codes: U8, bits: int) -> npt.NDArray[np.uint32]:
    """A row's codes as one string of bits, the lowest first."""
    if bits == 8:
        packed = np.ascontiguousarray(codes)
    elif bits == 4:
        packed = codes[:, 0::2] | codes[:, 1::2] << np.uint8(4)
    else:
        spread = np.unpackbits(codes[:, :, None], axis=2, count=bits, bitorder="little")
        packed = np.packbits(spread.reshape(len(codes), -1), axis=1, bitorder="little")
    return packed.view(np.uint32)


def matrix_bytes(
    tensor: base.RawTensor, scale_type: npt.DTypeLike, raw: Collection[int] = UNPACKED
) -> int:
    """What :func:`load` makes of a matrix takes so much memory."""
    n_out, n_in = tensor.shape
    scale_bytes = np.dtype(scale_type).itemsize
    if tensor.type in _AFFINE and tensor.type not in raw:
        groups = n_in // GROUP
        return n_out * groups * (4 * _AFFINE[tensor.type][0] + 2 * scale_bytes)
    if tensor.type in raw or tensor.type in (_T.MXFP4, _T.F16, _T.BF16):
        return int(tensor.data.nbytes)
    return 4 * n_out * n_in


def load(
    tensor: base.RawTensor,
    scale_type: npt.DTypeLike,
    raw: Collection[int] = UNPACKED,
    taken: base.Taken | None = None,
) -> Matrix:
    """Take a matrix over, slice by slice.

    Args:
        scale_type: float32 or float16, of affine scales.
        raw: types that stay as the file has them.
        taken: is told of the rows that were read.

    Raises:
        UnsupportedModelError: the type cannot be decoded.
    """
    n_out, n_in = tensor.shape
    step = max(1, _SLICE // tensor.data.shape[-1])
    slices = [slice(i, min(i + step, n_out)) for i in range(0, n_out, step)]

    def each(put: Callable[[slice, U8], None]) -> None:
        for s in slices:
            put(s, np.ascontiguousarray(tensor.data[s]))
            if taken is not None:
                taken(tensor, s.start, s.stop)

    if tensor.type in raw:
        blocks = np.empty(tensor.data.shape, np.uint8)
        each(lambda s, rows: blocks.__setitem__(s, rows))
        return Packed(mx.array(blocks), tensor.type, n_in)
    if tensor.type in _AFFINE:
        return _load_affine(tensor, scale_type, each)
    if tensor.type == _T.MXFP4:
        return _load_mxfp4(tensor, each)
    if tensor.type in (_T.F16, _T.BF16):
        halves = np.empty((n_out, n_in), np.uint16)
        each(lambda s, rows: halves.__setitem__(s, rows.view(np.uint16)))
        return Floats(mx.array(halves).view(mx.float16 if tensor.type == _T.F16 else mx.bfloat16))
    values = np.empty((n_out, n_in), np.float32)
    try:
        each(lambda s, rows: values.__setitem__(s, dequantize(rows, GGMLType(tensor.type))))
    except UnsupportedModelError as e:
        raise UnsupportedModelError(f"tensor {tensor.key}: {e}") from None
    return Floats(mx.array(values))


def _load_affine(
    tensor: base.RawTensor,
    scale_type: npt.DTypeLike,
    each: Each,
) -> Grouped:
    bits, layout, split = _AFFINE[tensor.type]
    n_out, n_in = tensor.shape
    codes = np.empty((n_out, n_in * bits // 32), np.uint32)
    scales = np.empty((n_out, n_in // GROUP), scale_type)
    biases = np.empty_like(scales)

    def put(s: slice, rows: U8) -> None:
        n = len(rows)
        with np.errstate(all="ignore"):  # of hostile scales; they show as logits not finite
            found, scale, bias = split(rows.view(layout))
            scales[s], biases[s] = scale.reshape(n, -1), bias.reshape(n, -1)
        codes[s] = _pack(found.reshape(n, n_in), bits)

    each(put)
    return Grouped(mx.array(codes), mx.array(scales), mx.array(biases), bits)


def _load_mxfp4(tensor: base.RawTensor, each: Each) -> Grouped:
    n_out, n_in = tensor.shape
    codes = np.empty((n_out, n_in // 8), np.uint32)
    exponents = np.empty((n_out, n_in // GROUP), np.uint8)

    def put(s: slice, rows: U8) -> None:
        blocks = rows.view(_MXFP4)
        exponents[s] = blocks["e"]
        codes[s] = _pack(_low_high(blocks["qs"]).reshape(len(rows), n_in), 4)

    each(put)
    return Grouped(mx.array(codes), mx.array(exponents), None, 4)
