"""A distribution over the whole vocabulary, never sorted and seldom copied.

Each sampler gives exactly what sorting everything would: sets are found by thresholds on the
logits. Where a set is bounded by mass (top_p, typical) the total mass is summed first, then
candidates within a growing distance of the best are collected until they hold the mass wanted;
whatever is outside that distance could not be in the set. Exponentials are float32 and summed in
float64: a set's border may move by a token whose running mass is within 1e-6 of the bound.
"""

from __future__ import annotations

import math

import numpy as np

from edgerun.engine.sampling.constraint import Bits
from edgerun.engine.sampling.cut import MASS_NOISE, lightest
from edgerun.engine.sampling.native import F32, F64, I32, TOP_K_MAX, Scans, address
from edgerun.engine.sampling.sparse import COLDEST, Adjust, Sparse, check, dynamic_temperature

__all__ = ["FEW", "Dense", "Pool"]

#: So many candidates are cheaper to list than to mask the others.
FEW = 2048


class Dense:
    """One row of logits, float32 [n], under a temperature not yet applied.

    Each sampler returns the pool to go on with and may change this one; the row given is never
    written to. A token whose logit is -inf is no candidate.
    """

    __slots__ = ("_max", "_owned", "_ptr", "_scale", "_scans", "_x")

    def __init__(self, x: F32, scans: Scans) -> None:
        self._x = x
        self._scans = scans
        self._ptr = address(x)
        self._scale = 1.0  # logits count times this
        self._max: float | None = None
        self._owned = False

    @property
    def best(self) -> float:
        """The largest logit before temperature.

        Raises:
            GenerationError: a logit is NaN or +inf, or all are -inf.
        """
        if self._max is None:
            self._max = self._scans.scan(self._ptr)
            check(self._max)
        return self._max

    def mass(self) -> float:
        """Sum of exp(logit - best)."""
        return self._scans.mass(self._ptr, self.best, self._scale)

    def _sparse(self, ids: I32, vals: F32, *, is_sorted: bool = False) -> Sparse:
        logits: F64 = vals.astype(np.float64)
        if self._scale != 1.0:
            logits *= self._scale
        return Sparse(ids, logits, is_sorted=is_sorted)

    def adjust(self, ids: I32, change: Adjust) -> Dense:
        """Change the logits of the tokens ``ids`` [k], all distinct.

        Raises:
            GenerationError: one of them is NaN.
        """
        if len(ids):
            if not self._owned:
                self._x = self._scans.copy_of(self._x)
                self._ptr = address(self._x)
                self._owned = True
            old = self._x[ids].astype(np.float64)
            if np.isnan(old).any():
                check(math.nan)
            self._x[ids] = change(old * self._scale, slice(None)) / self._scale
            self._max = None
        return self

    def only(self, allowed: Bits) -> Dense | Sparse:
        """Those of the candidates that are allowed, bool [n].

        Raises:
            GenerationError: a logit is NaN or +inf, or none is left.
        """
        _ = self.best
        count = int(np.count_nonzero(allowed))
        if count == self._scans.n:
            return self
        if count <= FEW:
            ids = np.flatnonzero(allowed).astype(np.int32)
            vals = self._x[ids]
            if not (possible := vals > -np.inf).all():
                ids, vals = ids[possible], vals[possible]
            if not len(ids):
                check(-math.inf)
            return self._sparse(ids, vals)
        x = self._scans.copy_of(self._x)
        x[~allowed] = -np.inf
        masked = Dense(x, self._scans)
        masked._scale, masked._owned = self._scale, True
        return masked

    def greedy(self) -> Sparse:
        """The likeliest token alone; of equals the smallest id."""
        i = self._scans.argmax(self._ptr)
        check(float(self._x[i]) if i >= 0 else math.nan)
        return self._sparse(np.array([i], np.int32), self._x[i : i + 1], is_sorted=True)

    def temperature(self, t: float) -> Dense | Sparse:
        """Logits over ``t``; 0 or less leaves the likeliest."""
        if t <= 0.0:
            return self.greedy()
        self._scale /= max(t, COLDEST)
        return self

    def dynatemp(self, temperature: float, reach: float, exponent: float) -> Dense | Sparse:
        """Temperature by the entropy of the distribution."""
        count = self._count()
        if count <= 1:
            return self
        _, entropy = self._scans.entropy(self._ptr, self.best, self._scale)
        return self.temperature(dynamic_temperature(entropy, count, temperature, reach, exponent))

    def _count(self) -> int:
        return int(np.count_nonzero(self._x > -np.inf))

    def top_k(self, k: int) -> Dense | Sparse:
        """The k likeliest."""
        if k >= self._scans.n:
            return self
        if k <= TOP_K_MAX:
            return self._sparse(*self._scans.top_k(self._ptr, self.best, k), is_sorted=True)
        floor = np.partition(self._x, -k)[-k]
        ids, vals = self._collect(float(floor))
        over = len(ids) - k
        if over > 0:  # ties at the floor: those of the largest ids go
            gone = np.flatnonzero(vals == floor)[-over:]
            ids, vals = np.delete(ids, gone), np.delete(vals, gone)
        return self._sparse(ids, vals)

    def _collect(self, low: float, high: float = math.inf) -> tuple[I32, F32]:
        _ = self.best  # the block maxima must be this row's
        return self._scans.collect(self._ptr, low, high)

    def top_p(self, p: float, min_keep: int) -> Sparse:
        """The likeliest until their mass reaches ``p``, and at least ``min_keep``."""
        total = self.mass()
        for reach in (4.0, 7.0, 10.0, 13.0, 17.0, math.inf):
            ids, vals = self._collect(self.best - reach / self._scale)
            weights = np.exp((vals.astype(np.float64) - self.best) * self._scale)
            held = float(weights.sum())
            if reach == math.inf or (held > p * total and len(ids) >= min_keep):
                break
        pool = self._sparse(ids, vals)
        # Relative to what was collected the bound is p * total / held.
        return pool.top_p(min(p * total / held, 1.0), min_keep)

    def min_p(self, p: float, min_keep: int) -> Sparse:
        """Those at least ``p`` times as likely as the likeliest, and at least ``min_keep``."""
        return self._from(self.best + math.log(p) / self._scale, min_keep)

    def min_probability(self, p: float) -> Sparse:
        """Those of probability ``p`` or more, and at least the likeliest."""
        distance = min(math.log(p) + math.log(self.mass()), 0.0)
        return self._from(self.best + distance / self._scale, 1)

    def _from(self, floor: float, min_keep: int) -> Sparse:
        ids, vals = self._collect(floor)
        if len(ids) < min_keep:
            return self.top_k(min_keep).sparse()
        return self._sparse(ids, vals)

    def sparse(self) -> Sparse:
        """All candidates, by ascending id."""
        return self._sparse(*self._collect(-math.inf))

    def typical(self, p: float, min_keep: int) -> Sparse:
        """Those whose surprise is nearest the entropy, until their mass exceeds ``p``."""
        total, entropy = self._scans.entropy(self._ptr, self.best, self._scale)
        bound = p * (1 + MASS_NOISE) * total
        centre = math.log(total) - entropy  # the distance from the best of a typical token
        for reach in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, math.inf):
            ids, vals = self._collect(
                self.best + (centre - reach) / self._scale,
                self.best + (centre + reach) / self._scale,
            )
            d = (vals.astype(np.float64) - self.best) * self._scale
            w = np.exp(d)
            if reach == math.inf or (float(w.sum()) > bound and len(ids) >= min_keep):
                break
        off = np.abs(centre - d)
        keep = lightest(off, w, d, ids, bound, min_keep, strict=True)
        return self._sparse(ids[keep], vals[keep])

    def top_n_sigma(self, n: float, min_keep: int) -> Sparse:
        """Those within ``n`` standard deviations of the best logit, and at least ``min_keep``."""
        _, _, variance = self._scans.moments(self._ptr)
        return self._from(self.best - n * math.sqrt(max(variance, 0.0)), min_keep)

    def xtc(self, threshold: float, min_keep: int) -> Dense:
        """Drop those of probability ``threshold`` or more but the least likely of them."""
        bar = -math.inf if threshold <= 0.0 else math.log(threshold * self.mass())
        ids, vals = self._collect(self.best + bar / self._scale)
        if len(ids) < 2 or (min_keep > 1 and self._count() - len(ids) + 1 < min_keep):
            return self
        spared = ids[vals == vals.min()].max()
        return self.adjust(ids[ids != spared], lambda v, _: np.full_like(v, -np.inf))

    def pick(self, u: float) -> int:
        """The id where the running mass, by ascending id, passes the fraction ``u``."""
        return self._scans.pick(self._ptr, self.best, self._scale, u)


Pool = Dense | Sparse
