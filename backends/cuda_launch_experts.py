"""A layer of experts as kernel launches: the choice, its columns, two products, the weighed sum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from edgerun.backends import cuda_experts, cuda_kernels, cuda_weights
from edgerun.backends.cuda_device import Args, Dims, ptr
from edgerun.backends.cuda_lowered import Choice, Matrix, Mixture, Ref, Vector

__all__ = ["EPILOGUES", "Planned", "mixture"]

i32, i64, f32 = np.int32, np.int64, np.float32

#: epilogue.cuh's numbers.
EPILOGUES = {"store": 0, "add": 0, "silu": 1, "gelu": 2, "swiglu_oai": 3}


class Planned(NamedTuple):
    """A launch whose kernel is still a name."""

    name: str
    grid: Dims
    block: Dims
    args: Args


class _Layer:
    """One op in a step of ``n`` rows; ``address`` and ``stride`` say where buffers lie."""

    def __init__(
        self, op: Mixture, n: int, address: Callable[[Ref | None], np.uint64],
        stride: Callable[[Ref | None], np.int32],
    ) -> None:  # fmt: skip
        self.op, self.n = op, n
        self.experts = Choice(op.spec.n_used, op.spec.n_experts)
        self.columns = cuda_experts.n_columns(n, self.experts)
        self.address, self.stride = address, stride
        self._offsets = cuda_experts.ChoiceBlock(n, self.experts).offsets
        w = op.weights
        # Gate and up work on the same items.
        most = min(self._kernel(m).tiles for m in (w.gate, w.up))
        self._gate, self._up = (self._kernel(m, most) for m in (w.gate, w.up))
        self._down = self._kernel(w.down)

    def _kernel(self, w: Matrix, most: int = 8) -> cuda_experts.Product:
        tiles = cuda_weights.n_tiles(w.n_out, w.twin is not None)
        return cuda_experts.product(w.type, tiles, w.n_in, self.n, self.experts, most)

    def choice(self, name: str) -> np.uint64:
        return ptr(int(self.address(self.op.choice)) + self._offsets[name])

    def choose(self, kvpos: np.uint64) -> Iterator[Planned]:
        """Experts, shares and columns."""
        spec, n = self.op.spec, self.n
        names = ("column", "token", "live", "items0", "items1")
        items = [
            cuda_experts.most_items(n, self.experts, cuda_experts.TILE * p.tiles)
            for p in (self._gate, self._down)
        ]
        counts = (
            *(self.choice(x) for x in names), i32(n), i32(spec.n_experts), i32(spec.n_used),
            i32(self.columns), i32(self._gate.tiles), i32(items[0]), i32(self._down.tiles),
            i32(items[1]),
        )  # fmt: skip
        of_all = spec.gating == "softmax"
        args = (
            self.address(self.op.logits), self.stride(self.op.logits), kvpos, i32(of_all),
            i32(spec.normalize or not of_all), f32(spec.scale), self.choice("expert"),
            self.choice("share"), self.choice("mask"), *counts,
        )  # fmt: skip
        words = cuda_experts.n_words(n)
        yield Planned("route", (words, 1, 1), cuda_experts.route_block(n), args)
        if words > 1:
            args = (self.choice("expert"), self.choice("mask"), *counts)
            yield Planned("place", (words, 1, 1), (256, 1, 1), args)

    def spread(self, x: Ref, rows: str, out: Ref, width: int, acts: bool) -> Planned:
        """Rows of ``x`` that a list of the choice names, a column each."""
        name, threads = cuda_kernels.tokenwise(width, acts)
        none = ptr(0), i32(0)
        args = (
            self.address(x), self.stride(x), *none, self.choice(rows), ptr(0), f32(0), *none,
            f32(1), ptr(0), f32(0), i32(0), self.address(out), self.stride(out), i32(width),
        )  # fmt: skip
        return Planned(name, (self.columns, 1, 1), (threads, 1, 1), args)

    def products(self, x: Ref) -> Iterator[Planned]:
        """Gate and up, from their input to their units."""
        w, op = self.op.weights, self.op
        if op.ups is None:
            biases = (w.gate_bias, w.up_bias)
            yield self._product("items0", w.gate, biases, x, op.units, self._gate, op.spec.act)
            return
        yield self._product("items0", w.gate, (w.gate_bias, None), x, op.units, self._gate)
        yield self._product("items0", w.up, (w.up_bias, None), x, op.ups, self._up)
        n = self.columns * op.spec.n_ff
        units = self.address(op.units)
        args = (units, self.address(op.ups), units, i64(n), i32(EPILOGUES[op.spec.act]))
        yield Planned("glu", (min(-(-n // 256), 4096), 1, 1), (256, 1, 1), args)

    def down(self, x: Ref) -> Planned:
        w = self.op.weights
        return self._product("items1", w.down, (w.down_bias, None), x, self.op.parts, self._down)

    def _product(
        self, items: str, w: Matrix, biases: tuple[Vector | None, Vector | None], x: Ref, out: Ref,
        product: cuda_experts.Product, epilogue: str = "store",
    ) -> Planned:  # fmt: skip
        tiles = cuda_weights.n_tiles(w.n_out, w.twin is not None)
        front = (
            ptr(w.ptr), self.address(x), self.choice(items),
            *(ptr(b.ptr if b else 0) for b in biases), self.address(out), i32(tiles),
        )  # fmt: skip
        tail = (i32(w.n_out), self.stride(out), i32(EPILOGUES[epilogue]))
        args: Args
        if w.takes == "f32":
            args = (*front, i32(w.n_in), self.stride(x), *tail)
        else:
            args = (*front, i32(-(-w.n_in // cuda_weights.GROUP)), *tail)
        shape = product.shape
        return Planned(shape.name, (*shape.grid, 1), shape.block, args)

    def total(self) -> Planned:
        op = self.op
        width = op.weights.down.n_out
        args = (
            self.address(op.parts), self.stride(op.parts), self.choice("column"),
            self.choice("share"), self.address(op.residual), self.stride(op.residual),
            self.address(op.out), self.stride(op.out), i32(op.spec.n_used), i32(width),
        )  # fmt: skip
        return Planned("sum_experts", (self.n, -(-width // 1024), 1), (256, 1, 1), args)


def mixture(
    op: Mixture, n: int, kvpos: np.uint64, address: Callable[[Ref | None], np.uint64],
    stride: Callable[[Ref | None], np.int32],
) -> Iterator[Planned]:  # fmt: skip
    """The launches of ``op`` for ``n`` rows. ``kvpos``: of the rows, -1 for padding, or null."""
    layer = _Layer(op, n, address, stride)
    yield from layer.choose(kvpos)
    w = op.weights
    yield layer.spread(op.x, "token", op.columns, w.gate.n_in, w.gate.takes == "acts")
    yield from layer.products(op.columns)
    units = op.units
    if op.digits is not None:
        yield layer.spread(units, "live", op.digits, op.spec.n_ff, acts=True)
        units = op.digits
    yield layer.down(units)
    yield layer.total()
