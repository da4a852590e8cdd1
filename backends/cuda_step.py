"""One step's inputs as kernels read them: the shape that decides the launches, and the bytes.

All inputs of a step lie in one block of memory, so that one copy brings them to the device. Steps
of few tokens are padded to a bucket: launches then depend on nothing else, and are replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgerun.backends import base, cuda_attention
from edgerun.errors import BackendError, RequestError

__all__ = [
    "MOST_PADDED", "Block", "Shape", "Tiling", "bucket", "check", "padded_shape",
]  # fmt: skip

#: Most tokens of a step that is padded and replayed.
MOST_PADDED = 16
#: Marks a token, a tile or a page that is not there.
NONE = -1

I32 = npt.NDArray[np.int32]


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


def check(batch: base.Batch, n_vocab: int, n_ctx: int, n_pool: int) -> None:
    """Refuse a batch that kernels would read or write out of bounds with.

    Raises:
        RequestError: a token id outside the vocabulary.
        BackendError: a position at or past ``n_ctx``, a row without a page for one of its tokens,
            a page that the pool of ``n_pool`` lacks, or arrays that disagree.
    """
    tokens, starts = batch.tokens, batch.row_start
    n = np.diff(starts)
    if (
        len(batch.positions) != len(tokens)
        or len(starts) != batch.n_rows + 1
        or len(batch.pages) != batch.n_rows
        or (len(starts) and (starts[0] != 0 or starts[-1] != len(tokens)))
        or (n < 0).any()
    ):
        raise BackendError("the batch's arrays disagree in length")
    if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < n_vocab:
        bad = tokens[(tokens < 0) | (tokens >= n_vocab)]
        raise RequestError(f"token id {int(bad[0])} is outside the vocabulary of {n_vocab} tokens")
    if len(tokens) and int(batch.positions.max()) >= n_ctx:
        raise BackendError(
            f"position {int(batch.positions.max())} is past the context of {n_ctx} tokens"
        )
    if len(batch.outputs) and not 0 <= batch.outputs.min() <= batch.outputs.max() < len(tokens):
        raise BackendError("an output of the batch names no token")
    totals = batch.n_past + n
    for r in range(batch.n_rows):
        pages = batch.pages[r, : -(-int(totals[r]) // base.PAGE_SIZE)]
        short = len(pages) * base.PAGE_SIZE < totals[r]
        if short or (len(pages) and not 0 <= pages.min() <= pages.max() < n_pool):
            raise BackendError(f"row {r} has {totals[r]} tokens but pages {pages.tolist()}")


def bucket(n: int) -> int:
    """The power of two at or above ``n``; 0 stays."""
    return 1 << (n - 1).bit_length() if n else 0


def padded_shape(batch: base.Batch, tilings: Sequence[Tiling]) -> Shape:
    """The shape a batch runs with. ``tilings`` are those of its size."""
    n, rows, outputs = batch.n_tokens, batch.n_rows, len(batch.outputs)
    longest = int((batch.n_past + np.diff(batch.row_start)).max(initial=1))
    pages, splits = -(-longest // base.PAGE_SIZE), -(-longest // cuda_attention.SPLIT)
    if n > MOST_PADDED:
        counts = np.diff(batch.row_start)
        tiles = tuple(int((-(-counts * t.group // t.rows)).sum()) for t in tilings)
        return Shape(n, rows, outputs, pages, splits, tiles, False)
    n = bucket(n)
    splits = bucket(splits)
    most = tuple(n * -(-t.group // t.rows) for t in tilings)
    pages = splits * (cuda_attention.SPLIT // base.PAGE_SIZE)
    return Shape(n, n, min(bucket(outputs), n), pages, splits, most, True)


class Block:
    """Where each input of steps of one shape lies, in bytes from the block's start."""

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
            self._add(f"tiles{i}", n, 2)
        for i, width in enumerate(rope_widths):
            self._add(f"turns{i}", shape.n_tokens, width)
        self._add("pages", shape.n_rows, shape.n_pages)

    def _add(self, name: str, *dims: int) -> None:
        self._at[name] = (self.nbytes, dims)
        size = 4 * int(np.prod(dims, dtype=np.int64))
        self.nbytes += -(-size // 16) * 16

    def offset(self, name: str) -> int:
        return self._at[name][0]

    def _view(self, memory: npt.NDArray[np.uint8], name: str, dtype: Any = np.int32) -> Any:
        start, dims = self._at[name]
        size = 4 * int(np.prod(dims, dtype=np.int64))
        return memory[start : start + size].view(dtype).reshape(dims)

    def fill(
        self, memory: npt.NDArray[np.uint8], batch: base.Batch, turns: Sequence[base.F32]
    ) -> None:
        """Write a batch. ``turns``: of each rope float32 [n_tokens, width], by token.

        A padding token lies nowhere in its sequence: it writes no K and V, and nobody reads it.
        """
        n, rows = batch.n_tokens, batch.n_rows
        counts, starts = np.diff(batch.row_start), batch.row_start.tolist()
        self._put(memory, "tokens", batch.tokens, 0)
        row_of = np.repeat(np.arange(rows, dtype=np.int32), counts)
        self._put(memory, "row_of", row_of, 0)
        within = np.arange(n, dtype=np.int32) - batch.row_start[:-1][row_of]
        self._put(memory, "kvpos", batch.n_past[row_of] + within, NONE)
        self._put(memory, "row_start", batch.row_start, n)
        self._put(memory, "n_past", batch.n_past, 0)
        self._put(memory, "outputs", batch.outputs, 0)
        for i, tiling in enumerate(self._tilings):
            tiles = cuda_attention.query_tiles(starts, tiling.group, tiling.tile)
            self._put(memory, f"tiles{i}", tiles, NONE)
        for i, table in enumerate(turns):
            view = self._view(memory, f"turns{i}", np.float32)
            view[:n], view[n:] = table, 0.0
        pages = self._view(memory, "pages")
        wide = min(pages.shape[1], batch.pages.shape[1])
        pages[:rows, :wide], pages[:rows, wide:], pages[rows:] = batch.pages[:, :wide], NONE, NONE

    def _put(self, memory: npt.NDArray[np.uint8], name: str, values: I32, rest: int) -> None:
        view = self._view(memory, name)
        view[: len(values)], view[len(values) :] = values, rest
