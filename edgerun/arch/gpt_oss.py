"""gpt-oss (arXiv:2508.10925): experts with biases and a clamped unit, a learned sink in each head's
softmax, a window on every other layer.

Its YaRN does not round where the ramp between kept and divided frequencies begins and ends. The
norm before the experts is the file's ``post_attention_norm``.
"""

from __future__ import annotations

from dataclasses import replace

from edgerun.arch.base import Architecture, ModelConfig, Params, TensorSpec
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors, window, window_pattern
from edgerun.arch.experts import read_experts


def configure(p: Params) -> ModelConfig:
    c = dense_config(p, experts=True, exact_yarn=True)
    base = c.attention[0]
    local = replace(base, window=window(p, c.n_ctx, default=128))
    return replace(
        c,
        attention=tuple(
            local if windowed else base for windowed in window_pattern(p, c.n_layers, default=2)
        ),
        sinks=True,
        experts=read_experts(p, n_ff=c.n_ff, act="swiglu_oai", gating="chosen"),
    )


def tensors(c: ModelConfig) -> dict[str, TensorSpec]:
    specs = dense_tensors(c, qkv_bias=True, out_bias=True, expert_bias=True)
    for i in range(c.n_layers):
        b = f"blk.{i}."
        specs[b + "ffn_norm"] = specs[b + "ffn_norm"]._replace(
            name=b + "post_attention_norm.weight"
        )
    return specs


ARCHITECTURE = Architecture("gpt-oss", configure, tensors, dense_forward)
