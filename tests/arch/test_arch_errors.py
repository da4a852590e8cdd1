"""Impossible metadata and tensors that do not fit it: an error that names them, never a crash."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gguf_build import random_model

from edgerun import arch
from edgerun.arch.base import Architecture, ModelConfig, Params, Source
from edgerun.errors import GGUFError, UnsupportedModelError
from edgerun.gguf import GGUFFile, Metadata

LLAMA: dict[str, Any] = {
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 32,
    "llama.feed_forward_length": 48,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 10000.0,
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(64)],
}
FILLER = {f"blk.{i}.x": (1,) for i in range(20)}


def configure(
    changes: dict[str, Any] | None = None,
    n_ctx: int | None = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
    vectors: dict[str, Any] | None = None,
) -> ModelConfig:
    meta = {k: v for k, v in {**LLAMA, **(changes or {})}.items() if v is not None}
    vectors = vectors or {}
    every: dict[str, tuple[int, ...]] = {"token_embd.weight": (64, 32), **FILLER}
    every.update({n: (len(v),) for n, v in vectors.items()})
    every.update(shapes or {})
    source = Source(Metadata(meta), every, lambda n: np.asarray(vectors[n], np.float32))
    return arch.get("llama").configure(Params("llama", source, n_ctx))


def test_the_base_case_is_sound() -> None:
    c = configure()
    assert (c.n_layers, c.head_dim, c.n_vocab, c.n_ctx) == (2, 8, 64, 128)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("llama.attention.head_count", 0, "is 0; it must be between 1 and"),
        ("llama.attention.head_count_kv", 0, "is 0; it must be between 1 and"),
        ("llama.attention.head_count_kv", 3, "head_count' is 4; it must be a multiple of"),
        ("llama.attention.head_count", -4, "is -4"),
        ("llama.attention.head_count", 5, "it must be a multiple of"),
        ("llama.block_count", 0, "is 0; it must be between 1"),
        ("llama.block_count", 2**32 - 1, "is 4294967295"),
        ("llama.block_count", 10**6, "is 1000000, but the file holds only 21 tensors"),
        ("llama.attention.layer_norm_rms_epsilon", math.nan, "is nan; it must be a finite number"),
        ("llama.attention.layer_norm_rms_epsilon", math.inf, "is inf"),
        ("llama.attention.layer_norm_rms_epsilon", -1e-5, "is -1e-05"),
        ("llama.attention.layer_norm_rms_epsilon", 0.0, "is 0.0"),
        ("llama.attention.layer_norm_rms_epsilon", "x", "must hold a number"),
        ("llama.attention.layer_norm_rms_epsilon", None, "is missing"),
        ("llama.embedding_length", 0, "is 0"),
        ("llama.embedding_length", 2**31 - 1, "expected \\[n_vocab, 2147483647\\]"),
        ("llama.embedding_length", None, "'llama.embedding_length' is missing"),
        ("llama.embedding_length", "32", "must hold a whole number"),
        ("llama.context_length", 0, "is 0"),
        ("llama.feed_forward_length", 0, "is 0"),
        ("llama.attention.key_length", 0, "is 0"),
        ("llama.attention.key_length", 2**30, "1073741824 wide"),
        ("llama.attention.key_length", 7, "must be even"),
        ("llama.rope.dimension_count", 2**31 - 1, "between 2 and 8"),
        ("llama.rope.dimension_count", 3, "it must be even"),
        ("llama.rope.freq_base", 0.0, "is 0.0"),
        ("llama.rope.freq_base", math.nan, "is nan"),
        ("llama.rope.scaling.factor", math.inf, "is inf"),
        ("llama.attention.sliding_window", -1, "is -1"),
        ("tokenizer.ggml.tokens", ["t"] * 65, "names 65 tokens, but .* has only 64 rows"),
        ("llama.vocab_size", 65, "names 65 tokens, but .* has only 64 rows"),
    ],
)
def test_impossible_values_are_refused(key: str, value: Any, says: str) -> None:
    with pytest.raises(GGUFError, match=says) as e:
        configure({key: value})
    assert key in str(e.value) or "head_count" in key
    assert "\n" not in str(e.value)


def test_fewer_tokens_than_rows_is_padding() -> None:
    assert configure({"tokenizer.ggml.tokens": ["t"] * 60}).n_vocab == 64


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"llama.attention.value_length": 4}, "value_length' is 4"),
        ({"llama.rope.scaling.type": "dynamic\x1b"}, r"'dynamic\\x1b'; known: none, linear, yarn"),
        ({"llama.attention.head_count_kv": np.array([2, 4])}, "differs between layers"),
    ],
)
def test_variants_not_supported_are_named(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        configure(changes)


def test_experts_where_a_family_has_none(tmp_path: Path) -> None:
    path = random_model(tmp_path / "m.gguf", "qwen2", extra={"qwen2.expert_count": 8})
    with GGUFFile.open(path) as file, pytest.raises(UnsupportedModelError, match="experts"):
        arch.configure(arch.get("qwen2"), file)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "'llama.expert_used_count' is missing"),
        ({"expert_used_count": 0}, "'llama.expert_used_count' is 0"),
        ({"expert_used_count": 9}, "is 9; it must be at most 'llama.expert_count', which is 8"),
        ({"expert_used_count": 2, "expert_weights_scale": math.inf}, "expert_weights_scale"),
        ({"expert_used_count": 2, "expert_weights_norm": "yes"}, "expert_weights_norm"),
        ({"expert_used_count": 2, "expert_feed_forward_length": 0}, "expert_feed_forward_length"),
    ],
)
def test_bad_experts(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(GGUFError, match=says):
        configure({"llama.expert_count": 8} | {f"llama.{k}": v for k, v in changes.items()})


def test_values_stored_per_layer_may_agree() -> None:
    assert configure({"llama.attention.head_count_kv": np.array([2, 2])}).n_kv_heads == 2


@pytest.mark.parametrize(
    ("vector", "says"),
    [
        ([1.0] * 3, "is \\[3\\]; llama needs it as \\[4\\]"),
        ([1.0, 0.0, 1.0, 1.0], "not a positive number"),
        ([1.0, math.nan, 1.0, 1.0], "not a positive number"),
    ],
)
def test_bad_rope_factors(vector: list[float], says: str) -> None:
    with pytest.raises(GGUFError, match=says):
        configure(vectors={"rope_freqs.weight": vector})


def test_longrope_needs_the_factors_its_context_asks_for() -> None:
    with pytest.raises(GGUFError, match=r"'rope_factors_long.weight' is missing"):
        configure(
            {"llama.rope.scaling.original_context_length": 64},
            vectors={"rope_factors_short.weight": [1.0] * 4},
        )


def test_unknown_architecture() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'mamba\\x1b' .*gpt-oss, llama, .*qwen3moe"):
        arch.get("mamba\x1b")
    for module in ("base", "loader", "", ".", "../llama"):  # not a way to import things
        with pytest.raises(UnsupportedModelError):
            arch.get(module)


class TestMatch:
    arch: Architecture = arch.get("llama")

    def shapes(self) -> dict[str, tuple[int, ...]]:
        specs = self.arch.tensors(configure())
        return {s.name: s.shape for s in specs.values() if not s.optional}

    def match(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
        return arch.match_tensors("llama", self.arch.tensors(configure()), shapes)

    def test_a_whole_model(self) -> None:
        chosen = self.match(self.shapes())
        assert chosen["blk.1.attn_k"] == "blk.1.attn_k.weight"
        assert "blk.1.attn_k.bias" not in chosen

    def test_tied_output(self) -> None:
        shapes = self.shapes()
        del shapes["output.weight"]
        assert self.match(shapes)["output"] == "token_embd.weight"

    def test_missing(self) -> None:
        shapes = self.shapes()
        del shapes["blk.1.ffn_down.weight"]
        with pytest.raises(GGUFError, match=r"'blk.1.ffn_down.weight' is missing; .*\[32, 48\]"):
            self.match(shapes)

    @pytest.mark.parametrize("shape", [(48, 32), (32, 49), (32,), (1, 32, 48), ()])
    def test_wrong_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(GGUFError, match=r"'blk.1.ffn_down.weight' is \[.*\[32, 48\]"):
            self.match({**self.shapes(), "blk.1.ffn_down.weight": shape})

    def test_optional_tensor_of_wrong_shape(self) -> None:
        with pytest.raises(GGUFError, match=r"'blk.0.attn_q.bias' is \[31\]"):
            self.match({**self.shapes(), "blk.0.attn_q.bias": (31,)})

    def test_weights_that_would_be_ignored(self) -> None:
        with pytest.raises(GGUFError, match=r"1 tensors that llama does not use.*attn_q_norm"):
            self.match({**self.shapes(), "blk.0.attn_q_norm.weight": (8,)})
        self.match({**self.shapes(), "rope_freqs.weight": (4,)})  # read by configure


def match_huge(key: str) -> None:
    specs = arch.get("llama").tensors(configure({key: 2**31 - 1}))
    arch.match_tensors("llama", specs, {"token_embd.weight": (64, 32)})


def test_hostile_sizes_cost_nothing() -> None:
    start = time.perf_counter()
    for key in ("block_count", "attention.head_count", "feed_forward_length"):
        with pytest.raises(GGUFError):
            match_huge(f"llama.{key}")
    assert time.perf_counter() - start < 1
