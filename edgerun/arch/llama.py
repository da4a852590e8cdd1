"""Llama 1 to 3, Mistral, SmolLM and others that files call ``llama``.

GGUF files of this family hold q and k with rows permuted, so rope pairs (2i, 2i+1). Biases are
optional (InternLM-like conversions have them), a sliding window is Mistral 7B v0.1's.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.arch.base import Architecture, ModelConfig, Params
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors, window


def configure(p: Params) -> ModelConfig:
    c = dense_config(p, interleaved=True)
    attention = replace(c.attention[0], window=window(p, c.n_ctx))
    return replace(c, attention=(attention,) * c.n_layers)


ARCHITECTURE = Architecture("llama", configure, dense_tensors, dense_forward)
