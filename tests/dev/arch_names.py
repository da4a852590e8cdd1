"""GGUF's names, orders and metadata of transformers' models, by the conventions of the gguf
package's converters. For make_arch_fixtures.py."""

from __future__ import annotations

from typing import Any

import gguf
import numpy as np
from arch_variants import N_VOCAB

PAIRS = ("llama", "granite", "granitemoe")  # whose rope turns neighbours
ROUTERS = ("mlp.gate.weight", "mlp.router.weight", "moe.router.weight")
NAMES = {
    "embed_tokens.weight": "token_embd.weight",
    "lm_head.weight": "output.weight",
    "norm.weight": "output_norm.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.sinks": "attn_sinks",  # a parameter itself
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def is_matrix(name: str, p: Any) -> bool:
    """Whether its file tensor may have another type than F32."""
    return p.ndim > 1 and not name.endswith(ROUTERS) and "bias" not in name


def gguf_name(name: str, arch: str) -> str:
    name = name.removeprefix("model.")
    if name in NAMES:
        return NAMES[name]
    _, layer, rest = name.split(".", 2)
    if rest in LAYER_NAMES:
        rest += ".weight"
    part, suffix = rest.rsplit(".", 1)
    if arch == "gpt-oss" and part == "post_attention_layernorm":
        return f"blk.{layer}.post_attention_norm.{suffix}"
    table = {**LAYER_NAMES, **GEMMA_NAMES} if arch.startswith("gemma") else LAYER_NAMES
    return f"blk.{layer}.{table[part]}.{suffix}"


def permute(w: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows of each head from halves to pairs: GGUF's llama rope turns (2i, 2i + 1)."""
    return w.reshape(n_heads, 2, -1, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def expert_parts(name: str, data: np.ndarray, arch: str) -> dict[str, np.ndarray] | None:
    """A tensor of all experts of a layer as GGUF has it; None if it is something else. Gate and up
    lie behind one another, gpt-oss's rows alternate and are columns."""
    if ".experts." not in name:
        return None
    layer, part = name.split(".")[2], name.split(".")[-1]
    suffix = "bias" if part.endswith("_bias") else "weight"
    oss = arch == "gpt-oss"
    if oss and suffix == "weight":
        data = data.swapaxes(1, 2)
    if part.startswith("down"):
        return {f"blk.{layer}.ffn_down_exps.{suffix}": data}
    half = data.shape[1] // 2
    gate, up = (data[:, ::2], data[:, 1::2]) if oss else (data[:, :half], data[:, half:])
    return {
        f"blk.{layer}.ffn_gate_exps.{suffix}": gate,
        f"blk.{layer}.ffn_up_exps.{suffix}": up,
    }


def write_metadata(w: gguf.GGUFWriter, c: Any, head_dim: int) -> None:
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    rope = c.rope_parameters.get("full_attention", c.rope_parameters)
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += ["▁", *(chr(ord("a") + i) for i in range(26))]
    tokens += [f"▁{chr(ord('a') + i)}" for i in range(N_VOCAB - len(tokens))]
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(N_VOCAB)])
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (N_VOCAB - 259))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
