"""Logit bias, and the penalties on tokens already seen."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from edgerun.engine.sampling.dense import Pool
from edgerun.engine.sampling.native import F64
from edgerun.errors import RequestError

__all__ = ["Bias", "Penalties"]

_HUGE = 1e30  # as good as infinite, yet float32 sums with it stay finite


class Bias:
    """``logit_bias``, and end-of-generation tokens masked under ``ignore_eos``.

    An addend of +inf wins against any logit, -inf bans the token.

    Raises:
        RequestError: a token id is not below ``n_vocab``.
    """

    def __init__(
        self, logit_bias: Mapping[int, float], banned: Collection[int], n_vocab: int
    ) -> None:
        for i in logit_bias:
            if not 0 <= i < n_vocab:
                raise RequestError(
                    f"logit_bias names token {i}, but the vocabulary ends at {n_vocab - 1}",
                    param="logit_bias",
                )
        bias = {i: min(max(float(v), -_HUGE), _HUGE) for i, v in logit_bias.items()}
        bias.update((i, -np.inf) for i, v in logit_bias.items() if v == -np.inf)
        bias.update((i, -np.inf) for i in banned if 0 <= i < n_vocab)
        self.ids = np.array(list(bias), np.int32)
        self._addends = np.array(list(bias.values()), np.float64)

    def __bool__(self) -> bool:
        return len(self.ids) > 0

    def apply(self, pool: Pool) -> Pool:
        """The pool with the addends in."""
        return pool.adjust(self.ids, lambda v, at: v + self._addends[at])


class Penalties:
    """repeat_penalty, presence_penalty and frequency_penalty.

    ``repeat_penalty`` divides positive and multiplies negative logits of the tokens among the
    last ``repeat_last_n``, prompt included. The other two, OpenAI's, count generated tokens only:
    ``presence`` is subtracted once, ``frequency`` once per occurrence.

    A table of the tokens met, each with both counts, is kept up to date token by token.
    """

    def __init__(
        self,
        repeat: float,
        last_n: int,
        presence: float,
        frequency: float,
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._repeat, self._presence, self._frequency = repeat, presence, frequency
        self._slot: dict[int, int] = {}
        self._ids = np.empty(64, np.int32)
        self._counts = np.zeros((2, 64), np.int32)  # in the window; generated
        self._window: deque[int] = deque()
        self._last_n = 0 if repeat == 1.0 else last_n
        if self._last_n:
            start = 0 if last_n < 0 else max(0, len(prompt_ids) - last_n)
            self._push(prompt_ids[start:])

    def _add(self, row: int, token_id: int) -> None:
        slot = self._slot.setdefault(token_id, len(self._slot))
        if slot == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)], axis=1)
        self._ids[slot] = token_id
        self._counts[row, slot] += 1

    def _push(self, tokens: Iterable[int]) -> None:
        for t in tokens:
            self._add(0, t)
            if self._last_n > 0:
                self._window.append(t)
                if len(self._window) > self._last_n:
                    self._counts[0, self._slot[self._window.popleft()]] -= 1

    def accept(self, token_id: int) -> None:
        """Count a generated token."""
        if self._last_n:
            self._push((token_id,))
        self._add(1, token_id)

    def apply(self, pool: Pool) -> Pool:
        """The pool with the penalties taken off."""
        m = len(self._slot)
        return pool.adjust(self._ids[:m], self._change)

    def _change(self, v: F64, at: np.ndarray | slice) -> F64:
        m = len(self._slot)
        window, generated = self._counts[0, :m][at], self._counts[1, :m][at]
        if self._repeat != 1.0:
            punished = np.where(v > 0.0, v / self._repeat, v * self._repeat)
            v = np.where(window > 0, punished, v)
        out: F64 = v - self._frequency * generated - self._presence * (generated > 0)
        return out
