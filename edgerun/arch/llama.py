"""Llama 1 to 3, Mistral, Mixtral, SmolLM and others that files call ``llama``.

GGUF files of this family hold q and k with rows permuted, so rope pairs (2i, 2i+1). Biases are
optional (InternLM-like conversions have them), a sliding window is Mistral 7B v0.1's, experts are
Mixtral's (arXiv:2401.04088).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgerun.arch.base import Architecture, ModelConfig, Params
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors, window
from edgerun.arch.experts import read_experts


def configure(p: Params) -> ModelConfig:
    c = dense_config(p, interleaved=True, experts=True)
    attention = replace(c.attention[0], window=window(p, c.n_ctx))
    experts = None
    if p.get_int("expert_count", 0, lo=0):
        experts = read_experts(p, n_ff=c.n_ff, normalize=True)
    return replace(c, attention=(attention,) * c.n_layers, experts=experts)


ARCHITECTURE = Architecture(
    "llama", configure, partial(dense_tensors, qkv_bias=None, out_bias=None), dense_forward
)
