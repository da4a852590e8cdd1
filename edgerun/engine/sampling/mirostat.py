"""Mirostat 1 and 2 (Basu et al., arXiv:2007.14966): steer the text's surprise to a target.

Surprise is in bits. Both cut the candidates by a running bound ``mu``, sample, and move ``mu`` by
``eta`` times how far the surprise of the accepted token was off the target ``tau``.
"""

from __future__ import annotations

import math

import numpy as np

from edgerun.engine.sampling.dense import Pool
from edgerun.engine.sampling.sparse import Sparse

__all__ = ["Mirostat", "zipf_k"]

_M = 100  # how many of the likeliest tokens the exponent is estimated from


def zipf_k(logits: np.ndarray, mu: float, n_vocab: int) -> int:
    """Mirostat 1's k: how many tokens of a Zipf law keep the surprise under ``mu`` bits.

    Args:
        logits: the likeliest tokens', descending, float64 [m]; at most 100 are looked at.
        mu: the bound.
        n_vocab: the size of the vocabulary.
    """
    top = logits[:_M]
    if len(top) < 2:
        return 1
    t = np.log(np.arange(2, len(top) + 1) / np.arange(1, len(top)))
    s = float(t @ (top[:-1] - top[1:])) / float(t @ t)
    epsilon = s - 1.0
    if n_vocab < 2 or s <= 0.0:
        # A flat distribution: k tokens of it have a surprise of log2 k.
        return min(max(int(2.0 ** min(mu, 64.0)), 1), n_vocab)
    log_n = math.log(n_vocab)
    if abs(epsilon) * log_n < 1e-9:
        head = -math.log(log_n)  # the limit of epsilon / (1 - n ** -epsilon)
    elif epsilon > 0:
        head = math.log(epsilon) - math.log(-math.expm1(-epsilon * log_n))
    else:
        head = math.log(-epsilon) - math.log(math.expm1(-epsilon * log_n))
    log_k = (head + mu * math.log(2.0)) / s
    return n_vocab if log_k >= log_n else max(int(math.exp(log_k)), 1)


class Mirostat:
    """The state of one request; ``choose`` only looks, ``accept`` moves the bound."""

    def __init__(self, version: int, tau: float, eta: float, n_vocab: int) -> None:
        self._version, self._tau, self._eta, self._n_vocab = version, tau, eta, n_vocab
        self.mu = 2.0 * tau
        self._pending: tuple[int, float] | None = None

    def cut(self, pool: Pool) -> Sparse:
        """The candidates left of a pool, likeliest first."""
        if self._version == 2:
            return pool.min_probability(2.0 ** -min(self.mu, 1000.0)).sort()
        head = pool.top_k(_M).sparse().sort()
        k = zipf_k(head.logits, self.mu, self._n_vocab)
        return (head.top_k(k) if k <= len(head.ids) else pool.top_k(k).sparse()).sort()

    def choose(self, pool: Pool, u: float) -> int:
        """The next token of a pool."""
        token_id, p = self.cut(pool).choose(u)
        self._pending = token_id, -math.log2(p)
        return token_id

    def accept(self, token_id: int) -> None:
        """Move the bound, if this is the token last chosen."""
        if self._pending is not None and self._pending[0] == token_id:
            self.mu -= self._eta * (self._pending[1] - self._tau)
        self._pending = None
