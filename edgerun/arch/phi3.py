"""Phi-3, Phi-3.5 and Phi-4-mini (arXiv:2404.14219): fused projections, LongRoPE, a window."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgerun.arch.base import Architecture, ModelConfig, Params
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors, window


def configure(p: Params) -> ModelConfig:
    c = dense_config(p)
    attention = replace(c.attention[0], window=window(p, c.n_ctx))
    return replace(c, attention=(attention,) * c.n_layers)


ARCHITECTURE = Architecture(
    "phi3", configure, partial(dense_tensors, qkv_bias=False, fused=True), dense_forward
)
