"""What the largest logits of a row say about the rest: as much as most chains ask.

Of a row that lies on a device only the largest logits come over, in order. All others are below
the last of these, and that is enough to know which tokens ``top_k``, ``min_p`` or the greedy choice
leave: after a mask, a bias or a penalty, too, as long as no other token can have overtaken.
"""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np

from edgerun.engine.sampling.constraint import Bits
from edgerun.engine.sampling.cut import ranking
from edgerun.engine.sampling.dense import FEW
from edgerun.engine.sampling.native import F32, F64, I32, TOP_K_MAX
from edgerun.engine.sampling.sparse import Adjust, Sparse

__all__ = ["Leading", "UnknownError"]


class UnknownError(Exception):
    """The largest logits do not say it: the whole row must."""


class Leading:
    """The largest logits of a row of ``n_vocab``, with the samplers of :class:`~.dense.Dense` that
    they may decide: each gives the very pool that the whole row's would become.

    Args:
        ids: int32 [n], of the tokens with the largest logits above -inf, best first, of equals the
            lowest id first; n >= 1.
        logits: float32 [n].
        whole: whether no other token is above -inf.

    Every method raises :class:`UnknownError` where it takes more of the row.
    """

    def __init__(self, ids: I32, logits: F32, n_vocab: int, *, whole: bool) -> None:
        self._ids = ids
        self._logits: F64 = logits.astype(np.float64)
        self._n_vocab = n_vocab
        # No other token's logit and id come before these.
        self._bound = -math.inf if whole else float(logits[-1])
        self._bound_id = int(ids[-1])
        self._is_sparse = False  # the pool in its place is one that lists its candidates

    def only(self, allowed: Bits) -> Leading:
        """Those allowed, bool [n_vocab]."""
        count = int(np.count_nonzero(allowed))
        if count < self._n_vocab:
            keep = allowed[self._ids]
            self._ids, self._logits = self._ids[keep], self._logits[keep]
            self._is_sparse = count <= FEW
        return self

    def adjust(self, ids: I32, change: Adjust) -> Leading:
        """Change the logits of the tokens ``ids`` [k], all distinct. ``change`` keeps the order of
        one token's logits: a larger one does not become smaller than a smaller one."""
        if not len(ids) or not len(self._ids):
            return self
        order = np.argsort(self._ids)
        at = order[np.minimum(np.searchsorted(self._ids, ids, sorter=order), len(order) - 1)]
        known = self._ids[at] == ids
        # What is not among the largest is at most the bound, and so changed to at most its change.
        changed = self._rounded(change(np.where(known, self._logits[at], self._bound), slice(None)))
        most = float(np.max(changed, where=~known, initial=-math.inf))
        if most >= self._bound:
            self._bound, self._bound_id = most, -1
        self._logits[at[known]] = changed[known]
        left = self._logits > -np.inf
        if not left.all():
            self._ids, self._logits = self._ids[left], self._logits[left]
        return self

    def _rounded(self, logits: F64) -> F64:
        """As a whole row keeps them."""
        return logits if self._is_sparse else logits.astype(np.float32).astype(np.float64)

    def _sure(self, logit: float, token_id: int) -> bool:
        """Whether no token that is not among these comes before this one."""
        if logit == self._bound:
            return token_id <= self._bound_id
        return logit > self._bound

    def _first(self, k: int) -> Sparse:
        """The first ``k`` in order, or all there are."""
        logits, ids = ranking(self._logits, self._ids)
        last = min(k, len(ids)) - 1
        if last < 0 or logits[0] == math.inf or (len(ids) < k and self._bound > -math.inf):
            raise UnknownError
        if not self._sure(float(logits[last]), int(ids[last])):
            raise UnknownError
        return Sparse(ids[:k], logits[:k], is_sorted=True)

    def greedy(self) -> Sparse:
        """The likeliest token alone; of equals the smallest id."""
        return self._first(1)

    def top_k(self, k: int) -> Sparse:
        """The k likeliest."""
        # A list that is not longer than k stays as it is, in order of ids.
        listed = self._is_sparse and len(self._ids) <= k
        if listed or k > TOP_K_MAX or k >= self._n_vocab:
            raise UnknownError
        return self._first(k)

    def min_p(self, p: float, min_keep: int) -> Sparse:
        """Those at least ``p`` times as likely as the likeliest, and at least ``min_keep``."""
        best = float(np.max(self._logits, initial=-math.inf))
        floor = best + math.log(p)
        if not self._bound < floor < math.inf:
            raise UnknownError
        keep = self._logits >= floor
        if int(np.count_nonzero(keep)) < min_keep:
            return self.top_k(min_keep)
        ids, logits = self._ids[keep], self._logits[keep]
        order = np.argsort(ids)
        return Sparse(ids[order], logits[order], is_sorted=False)

    def _unknown(self, *_: object) -> NoReturn:
        raise UnknownError

    temperature = dynatemp = top_p = typical = top_n_sigma = xtc = pick = sparse = _unknown
