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
from typing import Literal, NamedTuple

from edgerun.backends.base import Attention, Rope
from edgerun.backends.recorder import (
    Node,
    Recorder,
    absorbed,
    glu_linear,
    head,
    residual_linear,
)

__all__ = [
    "TILE", "Attend", "Buffer", "Embed", "Given", "Glu", "Lowered", "Matmul", "Matrix", "Norm",
    "Op", "Prologue", "Ref", "Vector", "WriteKV", "lower",
]  # fmt: skip

Takes = Literal["acts", "f32"]
Epilogue = Literal["store", "add", "silu", "gelu"]
#: Rows of a tile of a matrix: results of matrices that share a buffer begin at multiples of it.
TILE = 16


@dataclass(eq=False)
class Matrix:
    """A matrix on the device: ``ptr`` is the address of its tiles, one behind another.

    Attributes:
        n_out, n_in: rows and columns.
        type: ggml type id of what lies there.
        nbytes: of its tiles.
        takes: what a product with it reads.
        twin: the other one of a gate and the projection beside it, which share their tiles: 8 rows
            of each.
    """

    ptr: int
    n_out: int
    n_in: int
    type: int
    nbytes: int
    takes: Takes = "acts"
    twin: Matrix | None = None


@dataclass(eq=False)
class Vector:
    """A float32 vector on the device."""

    ptr: int
    size: int


@dataclass(frozen=True)
class Buffer:
    """Room for one row a token, or a batch's output if ``gathered``: ``width`` floats, or as many
    quantized activations (``acts``)."""

    width: int
    gathered: bool
    acts: bool = False


class Ref(NamedTuple):
    """Where a value lies: from column ``at`` of a buffer on, in rows of the buffer's width."""

    buffer: int
    at: int = 0


NOWHERE = Ref(-1)


@dataclass(frozen=True)
class Norm:
    """An RMS norm over groups of ``weight.size`` values."""

    weight: Vector
    eps: float


@dataclass
class Embed:
    weight: Matrix
    scale: float
    out: Ref
    gathered: bool = False


@dataclass
class Given:
    """Values of another backend, which lie there before a step."""

    out: Ref
    gathered: bool = False


@dataclass
class Prologue:
    """``v = x (+ y, normed or not)``, stored to ``sum``; ``norm(v * scale)`` to ``out`` as floats
    and to ``acts`` quantized; any but ``x`` may be missing. ``gather``: ``x`` has all the batch's
    tokens, and the results its outputs only."""

    x: Ref
    width: int
    gathered: bool
    y: Ref | None = None
    norm_y: Norm | None = None
    sum: Ref | None = None
    scale: float = 1.0
    norm: Norm | None = None
    out: Ref | None = None
    acts: Ref | None = None
    gather: bool = False


@dataclass
class Matmul:
    """``x @ w.T + b`` for matrices that share ``x``; each result begins at a multiple of TILE
    columns behind the one before it. ``add``: plus ``residual``; ``silu`` and ``gelu``:
    act(first) * second, one result."""

    weights: list[Matrix]
    biases: list[Vector | None]
    x: Ref
    gathered: bool
    out: Ref = NOWHERE
    epilogue: Epilogue = "store"
    residual: Ref | None = None


@dataclass
class Glu:
    """``act(gate) * up`` of values that no one launch computes."""

    gate: Ref
    up: Ref
    out: Ref
    width: int
    act: Literal["silu", "gelu"]
    gathered: bool


@dataclass
class WriteKV:
    """Norm and turn the heads of q and k; q goes to ``out``, k and v into the layer's pages."""

    q: Ref
    k: Ref
    v: Ref
    out: Ref
    layer: int
    spec: Attention
    rope: int = -1  # index of Lowered.ropes; -1 = none
    q_norm: Norm | None = None
    k_norm: Norm | None = None
    gathered: bool = False


@dataclass
class Attend:
    q: Ref
    out: Ref
    layer: int
    spec: Attention
    sinks: Vector | None = None
    gathered: bool = False


Op = Embed | Given | Prologue | Matmul | Glu | WriteKV | Attend


@dataclass
class Lowered:
    """The ops in order, the buffers they name by index, the ropes. ``result`` holds the logits, to
    be capped at ``softcap`` if that is above 0, or the states of a program without a head."""

    ops: list[Op]
    buffers: list[Buffer]
    result: Ref
    softcap: float
    ropes: list[Rope]


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
            if id(n) not in self._refs and not absorbed(n) and not _only_matrices_read(n):
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
        if id(n) not in self._refs:
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


def _only_matrices_read(n: Node) -> bool:
    """A choice of outputs that only matrices read is part of what prepares their input."""
    return n.kind == "outputs" and all(u.kind in ("linear", "logits") for u in n.uses)


def lower(recorder: Recorder) -> Lowered:
    """Fuse the recorded graph, and let buffers whose lives do not overlap share their room."""
    return _share(_Lowering().run(recorder.nodes))


_READS = ("x", "y", "q", "k", "v", "gate", "up", "residual")
_WRITES = ("out", "sum", "acts")


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
