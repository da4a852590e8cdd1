"""Pieces that dense decoder-only transformers share: configuration, tensors, forward.

A family's file calls these and changes what differs. The forward pass follows the weights: a
projection has a bias, a head norm or a post-norm where the family's tensors have one.
"""

from __future__ import annotations

from collections.abc import Mapping

from edgerun.arch.base import ModelConfig, Params, TensorSpec
from edgerun.arch.experts import expert_layer, expert_tensors
from edgerun.arch.rope import read_rope
from edgerun.backends.base import Attention, Ops, Role, Tensor, Weight
from edgerun.errors import GGUFError, UnsupportedModelError

__all__ = ["dense_config", "dense_forward", "dense_tensors", "window", "window_pattern"]

_ROLES: dict[str, Role] = {"ffn_gate": "gate", "ffn_up": "up"}
_MAX_HEAD_DIM = 4096  # far above any model; bounds what a hostile file can make us allocate


def dense_config(
    p: Params, *, interleaved: bool = False, experts: bool = False, exact_yarn: bool = False
) -> ModelConfig:
    """The keys every dense family has: one attention and one rope for all layers.

    Args:
        interleaved: rope pairs (2i, 2i + 1).
        experts: the caller looks after them.
        exact_yarn: as :func:`~edgerun.arch.rope.yarn_frequencies` has it.

    Raises:
        GGUFError: a key is missing or its value impossible; names key, value and expectation.
        UnsupportedModelError: layers of different shapes, experts, or value heads of another
            width than key heads.
    """
    n_layers = _n_layers(p)
    n_embd = p.get_int("embedding_length")
    n_vocab = _n_vocab(p, n_embd)
    n_heads = p.get_layers_int("attention.head_count", n_layers)
    n_kv_heads = p.get_layers_int("attention.head_count_kv", n_layers, n_heads)
    if n_heads % n_kv_heads:
        raise GGUFError(
            f"metadata key '{p.key('attention.head_count')}' is {n_heads}; it must be a multiple "
            f"of '{p.key('attention.head_count_kv')}', which is {n_kv_heads}"
        )
    head_dim = _head_dim(p, n_embd, n_heads)
    if not experts and p.get_int("expert_count", 0, lo=0):
        raise UnsupportedModelError(
            f"metadata key '{p.key('expert_count')}' is {p.raw('expert_count')}: {p.arch} with "
            "experts is not supported; use a dense model"
        )
    n_ctx_train = p.get_int("context_length")
    n_ctx = p.n_ctx(n_ctx_train)
    rope = read_rope(
        p, head_dim, n_ctx, n_ctx_train, interleaved=interleaved, exact_yarn=exact_yarn
    )
    attention = Attention(
        n_heads, n_kv_heads, head_dim, scale=p.get_float("attention.scale", head_dim**-0.5)
    )
    return ModelConfig(
        arch=p.arch,
        n_layers=n_layers,
        n_embd=n_embd,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        n_ff=p.get_layers_int("feed_forward_length", n_layers),
        n_vocab=n_vocab,
        n_ctx_train=n_ctx_train,
        n_ctx=n_ctx,
        eps=p.get_float("attention.layer_norm_rms_epsilon", lo=0.0, hi=1.0),
        attention=(attention,) * n_layers,
        ropes=(rope,) * n_layers,
    )


def window(p: Params, n_ctx: int, default: int = 0) -> int:
    """The sliding window in tokens; 0 = none, also where the context never outgrows it."""
    size = p.get_int("attention.sliding_window", default, lo=0)
    return size if size < n_ctx else 0


def window_pattern(p: Params, n_layers: int, default: int) -> list[bool]:
    """Which layers have the window. Files store a flag per layer or the period: every n-th layer
    sees everything."""
    name = "attention.sliding_window_pattern"
    if isinstance(p.raw(name), int | None):
        period = p.get_int(name, default)
        return [i % period != period - 1 for i in range(n_layers)]
    flags = p.source.metadata.get_bool_array(p.key(name))
    if len(flags) != n_layers:
        raise GGUFError(
            f"metadata key '{p.key(name)}' has {len(flags)} flags for {n_layers} layers"
        )
    return [bool(f) for f in flags]


def _n_layers(p: Params) -> int:
    n_layers = p.get_int("block_count")
    n_tensors = len(p.source.shapes)
    if n_layers > n_tensors:  # before anything is built per layer
        raise GGUFError(
            f"metadata key '{p.key('block_count')}' is {n_layers}, but the file holds only "
            f"{n_tensors} tensors"
        )
    return n_layers


def _n_vocab(p: Params, n_embd: int) -> int:
    """Rows of the embedding; no token may lie past them."""
    shape = p.source.shapes.get("token_embd.weight")
    if shape is None or len(shape) != 2 or shape[1] != n_embd:
        found = "missing" if shape is None else list(shape)
        raise GGUFError(
            f"tensor 'token_embd.weight' is {found}; expected [n_vocab, {n_embd}] after metadata "
            f"key '{p.key('embedding_length')}'"
        )
    metadata = p.source.metadata
    counted = {}
    if "tokenizer.ggml.tokens" in metadata:
        kind = metadata.types.get("tokenizer.ggml.tokens")  # knows the length without decoding
        counted["tokenizer.ggml.tokens"] = (
            kind.count if kind is not None else len(metadata["tokenizer.ggml.tokens"])
        )
    if p.has("vocab_size"):
        counted[p.key("vocab_size")] = p.get_int("vocab_size")
    for key, n in counted.items():
        if n > shape[0]:
            raise GGUFError(
                f"metadata key '{key}' names {n} tokens, but tensor 'token_embd.weight' has only "
                f"{shape[0]} rows"
            )
    return shape[0]


def _head_dim(p: Params, n_embd: int, n_heads: int) -> int:
    if not p.has("attention.key_length") and n_embd % n_heads:
        raise GGUFError(
            f"metadata key '{p.key('embedding_length')}' is {n_embd}; without "
            f"'{p.key('attention.key_length')}' it must be a multiple of "
            f"'{p.key('attention.head_count')}', which is {n_heads}"
        )
    head_dim = p.get_int("attention.key_length", n_embd // n_heads)
    if head_dim > _MAX_HEAD_DIM or head_dim % 2:
        raise GGUFError(
            f"{p.arch} heads are {head_dim} wide (metadata key '{p.key('attention.key_length')}'); "
            f"the width must be even and at most {_MAX_HEAD_DIM}"
        )
    value_dim = p.get_int("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise UnsupportedModelError(
            f"metadata key '{p.key('attention.value_length')}' is {value_dim}, but key heads are "
            f"{head_dim} wide: {p.arch} needs both alike"
        )
    return head_dim


def dense_tensors(
    c: ModelConfig,
    *,
    qkv_bias: bool | None = False,
    qk_norm: bool = False,
    post_norm: bool = False,
    fused: bool = False,
    out_bias: bool | None = False,
    expert_bias: bool = False,
) -> dict[str, TensorSpec]:
    """What the file must hold.

    Args:
        qkv_bias: q, k and v have biases; ``None`` = they may have.
        out_bias: the same of attn_output.
        qk_norm: an RMS norm over each head of q and k.
        post_norm: norms after attention and feed-forward, before the residual is added.
        fused: ``attn_qkv`` holds q, k, v and ``ffn_up`` gate, up, one after another.
        expert_bias: router and experts have biases.
    """
    specs = _Specs()
    specs["token_embd"] = TensorSpec("token_embd.weight", (c.n_vocab, c.n_embd), "embedding")
    specs["output_norm"] = TensorSpec("output_norm.weight", (c.n_embd,), "vector")
    specs["output"] = TensorSpec(
        "output.weight", (c.n_vocab, c.n_embd), "matrix", fallback="token_embd.weight"
    )
    for i in range(c.n_layers):
        b = f"blk.{i}."
        specs.vector(b + "attn_norm", c.n_embd)
        specs.vector(b + "ffn_norm", c.n_embd)
        specs.matrices(b + "attn_qkv", *_qkv(c, b), n_in=c.n_embd, fused=fused)
        if c.experts is not None:
            specs |= expert_tensors(c, i, bias=expert_bias)
        else:
            gate, up = ((b + "ffn_gate", c.n_ff), (b + "ffn_up", c.n_ff))
            specs.matrices(b + "ffn_up", gate, up, n_in=c.n_embd, fused=fused)
        if qkv_bias is not False:
            for name, n in _qkv(c, b):
                specs.vector(name, n, "bias", optional=qkv_bias is None)
        if out_bias is not False:
            specs.vector(b + "attn_output", c.n_embd, "bias", optional=out_bias is None)
        specs.matrix(b + "attn_output", (b + "attn_output", c.n_embd), n_in=c.n_heads * c.head_dim)
        if c.experts is None:
            specs.matrix(b + "ffn_down", (b + "ffn_down", c.n_embd), n_in=c.n_ff)
        if c.sinks:
            specs.vector(b + "attn_sinks", c.n_heads)
        if qk_norm:
            specs.vector(b + "attn_q_norm", c.head_dim)
            specs.vector(b + "attn_k_norm", c.head_dim)
        if post_norm:
            specs.vector(b + "post_attention_norm", c.n_embd)
            specs.vector(b + "post_ffw_norm", c.n_embd)
    return specs


def _qkv(c: ModelConfig, b: str) -> tuple[tuple[str, int], ...]:
    """Names and rows of the projections of the layer whose names begin with ``b``."""
    n_q, n_kv = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    return (b + "attn_q", n_q), (b + "attn_k", n_kv), (b + "attn_v", n_kv)


class _Specs(dict[str, TensorSpec]):
    """Tensors by the names that weights have in a forward pass."""

    def matrices(self, whole: str, *parts: tuple[str, int], n_in: int, fused: bool) -> None:
        """One matrix each, or all of them, one after another, in ``whole``."""
        if fused:
            self.matrix(whole, *parts, n_in=n_in)
        else:
            for part in parts:
                self.matrix(part[0], part, n_in=n_in)

    def matrix(self, name: str, *parts: tuple[str, int], n_in: int) -> None:
        """``name``'s rows, split into parts where there are several."""
        total, start = sum(n for _, n in parts), 0
        for part, n in parts:
            rows = None if len(parts) == 1 else (start, start + n)
            role = _ROLES.get(part.rpartition(".")[2], "matrix")
            self[part] = TensorSpec(f"{name}.weight", (total, n_in), role, rows=rows)
            start += n

    def vector(self, name: str, n: int, suffix: str = "weight", optional: bool = False) -> None:
        key = name if suffix == "weight" else f"{name}.{suffix}"
        self[key] = TensorSpec(f"{name}.{suffix}", (n,), "vector", optional=optional)


def dense_forward(ops: Ops, w: Mapping[str, Weight], c: ModelConfig) -> Tensor:
    """The pre-norm decoder: embed, n_layers of attention and gated feed-forward, logits."""
    x = ops.embed(w["token_embd"], c.embed_scale)
    for i in range(c.n_layers):
        b = f"blk.{i}."
        y = _attention(ops, w, c, i, x)
        if i == c.n_layers - 1:  # nothing after this reads other tokens
            x, y = ops.outputs(x), ops.outputs(y)
        (y,) = ops.linear(y, w[b + "attn_output"], bias=[w.get(b + "attn_output.bias")])
        x = _residual(ops, w, c, x, b + "post_attention_norm", y)
        x = _residual(ops, w, c, x, b + "post_ffw_norm", _feed_forward(ops, w, c, i, x))
    x = ops.rms_norm(x, w["output_norm"], c.eps)
    if c.logit_scale != 1.0:
        x = ops.scale(x, c.logit_scale)
    return ops.logits(x, w["output"], c.final_softcap)


def _attention(ops: Ops, w: Mapping[str, Weight], c: ModelConfig, i: int, x: Tensor) -> Tensor:
    b = f"blk.{i}."
    names = [b + "attn_q", b + "attn_k", b + "attn_v"]
    x = ops.rms_norm(x, w[b + "attn_norm"], c.eps)
    q, k, v = ops.linear(x, *(w[n] for n in names), bias=[w.get(n + ".bias") for n in names])
    q_norm = w.get(b + "attn_q_norm")
    if q_norm is not None:
        q = ops.rms_norm(q, q_norm, c.eps)
        k = ops.rms_norm(k, w[b + "attn_k_norm"], c.eps)
    q = ops.rope(q, c.head_dim, c.ropes[i])
    k = ops.rope(k, c.head_dim, c.ropes[i])
    if c.sinks:
        return ops.attention(q, k, v, i, c.attention[i], w[b + "attn_sinks"])
    return ops.attention(q, k, v, i, c.attention[i])


def _feed_forward(ops: Ops, w: Mapping[str, Weight], c: ModelConfig, i: int, x: Tensor) -> Tensor:
    b = f"blk.{i}."
    x = ops.rms_norm(x, w[b + "ffn_norm"], c.eps)
    if c.experts is not None:
        return expert_layer(ops, w, c, i, x)
    gate, up = ops.linear(x, w[b + "ffn_gate"], w[b + "ffn_up"])
    (x,) = ops.linear(ops.glu(gate, up, c.act), w[b + "ffn_down"])
    return x


def _residual(
    ops: Ops, w: Mapping[str, Weight], c: ModelConfig, x: Tensor, norm: str, y: Tensor
) -> Tensor:
    weight = w.get(norm)
    if weight is not None:
        y = ops.rms_norm(y, weight, c.eps)
    return ops.add(x, y if c.residual_scale == 1.0 else ops.scale(y, c.residual_scale))
