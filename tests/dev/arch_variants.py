"""The architecture variants of make_arch_fixtures.py: transformers' configurations, and the
metadata that only some architectures have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gguf
import numpy as np
import transformers as hf

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


def granite(w: gguf.GGUFWriter, model: Any, c: Any) -> None:
    w.add_embedding_scale(c.embedding_multiplier)
    w.add_attention_scale(c.attention_multiplier)
    w.add_residual_scale(c.residual_multiplier)
    w.add_logit_scale(c.logits_scaling)
    if hasattr(c, "num_local_experts"):
        experts(w, model, c)


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
    factors = {
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.2,
        "residual_multiplier": 0.4,
        "logits_scaling": 0.5,
    }
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
        "granite": Variant(
            "granite", config(hf.GraniteConfig, **factors), half=True, extra=granite
        ),
        "granitemoe": Variant(
            "granitemoe",
            config(hf.GraniteMoeConfig, num_local_experts=6, num_experts_per_tok=2, **factors),
            half=True,
            extra=granite,
        ),
    }
