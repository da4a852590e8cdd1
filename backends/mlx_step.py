"""One step's inputs as MLX arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from edgerun.backends import base
from edgerun.backends.base import PAGE_SIZE
from edgerun.backends.rope_table import RopeTable

__all__ = ["Row", "Step"]

I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Row:
    """A row's place in the batch and where its sequence lies.

    Attributes:
        span: of the batch's tokens.
        n_past, n_total: tokens of the sequence before this step and with it.
        slots: int32 [n_total], where each of its tokens lies in the pool.
    """

    span: slice
    n_past: int
    n_total: int
    slots: I32


class Step:
    """A checked batch.

    Args:
        known: int32, what a token of ``-1 - j`` stands for at ``j``: an array that may be part of
            a graph.

    Attributes:
        tokens, slots, row_of, place: int32 [n_tokens]: ids, where K and V go, the row of each
            token and its index in the row's sequence.
        pages: int32 [n_rows, max_pages].
        outputs: int32 [n_outputs]; None if they are all tokens.
        turns: for each rope float32 [n_tokens, n_rot], cosines and sines.
    """

    def __init__(
        self, batch: base.Batch, ropes: Sequence[RopeTable], known: mx.array | None = None
    ) -> None:
        self.rows = _rows(batch)
        self.n_tokens = batch.n_tokens
        place = np.concatenate([np.arange(r.n_past, r.n_total) for r in self.rows])
        row_of = np.repeat(np.arange(batch.n_rows), np.diff(batch.row_start))
        slots = np.concatenate([r.slots[r.n_past :] for r in self.rows])
        self.tokens = mx.array(batch.tokens)
        if known is not None and (batch.tokens < 0).any():
            named = known[mx.array(np.maximum(-1 - batch.tokens, 0))]
            self.tokens = mx.where(self.tokens < 0, named, self.tokens)
        self.slots = mx.array(slots.astype(np.int32))
        self.row_of = mx.array(row_of.astype(np.int32))
        self.place = mx.array(place.astype(np.int32))
        self.pages = mx.array(np.ascontiguousarray(batch.pages, np.int32))
        all_of_them = len(batch.outputs) == batch.n_tokens
        self.outputs = None if all_of_them else mx.array(batch.outputs.astype(np.int32))
        n_pos = int(batch.positions.max()) + 1
        self.turns = [mx.array(t.upto(n_pos)[batch.positions]) for t in ropes]
        #: What layers of one kind compute alike, by whatever they choose as a key.
        self.shared: dict[object, mx.array] = {}

    def n_short(self, most: int) -> int:
        """How many rows, from the first on, have at most ``most`` new tokens."""
        for i, r in enumerate(self.rows):
            if r.n_total - r.n_past > most:
                return i
        return len(self.rows)


def _rows(batch: base.Batch) -> list[Row]:
    found = []
    for r in range(batch.n_rows):
        start, stop = int(batch.row_start[r]), int(batch.row_start[r + 1])
        n_past = int(batch.n_past[r])
        n_total = n_past + stop - start
        at = np.arange(n_total)
        slots = batch.pages[r, at // PAGE_SIZE] * PAGE_SIZE + at % PAGE_SIZE
        found.append(Row(slice(start, stop), n_past, n_total, slots.astype(np.int32)))
    return found
