"""A small llama whose matrices have many types, as files called Q4_K_M do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gguf import GGMLQuantizationType as T

from helpers import gguf_build as gb

#: Layer 0 is of K-quants, two types in one launch; in layer 1 nothing goes together.
TYPES: dict[str, int] = {
    "token_embd.weight": T.Q8_0,
    "blk.0.attn_q.weight": T.Q4_K,
    "blk.0.attn_k.weight": T.Q4_K,
    "blk.0.attn_v.weight": T.Q6_K,
    "blk.0.attn_output.weight": T.Q4_K,
    "blk.0.ffn_gate.weight": T.Q4_K,
    "blk.0.ffn_up.weight": T.Q4_K,
    "blk.0.ffn_down.weight": T.Q6_K,
    "blk.1.attn_q.weight": T.Q5_0,
    "blk.1.attn_k.weight": T.F16,
    "blk.1.attn_v.weight": T.Q5_0,
    "blk.1.attn_output.weight": T.Q4_K,
    "blk.1.ffn_gate.weight": T.Q4_K,
    "blk.1.ffn_up.weight": T.Q6_K,
    "blk.1.ffn_down.weight": T.Q8_0,
    "output.weight": T.Q6_K,
}


def write(path: Path, types: Mapping[str, int] = TYPES, n_layer: int = 2) -> Path:
    """Same arguments, same bytes. Heads are 32 wide, four read one."""
    return gb.random_model(
        path, n_embd=256, n_layer=n_layer, n_head=8, n_kv=2, n_ff=512, n_ctx=1024, std=0.05,
        types=types,
    )  # fmt: skip
