"""Turns one call of an architecture's ``forward`` into the cpu backend's list of phases.

Lowering walks the recorded graph in order and fuses what one phase can do:
a norm (and the residual sum before it) into the linear that reads it, a residual add, a glu or a
soft-cap into the linear that feeds it, head norms and rope into the KV write. A dense layer
becomes six phases, one of experts eight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edgerun.backends import cpu_abi as abi
from edgerun.backends.base import Attention, Experts, ExpertWeights, Rope
from edgerun.backends.recorder import (
    Node,
    Recorder,
    absorbed,
    glu_linear,
    head,
    residual_linear,
    sole,
)


@dataclass(eq=False)
class MatrixHandle:
    """A packed matrix, or several experts' of these sizes; ``ptr`` is the native Weight."""

    ptr: int
    n_out: int
    n_in: int
    n_experts: int = 1


@dataclass(eq=False)
class VectorHandle:
    """A float32 vector kept alive by ``owner``."""

    ptr: int
    size: int
    owner: Any


@dataclass
class Lowered:
    """The phases, the width of each buffer (in floats), the ropes by index."""

    code: list[abi.Instr]
    widths: list[int]
    logits: int
    ropes: list[Rope]


class _Lowering:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.code: list[abi.Instr] = []
        self.widths: list[int] = []
        self.ropes: list[Rope] = []
        self.logits = -1
        self.n_moe = 0

    # -- emission -----------------------------------------------------------------------

    def run(self) -> Lowered:
        for n in self.nodes:
            if absorbed(n) or _summed_experts(n) or n.buffer >= 0:
                continue
            getattr(self, "_" + n.kind)(n)
        if self.logits < 0:
            raise ValueError("forward must end in ops.logits or ops.hidden")
        return Lowered(self.code, self.widths, self.logits, self.ropes)

    def _buffer(self, n: Node) -> int:
        self.widths.append(n.width)
        n.buffer = len(self.widths) - 1
        return n.buffer

    def _emit(self, op: int, gathered: bool) -> abi.Instr:
        instr = abi.Instr(op=op, gathered=gathered, scale=1.0, rope=-1, residual=-1, out=-1)
        instr.router = -1
        instr.pre = abi.Prologue(a=-1, b=-1, sum=-1, scale=1.0)
        self.code.append(instr)
        return instr

    def _set_value(self, pre: abi.Prologue, x: Node) -> None:
        """Fill the part of a prologue that computes node ``x``, before any norm of it."""
        pre.width = x.width
        if x.buffer >= 0:
            pre.a = x.buffer
            return
        left, right = x.args  # a deferred x + norm(y): compute it here and keep it
        norm = right.data
        pre.a, pre.b, pre.norm_b = left.buffer, right.args[0].buffer, norm["weight"].ptr
        pre.group_b, pre.eps_b = norm["weight"].size, norm["eps"]
        pre.sum = self._buffer(x)

    def _set_input(self, pre: abi.Prologue, x: Node) -> None:
        if x.buffer < 0 and x.kind == "norm":
            self._set_value(pre, x.args[0])
            w = x.data["weight"]
            pre.norm_n, pre.group_n, pre.eps_n = w.ptr, w.size, x.data["eps"]
        else:
            self._set_value(pre, x)

    def _embed(self, n: Node) -> None:
        instr = self._emit(abi.OP_EMBED, False)
        instr.outs[0].weight, instr.n_outs = n.data["weight"].ptr, 1
        instr.scale, instr.out = n.data["scale"], self._buffer(n)

    def _matrices(self, nodes: Sequence[Node]) -> abi.Instr:
        instr = self._emit(abi.OP_LINEAR, nodes[0].gathered)
        self._set_input(instr.pre, nodes[0].args[0])
        instr.n_outs = len(nodes)
        for i, n in enumerate(nodes):
            instr.outs[i].weight = n.data["weight"].ptr
            bias = n.data.get("bias")
            instr.outs[i].bias = bias.ptr if bias is not None else None
        return instr

    def _linear(self, n: Node) -> None:
        group = n.data["group"]
        for start in range(0, len(group), abi.MAX_OUTS):
            part = group[start : start + abi.MAX_OUTS]
            instr = self._matrices(part)
            for i, m in enumerate(part):
                instr.outs[i].out = self._buffer(m)

    def _add(self, n: Node) -> None:
        for x, y in (n.args, n.args[::-1]):
            if residual_linear(y) and y.buffer < 0:
                instr = self._matrices([y])
                instr.epilogue, instr.residual = abi.EPI_RESIDUAL, x.buffer
                instr.outs[0].out = self._buffer(n)
                return
            if _summed_experts(y) and y.buffer < 0 and x.buffer >= 0:
                self._experts(y, n, x.buffer)
                return
        instr = self._emit(abi.OP_TOKENWISE, n.gathered)
        x, y = n.args
        instr.pre.a, instr.pre.width = x.buffer, n.width
        if y.buffer < 0:  # a summed norm
            w = y.data["weight"]
            instr.pre.b, instr.pre.norm_b = y.args[0].buffer, w.ptr
            instr.pre.group_b, instr.pre.eps_b = w.size, y.data["eps"]
        else:
            instr.pre.b = y.buffer
        instr.out = self._buffer(n)

    def _norm(self, n: Node) -> None:
        instr = self._emit(abi.OP_TOKENWISE, n.gathered)
        self._set_value(instr.pre, n.args[0])
        w = n.data["weight"]
        instr.pre.norm_n, instr.pre.group_n, instr.pre.eps_n = w.ptr, w.size, n.data["eps"]
        instr.out = self._buffer(n)

    def _scale(self, n: Node) -> None:
        instr = self._emit(abi.OP_TOKENWISE, n.gathered)
        self._set_value(instr.pre, n.args[0])
        instr.pre.scale, instr.out = n.data["factor"], self._buffer(n)

    def _glu(self, n: Node) -> None:
        gate, up = n.args
        if not glu_linear(gate):
            raise ValueError("glu reads the two results of one ops.linear")
        instr = self._matrices([gate, up])
        instr.epilogue, instr.glu = abi.EPI_GLU, abi.GLU[n.data["act"]]
        instr.out = self._buffer(n)

    def _moe(self, n: Node) -> None:
        self._experts(n, n, -1)

    def _experts(self, n: Node, result: Node, residual: int) -> None:
        """The layer's three phases; ``result`` is ``n`` or its sum with a buffer."""
        x, logits = n.args
        w: ExpertWeights = n.data["weights"]
        spec: Experts = n.data["spec"]
        units = Node("units", spec.n_used * spec.n_ff, n.gathered)
        parts = Node("parts", spec.n_used * n.width, n.gathered)
        up = self._emit(abi.OP_MOE_UP, n.gathered)
        self._set_input(up.pre, x)
        up.glu, up.n_rows, up.out = abi.GLU[spec.act], spec.n_ff, self._buffer(units)
        down = self._emit(abi.OP_MOE_DOWN, n.gathered)
        down.pre.a, down.pre.width = units.buffer, spec.n_ff
        down.n_rows, down.out = n.width, self._buffer(parts)
        for instr, matrices in (
            (up, ((w.gate, w.gate_bias), (w.up, w.up_bias))),
            (down, ((w.down, w.down_bias),)),
        ):
            instr.n_outs = len(matrices)
            for i, (weight, bias) in enumerate(matrices):
                instr.outs[i].weight = weight.ptr
                instr.outs[i].bias = bias.ptr if bias is not None else None
        total = self._emit(abi.OP_MOE_SUM, n.gathered)
        total.pre.a, total.pre.width = parts.buffer, n.width
        total.residual, total.out = residual, self._buffer(result)
        for instr in (up, down, total):
            instr.router, instr.moe, instr.gating = (
                logits.buffer,
                self.n_moe,
                abi.GATING[spec.gating],
            )
            instr.n_experts, instr.n_used = spec.n_experts, spec.n_used
            instr.normalize, instr.share_scale = spec.normalize, spec.scale
        self.n_moe += 1

    def _outputs(self, n: Node) -> None:
        instr = self._emit(abi.OP_GATHER, True)
        instr.pre.a, instr.pre.width = n.args[0].buffer, n.width
        instr.out = self._buffer(n)

    def _logits(self, n: Node) -> None:
        instr = self._matrices([n])
        if n.data["softcap"] > 0:
            instr.epilogue, instr.softcap = abi.EPI_SOFTCAP, n.data["softcap"]
        instr.outs[0].out = self.logits = self._buffer(n)

    def _hidden(self, n: Node) -> None:
        if not n.gathered:
            raise ValueError("ops.hidden takes rows of the batch's outputs")
        n.buffer = self.logits = n.args[0].buffer

    def _rope_index(self, rope: Rope) -> int:
        if rope not in self.ropes:
            self.ropes.append(rope)
        return self.ropes.index(rope)

    def _attention(self, n: Node) -> None:
        spec: Attention = n.data["spec"]
        q, q_norm, q_rope = head(n.args[0], spec.head_dim)
        k, k_norm, k_rope = head(n.args[1], spec.head_dim)
        instr = self._emit(abi.OP_ROPE_KV, False)
        instr.q, instr.k, instr.v = q.buffer, k.buffer, n.args[2].buffer
        rope = q_rope.data["rope"] if q_rope else None
        if rope is not (k_rope.data["rope"] if k_rope else None):
            raise ValueError("q and k of one attention turn by the same rope")
        if rope is not None:
            instr.rope, instr.n_rot = self._rope_index(rope), rope.n_rot
            instr.interleaved = rope.interleaved
        if q_norm:
            instr.q_norm, instr.eps_q = q_norm.data["weight"].ptr, q_norm.data["eps"]
        if k_norm:
            instr.k_norm, instr.eps_k = k_norm.data["weight"].ptr, k_norm.data["eps"]
        rotated = Node("rotated", q.width, False)
        instr.out = self._buffer(rotated)
        attend = self._emit(abi.OP_ATTENTION, False)
        attend.q, attend.out = rotated.buffer, self._buffer(n)
        for i in (instr, attend):
            i.layer, i.n_heads, i.n_kv = n.data["layer"], spec.n_heads, spec.n_kv_heads
            i.head_dim, i.window = spec.head_dim, spec.window
        attend.scale, attend.softcap = spec.scale, spec.softcap
        if n.data["sinks"] is not None:
            attend.sinks = n.data["sinks"].ptr


def _summed_experts(n: Node) -> bool:
    """Experts whose only reader adds their result to something."""
    add = sole(n, "add") if n.kind == "moe" else None
    return add is not None and add.args[0] is not add.args[1]


def lower(recorder: Recorder) -> Lowered:
    """Fuse and number the recorded graph."""
    lowered = _Lowering(recorder.nodes).run()
    return _share_buffers(lowered)


def _share_buffers(p: Lowered) -> Lowered:
    """Give buffers whose lives do not overlap the same memory.

    A phase never writes what it reads, so that its chunks can be computed twice.
    """
    last: dict[int, int] = {}
    for i, instr in enumerate(p.code):
        for b in _reads(instr) + _writes(instr):
            last[b] = i
    slot: dict[int, int] = {}
    widths: list[int] = []
    free: list[int] = []
    for i, instr in enumerate(p.code):
        for b in _writes(instr):
            if b in slot:
                continue
            fits = [s for s in free if widths[s] == p.widths[b]] if b != p.logits else []
            if fits:
                free.remove(fits[0])
                slot[b] = fits[0]
            else:
                widths.append(p.widths[b])
                slot[b] = len(widths) - 1
        done = (b for b, end in last.items() if end == i and b in slot and b != p.logits)
        free += [slot[b] for b in done]
    for instr in p.code:
        _rename(instr, slot)
    return Lowered(p.code, widths, slot[p.logits], p.ropes)


_PRE_READS = ("a", "b")
_READS = ("q", "k", "v", "residual")


def _fields(instr: abi.Instr) -> tuple[str, ...]:
    if instr.op == abi.OP_ROPE_KV:
        return ("q", "k", "v")
    if instr.op == abi.OP_ATTENTION:
        return ("q",)
    if instr.op in (abi.OP_MOE_UP, abi.OP_MOE_DOWN, abi.OP_MOE_SUM):
        return ("router", "residual")
    return ("residual",) if instr.epilogue == abi.EPI_RESIDUAL else ()


def _reads(instr: abi.Instr) -> list[int]:
    found = [getattr(instr, f) for f in _fields(instr)]
    found += [getattr(instr.pre, f) for f in _PRE_READS]
    return [b for b in found if b >= 0]


def _writes(instr: abi.Instr) -> list[int]:
    found = [instr.pre.sum, instr.out]
    if instr.op == abi.OP_LINEAR and instr.epilogue != abi.EPI_GLU:
        found += [instr.outs[i].out for i in range(instr.n_outs)]
    return [b for b in found if b >= 0]


def _rename(instr: abi.Instr, slot: dict[int, int]) -> None:
    for f in (*_fields(instr), "out"):
        if getattr(instr, f) >= 0:
            setattr(instr, f, slot[getattr(instr, f)])
    for f in (*_PRE_READS, "sum"):
        if getattr(instr.pre, f) >= 0:
            setattr(instr.pre, f, slot[getattr(instr.pre, f)])
    if instr.op == abi.OP_LINEAR and instr.epilogue != abi.EPI_GLU:
        for i in range(instr.n_outs):
            instr.outs[i].out = slot[instr.outs[i].out]
