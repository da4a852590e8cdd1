"""A distribution over some candidates: what is left once a sampler dropped the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from edgerun.engine.sampling.cut import MASS_NOISE, lightest, ranking
from edgerun.engine.sampling.native import F64, I32
from edgerun.errors import GenerationError

__all__ = ["COLDEST", "Adjust", "Sparse", "check", "dynamic_temperature"]

#: New logits for some tokens: (their logits, where they stand in the ids given) -> logits.
Adjust = Callable[[F64, "np.ndarray | slice"], F64]

_SMALL = 2048  # up to here sorting is quicker than avoiding it
#: Below this 1 / t overflows; no two logits of a model are that close.
COLDEST = 1e-20


def dynamic_temperature(
    entropy: float, count: int, temperature: float, reach: float, exponent: float
) -> float:
    """The entropy-driven temperature in ``temperature ± reach``, at least 0."""
    low, high = max(0.0, temperature - reach), temperature + reach
    share = min(max(entropy / math.log(count), 0.0), 1.0)
    return low + (high - low) * float(share**exponent)


class Sparse:
    """Candidates with their logits; same samplers as :class:`~.dense.Dense`.

    Each sampler returns a new pool; this one keeps its candidates.

    Attributes:
        ids: int32 [m], distinct, m >= 1.
        logits: float64 [m], above -inf.
        is_sorted: descending logits, equal ones by ascending id.
    """

    __slots__ = ("ids", "is_sorted", "logits")

    def __init__(self, ids: I32, logits: F64, *, is_sorted: bool) -> None:
        self.ids = ids
        self.logits = logits
        self.is_sorted = is_sorted

    def sparse(self) -> Sparse:
        """This pool."""
        return self

    def sort(self) -> Sparse:
        """This pool, its candidates put in order."""
        if not self.is_sorted:
            self.logits, self.ids = ranking(self.logits, self.ids)
            self.is_sorted = True
        return self

    def _first(self, m: int) -> Sparse:
        return Sparse(self.ids[:m], self.logits[:m], is_sorted=self.is_sorted)

    def _where(self, keep: np.ndarray) -> Sparse:
        return Sparse(self.ids[keep], self.logits[keep], is_sorted=self.is_sorted)

    def max(self) -> float:
        """The largest logit."""
        return float(self.logits[0] if self.is_sorted else self.logits.max())

    def _weights(self) -> F64:
        w: F64 = np.exp(self.logits - self.max())
        return w

    def adjust(self, ids: I32, change: Adjust) -> Sparse:
        """Change the logits of those candidates that are among ``ids`` [k], all distinct.

        Raises:
            GenerationError: none is left above -inf.
        """
        if len(ids):
            order = np.argsort(ids)
            at = np.minimum(np.searchsorted(ids, self.ids, sorter=order), len(ids) - 1)
            at = order[at]
            hit = np.flatnonzero(ids[at] == self.ids)
            logits = self.logits.copy()
            logits[hit] = change(logits[hit], at[hit])
            left = logits > -np.inf
            if left.all():
                return Sparse(self.ids, logits, is_sorted=False)
            if not left.any():
                check(-math.inf)
            return Sparse(self.ids[left], logits[left], is_sorted=False)
        return self

    def greedy(self) -> Sparse:
        """The likeliest candidate alone; of equals the smallest id."""
        if self.is_sorted:
            return self._first(1)
        best = self.ids[self.logits == self.logits.max()].min()
        return self._where(self.ids == best)

    def temperature(self, t: float) -> Sparse:
        """Logits over ``t``; 0 or less leaves the likeliest."""
        if t <= 0.0:
            return self.greedy()
        return Sparse(self.ids, self.logits / max(t, COLDEST), is_sorted=self.is_sorted)

    def dynatemp(self, temperature: float, reach: float, exponent: float) -> Sparse:
        """Temperature by the entropy of what is left: see :func:`dynamic_temperature`."""
        if len(self.ids) <= 1:
            return self
        w = self._weights()
        total = float(w.sum())
        entropy = math.log(total) - float(w @ (self.logits - self.max())) / total
        return self.temperature(
            dynamic_temperature(entropy, len(self.ids), temperature, reach, exponent)
        )

    def top_k(self, k: int) -> Sparse:
        """The k likeliest."""
        return self if k >= len(self.ids) else self.sort()._first(k)

    def top_p(self, p: float, min_keep: int) -> Sparse:
        """The likeliest until their mass reaches ``p``, and at least ``min_keep``."""
        if self.is_sorted or len(self.ids) <= _SMALL:
            run = np.cumsum(self.sort()._weights())
            cut = int(np.searchsorted(run, p * (1 - MASS_NOISE) * run[-1])) + 1
            return self._first(max(cut, min_keep))
        w, away = self._weights(), self.max() - self.logits
        bound = p * (1 - MASS_NOISE) * float(w.sum())
        return self._where(lightest(away, w, self.logits, self.ids, bound, min_keep, strict=False))

    def min_p(self, p: float, min_keep: int) -> Sparse:
        """Those at least ``p`` times as likely as the likeliest, and at least ``min_keep``."""
        return self._from(self.max() + math.log(p), min_keep)

    def _from(self, floor: float, min_keep: int) -> Sparse:
        keep = self.logits >= floor
        count = int(np.count_nonzero(keep))
        if self.is_sorted or count < min_keep:
            return self.sort()._first(max(count, min_keep))
        return self._where(keep)

    def min_probability(self, p: float) -> Sparse:
        """Those of probability ``p`` or more, and at least the likeliest."""
        floor = math.log(p) + math.log(float(self._weights().sum()))
        keep = self.logits - self.max() >= min(floor, 0.0)
        return self._where(keep)

    def typical(self, p: float, min_keep: int) -> Sparse:
        """Those whose surprise is nearest the entropy, until their mass exceeds ``p``."""
        w, d = self._weights(), self.logits - self.max()
        total = float(w.sum())
        off = np.abs(float(w @ d) / total - d)  # surprise less entropy, as distances from the best
        bound = p * (1 + MASS_NOISE) * total
        return self._where(lightest(off, w, self.logits, self.ids, bound, min_keep, strict=True))

    def top_n_sigma(self, n: float, min_keep: int) -> Sparse:
        """Those within ``n`` standard deviations of the best logit, and at least ``min_keep``."""
        return self._from(self.max() - n * float(self.logits.std()), min_keep)

    def xtc(self, threshold: float, min_keep: int) -> Sparse:
        """Drop those of probability ``threshold`` or more but the least likely of them."""
        w = self.sort()._weights()
        drop = int(np.count_nonzero(w >= threshold * w.sum())) - 1
        if drop > 0 and len(self.ids) - drop >= min_keep:
            return Sparse(self.ids[drop:], self.logits[drop:], is_sorted=True)
        return self

    def choose(self, u: float) -> tuple[int, float]:
        """The id where the running mass, in the order held, passes ``u``; its probability."""
        if len(self.ids) == 1:
            return int(self.ids[0]), 1.0
        w = self._weights()
        run = np.cumsum(w)
        total = run[-1]
        i = int(np.searchsorted(run, u * total, side="right"))
        if i >= len(run):  # u * total rounded up to total: take the last with any mass
            i = int(np.searchsorted(run, total))
        return int(self.ids[i]), float(w[i] / total)

    def pick(self, u: float) -> int:
        """:meth:`choose` without the probability."""
        return self.choose(u)[0]


def check(best: float) -> None:
    """Refuse a row by its largest logit.

    Raises:
        GenerationError: it is NaN, +inf, or -inf: nothing can be sampled.
    """
    if math.isnan(best):
        raise GenerationError(
            "the model produced NaN logits: its file or this backend is broken here"
        )
    if best == math.inf:
        raise GenerationError(
            "the model produced an infinite logit: its file or this backend is broken here"
        )
    if best == -math.inf:
        raise GenerationError(
            "no token can be sampled: every logit is -inf or masked; "
            "check logit_bias, ignore_eos and the constraint"
        )
