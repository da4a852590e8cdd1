"""Gemma 2 (arXiv:2408.00118): soft-caps, post-norms, a window on every other layer.

Norm weights already include the family's ``1 +``: the converters add it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from edgerun.arch.base import Architecture, ModelConfig, Params
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors, window, window_pattern


def configure(p: Params) -> ModelConfig:
    c = dense_config(p)
    base = replace(
        c.attention[0],
        # No writer stores the query scale. It is 1/sqrt(head_dim), but in the 27B.
        scale=p.get_float(
            "attention.scale", (c.n_embd / c.n_heads if c.n_layers == 46 else c.head_dim) ** -0.5
        ),
        softcap=p.get_float("attn_logit_softcapping", 50.0, lo=-1.0),
    )
    local = replace(base, window=window(p, c.n_ctx, default=4096))
    return replace(
        c,
        attention=tuple(
            local if windowed else base for windowed in window_pattern(p, c.n_layers, default=2)
        ),
        act="gelu",
        embed_scale=math.sqrt(c.n_embd),
        final_softcap=p.get_float("final_logit_softcapping", 30.0, lo=-1.0),
    )


ARCHITECTURE = Architecture(
    "gemma2", configure, partial(dense_tensors, qkv_bias=False, post_norm=True), dense_forward
)
