"""Qwen3 with experts (arXiv:2505.09388): 30B-A3B, 235B-A22B, Coder. Every layer has them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgerun.arch.base import Architecture, ModelConfig, Params
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors
from edgerun.arch.experts import read_experts


def configure(p: Params) -> ModelConfig:
    return replace(dense_config(p, experts=True), experts=read_experts(p, normalize=True))


ARCHITECTURE = Architecture(
    "qwen3moe", configure, partial(dense_tensors, qkv_bias=False, qk_norm=True), dense_forward
)
