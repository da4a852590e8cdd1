"""Cosines and sines of a rope, by position."""

from __future__ import annotations

import numpy as np

from edgerun.backends.base import F32, Rope

__all__ = ["RopeTable"]


class RopeTable:
    """float32 [n_pos, n_rot]: cosines, then sines, times the rope's scale; grows on demand."""

    def __init__(self, rope: Rope, n_ctx: int) -> None:
        self._rope = rope
        self._n_ctx = n_ctx
        self._table = np.zeros((0, rope.n_rot), np.float32)

    @property
    def width(self) -> int:
        return self._rope.n_rot

    def upto(self, n_pos: int) -> F32:
        """At least the first ``n_pos`` positions."""
        have = len(self._table)
        if n_pos > have:
            size = min(max(n_pos, 2 * have, 1024), max(self._n_ctx, n_pos))
            pos = np.arange(have, size, dtype=np.float32)[:, None]
            angle = (pos * self._rope.inv_freq[None, :].astype(np.float32)).astype(np.float64)
            new = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * self._rope.mscale
            self._table = np.concatenate([self._table, new.astype(np.float32)])
        return self._table
