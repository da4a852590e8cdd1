"""Mixtures of experts: what files say of them, and the tensors that hold them.

A layer's experts lie behind one another in one tensor a projection, the router beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from edgerun.arch.base import ModelConfig, Params, TensorSpec
from edgerun.backends.base import Activation, Experts, ExpertWeights, Ops, Role, Tensor, Weight
from edgerun.errors import GGUFError

__all__ = ["expert_layer", "expert_tensors", "read_experts"]

_PARTS: tuple[tuple[str, Role], ...] = (
    ("ffn_gate_exps", "gate"),
    ("ffn_up_exps", "up"),
    ("ffn_down_exps", "matrix"),
)


def read_experts(
    p: Params,
    *,
    n_ff: int | None = None,
    act: Activation = "silu",
    gating: Literal["softmax", "chosen"] = "softmax",
    normalize: bool = False,
) -> Experts:
    """What the file's ``{arch}.expert_*`` keys describe.

    Args:
        n_ff: width of an expert where the file does not say; ``None`` = it must.
        act, gating, normalize: the family's; ``expert_weights_norm`` overrides the last.

    Raises:
        GGUFError: a key is missing or its value impossible.
    """
    n_experts = p.get_int("expert_count")
    n_used = p.get_int("expert_used_count")
    if n_used > n_experts:
        raise GGUFError(
            f"metadata key '{p.key('expert_used_count')}' is {n_used}; it must be at most "
            f"'{p.key('expert_count')}', which is {n_experts}"
        )
    scale = p.get_float("expert_weights_scale", 0.0, lo=-1.0)  # writers use 0 for "not scaled"
    return Experts(
        n_experts=n_experts,
        n_used=n_used,
        n_ff=p.get_int("expert_feed_forward_length", n_ff),
        act=act,
        gating=gating,
        normalize=p.get_bool("expert_weights_norm", normalize),
        scale=scale or 1.0,
    )


def expert_tensors(c: ModelConfig, i: int, *, bias: bool = False) -> dict[str, TensorSpec]:
    """Layer ``i``'s router and experts, with a bias each if the family has them."""
    e = c.experts
    assert e is not None
    b = f"blk.{i}."
    router = b + "ffn_gate_inp"
    specs = {router: TensorSpec(f"{router}.weight", (e.n_experts, c.n_embd), "matrix")}
    if bias:
        specs[router + ".bias"] = TensorSpec(f"{router}.bias", (e.n_experts,), "vector")
    for part, role in _PARTS:
        n_out, n_in = (c.n_embd, e.n_ff) if role == "matrix" else (e.n_ff, c.n_embd)
        shape = (e.n_experts, n_out, n_in)
        specs[b + part] = TensorSpec(f"{b}{part}.weight", shape, role)
    for part, role in _PARTS if bias else ():
        n_out = c.n_embd if role == "matrix" else e.n_ff
        specs[f"{b}{part}.bias"] = TensorSpec(f"{b}{part}.bias", (e.n_experts, n_out), "vector")
    return specs


def expert_layer(ops: Ops, w: Mapping[str, Weight], c: ModelConfig, i: int, x: Tensor) -> Tensor:
    """The experts of layer ``i`` over ``x``, which is normed."""
    assert c.experts is not None
    names = [f"blk.{i}.{part}" for part in ("ffn_gate_inp", *(part for part, _ in _PARTS))]
    weights = ExpertWeights(*(w[n] for n in names), *(w.get(n + ".bias") for n in names))
    return ops.moe(x, weights, c.experts)
