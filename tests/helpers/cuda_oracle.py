"""The CUDA matrix products bit for bit in numpy: the order of additions of dot.cuh, over codes and
scales read straight from the file format."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, quants
from gguf import GGMLQuantizationType as T
from numpy.typing import NDArray

from helpers.cuda_act import Digits, fma

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
U8 = NDArray[np.uint8]


class Blocks(NamedTuple):
    """Rows as blocks of 32: a value is ``s * (half or 1) * code + m``."""

    code: I64  # [n, blocks, 32]
    s: F32  # [n, blocks]
    half: I64 | None  # [n, blocks, 2], of each 16 values
    m: F32 | None  # [n, blocks, 2]


def _f16(b: U8) -> F32:
    return np.ascontiguousarray(b).view(np.float16).astype(np.float32)[..., 0]


def _nibbles(b: U8) -> I64:
    """Bytes [.., 16] to 32 codes: low nibbles, then high ones."""
    return np.concatenate([b & 15, b >> 4], -1).astype(np.int64)


def _k_scales(b: U8) -> tuple[I64, I64]:
    """The 12 bytes of Q4_K and Q5_K: eight scales, eight minima."""
    s = b.astype(np.int64)
    scales = np.concatenate([s[..., :4] & 63, s[..., 8:] & 15 | s[..., :4] >> 6 << 4], -1)
    minima = np.concatenate([s[..., 4:8] & 63, s[..., 8:] >> 4 | s[..., 4:8] >> 6 << 4], -1)
    return scales, minima


def _small(t: T, b: U8) -> Blocks:
    """Types with blocks of 32."""
    twice = lambda m: np.stack([m, m], -1)  # noqa: E731
    if t == T.Q8_0:
        return Blocks(b[..., 2:].view(np.int8).astype(np.int64), _f16(b[..., :2]), None, None)
    if t == T.MXFP4:
        table = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
        e = b[..., 0].astype(np.float64)
        return Blocks(
            table[_nibbles(b[..., 1:])], (2.0 ** (e - 128)).astype(np.float32), None, None
        )
    d, at = _f16(b[..., :2]), {T.Q4_1: 4, T.Q5_0: 6, T.Q5_1: 8}.get(t, 2)
    q = _nibbles(b[..., at:])
    if t in (T.Q5_0, T.Q5_1):
        q = q | np.unpackbits(b[..., at - 4 : at], axis=-1, bitorder="little").astype(np.int64) << 4
    if t == T.IQ4_NL:
        return Blocks(np.array(quants.IQ4_NL.kvalues, np.int64)[q], d, None, None)
    if t in (T.Q4_1, T.Q5_1):
        return Blocks(q, d, None, twice(_f16(b[..., 2:4])))
    return Blocks(q - (8 if t == T.Q4_0 else 16), d, None, None)


def _super(t: T, b: U8) -> Blocks:
    """Types with blocks of 256, as eight of 32."""
    shape = b.shape[:-1]
    if t in (T.Q4_K, T.Q5_K):
        scales, minima = _k_scales(b[..., 4:16])
        qs = b[..., -128:].reshape(*shape, 4, 1, 32)
        code = np.concatenate([qs & 15, qs >> 4], -2).astype(np.int64).reshape(*shape, 8, 32)
        if t == T.Q5_K:
            code |= (b[..., None, 16:48] >> np.arange(8)[:, None] & 1).astype(np.int64) << 4
        m = -_f16(b[..., 2:4])[..., None] * minima.astype(np.float32)
        s = _f16(b[..., :2])[..., None] * scales.astype(np.float32)
        return Blocks(code, s, None, np.stack([m, m], -1))
    if t == T.IQ4_XS:
        low = _nibbles(b[..., 4:8]).reshape(*shape, 2, 4).swapaxes(-1, -2).reshape(*shape, 8)
        high = np.ascontiguousarray(b[..., 2:4]).view(np.uint16).astype(np.int64)
        scales = (low | (high >> 2 * np.arange(8) & 3) << 4) - 32
        code = np.array(quants.IQ4_NL.kvalues)[_nibbles(b[..., 8:].reshape(*shape, 8, 16))]
        return Blocks(
            code.astype(np.int64),
            _f16(b[..., :2])[..., None] * scales.astype(np.float32),
            None,
            None,
        )
    if t == T.Q6_K:
        ql, qh = b[..., :128].reshape(*shape, 2, 2, 32), b[..., 128:192].reshape(*shape, 2, 1, 32)
        code = np.concatenate([ql & 15, ql >> 4], -2) | (qh >> np.arange(0, 8, 2)[:, None] & 3) << 4
        half = b[..., 192:208].view(np.int8).astype(np.int64).reshape(*shape, 8, 2)
        d = _f16(b[..., 208:])
        return Blocks(code.astype(np.int64).reshape(*shape, 8, 32) - 32, _eight(d), half, None)
    qs = b[..., 16:80] if t == T.Q2_K else b[..., 32:96]
    code = (qs.reshape(*shape, 2, 1, 32) >> np.arange(0, 8, 2)[:, None] & 3).astype(np.int64)
    code = code.reshape(*shape, 8, 32)
    if t == T.Q2_K:
        sm = b[..., :16].astype(np.int64).reshape(*shape, 8, 2)
        m = -_f16(b[..., 82:])[..., None, None] * (sm >> 4).astype(np.float32)
        return Blocks(code, _eight(_f16(b[..., 80:82])), sm & 15, m)
    code += (b[..., None, :32] >> np.arange(8)[:, None] & 1).astype(np.int64) * 4 - 4
    s = b[..., 96:108].astype(np.int64)
    low = np.concatenate([s[..., :8] & 15, s[..., :8] >> 4], -1)
    high = np.concatenate([s[..., 8:] >> i & 3 for i in (0, 2, 4, 6)], -1)
    half = ((low | high << 4) - 32).reshape(*shape, 8, 2)
    return Blocks(code, _eight(_f16(b[..., 108:])), half, None)


def _eight(d: F32) -> F32:
    return np.repeat(d[..., None], 8, -1)


def blocks(t: T, rows: U8) -> Blocks:
    """Rows as the file holds them, uint8 [n, bytes], in blocks of 32."""
    k, size = GGML_QUANT_SIZES[t]
    b = rows.reshape(len(rows), -1, size)
    if k == 32:
        return _small(t, b)
    return Blocks(
        *(p if p is None else p.reshape(len(rows), -1, *p.shape[3:]) for p in _super(t, b))
    )


def _add_digit(w: Blocks, b: int, q: I64, d: F32, o: F32) -> F32:
    """``o`` plus block b of one digit: an exact integer, then one fma."""
    if w.half is None:
        total = q @ w.code[:, b].T
    else:
        low, high = (q[:, h] @ w.code[:, b, h].T for h in (slice(0, 16), slice(16, 32)))
        total = low * w.half[:, b, 0] + high * w.half[:, b, 1]
    with np.errstate(invalid="ignore"):
        return fma(total.astype(np.float32), w.s[None, :, b] * d[:, None], o)


def _add_minima(w: Blocks, b: int, x: Digits, o: F32) -> F32:
    if w.m is None:
        return o
    if w.half is None:
        return fma(w.m[None, :, b, 0], x.x[:, b, None], o)
    o = fma(w.m[None, :, b, 0], (x.x[:, b] - x.x1[:, b])[:, None], o)
    return fma(w.m[None, :, b, 1], x.x1[:, b, None], o)


def product(t: T, rows: U8, x: Digits) -> F32:
    """``x @ weights.T`` with the kernels' bits, float32 [tokens, n]."""
    w = blocks(t, rows)
    n_blocks = w.code.shape[1]
    chunks = -(-n_blocks // 8)
    n_parts = min(8, chunks)
    parts = np.zeros((n_parts, len(x.d), len(rows)), np.float32)
    for first in range(0, n_blocks, 2):  # groups of 64 k
        part = first // 8 % n_parts
        both = range(first, min(first + 2, n_blocks))
        for b in both:
            parts[part] = _add_digit(w, b, x.q[:, b], x.d[:, b], parts[part])
            parts[part] = _add_minima(w, b, x, parts[part])
        for b in both:
            parts[part] = _add_digit(w, b, x.q2[:, b], x.d2[:, b], parts[part])
    y = parts[0]
    for p in parts[1:]:
        y = y + p
    return y
