"""Random weights of real models' shapes and types. Speed does not depend on their values."""

from __future__ import annotations

import numpy as np

from edgerun.gguf import GGMLType as T

SHAPES = {  # arch, hidden, ffn, layers, heads, kv_heads, head_dim, vocab, tied
    "llama-tiny": ("llama", 256, 512, 2, 4, 2, 64, 512, True),
    "smollm2-135m": ("llama", 576, 1536, 30, 9, 3, 64, 49152, True),
    "qwen3-0.6b": ("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "llama-1b": ("llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    "qwen3-4b": ("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "llama-8b": ("llama", 4096, 14336, 32, 32, 8, 128, 128256, False),
    "qwen3moe-1b": ("qwen3moe", 1024, 512, 16, 16, 4, 64, 32000, True),  # ffn: of one expert
}
EXPERTS = {"qwen3moe-1b": (64, 8)}  # in all, of a token
STD = 0.02


def f16(x):
    return np.asarray(x, np.float16).view(np.uint8)


def blocks(rng, qtype, n, std=STD):
    """n random blocks of qtype as uint8 [n, block_bytes]; decoded values have the given std."""

    def scale(steps, size=None):
        return f16(rng.uniform(0.8, 1.2, (n, 1)) * std / steps)

    def raw(k):
        return rng.integers(0, 256, (n, k), np.uint8)

    if qtype == T.Q4_0:
        return np.hstack([scale(4.6), raw(16)])
    if qtype == T.Q4_1:
        d = rng.uniform(0.8, 1.2, (n, 1)) * std / 4.6
        return np.hstack([f16(d), f16(-7.5 * d), raw(16)])
    if qtype == T.Q5_0:
        return np.hstack([scale(9.2), raw(4), raw(16)])
    if qtype == T.Q5_1:
        d = rng.uniform(0.8, 1.2, (n, 1)) * std / 9.2
        return np.hstack([f16(d), f16(-15.5 * d), raw(4), raw(16)])
    if qtype == T.Q8_0:
        return np.hstack([scale(73.9), raw(32)])
    if qtype in (T.Q4_K, T.Q5_K):
        mid, spread = (7.5, 4.6) if qtype == T.Q4_K else (15.5, 9.2)
        d = rng.uniform(0.8, 1.2, (n, 1)) * std / (spread * 32)
        s = rng.integers(24, 41, (n, 8)).astype(np.uint8)  # scale == min code, so codes centre on 0
        lo = s[:, :4]
        hi = s[:, 4:]
        packed = np.empty((n, 12), np.uint8)
        packed[:, 0:4] = (lo & 63) | ((hi >> 4) << 6)
        packed[:, 4:8] = (lo & 63) | ((hi >> 4) << 6)
        packed[:, 8:12] = (hi & 15) | ((hi & 15) << 4)
        body = [raw(32), raw(128)] if qtype == T.Q5_K else [raw(128)]
        return np.hstack([f16(d), f16(mid * d), packed, *body])
    if qtype == T.Q6_K:
        s = rng.integers(8, 13, (n, 16)).astype(np.int8).view(np.uint8)
        return np.hstack([raw(128), raw(64), s, scale(18.5 * 10)])
    if qtype == T.Q2_K:
        d = rng.uniform(0.8, 1.2, (n, 1)) * std / (1.118 * 8)
        s = rng.integers(6, 11, (n, 16)).astype(np.uint8)  # scale == min code, as above
        return np.hstack([s | s << 4, raw(64), f16(d), f16(1.5 * d)])
    if qtype == T.Q3_K:  # any 6-bit scales: they are centred already
        return np.hstack([raw(32), raw(64), raw(12), scale(2.29 * 18.5)])
    if qtype == T.IQ4_NL:
        return np.hstack([scale(68), raw(16)])
    if qtype == T.IQ4_XS:
        return np.hstack([scale(68 * 18.5), raw(2), raw(4), raw(128)])
    if qtype == T.MXFP4:
        return np.hstack([rng.integers(119, 121, (n, 1), np.uint8), raw(16)])
    if qtype in (T.F16, T.BF16):  # one exponent, everything else at random: drawn fast
        keep, exponent = (0x83FF, 9 << 10) if qtype == T.F16 else (0x807F, 121 << 7)
        return (raw(2).view(np.uint16) & np.uint16(keep) | np.uint16(exponent)).view(np.uint8)
    if qtype == T.F32:
        return np.asarray(rng.normal(0, std, (n, 1)), np.float32).view(np.uint8)
    raise SystemExit(f"no random blocks for {qtype.name}")


def quant_of(mix, name, il, layers, ncols):
    """The usual _M mixes: a finer type for the output, attn_v and half of ffn_down."""
    base, fine = {"Q4_K_M": (T.Q4_K, T.Q6_K), "Q5_K_M": (T.Q5_K, T.Q6_K)}.get(
        mix, (getattr(T, mix, None),) * 2
    )
    if base is None:
        raise SystemExit(f"unknown quant {mix}")
    more = il is not None and (
        il < layers // 8 or il >= 7 * layers // 8 or (il - layers // 8) % 3 == 2
    )
    pick = (
        fine
        if (name in ("output", "token_embd") or (name in ("attn_v", "ffn_down") and more))
        else base
    )
    if ncols % 256 and pick in (T.Q4_K, T.Q5_K, T.Q6_K):  # K-quants need rows of 256
        pick = {T.Q4_K: T.Q5_0, T.Q5_K: T.Q5_1, T.Q6_K: T.Q8_0}[pick]
    return pick
