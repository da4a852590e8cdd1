"""OLMoE (arXiv:2409.02060): many small experts; q and k are normed over all their heads at once."""

from __future__ import annotations

from dataclasses import replace

from edgerun.arch.base import Architecture, ModelConfig, Params, TensorSpec
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors
from edgerun.arch.experts import read_experts


def configure(p: Params) -> ModelConfig:
    c = dense_config(p, experts=True)
    return replace(c, experts=read_experts(p, n_ff=c.n_ff))


def tensors(c: ModelConfig) -> dict[str, TensorSpec]:
    specs = dense_tensors(c, qkv_bias=False, qk_norm=True)
    for i in range(c.n_layers):
        for name, heads in (("attn_q_norm", c.n_heads), ("attn_k_norm", c.n_kv_heads)):
            key = f"blk.{i}.{name}"
            specs[key] = specs[key]._replace(shape=(heads * c.head_dim,))
    return specs


ARCHITECTURE = Architecture("olmoe", configure, tensors, dense_forward)
