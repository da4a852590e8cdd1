"""What the Metal products must give, bit for bit: their order of additions in numpy."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType as T
from numpy.typing import NDArray

from helpers.cuda_act import fma
from helpers.cuda_oracle import blocks

F32 = NDArray[np.float32]
_QUARTERS = (T.Q2_K, T.Q3_K, T.Q6_K)
_PAIRS = (T.Q4_K, T.Q5_K)


def places(t: T, k: int) -> NDArray[np.int64]:
    """Which weights of a row a share holds, quad by quad: [k / 16, 4, 4]."""
    quad = np.arange(4)
    if t in _QUARTERS:  # [half, share of 8, quad, weight]
        shape = (k // 128, 4, 8, 4)
        return np.arange(k).reshape(shape).transpose(0, 2, 1, 3).reshape(-1, 4, 4)
    if t in _PAIRS:  # 64 weights: low halves and high halves of 32 bytes, 8 bytes a share
        shape = (k // 64, 2, 4, 2, 4)
        return np.arange(k).reshape(shape).transpose(0, 2, 1, 3, 4).reshape(-1, 4, 4)
    if t == T.Q8_0 or t in (T.F32, T.F16, T.BF16):
        return np.arange(k).reshape(-1, 4, len(quad))
    shape = (k // 32, 2, 2, 2, 4)  # low and high halves of 16 bytes, 8 bytes a share
    return np.arange(k).reshape(shape).transpose(0, 2, 1, 3, 4).reshape(-1, 4, 4)


def product(t: T, rows: NDArray[np.uint8], x: F32) -> F32:
    """``x`` [tokens, k] times rows of a file: float32 [tokens, n]."""
    b = blocks(t, rows)
    n, k = len(rows), x.shape[1]
    code = b.code.reshape(n, k).astype(np.float32)
    halves = np.ones((n, k // 32, 2), np.float32) if b.half is None else b.half.astype(np.float32)
    scale = np.repeat((b.s[..., None] * halves).reshape(n, -1), 16, 1)
    least = None if b.m is None else np.repeat(-b.m.reshape(n, -1), 16, 1)
    run = 1 if t in _QUARTERS else 2 if t in _PAIRS else 4
    shares = places(t, k)
    lanes = np.zeros((32, len(x), n), np.float32)
    for i, share in enumerate(shares):
        total = lanes[i % 32]
        for quads in share.reshape(4 // run, run, 4):
            part = np.zeros_like(total)
            for at in quads.reshape(-1):
                part = fma(code[None, :, at], x[:, at, None], part)
            at = quads[0, 0]
            total = fma(np.broadcast_to(scale[None, :, at], part.shape), part, total)
            if least is not None:
                sums = x[:, quads[0]]
                for more in quads[1:]:
                    sums = sums + x[:, more]
                all_x = (sums[:, 0] + sums[:, 1]) + (sums[:, 2] + sums[:, 3])
                total = fma(-least[None, :, at], all_x[:, None], total)
        lanes[i % 32] = total
    return tree(lanes)


def product_of_floats(w: F32, x: F32) -> F32:
    """``x`` [tokens, k] times ``w`` [n, k], of any k."""
    lanes = np.zeros((32, len(x), len(w)), np.float32)
    for at in range(x.shape[1]):
        lane = at // 16 % 32
        lanes[lane] = fma(w[None, :, at], x[:, at, None], lanes[lane])
    return tree(lanes)


def tree(lanes: F32) -> F32:
    """Sums of 32 lanes, each with the one 16, 8, 4, 2 and 1 away."""
    while len(lanes) > 1:
        lanes = lanes[: len(lanes) // 2] + lanes[len(lanes) // 2 :]
    return lanes[0]
