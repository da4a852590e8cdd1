"""The backend interface: the ops an architecture is written against, and the batch they run on.

An architecture's ``forward(ops, w, config)`` is written once. A backend either runs the ops as
they are called (``reference``) or records them once and replays them (``cpu``), so ``forward``
must not branch on values, only on ``config``. It never sees paging or quantization.
"""

from __future__ import annotations

import abc
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from edgerun.backends.program import Program, Rows, Started, Top
from edgerun.backends.specs import Activation, Attention, Experts, ExpertWeights, KVLayer, Rope
from edgerun.backends.swap import SwapSpace
from edgerun.errors import BackendError

__all__ = [
    "PAGE_SIZE",
    "Activation",
    "Attention",
    "Backend",
    "Batch",
    "CoarseBackend",
    "CoarseModel",
    "ExpertWeights",
    "Experts",
    "Feature",
    "Forward",
    "KVLayer",
    "KVPool",
    "Memory",
    "Ops",
    "Packed",
    "Program",
    "RawTensor",
    "Role",
    "Rope",
    "Rows",
    "Started",
    "Taken",
    "Tensor",
    "Top",
    "Weight",
    "distinct",
]

#: Tokens in one KV page. Attention walks pages in order, so this is part of the numeric contract.
PAGE_SIZE = 32

Tensor: TypeAlias = Any  # an activation, [n_tokens, width]; only the backend looks inside
Weight: TypeAlias = Any  # what Backend.upload returned
#: What a tensor is for. ``gate`` and the ``up`` right behind it are matrices that one ops.linear
#: multiplies and one ops.glu combines: a backend may keep them as one. With three dimensions they
#: are the experts of an ops.moe.
Role: TypeAlias = Literal["matrix", "gate", "up", "embedding", "vector"]
#: What a backend may lack: ops.moe, sinks of ops.attention.
Feature: TypeAlias = Literal["moe", "sinks"]
F32: TypeAlias = npt.NDArray[np.float32]
I32: TypeAlias = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class RawTensor:
    """A tensor as the file holds it: ``data`` is uint8 ``[n_rows, row_bytes]``, zero-copy.

    ``key`` identifies the bytes within a model (file tensor and row range), so that a tensor used
    twice, e.g. as embedding and as output head, is stored once. The rows of experts,
    ``[n_experts, n_out, n_in]``, follow one another.
    """

    key: str
    type: int  # ggml type id
    shape: tuple[int, ...]  # rows first; vectors of experts have two dimensions
    data: npt.NDArray[np.uint8]


#: Called during an upload: rows ``start`` to ``stop`` of a tensor's data will not be read again.
#: Each row of each key is told of once; every few milliseconds in a big tensor, too.
Taken: TypeAlias = Callable[[RawTensor, int, int], None]


class Memory(NamedTuple):
    """Bytes of the memory the backend computes in."""

    total: int
    free: int


class Packed(NamedTuple):
    """A batch's numbers side by side, int32: tokens, positions, row_start, n_past, outputs and
    pages; how many there are; and the first position behind the last."""

    ints: array[int]
    n_tokens: int
    n_rows: int
    n_outputs: int
    max_pages: int
    end: int


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's work, packed. A row is a sequence with n >= 1 query tokens: a prefill chunk, a
    decode and a draft verification are the same thing.

    Attributes:
        tokens: int32 [n_tokens], rows one after another. ``-1 - j`` is for :meth:`Program.start`.
        positions: int32 [n_tokens], each token's position for rope.
        row_start: int32 [n_rows + 1], row r owns tokens ``row_start[r]:row_start[r + 1]``.
        n_past: int32 [n_rows], tokens of the row's sequence already in its pages.
        pages: int32 [n_rows, max_pages], the row's page ids in order, padded with -1. They cover
            ``n_past`` and the new tokens.
        outputs: int32 [n_outputs], ascending indexes into ``tokens`` whose logits are wanted.
        want_best: whether :attr:`Program.best` is wanted as well.
        want_top: how many logits :attr:`Program.top` is to hold of each output, at most the
            program's ``n_top``; 0 = it is not wanted.
        given: what :meth:`Ops.given` gives, float32 [n_tokens, width].
        packed: of a batch that :meth:`pack` made. Its arrays are views of that, made when the
            first of them is asked for.
    """

    tokens: I32
    positions: I32
    row_start: I32
    n_past: I32
    pages: I32
    outputs: I32
    want_best: bool = False
    want_top: int = 0
    given: F32 | None = None
    packed: Packed | None = field(default=None, init=False)

    @property
    def n_tokens(self) -> int:
        return len(self.tokens) if self.packed is None else self.packed.n_tokens

    @property
    def n_rows(self) -> int:
        return len(self.n_past) if self.packed is None else self.packed.n_rows

    @property
    def n_outputs(self) -> int:
        return len(self.outputs) if self.packed is None else self.packed.n_outputs

    def __getattr__(self, name: str) -> I32:
        """One of the arrays, of a packed batch whose views are not made yet."""
        packed: Packed | None = self.__dict__.get("packed")
        if packed is None or name not in Batch.__dataclass_fields__:
            raise AttributeError(f"{type(self).__name__} has no {name}")
        ints = np.frombuffer(packed.ints, np.int32)
        n, rows = packed.n_tokens, packed.n_rows
        sizes = (n, n, rows + 1, rows, packed.n_outputs)
        at, views = 0, []
        for size in sizes:
            views.append(ints[at : at + size])
            at += size
        self.__dict__.update(
            zip(("tokens", "positions", "row_start", "n_past", "outputs"), views, strict=True),
            pages=ints[at:].reshape(rows, packed.max_pages),
        )
        found: I32 = self.__dict__[name]
        return found

    @classmethod
    def pack(
        cls,
        rows: Sequence[tuple[Sequence[int], int, Sequence[int], Sequence[int]]],
        want_best: bool = False,
        want_top: int = 0,
    ) -> Batch:
        """Build a batch from ``(tokens, n_past, pages, outputs)`` rows.

        ``outputs`` are indexes into that row's tokens; positions follow ``n_past``.
        """
        tokens: list[int] = []
        positions: list[int] = []
        outputs: list[int] = []
        starts: list[int] = [0]
        n_past: list[int] = []
        pages: list[int] = []
        most = max([len(r[2]) for r in rows], default=0)
        end = 0
        for ids, past, held, wanted in rows:
            at, behind = len(tokens), past + len(ids)
            tokens += ids
            positions += range(past, behind)
            outputs += [at + i for i in wanted]
            starts.append(len(tokens))
            end = max(end, behind)
            n_past.append(past)
            pages += held
            pages += [-1] * (most - len(held))
        # One array for all is made in a third of the time of six, and steps go by: a frozen
        # dataclass sets each field with a call, and the views are seldom looked at.
        ints = array("i", [*tokens, *positions, *starts, *n_past, *outputs, *pages])
        packed = Packed(ints, len(tokens), len(n_past), len(outputs), most, end)
        batch = object.__new__(cls)
        batch.__dict__.update(want_best=want_best, want_top=want_top, given=None, packed=packed)
        return batch


class Ops(Protocol):
    """The ops at LLM grain. Activations are ``[n_tokens, width]`` float32 to the architecture."""

    def embed(self, weight: Weight, scale: float = 1.0) -> Tensor:
        """Rows of ``weight`` [n_vocab, n_embd] for the batch's tokens, times ``scale``."""
        ...

    def given(self, width: int) -> Tensor:
        """``batch.given``: in place of an embedding, what another backend has computed."""
        ...

    def linear(
        self, x: Tensor, *weights: Weight, bias: Sequence[Weight | None] | None = None
    ) -> tuple[Tensor, ...]:
        """``x @ w.T + b`` for each weight [n_out, n_in]; they share one pass over ``x``."""
        ...

    def rms_norm(self, x: Tensor, weight: Weight, eps: float) -> Tensor:
        """Root-mean-square norm times ``weight`` (arXiv:1910.07467), over groups of ``len(weight)``
        values: a weight as long as the row norms the row, one of head_dim norms each head."""
        ...

    def rope(self, x: Tensor, head_dim: int, rope: Rope) -> Tensor:
        """Rotate each head of ``x`` [n_tokens, n_heads * head_dim] by its token's position."""
        ...

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: int,
        spec: Attention,
        sinks: Weight | None = None,
    ) -> Tensor:
        """Write ``k`` and ``v`` to the layer's pages, then attend; ``sinks`` is a vector [n_heads].

        Returns [n_tokens, n_heads * head_dim].
        """
        ...

    def glu(self, gate: Tensor, up: Tensor, act: Activation) -> Tensor:
        """The two halves of a gated unit combined, as :data:`Activation` says."""
        ...

    def moe(self, x: Tensor, weights: ExpertWeights, spec: Experts) -> Tensor:
        """Of each token the weighed sum of its experts' gated units, as :class:`Experts` says."""
        ...

    def add(self, x: Tensor, y: Tensor) -> Tensor: ...

    def scale(self, x: Tensor, factor: float) -> Tensor: ...

    def outputs(self, x: Tensor) -> Tensor:
        """Only the rows of ``batch.outputs``: what follows runs on [n_outputs, width]."""
        ...

    def logits(self, x: Tensor, weight: Weight, softcap: float = 0.0) -> Tensor:
        """``x @ weight.T``, then ``softcap * tanh(· / softcap)`` if softcap > 0: the result."""
        ...

    def hidden(self, x: Tensor) -> Tensor:
        """``x``, rows of ``batch.outputs``, is the result itself, in place of logits."""
        ...


#: forward(ops) with weights and config bound; returns what ``ops.logits`` returned.
Forward: TypeAlias = Callable[[Ops], Tensor]


def without_head(forward: Forward) -> Forward:
    """``forward`` up to what its ``ops.logits`` would read: a program of it returns that, float32
    [n_outputs, n_embd]."""
    return lambda ops: forward(cast(Ops, _Headless(ops)))


class _Headless:
    def __init__(self, ops: Ops) -> None:
        self._ops = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def logits(self, x: Tensor, weight: Weight, softcap: float = 0.0) -> Tensor:
        return self._ops.hidden(x)


def distinct(
    tensors: Mapping[str, tuple[RawTensor, Role]],
) -> tuple[dict[str, str], dict[str, tuple[RawTensor, Role]]]:
    """The key each name of a model is stored under, and what is to be stored, in order: a tensor
    used twice is stored once, but as a vector and as a matrix apart."""
    keys = {name: f"{role == 'vector'}:{t.key}" for name, (t, role) in tensors.items()}
    return keys, {keys[name]: found for name, found in tensors.items()}


class KVPool(abc.ABC):
    """``n_pages`` pages of ``page_size`` tokens; a page id means that page in every layer."""

    n_pages: int
    page_size: int = PAGE_SIZE
    page_bytes: int  # over all layers

    @abc.abstractmethod
    def copy_page(self, src: int, dst: int) -> None:
        """Copy one page in every layer (copy-on-write)."""

    @abc.abstractmethod
    def export_page(self, page: int) -> bytes:
        """The page's bytes, for a swap or disk tier of the same backend and KV type."""

    @abc.abstractmethod
    def import_page(self, page: int, data: bytes) -> None:
        """Restore what :meth:`export_page` gave."""

    def swap_space(self) -> SwapSpace | None:
        """Host memory for pages, to be asked for once; None where they lie in it already."""
        return None


class Backend(abc.ABC):
    """A place where tensors live and programs run. Not thread-safe: one engine thread drives it."""

    name: str
    #: KV page types this backend stores, the default first.
    kv_types: tuple[str, ...]
    #: Whether a row's logits have the same bits whatever else is in the batch and however many
    #: tokens the row has: then drafts cannot change a text.
    batch_invariant: bool = False
    #: Whether it has memory of its own, and may run a model's last layers alone: see :mod:`.split`.
    partial: bool = False
    #: Of the :data:`Feature`s that only some models need, those it has.
    features: frozenset[Feature] = frozenset()

    @abc.abstractmethod
    def memory(self) -> Memory: ...

    @abc.abstractmethod
    def upload(self, tensor: RawTensor, role: Role) -> Weight:
        """Take a tensor. ``vector``s become float32; matrices keep the file's codes and scales.

        Raises:
            UnsupportedModelError: no kernel for this type.
            OutOfMemoryError: it does not fit.
        """

    def upload_all(
        self, tensors: Mapping[str, tuple[RawTensor, Role]], taken: Taken | None = None
    ) -> dict[str, Weight]:
        """:meth:`upload` of one model; tensors of one key are stored once. What ``taken`` raises
        ends it."""
        weights: dict[str, Weight] = {}
        stored: dict[tuple[bool, str], Weight] = {}
        for name, (tensor, role) in tensors.items():
            key = (role == "vector", tensor.key)
            if key not in stored:
                stored[key] = self.upload(tensor, role)
                if taken is not None:
                    taken(tensor, 0, len(tensor.data))
            weights[name] = stored[key]
        return weights

    @abc.abstractmethod
    def new_kv(
        self, layers: Sequence[KVLayer], n_pages: int, kv_type: str | None = None
    ) -> KVPool: ...

    @abc.abstractmethod
    def prepare(self, forward: Forward, kv: KVPool, n_ctx: int) -> Program:
        """Bind ``forward`` to ``kv``; positions stay below ``n_ctx``."""

    @abc.abstractmethod
    def describe(self) -> Mapping[str, Any]:
        """Facts for ``edgerun doctor`` and the startup line: ISA, threads, device."""

    def numerics(self) -> str:
        """Whatever K and V of the same tokens have the same bits for, beside the model and the
        KV type: pages are stored under it."""
        return self.name

    def close(self) -> None:
        """Free threads and memory; the backend is unusable afterwards."""
        return


@dataclass(frozen=True, eq=False)
class CoarseModel:
    """A model file opened by a :class:`CoarseBackend`; ``kv.page_size`` is ``n_ctx``."""

    program: Program
    kv: KVPool
    n_ctx: int


class CoarseBackend(Backend):
    """A backend that takes whole files and has no ops. Its pages hold one sequence each."""

    @abc.abstractmethod
    def open_model(
        self,
        paths: Sequence[Path],
        metadata: Mapping[str, Any],
        n_ctx: int | None = None,
        kv_type: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> CoarseModel:
        """Open the model that lies in ``paths``, in shard order.

        Args:
            metadata: the file's, for planning.
            n_ctx: tokens of a sequence; ``None`` = as trained, as far as memory reaches.
            progress: called with bytes loaded and bytes in all; what it raises ends the load.

        Raises:
            ModelFileError, UnsupportedModelError: the file cannot be used.
            OutOfMemoryError: it does not fit.
        """

    def upload(self, tensor: RawTensor, role: Role) -> Weight:
        raise BackendError(f"backend {self.name} takes whole files, not single tensors")

    def new_kv(self, layers: Sequence[KVLayer], n_pages: int, kv_type: str | None = None) -> KVPool:
        raise BackendError(f"backend {self.name} makes its KV cache with the model")

    def prepare(self, forward: Forward, kv: KVPool, n_ctx: int) -> Program:
        raise BackendError(f"backend {self.name} takes whole files, not forward passes")
