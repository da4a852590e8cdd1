"""DRY, "don't repeat yourself": the longer a repetition, the dearer its next token.

The sampler of p-e-w (oobabooga/text-generation-webui#5677), with llama.cpp's parameter names. If
the text so far ends in L tokens that occurred before, the token which followed them then costs
``multiplier * base ** (L - allowed_length)``, for L from ``allowed_length`` on. A repetition does
not reach back past a sequence breaker.

Breakers are looked for in the bytes of the text, so they are found however they were tokenized. A
token that itself holds a breaker is never penalized.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from edgerun.engine.sampling.dense import Pool
from edgerun.engine.sampling.native import F64, Scans

__all__ = ["Dry"]

_HUGE = 1e30
_LOG_FLOAT_MAX = 88.7228391


class Dry:
    """The history of one request and the penalties it asks for.

    Args:
        multiplier, base, allowed_length: of the formula above.
        last_n: how many of the last tokens to look at; -1 = all.
        breakers: strings; empty ones are skipped.
        token_bytes: a token's bytes. Needed when there are breakers.
        prompt_ids: the history to start from.
    """

    def __init__(
        self,
        multiplier: float,
        base: float,
        allowed_length: int,
        last_n: int,
        breakers: Sequence[str],
        token_bytes: Callable[[int], bytes] | None,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._multiplier, self._base = multiplier, base
        self._allowed, self._last_n = allowed_length, last_n
        self._top_exponent = int(_LOG_FLOAT_MAX / math.log(base)) if base > 1.000001 else 0
        self._breakers = tuple(b.encode("utf-8") for b in breakers if b)
        if self._breakers and token_bytes is None:
            raise ValueError("DRY's sequence breakers need token_bytes")
        self._bytes = token_bytes or (lambda _: b"")
        self._keep = max((len(b) for b in self._breakers), default=1) - 1
        self._tail = b""
        self._breaks: dict[int, bool] = {}
        self._n = len(prompt_ids)
        self._history = np.empty(max(256, 2 * self._n), np.int32)
        self._history[: self._n] = prompt_ids
        self._start = self._last_break(prompt_ids) if self._breakers else 0

    def _last_break(self, ids: Sequence[int]) -> int:
        """The index after the token that completes the last breaker; sets the tail."""
        look = 64
        while True:
            first = max(0, len(ids) - look)
            pieces = [self._bytes(i) for i in ids[first:]]
            text = b"".join(pieces)
            self._tail = self._end_of(text)
            end = max((i + len(b) for b in self._breakers if (i := text.rfind(b)) >= 0), default=0)
            if end or first == 0:
                break
            look *= 2
        if not end:
            return 0
        return first + next(i for i, n in enumerate(accumulate(map(len, pieces)), 1) if n >= end)

    def accept(self, token_id: int) -> None:
        """Append a token."""
        if self._n == len(self._history):
            self._history = np.concatenate([self._history, np.empty_like(self._history)])
        self._history[self._n] = token_id
        self._n += 1
        if self._breakers:
            old = len(self._tail)
            text = self._tail + self._bytes(token_id)
            # Only breakers that end in the new token: the tail may hold a short one already.
            if any(text.find(b, max(0, old - len(b) + 1)) >= 0 for b in self._breakers):
                self._start = self._n
            self._tail = self._end_of(text)

    def _end_of(self, text: bytes) -> bytes:
        """As much of the text's end as a breaker may have begun in."""
        return text[-self._keep :] if self._keep else b""

    def _is_breaker(self, token_id: int) -> bool:
        known = self._breaks.get(token_id)
        if known is None:
            piece = self._bytes(token_id)
            known = self._breaks[token_id] = any(b in piece for b in self._breakers)
        return known

    def penalties(self, scans: Scans) -> tuple[np.ndarray, F64]:
        """Token ids int32 [m] and what each costs, float64 [m]."""
        n = self._n if self._last_n < 0 else min(self._n, self._last_n)
        limit = min(self._n - self._start, n)
        if n <= self._allowed or limit < self._allowed:
            return np.empty(0, np.int32), np.empty(0)
        ids, lengths = scans.dry(self._history[self._n - n : self._n], self._allowed, limit)
        if self._breakers and len(ids):
            keep = np.array([not self._is_breaker(int(i)) for i in ids])
            ids, lengths = ids[keep], lengths[keep]
        exponents = (lengths - self._allowed).astype(np.float64)
        if self._top_exponent > 0:
            exponents = np.minimum(exponents, self._top_exponent)
        return ids, np.minimum(self._multiplier * np.power(self._base, exponents), _HUGE)

    def apply(self, pool: Pool, scans: Scans) -> Pool:
        """The pool with the penalties taken off."""
        ids, costs = self.penalties(scans)
        return pool.adjust(ids, lambda v, at: v - costs[at])
