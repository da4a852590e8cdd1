"""Granite 3 with experts in every layer, 1B-A400M and 3B-A800M, and the factors of ``granite``."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgerun.arch.base import Architecture, ModelConfig, Params
from edgerun.arch.blocks import dense_forward, dense_tensors
from edgerun.arch.experts import read_experts
from edgerun.arch.granite import scaled_config


def configure(p: Params) -> ModelConfig:
    c = scaled_config(p, experts=True)
    return replace(c, experts=read_experts(p, n_ff=c.n_ff, normalize=True))


ARCHITECTURE = Architecture(
    "granitemoe", configure, partial(dense_tensors, qkv_bias=None, out_bias=None), dense_forward
)
