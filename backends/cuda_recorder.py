"""Turns one call of an architecture's ``forward`` into the cuda backend's list of ops.

Each op becomes one or two kernel launches (``cuda_launch``). A matrix reads activations that were
quantized once for all matrices of a group; whatever stands before it (the residual sum, norms, a
scale, the choice of the batch's outputs) is part of that one op. Residual sums, gated units and
soft-caps are part of the matrix before them, head norms and rope of the write of K and V.

Everything here is plain ints and handles: it can be tested without a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from edgerun.backends.base import Attention, Experts, ExpertWeights, Rope
from edgerun.backends.cuda_lowered import (
    TILE,
    Attend,
    Buffer,
    Choice,
    Embed,
    Given,
    Glu,
    Lowered,
    Matmul,
    Matrix,
    Mixture,
    Norm,
    Op,
    Prologue,
    Ref,
    Takes,
    Vector,
    WriteKV,
)
from edgerun.backends.recorder import (
    Node,
    Recorder,
    absorbed,
    glu_linear,
    head,
    residual_linear,
    sole,
)
from edgerun.errors import UnsupportedModelError

__all__ = [
    "TILE", "Attend", "Buffer", "Embed", "Given", "Glu", "Lowered", "Matmul", "Matrix", "Mixture",
    "Norm", "Op", "Prologue", "Ref", "Vector", "WriteKV", "lower",
]  # fmt: skip


@dataclass
class _Input:
    """What was computed for the matrices that read a node."""

    out: Ref | None = None
    acts: Ref | None = None


class _Lowering:
    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.buffers: list[Buffer] = []
        self.ropes: list[Rope] = []
        self.result: Ref | None = None
        self.softcap = 0.0
        self._refs: dict[int, Ref] = {}  # of nodes that were computed, by id
        self._inputs: dict[int, _Input] = {}

    def run(self, nodes: Sequence[Node]) -> Lowered:
        for n in nodes:
            if not (id(n) in self._refs or absorbed(n) or _put_off(n)):
                getattr(self, "_" + n.kind)(n)
        if self.result is None:
            raise ValueError("forward must end in ops.logits or ops.hidden")
        return Lowered(self.ops, self.buffers, self.result, self.softcap, self.ropes)

    def _new(self, width: int, gathered: bool, acts: bool = False) -> Ref:
        self.buffers.append(Buffer(width, gathered, acts))
        return Ref(len(self.buffers) - 1)

    def _place(self, n: Node) -> Ref:
        """A buffer for what ``n`` computes."""
        ref = self._refs[id(n)] = self._new(n.width, n.gathered)
        return ref

    def _ref(self, n: Node) -> Ref:
        """Where ``n`` lies; computed now if that was put off."""
        if id(n) not in self._refs and n.kind == "moe":
            self._moe(n)
        elif id(n) not in self._refs:
            op = self._prologue(n)
            op.out = self._place(n)
            self.ops.append(op)
        return self._refs[id(n)]

    # -- what a matrix reads ----------------------------------------------------------------

    def _prologue(self, n: Node) -> Prologue:
        """The op that computes ``n`` from what is there; where to is still open."""
        if id(n) in self._refs:
            return Prologue(self._refs[id(n)], n.width, n.gathered)
        if n.kind == "outputs":
            return Prologue(self._ref(n.args[0]), n.width, True, gather=True)
        if n.kind == "norm":
            op = self._prologue(n.args[0])
            op.norm = _norm(n)
            return op
        assert n.kind == "add", n.kind  # a deferred x + norm(y): compute it here and keep it
        left, right = n.args
        op = Prologue(self._ref(left), n.width, n.gathered)
        op.y, op.norm_y = self._ref(right.args[0]), _norm(right)
        op.sum = self._place(n)
        return op

    def _input(self, n: Node, takes: Takes) -> Ref:
        """Where a matrix reads ``n``; made by one op for all matrices that do."""
        found = self._inputs.get(id(n))
        if found is None:
            wanted = {u.data["weight"].takes for u in n.uses if u.kind in ("linear", "logits")}
            wanted |= {"f32" for u in n.uses if u.kind == "moe"}  # its columns are made of them
            found = self._inputs[id(n)] = _Input(self._refs.get(id(n)))
            if "acts" in wanted or found.out is None:
                op = self._prologue(n)
                if "acts" in wanted:
                    found.acts = op.acts = self._new(n.width, n.gathered, acts=True)
                if "f32" in wanted and found.out is None:
                    found.out = op.out = self._new(n.width, n.gathered)
                self.ops.append(op)
        ref = found.acts if takes == "acts" else found.out
        assert ref is not None
        return ref

    # -- ops --------------------------------------------------------------------------------

    def _embed(self, n: Node) -> None:
        self.ops.append(Embed(n.data["weight"], n.data["scale"], self._place(n)))

    def _given(self, n: Node) -> None:
        self.ops.append(Given(self._place(n)))

    def _matmul(self, nodes: Sequence[Node]) -> Matmul:
        """The products of ``nodes``, which read the same; where to is still open."""
        first = nodes[0]
        x = self._input(first.args[0], first.data["weight"].takes)
        weights = [n.data["weight"] for n in nodes]
        op = Matmul(weights, [n.data.get("bias") for n in nodes], x, first.gathered)
        self.ops.append(op)
        return op

    def _linear(self, n: Node) -> None:
        """All results of a group lie in one buffer, whatever launches compute them."""
        group: list[Node] = n.data["group"]
        at = list(accumulate((-(-m.width // TILE) * TILE for m in group), initial=0))
        buffer = self._new(at[-1], n.gathered).buffer
        for m, start in zip(group, at, strict=False):
            self._refs[id(m)] = Ref(buffer, start)
        for _, run in groupby(group, lambda m: m.data["weight"].takes):
            part = list(run)
            self._matmul(part).out = self._refs[id(part[0])]

    def _add(self, n: Node) -> None:
        for x, y in (n.args, n.args[::-1]):
            if residual_linear(y) and id(y) not in self._refs:
                residual = self._ref(x)
                op = self._matmul([y])
                op.epilogue, op.residual, op.out = "add", residual, self._place(n)
                return
            if y.kind == "moe" and id(y) not in self._refs:
                experts = self._mixture(y)
                experts.residual, experts.out = self._ref(x), self._place(n)
                self.ops.append(experts)
                return
        x, y = n.args
        pro = Prologue(self._ref(x), n.width, n.gathered)
        if id(y) not in self._refs and y.kind == "norm":
            pro.y, pro.norm_y = self._ref(y.args[0]), _norm(y)
        else:
            pro.y = self._ref(y)
        pro.out = self._place(n)
        self.ops.append(pro)

    def _norm(self, n: Node) -> None:
        self._ref(n)

    def _outputs(self, n: Node) -> None:
        self._ref(n)

    def _scale(self, n: Node) -> None:
        op = self._prologue(n.args[0])
        if op.norm is not None:  # the scale would come before the norm
            op = Prologue(self._ref(n.args[0]), n.width, n.gathered)
        op.scale, op.out = n.data["factor"], self._place(n)
        self.ops.append(op)

    def _glu(self, n: Node) -> None:
        gate, up = n.args
        if glu_linear(gate) and gate.data["weight"].twin is up.data["weight"]:
            op = self._matmul([gate, up])
            op.epilogue, op.out = n.data["act"], self._place(n)
            return
        for m in (gate, up):
            if id(m) not in self._refs:  # each in a buffer of its own, without gaps
                self._matmul([m]).out = self._place(m)
        refs = self._ref(gate), self._ref(up)
        self.ops.append(Glu(*refs, self._place(n), n.width, n.data["act"], n.gathered))

    def _moe(self, n: Node) -> None:
        op = self._mixture(n)
        op.out = self._place(n)
        self.ops.append(op)

    def _mixture(self, n: Node) -> Mixture:
        """The op of a node of experts; where to is still open."""
        x, logits = n.args
        w: ExpertWeights = n.data["weights"]
        spec: Experts = n.data["spec"]
        experts = Choice(spec.n_used, spec.n_experts)
        if w.gate.takes != w.up.takes:
            raise UnsupportedModelError(
                "experts of whose two first matrices only one is quantized: use --backend cpu"
            )

        def new(width: int, acts: bool = False) -> Ref:
            self.buffers.append(Buffer(width, n.gathered, acts, experts))
            return Ref(len(self.buffers) - 1)

        op = Mixture(
            self._input(x, "f32"), self._ref(logits), w, spec, n.gathered, choice=new(0),
            columns=new(x.width, w.gate.takes == "acts"), units=new(spec.n_ff), parts=new(n.width),
        )  # fmt: skip
        if w.gate.twin is not w.up:
            op.ups = new(spec.n_ff)
        if w.down.takes == "acts":
            op.digits = new(spec.n_ff, acts=True)
        return op

    def _logits(self, n: Node) -> None:
        self._matmul([n]).out = self.result = self._place(n)
        self.softcap = n.data["softcap"]

    def _hidden(self, n: Node) -> None:
        if not n.gathered:
            raise ValueError("ops.hidden takes rows of the batch's outputs")
        self._refs[id(n)] = self.result = self._ref(n.args[0])

    def _attention(self, n: Node) -> None:
        spec: Attention = n.data["spec"]
        q, q_norm, q_rope = head(n.args[0], spec.head_dim)
        k, k_norm, k_rope = head(n.args[1], spec.head_dim)
        rope = q_rope.data["rope"] if q_rope else None
        if rope is not (k_rope.data["rope"] if k_rope else None):
            raise ValueError("q and k of one attention turn by the same rope")
        refs = self._ref(q), self._ref(k), self._ref(n.args[2])
        # Attention reads queries as halves, heads padded to blocks of 32.
        width = spec.n_heads * (-(-spec.head_dim // 32) * 32) // 2
        op = WriteKV(*refs, self._new(width, False), n.data["layer"], spec)
        if rope is not None:
            if rope not in self.ropes:
                self.ropes.append(rope)
            op.rope = self.ropes.index(rope)
        op.q_norm = _norm(q_norm) if q_norm else None
        op.k_norm = _norm(k_norm) if k_norm else None
        self.ops.append(op)
        attend = Attend(op.out, self._place(n), n.data["layer"], spec, n.data["sinks"])
        self.ops.append(attend)


def _norm(n: Node) -> Norm:
    return Norm(n.data["weight"], n.data["eps"])


def _put_off(n: Node) -> bool:
    """A choice of outputs that only matrices read is part of what prepares their input, the sum of
    experts of what they are added to."""
    if n.kind == "outputs":
        return all(u.kind in ("linear", "logits", "moe") for u in n.uses)
    return n.kind == "moe" and sole(n, "add") is not None


def lower(recorder: Recorder) -> Lowered:
    """Fuse the recorded graph, and let buffers whose lives do not overlap share their room."""
    return _share(_Lowering().run(recorder.nodes))


_READS = ("x", "y", "q", "k", "v", "gate", "up", "residual", "logits")
_WRITES = ("out", "sum", "acts", "choice", "columns", "units", "ups", "digits", "parts")


def _refs(op: Op, names: Sequence[str]) -> dict[str, Ref]:
    found = {f: getattr(op, f, None) for f in names}
    return {f: ref for f, ref in found.items() if ref is not None}


def _share(p: Lowered) -> Lowered:
    """No op writes what it reads: one block may read a row while another writes its part of it."""
    last: dict[int, int] = {}
    for i, op in enumerate(p.ops):
        for ref in _refs(op, _READS + _WRITES).values():
            last[ref.buffer] = i
    last[p.result.buffer] = len(p.ops)
    slot: dict[int, int] = {}
    buffers: list[Buffer] = []
    free: dict[Buffer, list[int]] = {}
    for i, op in enumerate(p.ops):
        for ref in _refs(op, _WRITES).values():
            kind = p.buffers[ref.buffer]
            if ref.buffer in slot:  # another part of it
                continue
            if free.get(kind):
                slot[ref.buffer] = free[kind].pop()
            else:
                buffers.append(kind)
                slot[ref.buffer] = len(buffers) - 1
        for b in [b for b, end in last.items() if end == i]:
            free.setdefault(p.buffers[b], []).append(slot[b])
    for op in p.ops:
        for f, ref in _refs(op, _READS + _WRITES).items():
            setattr(op, f, Ref(slot[ref.buffer], ref.at))
    return Lowered(p.ops, buffers, Ref(slot[p.result.buffer], p.result.at), p.softcap, p.ropes)
