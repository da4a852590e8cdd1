"""Granite 3 and 4, dense: llama with four factors, on embeddings, scores, residuals and logits.

Files store them as ``embedding_scale``, ``attention.scale``, ``residual_scale`` and
``logit_scale``; logits are divided by the last.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgerun.arch.base import Architecture, ModelConfig, Params
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors
from edgerun.errors import UnsupportedModelError


def scaled_config(p: Params, *, experts: bool = False) -> ModelConfig:
    """The dense keys and the four factors; 0 stands for a factor that is not there."""
    if not p.get_bool("rope.scaling.finetuned", True):
        raise UnsupportedModelError(
            f"metadata key '{p.key('rope.scaling.finetuned')}' is false: {p.arch} without rope is "
            "not supported"
        )
    c = dense_config(p, interleaved=True, experts=experts)
    return replace(
        c,
        embed_scale=p.get_float("embedding_scale", 0.0, lo=-1.0) or 1.0,
        residual_scale=p.get_float("residual_scale", 0.0, lo=-1.0) or 1.0,
        logit_scale=1.0 / p.get_float("logit_scale", 1.0),
    )


ARCHITECTURE = Architecture(
    "granite",
    scaled_config,
    partial(dense_tensors, qkv_bias=None, out_bias=None),
    dense_forward,
)
