"""Qwen3, dense (arXiv:2505.09388): an RMS norm over each head of q and k."""

from __future__ import annotations

from functools import partial

from edgerun.arch.base import Architecture
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors

ARCHITECTURE = Architecture(
    "qwen3", dense_config, partial(dense_tensors, qkv_bias=False, qk_norm=True), dense_forward
)
