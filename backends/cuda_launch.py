"""From recorded ops and a step's shape to kernel launches: which kernel, grid, block, arguments.

The order of a kernel's arguments here is the kernel's own; ``kernels_cuda`` documents them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from edgerun.backends import cuda_kernels, cuda_weights
from edgerun.backends.base import Attention
from edgerun.backends.cuda_device import Device, Launch
from edgerun.backends.cuda_kv import CudaKVPool
from edgerun.backends.cuda_recorder import (
    TILE,
    Attend,
    Buffer,
    Embed,
    Glu,
    Lowered,
    Matmul,
    Matrix,
    Norm,
    Op,
    Prologue,
    Ref,
    WriteKV,
)
from edgerun.backends.cuda_step import MOST_PADDED, Block, Shape, Tiling

__all__ = ["Addresses", "Builder", "row_bytes", "runs"]

_LOG2E = math.log2(math.e)
_KV = {"f16": 0, "q8_0": 1, "q4r": 2}
_EPILOGUE = {"store": 0, "add": 0, "silu": 1, "gelu": 2, "softcap": 3}
_ACT = {"silu": 1, "gelu": 2}
#: Most bytes that splits of attention may leave for the merge; beyond, rows are not split.
_MOST_PARTS = 256 << 20

Args: TypeAlias = tuple[np.generic, ...]
Dims: TypeAlias = tuple[int, int, int]

ptr, i32, i64, f32 = np.uint64, np.int32, np.int64, np.float32


def row_bytes(buffer: Buffer, n_tokens: int) -> int:
    """Bytes of a buffer for ``n_tokens`` rows."""
    if buffer.acts:
        return cuda_weights.act_bytes(buffer.width, n_tokens)
    return 4 * buffer.width * n_tokens


def padded_dim(head_dim: int) -> int:
    """A head's dimensions as attention's kernels count them."""
    return -(-head_dim // 32) * 32


class Addresses(NamedTuple):
    """Where a step's inputs, attention's splits, the best ids and the buffers lie."""

    step: int
    parts: int
    best: int
    buffers: list[int]


class Run(NamedTuple):
    """Matrices of one type whose tiles lie one behind another: ``first`` of how many."""

    first: int
    n: int


def runs(weights: Sequence[Matrix]) -> list[Run]:
    """Cut a group of matrices into what one pointer can name."""
    found: list[Run] = []
    for i, w in enumerate(weights):
        before = weights[i - 1] if i else None
        if before is not None and before.type == w.type and before.ptr + before.nbytes == w.ptr:
            found[-1] = Run(found[-1].first, found[-1].n + 1)
        else:
            found.append(Run(i, 1))
    return found


@dataclass
class _Step:
    """What one call of :meth:`Builder.build` works on."""

    shape: Shape
    block: Block
    at: Addresses
    launches: list[Launch]

    def input(self, name: str) -> np.uint64:
        return ptr(self.at.step + self.block.offset(name))


class Builder:
    """Launches of one lowered program over one pool."""

    def __init__(self, device: Device, program: Lowered, kv: CudaKVPool) -> None:
        self._device = device
        self._program = program
        self._kv = kv
        specs = [op.spec for op in program.ops if isinstance(op, Attend)]
        self._specs = specs
        self._biases = self._join_biases()

    # -- sizes ------------------------------------------------------------------------------

    def tilings(self, n_tokens: int) -> list[Tiling]:
        """How attention cuts the queries of a step of so many tokens, without repetition."""
        return list(dict.fromkeys(self._tiling(s, n_tokens) for s in self._specs))

    @staticmethod
    def _tiling(spec: Attention, n_tokens: int) -> Tiling:
        group = spec.n_heads // spec.n_kv_heads
        if n_tokens <= MOST_PADDED:
            return Tiling(group, 16)
        mt, groups = cuda_kernels.prefill_tile(spec.head_dim)
        return Tiling(group, 16 * mt * groups)

    def scratch_bytes(self, shape: Shape) -> tuple[int, int]:
        """Bytes for attention's splits and for the best ids."""
        parts = [self._parts(s, shape) for s in self._specs if self._splits(s, shape)]
        return max(parts, default=0), cuda_kernels.argmax_bytes(shape.n_outputs)

    @staticmethod
    def _parts(spec: Attention, shape: Shape) -> int:
        width = spec.n_heads * (padded_dim(spec.head_dim) + 2)
        return 4 * shape.n_splits * shape.n_tokens * width

    def _splits(self, spec: Attention, shape: Shape) -> bool:
        """Whether blocks share the tokens of a row, at the price of a merge."""
        few = shape.n_splits == 1 or not shape.padded
        return not few and self._parts(spec, shape) <= _MOST_PARTS

    def _join_biases(self) -> dict[int, int]:
        """Of each product with a bias, by id: the address of the biases of all its columns."""
        joined: dict[int, int] = {}
        for op in self._program.ops:
            if not isinstance(op, Matmul) or not any(op.biases):
                continue
            width = sum(-(-w.n_out // TILE) * TILE for w in op.weights)
            address = self._device.alloc(4 * width)
            self._device.zero(address, 4 * width)
            at = 0
            for w, bias in zip(op.weights, op.biases, strict=True):
                if bias is not None:
                    self._device.copy(address + 4 * at, bias.ptr, 4 * bias.size)
                at += -(-w.n_out // TILE) * TILE
            joined[id(op)] = address
        return joined

    # -- launches ---------------------------------------------------------------------------

    def build(self, shape: Shape, block: Block, at: Addresses, want_best: bool) -> list[Launch]:
        """All launches of a step, in order."""
        step = _Step(shape, block, at, [])
        for op in self._program.ops:
            if not op.gathered or shape.n_outputs:
                self._op(step, op)
        if want_best:
            self._argmax(step)
        return step.launches

    def _op(self, step: _Step, op: Op) -> None:
        if isinstance(op, Embed):
            self._embed(step, op)
        elif isinstance(op, Prologue):
            self._prologue(step, op)
        elif isinstance(op, Matmul):
            self._matmul(step, op)
        elif isinstance(op, Glu):
            self._glu(step, op)
        elif isinstance(op, WriteKV):
            self._write_kv(step, op)
        else:
            self._attend(step, op)

    def _emit(self, step: _Step, name: str, grid: Dims, block: Dims, args: Args) -> None:
        step.launches.append(Launch(name, self._device.kernel(name), grid, block, args))

    def _address(self, step: _Step, ref: Ref | None) -> np.uint64:
        if ref is None:
            return ptr(0)
        return ptr(step.at.buffers[ref.buffer] + 4 * ref.at)

    def _stride(self, ref: Ref | None) -> np.int32:
        return i32(0 if ref is None else self._program.buffers[ref.buffer].width)

    @staticmethod
    def _count(step: _Step, op: Op) -> int:
        return step.shape.n_outputs if op.gathered else step.shape.n_tokens

    def _embed(self, step: _Step, op: Embed) -> None:
        w, n = op.weight, step.shape.n_tokens
        name, grid, block = cuda_weights.rows_launch(w.type, w.n_in, n)
        args = (ptr(w.ptr), step.input("tokens"), self._address(step, op.out), i32(w.n_in),
                self._stride(op.out), f32(op.scale))  # fmt: skip
        self._emit(step, name, grid, block, args)

    def _matmul(self, step: _Step, op: Matmul) -> None:
        found = runs(op.weights)
        if op.epilogue in ("silu", "gelu"):
            self._product(step, op, 0, op.weights[0], op.weights[1], op.weights[0].n_out)
            return
        at = [0]
        for w in op.weights:
            at.append(at[-1] + -(-w.n_out // TILE) * TILE)
        ends = [at[i] + w.n_out for i, w in enumerate(op.weights)]
        for a, b in zip(found[::2], [*found[1::2], None], strict=False):
            last = b or a
            rows = ends[last.first + last.n - 1] - at[a.first]
            second = op.weights[b.first] if b else None
            tiles_b = (at[b.first + b.n] - at[b.first]) // TILE if b else 0
            tiles_a = (at[a.first + a.n] - at[a.first]) // TILE
            self._product(
                step, op, at[a.first], op.weights[a.first], second, rows, tiles_a, tiles_b
            )

    def _product(
        self, step: _Step, op: Matmul, at: int, a: Matrix, b: Matrix | None, rows: int,
        tiles_a: int = 0, tiles_b: int = 0,
    ) -> None:  # fmt: skip
        raise NotImplementedError

    def _prologue(self, step: _Step, op: Prologue) -> None:
        raise NotImplementedError

    def _glu(self, step: _Step, op: Glu) -> None:
        raise NotImplementedError

    def _argmax(self, step: _Step) -> None:
        raise NotImplementedError

    def _write_kv(self, step: _Step, op: WriteKV) -> None:
        spec = op.spec
        dim = padded_dim(spec.head_dim)
        layer = self._kv.layers[op.layer]
        rope = self._program.ropes[op.rope] if op.rope >= 0 else None
        turns = step.input(f"turns{op.rope}") if rope else ptr(0)
        q_norm, eps_q = _norm_args(op.q_norm)
        k_norm, eps_k = _norm_args(op.k_norm)
        # Attention's exponentials are powers of two; a soft-cap's tanh takes 2x.
        scale = spec.scale * _LOG2E
        if spec.softcap > 0:
            scale = 2 * scale / spec.softcap
        args = (
            self._address(step, op.q), self._address(step, op.k), self._address(step, op.v),
            self._stride(op.q), self._stride(op.k), self._stride(op.v),
            turns, q_norm, k_norm, eps_q, eps_k, f32(scale), self._address(step, op.out),
            ptr(self._kv.ptr), i64(self._kv.page_bytes), i64(layer.k), i64(layer.v),
            step.input("pages"), i32(step.shape.n_pages), step.input("row_of"),
            step.input("kvpos"), i32(spec.n_heads), i32(spec.n_kv_heads), i32(spec.head_dim),
            i32(rope.n_rot if rope else 0), i32(rope.interleaved if rope else 0),
        )  # fmt: skip
        name = f"rope_kv<{_KV[self._kv.kv_type]}>"
        grid = (step.shape.n_tokens, spec.n_heads + spec.n_kv_heads, 1)
        self._emit(step, name, grid, (dim, 1, 1), args)

    def _attend(self, step: _Step, op: Attend) -> None:
        spec, shape = op.spec, step.shape
        dim, kv = padded_dim(spec.head_dim), _KV[self._kv.kv_type]
        split = self._splits(spec, shape)
        tiling = self._tiling(spec, shape.n_tokens)
        nth = self.tilings(shape.n_tokens).index(tiling)
        mt, groups = (1, 1) if shape.padded else cuda_kernels.prefill_tile(spec.head_dim)
        layer = self._kv.layers[op.layer]
        out = self._address(step, op.out)
        args = (
            self._address(step, op.q), ptr(self._kv.ptr), i64(self._kv.page_bytes),
            i64(layer.k), i64(layer.v), step.input(f"tiles{nth}"), step.input("row_start"),
            step.input("n_past"), step.input("pages"), i32(shape.n_pages), i32(shape.n_tokens),
            i32(spec.n_heads), i32(spec.n_kv_heads), i32(spec.head_dim), i32(spec.window),
            f32(spec.softcap * _LOG2E if spec.softcap > 0 else 0.0),
            ptr(step.at.parts) if split else out,
        )  # fmt: skip
        grid = (shape.n_tiles[nth], spec.n_kv_heads, shape.n_splits if split else 1)
        name = f"attention<{dim},{kv},{mt},{groups},{int(split)}>"
        self._emit(step, name, grid, (32, 4, groups), args)
        per_head = (shape.n_tokens, spec.n_heads, 1)
        if split:
            merge = (
                ptr(step.at.parts), step.input("row_of"), step.input("kvpos"),
                step.input("n_past"), i32(shape.n_tokens), i32(spec.n_heads), i32(spec.head_dim),
                i32(spec.window), out,
            )  # fmt: skip
            self._emit(step, f"attention_merge<{dim}>", per_head, (dim, 1, 1), merge)
        if self._kv.kv_type == "q4r":
            self._emit(step, "rotate_heads", per_head, (dim, 1, 1), (out, i32(spec.head_dim)))


def _norm_args(norm: Norm | None) -> tuple[np.uint64, np.float32]:
    return (ptr(norm.weight.ptr), f32(norm.eps)) if norm else (ptr(0), f32(0))
