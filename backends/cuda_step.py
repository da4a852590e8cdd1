"""One step's inputs as kernels read them: the shape that decides the launches, and the bytes.

All inputs of a step lie in one block of memory, so that one copy brings them to the device. Steps
of few tokens are padded to a bucket: launches then depend on nothing else, and are replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edgerun.backends import base, cuda_attention
from edgerun.backends.checking import check

__all__ = [
    "MOST_PADDED", "Block", "Inputs", "Shape", "Tiling", "Wanted", "bucket", "check",
    "padded_shape",
]  # fmt: skip

#: Most tokens of a step that is padded and replayed.
MOST_PADDED = 64
#: Marks a token, a tile or a page that is not there.
NONE = -1

I32 = npt.NDArray[np.int32]
#: What a step makes of its logits on the device: nothing, the best ids, or the largest in order.
Wanted: TypeAlias = Literal["logits", "best", "top"]


class Tiling(NamedTuple):
    """How attention cuts queries: ``group`` query heads share a KV head; ``tile`` is what
    :func:`cuda_attention.tile_shape` gave."""

    group: int
    tile: tuple[int, int]

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return 16 * self.tile[0] * self.tile[1]


@dataclass(frozen=True)
class Shape:
    """All that a step's launches depend on.

    Attributes:
        n_tokens, n_rows, n_outputs: of the batch, padding included.
        n_pages: entries a row's page table has room for.
        n_splits: splits of attention that the longest row needs at most.
        n_tiles: of each tiling.
        padded: whether the numbers are a bucket's.
    """

    n_tokens: int
    n_rows: int
    n_outputs: int
    n_pages: int
    n_splits: int
    n_tiles: tuple[int, ...]
    padded: bool


def bucket(n: int) -> int:
    """The power of two at or above ``n``; 0 stays."""
    return 1 << (n - 1).bit_length() if n else 0


def padded_shape(batch: base.Batch, tilings: Sequence[Tiling]) -> Shape:
    """The shape a batch runs with. ``tilings`` are those of its size."""
    starts, past = batch.row_start.tolist(), batch.n_past.tolist()
    counts = [b - a for a, b in pairwise(starts)]
    n, rows, outputs = batch.n_tokens, batch.n_rows, len(batch.outputs)
    longest = max(map(sum, zip(counts, past, strict=True)), default=1)
    pages, splits = -(-longest // base.PAGE_SIZE), -(-longest // cuda_attention.SPLIT)
    if n > MOST_PADDED:
        tiles = tuple(sum(-(-c * t.group // t.rows) for c in counts) for t in tilings)
        return Shape(n, rows, outputs, pages, splits, tiles, False)
    n = bucket(n)
    splits = bucket(splits)
    most = tuple(n * -(-t.group // t.rows) for t in tilings)
    pages = splits * (cuda_attention.SPLIT // base.PAGE_SIZE)
    return Shape(n, n, min(bucket(outputs), n), pages, splits, most, True)


class Block:
    """Where each input of steps of one shape lies, in bytes from the block's start: first what
    are lists of numbers, then pages and ropes' turns."""

    def __init__(self, shape: Shape, tilings: Sequence[Tiling], rope_widths: Sequence[int]) -> None:
        self.shape = shape
        self._tilings = tuple(tilings)
        self._at: dict[str, tuple[int, tuple[int, ...]]] = {}
        self.nbytes = 0
        self._add("tokens", shape.n_tokens)
        self._add("row_of", shape.n_tokens)
        self._add("kvpos", shape.n_tokens)
        self._add("row_start", shape.n_rows + 1)
        self._add("n_past", shape.n_rows)
        self._add("outputs", shape.n_outputs)
        for i, n in enumerate(shape.n_tiles):
            self._add(f"tiles{i}", 2 * n)
        self._lists = self.nbytes
        self._add("pages", shape.n_rows, shape.n_pages)
        self._turns = [f"turns{i}" for i in range(len(rope_widths))]
        for name, width in zip(self._turns, rope_widths, strict=True):
            self._add(name, shape.n_tokens, width)

    def _add(self, name: str, *dims: int) -> None:
        self._at[name] = (self.nbytes, dims)
        self.nbytes += _aligned(math.prod(dims)) * 4

    def offset(self, name: str) -> int:
        return self._at[name][0]

    def inputs(self, memory: npt.NDArray[np.uint8]) -> Inputs:
        """Where to write batches, in ``nbytes`` bytes of memory."""

        def view(name: str, dtype: Any) -> Any:
            start, dims = self._at[name]
            return memory[start : start + 4 * math.prod(dims)].view(dtype).reshape(dims)

        memory[: self.nbytes].view(np.int32)[:] = NONE
        turns = [view(name, np.float32) for name in self._turns]
        for table in turns:
            table[:] = 0.0
        lists = memory[: self._lists].view(np.int32)
        return Inputs(self.shape, self._tilings, memory[: self.nbytes], lists,
                      view("pages", np.int32), turns)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Inputs:
    """Views of one block's parts."""

    shape: Shape
    tilings: tuple[Tiling, ...]
    memory: npt.NDArray[np.uint8]
    lists: I32
    pages: I32
    turns: list[base.F32]

    def fill(self, batch: base.Batch, tables: Sequence[base.F32]) -> None:
        """Write a batch; ``tables`` are the ropes', by position.

        A padding token lies nowhere in its sequence: it writes no K and V, and nobody reads it.
        Nor does anybody read what earlier batches left behind the pages of a row.
        """
        shape, n = self.shape, batch.n_tokens
        starts, past = batch.row_start.tolist(), batch.n_past.tolist()
        row_of: list[int] = []
        kvpos: list[int] = []
        for r, (a, b) in enumerate(pairwise(starts)):
            row_of += [r] * (b - a)
            kvpos += range(past[r], past[r] + b - a)
        parts = [
            (batch.tokens.tolist(), shape.n_tokens, 0), (row_of, shape.n_tokens, 0),
            (kvpos, shape.n_tokens, NONE), (starts, shape.n_rows + 1, n), (past, shape.n_rows, 0),
            (batch.outputs.tolist(), shape.n_outputs, 0),
        ]  # fmt: skip
        for tiling, most in zip(self.tilings, shape.n_tiles, strict=True):
            parts.append((_tiles(starts, tiling), 2 * most, NONE))
        flat: list[int] = []
        for values, size, rest in parts:
            flat += values
            flat += [rest] * (_aligned(size) - len(values))
        self.lists[:] = flat
        wide = min(self.pages.shape[1], batch.pages.shape[1])
        self.pages[: batch.n_rows, :wide] = batch.pages[:, :wide]
        for view, table in zip(self.turns, tables, strict=True):
            np.take(table, batch.positions, axis=0, out=view[:n])


def _aligned(words: int) -> int:
    """Words of a part: its neighbours begin at multiples of 16 bytes."""
    return -(-words // 4) * 4


def _tiles(starts: Sequence[int], tiling: Tiling) -> list[int]:
    """As :func:`cuda_attention.query_tiles`, in one list."""
    found: list[int] = []
    for r, (a, b) in enumerate(pairwise(starts)):
        for q in range(0, (b - a) * tiling.group, tiling.rows):
            found += (r, q)
    return found
