"""From recorded ops and a step's shape to kernel launches: which kernel, grid, block, arguments.

The order of a kernel's arguments here is the kernel's own; ``kernels_cuda`` documents them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from edgerun.backends import cuda_attention, cuda_experts, cuda_kernels, cuda_weights
from edgerun.backends.base import Attention
from edgerun.backends.cuda_device import Args, Device, Dims, Launch, ptr
from edgerun.backends.cuda_kv import CudaKVPool
from edgerun.backends.cuda_launch_experts import EPILOGUES, mixture
from edgerun.backends.cuda_lowered import (
    TILE,
    Attend,
    Buffer,
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
    WriteKV,
)
from edgerun.backends.cuda_step import MOST_PADDED, Block, Shape, Tiling, Wanted
from edgerun.errors import BackendError

__all__ = ["Addresses", "Builder", "row_bytes", "runs"]

_PAIRED = ("silu", "gelu", "swiglu_oai")
#: Most bytes that splits of attention may leave for the merge; beyond, rows are not split.
_MOST_PARTS = 256 << 20

i32, i64, f32 = np.int32, np.int64, np.float32


def row_bytes(buffer: Buffer, n_tokens: int) -> int:
    """Bytes of a buffer for ``n_tokens`` rows."""
    if buffer.experts is not None:
        if not buffer.width:
            return cuda_experts.ChoiceBlock(n_tokens, buffer.experts).nbytes
        n_tokens = cuda_experts.n_columns(n_tokens, buffer.experts)
    if buffer.acts:
        return cuda_weights.act_bytes(buffer.width, n_tokens)
    return 4 * buffer.width * n_tokens


class Addresses(NamedTuple):
    """Where a step's inputs, attention's splits, the best ids, the largest logits, what these are
    chosen from and the buffers lie. In padded steps tokens may stand for the best ids of the step
    before. Of the largest logits all ids come first."""

    step: int
    parts: int
    best: int
    top: int
    chunks: int
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
        self._kernel: Callable[[str], Any] = device.kernel
        self._program = program
        self._kv = kv
        specs = [op.spec for op in program.ops if isinstance(op, Attend)]
        self._specs = specs
        self._n_logits = program.buffers[program.result.buffer].width
        self._biases = self._join_biases()

    # -- sizes ------------------------------------------------------------------------------

    def tilings(self, n_tokens: int) -> list[Tiling]:
        """How attention cuts the queries of a step of so many tokens, without repetition."""
        return list(dict.fromkeys(self._tiling(s, n_tokens) for s in self._specs))

    @staticmethod
    def _tiling(spec: Attention, n_tokens: int) -> Tiling:
        return Tiling(spec.n_heads // spec.n_kv_heads, _tile(spec, n_tokens))

    def scratch_bytes(self, shape: Shape, wanted: Wanted) -> tuple[int, int]:
        """Bytes for attention's splits and for what is chosen from of each row of logits."""
        parts = [self._parts(s, shape) for s in self._specs if self._splits(s, shape)]
        chosen = 8 * cuda_kernels.argmax_chunks(self._n_logits)
        if wanted == "top":
            chosen = 8 * cuda_kernels.topk_chunks(self._n_logits) * cuda_kernels.TOP
        return max(parts, default=0), chosen * shape.n_outputs

    @staticmethod
    def _parts(spec: Attention, shape: Shape) -> int:
        return 4 * cuda_attention.part_floats(
            shape.n_splits, shape.n_tokens, spec.n_heads, spec.head_dim
        )

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
            width = sum(cuda_weights.n_tiles(w.n_out) * TILE for w in op.weights)
            address = self._device.alloc(4 * width)
            self._device.zero(address, 4 * width)
            at = 0
            for w, bias in zip(op.weights, op.biases, strict=True):
                if bias is not None:
                    self._device.copy(address + 4 * at, bias.ptr, 4 * bias.size)
                at += cuda_weights.n_tiles(w.n_out) * TILE
            joined[id(op)] = address
        return joined

    # -- launches ---------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The kernels of all steps: of one token, of some, of prompts, of short and long texts."""
        found: list[str] = []
        dry = copy.copy(self)
        dry._kernel = found.append
        nowhere = Addresses(0, 0, 0, 0, 0, [0] * len(self._program.buffers))
        widths = [r.n_rot for r in self._program.ropes]
        for n, splits in ((1, 1), (1, 2), (16, 1), (32, 1), (MOST_PADDED, 1), (512, 1)):
            tilings = self.tilings(n)
            padded = n <= MOST_PADDED
            shape = Shape(n, 1, n, splits * 8, splits, (1,) * len(tilings), padded)
            dry.build(shape, Block(shape, tilings, widths), nowhere, "best")
        dry._finish(_Step(shape, Block(shape, tilings, widths), nowhere, []), "top")
        return list(dict.fromkeys(found))

    def build(self, shape: Shape, block: Block, at: Addresses, wanted: Wanted) -> list[Launch]:
        """All launches of a step, in order."""
        step = _Step(shape, block, at, [])
        for op in self._program.ops:
            if not op.gathered or shape.n_outputs:
                self._op(step, op)
        self._finish(step, wanted)
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
        elif isinstance(op, Attend):
            self._attend(step, op)
        elif isinstance(op, Mixture):
            self._mixture(step, op)
        else:
            assert isinstance(op, Given)  # what lies there already

    def _emit(self, step: _Step, name: str, grid: Dims, block: Dims, args: Args) -> None:
        step.launches.append(Launch(name, self._kernel(name), grid, block, args))

    def _go(self, step: _Step, shape: cuda_weights.Geometry, args: Args) -> None:
        self._emit(step, shape.name, (*shape.grid, 1), shape.block, args)

    def _address(self, step: _Step, ref: Ref | None) -> np.uint64:
        if ref is None:
            return ptr(0)
        return ptr(step.at.buffers[ref.buffer] + 4 * ref.at)

    def _stride(self, ref: Ref | None) -> np.int32:
        width: np.int32 = i32(0 if ref is None else self._program.buffers[ref.buffer].width)
        return width

    @staticmethod
    def _count(step: _Step, op: Op) -> int:
        return step.shape.n_outputs if op.gathered else step.shape.n_tokens

    def _embed(self, step: _Step, op: Embed) -> None:
        w = op.weight
        named = ptr(step.at.best if step.shape.padded else 0)
        args = (ptr(w.ptr), step.input("tokens"), named, self._address(step, op.out),
                i32(w.n_out), i32(w.n_in), self._stride(op.out), f32(op.scale))  # fmt: skip
        self._go(step, cuda_weights.unpack_rows(w.type, w.n_in, step.shape.n_tokens), args)

    def _prologue(self, step: _Step, op: Prologue) -> None:
        """Floats first, if both are wanted: the digits are then made of them."""
        x, y, norm_y, total = op.x, op.y, op.norm_y, op.sum
        scale, norm, gather = op.scale, op.norm, op.gather
        for out in (op.out, op.acts):
            if out is None:
                continue
            is_acts = out is op.acts
            wy, eps_y = _norm_args(norm_y)
            w, eps = _norm_args(norm)
            args = (
                self._address(step, x), self._stride(x), self._address(step, y), self._stride(y),
                step.input("outputs") if gather else ptr(0), wy, eps_y,
                self._address(step, total), self._stride(total), f32(scale), w, eps,
                i32(norm.weight.size if norm else 0), self._address(step, out),
                self._stride(out), i32(op.width),
            )  # fmt: skip
            name, threads = cuda_kernels.tokenwise(op.width, is_acts)
            self._emit(step, name, (self._count(step, op), 1, 1), (threads, 1, 1), args)
            x, y, norm_y, total = out, None, None, None
            scale, norm, gather = 1.0, None, False

    def _matmul(self, step: _Step, op: Matmul) -> None:
        first = op.weights[0]
        if op.epilogue in _PAIRED:
            tiles = cuda_weights.n_tiles(first.n_out, paired=True)
            self._product(step, op, 0, first, None, tiles, 0)
            return
        if any(w.twin for w in op.weights):
            raise BackendError("a gate and its twin take part in nothing but a gated unit")
        found = runs(op.weights)
        nth = 0
        while nth < len(found):
            a = found[nth]
            # Quantized matrices of another type may follow in the same launch.
            b = found[nth + 1] if first.takes == "acts" and nth + 1 < len(found) else None
            self._run(step, op, a, b)
            nth += 2 if b else 1

    def _run(self, step: _Step, op: Matmul, a: Run, b: Run | None) -> None:
        tiles = [cuda_weights.n_tiles(w.n_out) for w in op.weights]
        tiles_a = sum(tiles[a.first : a.first + a.n])
        tiles_b = sum(tiles[b.first : b.first + b.n]) if b else 0
        second = op.weights[b.first] if b else None
        start = sum(tiles[: a.first])
        self._product(step, op, start, op.weights[a.first], second, tiles_a, tiles_b)

    def _product(
        self, step: _Step, op: Matmul, start: int, a: Matrix, b: Matrix | None, tiles_a: int,
        tiles_b: int,
    ) -> None:  # fmt: skip
        """One launch: tiles of ``a`` and what lies behind it, then of ``b``; ``start`` of the
        results' tiles come before."""
        n, k = self._count(step, op), a.n_in
        if op.residual is not None and self._stride(op.residual) != self._stride(op.out):
            raise BackendError("a residual lies otherwise than its sum")
        bias = self._biases.get(id(op))
        at = op.out.at + start * TILE
        width = self._program.buffers[op.out.buffer].width - at
        rows = a.n_out if op.epilogue in _PAIRED else min((tiles_a + tiles_b) * TILE, width)
        ends = (
            ptr(bias + 4 * start * TILE if bias else 0), self._address(step, op.residual),
            self._address(step, Ref(op.out.buffer, at)),
        )  # fmt: skip
        epilogue = i32(EPILOGUES[op.epilogue])
        x, out_ld = self._address(step, op.x), self._stride(op.out)
        shape = cuda_weights.matmul(a.type, (b or a).type, tiles_a, tiles_b, k, n)
        args: Args
        if a.takes == "f32":
            args = (ptr(a.ptr), x, *ends, i32(tiles_a), i32(k), i32(n), self._stride(op.x),
                    i32(rows), out_ld, epilogue)  # fmt: skip
        else:
            groups = -(-k // cuda_weights.GROUP)
            args = (ptr(a.ptr), ptr((b or a).ptr), x, *ends, i32(tiles_a), i32(tiles_a + tiles_b),
                    i32(groups), i32(n), i32(rows), out_ld, epilogue)  # fmt: skip
        self._go(step, shape, args)

    def _glu(self, step: _Step, op: Glu) -> None:
        n = self._count(step, op) * op.width
        args = (self._address(step, op.gate), self._address(step, op.up),
                self._address(step, op.out), i64(n), i32(EPILOGUES[op.act]))  # fmt: skip
        self._emit(step, "glu", (min(-(-n // 256), 4096), 1, 1), (256, 1, 1), args)

    def _mixture(self, step: _Step, op: Mixture) -> None:
        # Outputs that are padding stand for the first one: they have no experts that it has not.
        kvpos = ptr(0) if op.gathered else step.input("kvpos")
        address = partial(self._address, step)
        for x in mixture(op, self._count(step, op), kvpos, address, self._stride):
            self._emit(step, *x)

    def _finish(self, step: _Step, wanted: Wanted) -> None:
        """The soft-cap of logits and their largest."""
        p, n = self._program, step.shape.n_outputs
        if not n or (wanted == "logits" and p.softcap <= 0):
            return
        logits, ld = self._address(step, p.result), self._stride(p.result)
        parts = ptr(step.at.chunks)
        args = (logits, ld, ld, f32(p.softcap), parts)
        if wanted == "top":
            chunks = cuda_kernels.topk_chunks(self._n_logits)
            self._emit(step, "topk_part", (chunks, n, 1), (256, 1, 1), args)
            ids, values = (ptr(step.at.top + i * 4 * cuda_kernels.TOP * n) for i in (0, 1))
            top = (parts, i32(chunks), logits, ld, ids, values)
            self._emit(step, "topk", (n, 1, 1), (256, 1, 1), top)
            return
        chunks = cuda_kernels.argmax_chunks(self._n_logits)
        self._emit(step, "argmax_part", (chunks, n, 1), (256, 1, 1), args)
        if wanted == "best":
            best = (parts, i32(chunks), ptr(step.at.best))
            self._emit(step, "argmax", (n, 1, 1), (256, 1, 1), best)

    def _write_kv(self, step: _Step, op: WriteKV) -> None:
        spec = op.spec
        layer = self._kv.layers[op.layer]
        rope = self._program.ropes[op.rope] if op.rope >= 0 else None
        turns = step.input(f"turns{op.rope}") if rope else ptr(0)
        q_norm, eps_q = _norm_args(op.q_norm)
        k_norm, eps_k = _norm_args(op.k_norm)
        scale, _ = cuda_attention.query_scale(spec.scale, spec.softcap)
        args = (
            self._address(step, op.q), self._address(step, op.k), self._address(step, op.v),
            self._stride(op.q), self._stride(op.k), self._stride(op.v), turns, q_norm, k_norm,
            eps_q, eps_k, f32(scale), self._address(step, op.out), ptr(self._kv.ptr),
            i64(self._kv.page_bytes), i64(layer.k), i64(layer.v), step.input("pages"),
            i32(step.shape.n_pages),
            step.input("row_of"), step.input("kvpos"), i32(spec.n_heads), i32(spec.n_kv_heads),
            i32(spec.head_dim), i32(rope.n_rot if rope else 0),
            i32(rope.interleaved if rope else 0),
        )  # fmt: skip
        dims = cuda_attention.padded_head(spec.head_dim)
        grid = (step.shape.n_tokens, spec.n_heads + spec.n_kv_heads, 1)
        name = cuda_attention.rope_kv_name(self._kv.kv_type)
        self._emit(step, name, grid, (dims, 1, 1), args)

    def _attend(self, step: _Step, op: Attend) -> None:
        spec, shape = op.spec, step.shape
        split = self._splits(spec, shape)
        tile = _tile(spec, shape.n_tokens)
        nth = self.tilings(shape.n_tokens).index(self._tiling(spec, shape.n_tokens))
        layer = self._kv.layers[op.layer]
        out = self._address(step, op.out)
        sinks = ptr(op.sinks.ptr if op.sinks else 0)
        _, softcap = cuda_attention.query_scale(spec.scale, spec.softcap)
        args = (
            self._address(step, op.q), ptr(self._kv.ptr), i64(self._kv.page_bytes),
            i64(layer.k), i64(layer.v), step.input(f"tiles{nth}"), step.input("row_start"),
            step.input("n_past"), step.input("pages"), i32(shape.n_pages), i32(shape.n_tokens),
            i32(spec.n_heads), i32(spec.n_kv_heads), i32(spec.head_dim), i32(spec.window),
            f32(softcap), sinks, ptr(step.at.parts) if split else out,
        )  # fmt: skip
        grid = (shape.n_tiles[nth], spec.n_kv_heads, shape.n_splits if split else 1)
        name = cuda_attention.name(spec.head_dim, self._kv.kv_type, tile, split)
        self._emit(step, name, grid, (32, 4, tile[1]), args)
        dims = cuda_attention.padded_head(spec.head_dim)
        per_head = (shape.n_tokens, spec.n_heads, 1)
        if split:
            merge = (
                ptr(step.at.parts), step.input("row_of"), step.input("kvpos"),
                step.input("n_past"), i32(shape.n_splits), i32(shape.n_tokens),
                i32(spec.n_heads), i32(spec.head_dim), i32(spec.window), sinks, out,
            )  # fmt: skip
            name = cuda_attention.merge_name(spec.head_dim)
            self._emit(step, name, per_head, (dims, 1, 1), merge)
        if self._kv.kv_type == "q4r":
            self._emit(step, "rotate_heads", per_head, (dims, 1, 1), (out, i32(spec.head_dim)))


def _tile(spec: Attention, n_tokens: int) -> tuple[int, int]:
    """Attention's tile for a step of so many tokens."""
    return cuda_attention.tile_shape(spec.head_dim, n_tokens if n_tokens > MOST_PADDED else 1)


def _norm_args(norm: Norm | None) -> tuple[np.uint64, np.float32]:
    return (ptr(norm.weight.ptr), f32(norm.eps)) if norm else (ptr(0), f32(0))


def repack(
    device: Device, kind: int, k: int, sources: Sequence[int], target: int, n_rows: int
) -> Launch:
    """Rows of a file, of one matrix or of a gate and its twin, to tiles at ``target``."""
    paired = len(sources) == 2
    shape = cuda_weights.repack(kind, n_rows, k, paired)
    args = (ptr(sources[0]), ptr(sources[1] if paired else 0), ptr(target), i32(n_rows), i32(k))
    return Launch(shape.name, device.kernel(shape.name), (*shape.grid, 1), shape.block, args)
