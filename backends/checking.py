"""What every program that reads pages by number checks of a batch first."""

from __future__ import annotations

import numpy as np

from edgerun.backends import base
from edgerun.errors import BackendError, RequestError

__all__ = ["check"]


def check(batch: base.Batch, n_vocab: int, n_ctx: int, n_pool: int, n_named: int = 0) -> None:
    """Refuse a batch that kernels would read or write out of bounds with. Tokens may stand for
    ``n_named`` ids of the step before.

    Raises:
        RequestError: a token id outside the vocabulary.
        BackendError: a position at or past ``n_ctx``, a row without a page for one of its tokens,
            a page that the pool of ``n_pool`` lacks, or arrays that disagree.
    """
    tokens, starts, past = batch.tokens.tolist(), batch.row_start.tolist(), batch.n_past.tolist()
    n, rows = len(tokens), len(past)
    if (
        len(batch.positions) != n
        or len(starts) != rows + 1
        or len(batch.pages) != rows
        or (starts[0], starts[-1]) != (0, n)
        or sorted(starts) != starts
        or min(past, default=0) < 0
    ):
        raise BackendError("the batch's arrays disagree")
    if not n:
        return
    if min(tokens) < -n_named or max(tokens) >= n_vocab:
        bad = next(t for t in tokens if not -n_named <= t < n_vocab)
        raise RequestError(f"token id {bad} is outside the vocabulary of {n_vocab} tokens")
    positions, outputs = batch.positions.tolist(), batch.outputs.tolist()
    if min(positions) < 0 or max(positions) >= n_ctx:
        raise BackendError(f"position {max(positions)} is past the context of {n_ctx} tokens")
    if outputs and (min(outputs) < 0 or max(outputs) >= n):
        raise BackendError("an output of the batch names no token")
    totals = np.diff(batch.row_start) + batch.n_past
    needed = -(-totals // base.PAGE_SIZE)
    places = np.arange(batch.pages.shape[1])
    bad_pages = (batch.pages < 0) | (batch.pages >= n_pool)
    wrong = (bad_pages & (places < needed[:, None])).any(axis=1) | (needed > len(places))
    if wrong.any():
        r = int(wrong.argmax())
        found = batch.pages[r, : needed[r]].tolist()
        raise BackendError(f"row {r} has {totals[r]} tokens but pages {found}")
