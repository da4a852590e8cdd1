"""The largest logits of rows by sorting them whole: what a backend's ``top`` must be."""

from __future__ import annotations

import numpy as np

from edgerun.backends.base import F32, Top


def top_of(logits: F32, k: int) -> Top:
    """Of float32 [n, n_vocab]."""
    ids = np.full((len(logits), k), -1, np.int32)
    values = np.full((len(logits), k), -np.inf, np.float32)
    for i, row in enumerate(logits):
        if np.isnan(row).any() or (row == np.inf).any():
            continue
        order = np.argsort(-row.astype(np.float64), kind="stable")[:k]
        order = order[row[order] > -np.inf]
        ids[i, : len(order)], values[i, : len(order)] = order, row[order]
    return Top(ids, values)
