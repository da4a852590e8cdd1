"""What the cuda backend makes of a forward pass: ops over buffers, plain ints and handles.

``cuda_recorder`` writes them, ``cuda_launch`` turns each into kernel launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from edgerun.backends.base import Activation, Attention, Experts, ExpertWeights, Rope

__all__ = [
    "TILE", "Attend", "Buffer", "Choice", "Embed", "Given", "Glu", "Lowered", "Matmul", "Matrix",
    "Mixture", "Norm", "Op", "Prologue", "Ref", "Takes", "Vector", "WriteKV",
]  # fmt: skip

Takes = Literal["acts", "f32"]
Epilogue = Literal["store", "add", "silu", "gelu", "swiglu_oai"]
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
        n_experts: matrices of that size that lie behind one another.
    """

    ptr: int
    n_out: int
    n_in: int
    type: int
    nbytes: int
    takes: Takes = "acts"
    twin: Matrix | None = None
    n_experts: int = 1


@dataclass(eq=False)
class Vector:
    """A float32 vector on the device."""

    ptr: int
    size: int


class Choice(NamedTuple):
    """So many of so many experts for each token."""

    n_used: int
    n_experts: int


@dataclass(frozen=True)
class Buffer:
    """Room for one row a token, or a batch's output if ``gathered``: ``width`` floats, or as many
    quantized activations (``acts``). With ``experts`` for one row a column of their products; those
    of no width hold the choice itself."""

    width: int
    gathered: bool
    acts: bool = False
    experts: Choice | None = None


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
    columns behind the one before it. ``add``: plus ``residual``; an activation:
    of first and second a gated unit, one result."""

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
    act: Activation
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


@dataclass
class Mixture:
    """``spec``'s sum over the experts that ``logits`` choose, plus ``residual``. ``choice`` holds
    who has which, ``columns`` the input a column, ``units`` what the second matrices read,
    perhaps quantized to ``digits``, ``parts`` their results. ``ups``: where gate and up are
    products apart."""

    x: Ref
    logits: Ref
    weights: ExpertWeights
    spec: Experts
    gathered: bool
    choice: Ref
    columns: Ref
    units: Ref
    parts: Ref
    out: Ref = NOWHERE
    ups: Ref | None = None
    digits: Ref | None = None
    residual: Ref | None = None


Op = Embed | Given | Prologue | Matmul | Glu | WriteKV | Attend | Mixture


@dataclass
class Lowered:
    """The ops in order, the buffers they name by index, the ropes. ``result`` holds the logits, to
    be capped at ``softcap`` if that is above 0, or the states of a program without a head."""

    ops: list[Op]
    buffers: list[Buffer]
    result: Ref
    softcap: float
    ropes: list[Rope]
