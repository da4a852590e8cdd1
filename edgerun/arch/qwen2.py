"""Qwen2 and Qwen2.5 (arXiv:2407.10671): biases on q, k and v."""

from __future__ import annotations

from functools import partial

from edgerun.arch.base import Architecture
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors

ARCHITECTURE = Architecture(
    "qwen2", dense_config, partial(dense_tensors, qkv_bias=True), dense_forward
)
