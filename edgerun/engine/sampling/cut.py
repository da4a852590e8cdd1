"""Order and cut candidates without sorting more of them than the answer needs."""

from __future__ import annotations

import numpy as np

from edgerun.engine.sampling.native import F64, I32

__all__ = ["MASS_NOISE", "lightest", "ranking"]

#: Sums of float32 exponentials agree to this. A running mass this close to the bound of top_p or
#: typ_p counts as equal to it, so that a tie is decided the same way however it was summed.
MASS_NOISE = 1e-6

_SORT_ALL = 2048
_BINS = 1024


def ranking(logits: F64, ids: I32) -> tuple[F64, I32]:
    """The pairs sorted: descending logits, equal ones by ascending id."""
    order = np.argsort(-logits)
    v, i = logits[order], ids[order]
    new = v[1:] != v[:-1]
    if not new.all():
        # argsort is not stable (the stable one is ten times slower): sort ids inside equal runs.
        run = np.concatenate(([0], np.cumsum(new)))
        i = np.sort(run << 32 | i).astype(np.int32)  # the low half is the id
    return v, i


def lightest(
    keys: F64, weights: F64, logits: F64, ids: I32, bound: float, min_keep: int, *, strict: bool
) -> np.ndarray:
    """Which candidates have the smallest keys, up to where their weights reach a bound.

    Candidates are taken by ascending key (equal ones by descending logit, then by id) until the
    sum of their weights is at least ``bound`` (more than it, if ``strict``) and there are at least
    ``min_keep``. All of them if that never happens.

    Args:
        keys: float64 [m], >= 0.
        weights, logits: float64 [m].
        ids: int32 [m].

    Returns:
        bool [m], true for those taken.
    """
    keep = np.zeros(len(keys), np.bool_)
    edge, held = np.arange(len(keys)), 0.0
    if len(keys) > _SORT_ALL and (top := float(keys.max())) > 0.0:
        bins = np.minimum((keys * (_BINS / top)).astype(np.int64), _BINS - 1)
        mass = np.cumsum(np.bincount(bins, weights, _BINS))
        number = np.cumsum(np.bincount(bins, minlength=_BINS))
        enough = (mass > bound if strict else mass >= bound) & (number >= min_keep)
        last = int(np.argmax(enough)) if enough.any() else _BINS - 1
        keep, edge = bins < last, np.flatnonzero(bins == last)
        held = float(mass[last - 1]) if last else 0.0
        min_keep -= int(number[last - 1]) if last else 0
    order = edge[np.lexsort((ids[edge], -logits[edge], keys[edge]))]
    run = held + np.cumsum(weights[order])
    cut = int(np.searchsorted(run, bound, side="right" if strict else "left")) + 1
    keep[order[: max(cut, min_keep)]] = True
    return keep
