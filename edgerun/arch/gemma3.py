"""Gemma 3, text (arXiv:2503.19786): q and k norms, post-norms, five windowed layers to a global.

Windowed layers turn with a rope base of their own and no scaling. Norm weights already include
the family's ``1 +``: the converters add it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np

from edgerun.arch.base import Architecture, ModelConfig, Params
from edgerun.arch.blocks import dense_config, dense_forward, dense_tensors, window, window_pattern
from edgerun.arch.rope import inverse_frequencies
from edgerun.backends.base import Rope


def configure(p: Params) -> ModelConfig:
    c = dense_config(p)
    base = replace(
        c.attention[0],
        # No writer stores the query scale. It is 1/sqrt(head_dim), but in the 27B.
        scale=p.get_float(
            "attention.scale", (c.n_embd / c.n_heads if c.n_layers == 62 else c.head_dim) ** -0.5
        ),
    )
    local = replace(base, window=window(p, c.n_ctx, default=1024))
    n_rot = c.ropes[0].n_rot
    local_base = p.get_float("rope.freq_base_swa", 10000.0, lo=1.0)
    local_rope = Rope(inverse_frequencies(n_rot, local_base).astype(np.float32), False)
    is_global = [not windowed for windowed in window_pattern(p, c.n_layers, default=6)]
    return replace(
        c,
        attention=tuple(base if g else local for g in is_global),
        ropes=tuple(c.ropes[0] if g else local_rope for g in is_global),
        act="gelu",
        embed_scale=math.sqrt(c.n_embd),
        final_softcap=p.get_float("final_logit_softcapping", 0.0, lo=-1.0),
    )


ARCHITECTURE = Architecture(
    "gemma3",
    configure,
    partial(dense_tensors, qkv_bias=False, qk_norm=True, post_norm=True),
    dense_forward,
)
