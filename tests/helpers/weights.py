"""GGUF weights for kernel tests: quantized where the gguf package can, else random codes."""

from __future__ import annotations

import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from gguf.quants import quantize
from numpy.typing import NDArray

#: Byte offsets of the fp16 scales within a block, for types the gguf package cannot write.
HALVES = {
    T.Q2_K: (80, 82),
    T.Q3_K: (108,),
    T.Q4_K: (0, 2),
    T.Q5_K: (0, 2),
    T.Q6_K: (208,),
    T.IQ4_NL: (0,),
    T.IQ4_XS: (0,),
}


def gguf_rows(t: T, n: int, k: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """``n`` rows of ``k`` weights as a GGUF file stores type ``t``: uint8 [n, bytes of a row]."""
    values, size = GGML_QUANT_SIZES[t]
    if t == T.MXFP4:  # any exponent a model may hold, and the subnormal ones
        blocks = rng.integers(0, 256, (n, k // values, size), dtype=np.uint8)
        blocks[..., 0] = rng.integers(118, 128, blocks.shape[:2])
        return blocks.reshape(n, -1)
    if t not in HALVES:
        return np.ascontiguousarray(quantize(rng.standard_normal((n, k), dtype=np.float32), t))
    blocks = rng.integers(0, 256, (n, k // values, size), dtype=np.uint8)
    for at in HALVES[t]:
        d = rng.uniform(0.001, 0.1, (n, k // values, 1)) * rng.choice([-1, 1], (n, k // values, 1))
        blocks[..., at : at + 2] = d.astype(np.float16).view(np.uint8)
    return blocks.reshape(n, -1)


def int8_activations(x: NDArray[np.float32]) -> NDArray[np.float64]:
    """What a linear kernel sees of ``x`` [m, k], as float64: int8 in blocks of 32, a second digit
    for blocks whose squared maximum is above three times the row's mean (act_q8.h)."""
    v = x.reshape(x.shape[0], -1, 32)
    amax = np.abs(v).max(-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.where(amax > 0, np.rint(v * (np.float32(127) / amax)), 0).astype(np.float32)
        d = amax / np.float32(127)
        rest = v - d * first
        second = np.where(amax > 0, np.rint(rest * (np.float32(254) / d)), 0)
    towers = amax**2 > 3 * (amax**2).mean(1, keepdims=True)
    fine = np.where(towers, second.astype(np.float64) * (d / np.float32(254)).astype(np.float64), 0)
    seen: NDArray[np.float64] = first.astype(np.float64) * d.astype(np.float64) + fine
    return seen.reshape(x.shape)
