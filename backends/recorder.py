"""Records one call of an architecture's ``forward`` as a graph, and says what can be fused in it.

Backends that replay lower the graph to what they run: ``cpu_recorder`` to phases of one native
call, ``cuda_recorder`` to kernel launches. Which ops belong together is the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgerun.backends.base import Activation, Attention, Experts, ExpertWeights, Rope

__all__ = [
    "Node",
    "Recorder",
    "absorbed",
    "deferred_sum",
    "glu_linear",
    "head",
    "in_head",
    "prologue_norm",
    "residual_linear",
    "sole",
    "summed_norm",
]


@dataclass(eq=False)
class Node:
    """One op. ``gathered``: it runs on the batch's outputs instead of on all tokens."""

    kind: str
    width: int
    gathered: bool
    args: tuple[Node, ...] = ()
    data: dict[str, Any] = field(default_factory=dict)
    uses: list[Node] = field(default_factory=list)
    buffer: int = -1  # set once something lowered has written it


class Recorder:
    """Implements :class:`~edgerun.backends.base.Ops` by taking notes.

    Of a matrix handle it reads ``n_out`` and ``n_in`` (experts: one's), of a vector handle
    ``size``.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def _node(self, kind: str, width: int, args: Sequence[Node], **data: Any) -> Node:
        gathered = kind == "outputs" or any(a.gathered for a in args)
        node = Node(kind, width, gathered, tuple(args), data)
        for a in node.args:
            a.uses.append(node)
        self.nodes.append(node)
        return node

    def embed(self, weight: Any, scale: float = 1.0) -> Node:
        return self._node("embed", weight.n_in, (), weight=weight, scale=scale)

    def given(self, width: int) -> Node:
        return self._node("given", width, ())

    def linear(
        self,
        x: Node,
        *weights: Any,
        bias: Sequence[Any] | None = None,
    ) -> tuple[Node, ...]:
        group: list[Node] = []
        for i, w in enumerate(weights):
            b = bias[i] if bias is not None else None
            group.append(self._node("linear", w.n_out, (x,), weight=w, bias=b, group=group))
        return tuple(group)

    def rms_norm(self, x: Node, weight: Any, eps: float) -> Node:
        return self._node("norm", x.width, (x,), weight=weight, eps=eps)

    def rope(self, x: Node, head_dim: int, rope: Rope) -> Node:
        return self._node("rope", x.width, (x,), head_dim=head_dim, rope=rope)

    def attention(
        self, q: Node, k: Node, v: Node, layer: int, spec: Attention, sinks: Any = None
    ) -> Node:
        width = spec.n_heads * spec.head_dim
        return self._node("attention", width, (q, k, v), layer=layer, spec=spec, sinks=sinks)

    def glu(self, gate: Node, up: Node, act: Activation) -> Node:
        return self._node("glu", gate.width, (gate, up), act=act)

    def moe(self, x: Node, weights: ExpertWeights, spec: Experts) -> Node:
        """The router is a linear of its own, the experts read its logits."""
        (logits,) = self.linear(x, weights.router, bias=[weights.router_bias])
        width = weights.down.n_out
        return self._node("moe", width, (x, logits), weights=weights, spec=spec)

    def add(self, x: Node, y: Node) -> Node:
        return self._node("add", x.width, (x, y))

    def scale(self, x: Node, factor: float) -> Node:
        return self._node("scale", x.width, (x,), factor=factor)

    def outputs(self, x: Node) -> Node:
        return self._node("outputs", x.width, (x,))

    def logits(self, x: Node, weight: Any, softcap: float = 0.0) -> Node:
        return self._node("logits", weight.n_out, (x,), weight=weight, softcap=softcap)

    def hidden(self, x: Node) -> Node:
        return self._node("hidden", x.width, (x,))


def sole(n: Node, kind: str) -> Node | None:
    """The only reader of ``n``, if it is of this kind."""
    return n.uses[0] if len(n.uses) == 1 and n.uses[0].kind == kind else None


def prologue_norm(n: Node) -> bool:
    """A norm read only by matrices is part of them."""
    return n.kind == "norm" and all(u.kind in ("linear", "logits", "moe") for u in n.uses)


def residual_linear(n: Node) -> bool:
    """A matrix whose only reader adds its result to something."""
    return n.kind == "linear" and len(n.data["group"]) == 1 and sole(n, "add") is not None


def glu_linear(n: Node) -> bool:
    """One of the two matrices of a gated unit."""
    group = n.data.get("group", ())
    user = sole(n, "glu")
    return user is not None and len(group) == 2 and user.args == tuple(group)


def summed_norm(n: Node) -> bool:
    """A norm of an attention or ffn output, read only by the residual add after it."""
    add = sole(n, "add") if n.kind == "norm" else None
    return add is not None and add.args[1] is n and n.data["weight"].size == n.width


def head(n: Node, head_dim: int) -> tuple[Node, Node | None, Node | None]:
    """Strip rope and a per-head norm off an attention input: (base, norm, rope)."""
    rope = norm = None
    if n.kind == "rope" and len(n.uses) == 1:
        rope, n = n, n.args[0]
    if n.kind == "norm" and len(n.uses) == 1 and n.data["weight"].size == head_dim:
        norm, n = n, n.args[0]
    return n, norm, rope


def in_head(n: Node) -> bool:
    """A rope or head norm that is part of the write of K and V. One over all heads is not."""
    size = n.data["weight"].size if n.kind == "norm" else 0
    while n.kind in ("rope", "norm") and len(n.uses) == 1:
        user = n.uses[0]
        if user.kind == "attention":
            return n in user.args[:2] and size in (0, user.data["spec"].head_dim)
        if user.kind != "rope":
            return False
        n = user
    return False


def deferred_sum(n: Node) -> bool:
    """x + norm(y), first read by a prologue norm: what computes that stores the sum."""
    if n.kind != "add" or not summed_norm(n.args[1]):
        return False
    first = n.uses[0]
    return prologue_norm(first) and not first.gathered


def absorbed(n: Node) -> bool:
    """Whether a reader of ``n`` computes it on the way."""
    return (
        prologue_norm(n)
        or residual_linear(n)
        or glu_linear(n)
        or summed_norm(n)
        or in_head(n)
        or deferred_sum(n)
    )
