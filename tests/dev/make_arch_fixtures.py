#!/usr/bin/env python3
"""Make tests/fixtures/arch: one tiny random model per architecture variant, with golden logits.

The judge is Hugging Face transformers in float32. Each model gets weights large enough that every
part of it matters, is run by transformers over a fixed prompt, and written as GGUF by the gguf
package under the conventions of its converters (permuted q and k for llama, ``1 +`` folded into
Gemma's norms, fused tensors for Phi-3, experts' gates and ups apart). Nothing of edgerun is used
here. Of a model with experts such weights are taken that no token's choice of them is close.

    pip install torch transformers gguf
    python tests/dev/make_arch_fixtures.py [NAME ...]

NAME.gguf holds the model; NAME.npz holds ``ids`` int32 [n] and ``logits`` float32 [n, n_vocab],
and for the LongRoPE model ``ids_short``, ``logits_short`` for a context within the original one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers as hf

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "arch"
N_VOCAB = 300
N_PROMPT = 41

Extra = Callable[[gguf.GGUFWriter, Any, Any], None]  # writer, transformers' model, config


@dataclass
class Variant:
    arch: str
    config: Any
    half: bool = False  # matrices stored as float16
    extra: Extra | None = None
    lengths: dict[str, int] = field(default_factory=lambda: {"": N_PROMPT})


COMMON: dict[str, Any] = {
    "vocab_size": N_VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def config(cls: Any, **changes: Any) -> Any:
    return cls(**{**COMMON, **changes})


def rope_freqs(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    """Llama 3's divisors: how far transformers' frequencies are from the plain ones."""
    n_rot = c.head_dim
    plain = c.rope_parameters["rope_theta"] ** (-np.arange(0, n_rot, 2) / n_rot)
    scaled = model.model.rotary_emb.inv_freq.numpy()
    w.add_tensor("rope_freqs.weight", (plain / scaled).astype(np.float32))


def window(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    w.add_sliding_window(c.sliding_window)


def yarn(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(c.rope_parameters["factor"])
    w.add_rope_scaling_orig_ctx_len(c.rope_parameters["original_max_position_embeddings"])


def linear(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    w.add_rope_scaling_factor(c.rope_parameters["factor"])


def experts(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    w.add_expert_count(getattr(c, "num_experts", None) or c.num_local_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    if width := getattr(c, "moe_intermediate_size", None):
        w.add_expert_feed_forward_length(width)


def gpt_oss(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    experts(w, model, c)
    yarn(w, model, c)
    window(w, model, c)
    w.add_expert_feed_forward_length(c.intermediate_size)


def gemma2(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    w.add_sliding_window(c.sliding_window)
    w.add_attn_logit_softcapping(c.attn_logit_softcapping)
    w.add_final_logit_softcapping(c.final_logit_softcapping)


def gemma3(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    w.add_sliding_window(c.sliding_window)
    w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    w.add_rope_scaling_factor(c.rope_parameters["full_attention"]["factor"])


def longrope(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    rope = c.rope_parameters
    original = c.original_max_position_embeddings
    scale = c.max_position_embeddings / original
    w.add_rope_scaling_orig_ctx_len(original)
    w.add_rope_scaling_attn_factors(float(np.sqrt(1 + np.log(scale) / np.log(original))))
    w.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], np.float32))
    w.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], np.float32))


def variants() -> dict[str, Variant]:
    theta = 10000.0
    gemma = {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    return {
        "llama": Variant("llama", config(hf.LlamaConfig), half=True),
        "llama3": Variant(
            "llama",
            config(
                hf.LlamaConfig,
                head_dim=16,  # not hidden_size / heads
                attention_bias=True,
                tie_word_embeddings=True,
                rope_parameters={
                    "rope_type": "llama3",
                    "rope_theta": 5000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            ),
            extra=rope_freqs,
        ),
        "llama_linear": Variant(
            "llama",
            config(
                hf.LlamaConfig,
                rope_parameters={"rope_type": "linear", "rope_theta": theta, "factor": 4.0},
            ),
            extra=linear,
        ),
        "mistral": Variant(
            "llama", config(hf.MistralConfig, head_dim=8, sliding_window=12), extra=window
        ),
        "qwen2": Variant("qwen2", config(hf.Qwen2Config), half=True),
        "qwen2_yarn": Variant(
            "qwen2",
            config(
                hf.Qwen2Config,
                hidden_size=64,  # heads of 16: several frequencies on YaRN's ramp
                max_position_embeddings=16384,
                rope_parameters={
                    "rope_type": "yarn",
                    "rope_theta": theta,
                    "factor": 4.0,
                    "original_max_position_embeddings": 4096,
                },
            ),
            half=True,
            extra=yarn,
        ),
        "qwen3": Variant("qwen3", config(hf.Qwen3Config, head_dim=16, tie_word_embeddings=True)),
        "gemma2": Variant(
            "gemma2",
            config(
                hf.Gemma2Config,
                **gemma,
                num_hidden_layers=3,
                sliding_window=10,
                query_pre_attn_scalar=16,
                attn_logit_softcapping=4.0,
                final_logit_softcapping=5.0,
            ),
            extra=gemma2,
        ),
        "gemma3": Variant(
            "gemma3",
            config(
                hf.Gemma3TextConfig,
                **gemma,
                num_hidden_layers=7,
                sliding_window=10,
                query_pre_attn_scalar=16,
                layer_types=[
                    "full_attention" if i % 6 == 5 else "sliding_attention" for i in range(7)
                ],
                rope_parameters={
                    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                },
            ),
            half=True,
            extra=gemma3,
        ),
        "phi3": Variant(
            "phi3",
            config(
                hf.Phi3Config,
                sliding_window=12,
                rope_parameters={
                    "rope_type": "default",
                    "rope_theta": theta,
                    "partial_rotary_factor": 0.5,
                },
            ),
            half=True,
            extra=window,
        ),
        "phi3_long": Variant(
            "phi3",
            config(
                hf.Phi3Config,
                max_position_embeddings=128,
                original_max_position_embeddings=16,
                rope_parameters={
                    "rope_type": "longrope",
                    "rope_theta": theta,
                    "partial_rotary_factor": 1.0,
                    "short_factor": [1.0, 1.1, 1.3, 1.6],
                    "long_factor": [1.2, 2.5, 5.0, 9.0],
                },
            ),
            extra=longrope,
            lengths={"": N_PROMPT, "_short": 14},
        ),
        "qwen3moe": Variant(
            "qwen3moe",
            config(
                hf.Qwen3MoeConfig,
                head_dim=16,
                num_experts=8,
                num_experts_per_tok=3,
                moe_intermediate_size=24,
                norm_topk_prob=True,
                tie_word_embeddings=True,
            ),
            half=True,
            extra=experts,
        ),
        "olmoe": Variant(
            "olmoe",
            config(hf.OlmoeConfig, num_key_value_heads=4, num_experts=8, num_experts_per_tok=3),
            half=True,
            extra=experts,
        ),
        "mixtral": Variant(
            "llama",
            config(hf.MixtralConfig, num_local_experts=5, num_experts_per_tok=2),
            half=True,
            extra=experts,
        ),
        "gpt_oss": Variant(
            "gpt-oss",
            config(
                hf.GptOssConfig,
                head_dim=16,
                num_hidden_layers=3,
                num_local_experts=6,
                num_experts_per_tok=2,
                sliding_window=10,
                max_position_embeddings=131072,
            ),
            half=True,
            extra=gpt_oss,
        ),
    }


def randomize(model: Any, seed: int, half: bool) -> None:
    """Weights large enough that attention is peaked and every norm, bias and cap shows."""
    rng = torch.Generator().manual_seed(seed)
    routed = any(name.endswith(ROUTERS) for name, _ in model.named_parameters())

    def normal(p: Any, std: float) -> Any:
        return torch.randn(p.shape, generator=rng) * std

    for name, p in model.named_parameters():
        if "embed_tokens" in name or "lm_head" in name:
            # What experts weigh amplifies the noise of float32 sums: smaller logits there.
            value = normal(p, 0.4 if routed else 1.0)
        elif p.ndim == 3:  # experts; gpt-oss has them transposed
            n_in = p.shape[1 if model.config.model_type == "gpt_oss" else 2]
            value = normal(p, 0.5 * n_in**-0.5)
        elif name.endswith(ROUTERS):
            value = normal(p, 3 * p.shape[1] ** -0.5)
        elif p.ndim == 2 and "bias" not in name:
            # queries and keys larger: scores of a few units; YaRN's factor does that in gpt-oss
            peaked = 1.0 if model.config.model_type == "gpt_oss" else 1.6
            std = peaked if any(s in name for s in ("q_proj", "k_proj", "qkv_proj")) else 1.0
            value = normal(p, std * p.shape[1] ** -0.5)
        elif name.endswith(("bias", "sinks")):
            value = normal(p, 0.5 if name.endswith("bias") else 2.0)
        else:
            value = p.data.clone() + normal(p, 0.3)
        p.data.copy_(value.half().float() if half and is_matrix(name, p) else value)


def is_matrix(name: str, p: Any) -> bool:
    """Whether its file tensor may have another type than F32."""
    return p.ndim > 1 and not name.endswith(ROUTERS) and "bias" not in name


def margin(model: Any, ids: Any) -> float:
    """How far the last expert chosen is from the next at least, in units of the router's logits;
    infinite where there are none."""
    found: list[float] = []

    def see(module: Any, inputs: Any, output: Any) -> None:
        top = output[0].reshape(-1, output[0].shape[-1]).sort(dim=-1, descending=True).values
        k = module.top_k
        found.append(float((top[:, k - 1] - top[:, k]).min()))

    routers = [m for n, m in model.named_modules() if n.endswith(("mlp.gate", "mlp.router"))]
    hooks = [m.register_forward_hook(see) for m in routers]
    with torch.no_grad():
        model(torch.tensor(ids)[None], use_cache=False)
    for h in hooks:
        h.remove()
    return min(found, default=float("inf"))


ROUTERS = ("mlp.gate.weight", "mlp.router.weight")
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
    if ".mlp.experts." not in name:
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


def write_metadata(w: gguf.GGUFWriter, v: Variant, c: Any, head_dim: int) -> None:
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


def make(name: str, v: Variant, seed: int) -> None:
    c = v.config
    model = hf.AutoModelForCausalLM.from_config(c, dtype=torch.float32).eval()
    c = model.config
    randomize(model, seed, v.half)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads

    golden: dict[str, np.ndarray] = {}
    while True:
        rng = np.random.default_rng(seed)
        prompts = {suffix: rng.integers(3, N_VOCAB, n) for suffix, n in v.lengths.items()}
        if margin(model, prompts[""]) > 0.05:
            break
        seed += 1000
        randomize(model, seed, v.half)
    for suffix, ids in prompts.items():
        with torch.no_grad():
            out = model(torch.tensor(ids)[None], use_cache=False)
        golden["ids" + suffix] = ids.astype(np.int32)
        golden["logits" + suffix] = out.logits[0].numpy()
    np.savez_compressed(OUT / f"{name}.npz", **golden)

    w = gguf.GGUFWriter(OUT / f"{name}.gguf", v.arch)
    w.add_name(f"tiny random {name}")
    write_metadata(w, v, c, head_dim)
    if v.extra is not None:
        v.extra(w, model, c)
    for key, p in model.named_parameters():  # a tied head appears once
        data = p.detach().numpy()
        dtype = np.float16 if v.half and is_matrix(key, p) else np.float32
        if (parts := expert_parts(key, data, v.arch)) is not None:
            for target, part in parts.items():
                w.add_tensor(target, np.ascontiguousarray(part, dtype))
            continue
        target = gguf_name(key, v.arch)
        if v.arch == "llama" and ".attn_q." in target:
            data = permute(data, c.num_attention_heads)
        if v.arch == "llama" and ".attn_k." in target:
            data = permute(data, c.num_key_value_heads)
        if v.arch.startswith("gemma") and "norm" in target:
            data = data + 1
        w.add_tensor(target, data.astype(dtype))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    spread = golden["logits"].std(axis=-1).mean()
    size = sum((OUT / f"{name}.{e}").stat().st_size for e in ("gguf", "npz"))
    print(f"{name:14} {size // 1024:5} KiB, logits spread {spread:.2f}")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("names", nargs="*", help="variants; default all")
    names = ap.parse_args().names
    OUT.mkdir(parents=True, exist_ok=True)
    known = variants()
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    for seed, (name, v) in enumerate(known.items()):
        if not names or name in names:
            make(name, v, seed)


if __name__ == "__main__":
    main()
