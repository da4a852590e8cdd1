"""Drafts from a second, smaller model with the same tokens."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import mul

from edgerun.backends.base import Batch, Program
from edgerun.engine.budget import median
from edgerun.engine.draft_source import Draft
from edgerun.engine.drafting.ngram import NgramDrafter
from edgerun.engine.sampling.native import address, scans

__all__ = ["BestDrafter", "DraftModel", "ModelDrafter"]

MOST = 16
#: Tokens a call computes at most before it drafts: a long prompt takes several steps, so that
#: nobody waits for it.
_CHUNK = 128
#: Emitted tokens after which a drafter that does not pay tries again.
_RETRY = 32


class DraftModel:
    """The model and its pages, shared by the drafters of one engine, on its thread.

    Args:
        program: the model, bound to a KV pool of ``n_pages`` pages of ``page_size`` tokens.
        n_ctx: positions it was prepared for.
        n_vocab: ids from 0 up to this are drafted; behind others nothing is.
        step_seconds: what a step of one token costs the model drafted for; None = not known yet.
    """

    def __init__(
        self,
        program: Program,
        n_pages: int,
        page_size: int,
        n_ctx: int,
        n_vocab: int,
        step_seconds: Callable[[], float | None],
    ) -> None:
        self.n_ctx = n_ctx
        self._program = program
        self._page_size = page_size
        self.n_vocab = n_vocab
        self._step_seconds = step_seconds
        self._free = list(range(n_pages - 1, -1, -1))
        self._left: deque[list[int]] = deque()  # by drafters that are gone, on whatever thread
        self._times: deque[float] = deque(maxlen=15)

    def drafter(self) -> ModelDrafter:
        """A new drafter for one sequence."""
        d = ModelDrafter(self)
        weakref.finalize(d, self._left.append, d.pages)
        return d

    @property
    def price(self) -> float:
        """What a token drafted costs, in steps of the model drafted for."""
        step = self._step_seconds()
        return median(self._times) / step if self._times and step else 0.2

    def grow(self, pages: list[int], n_tokens: int) -> bool:
        """Make ``pages`` hold ``n_tokens``; False if there are not enough."""
        while self._left:
            self._free += self._left.popleft()
        need = -(-n_tokens // self._page_size) - len(pages)
        if need > len(self._free):
            return False
        pages.extend(self._free.pop() for _ in range(need))
        return True

    def compute(self, tokens: Sequence[int], n_past: int, pages: Sequence[int]) -> None:
        """Tokens of a prompt."""
        self._program.run(Batch.pack([(tokens, n_past, pages, [])]))

    def next(self, tokens: Sequence[int], n_past: int, pages: Sequence[int]) -> tuple[int, float]:
        """The likeliest token behind ``tokens``, and its probability; -1 if there is none."""
        start = time.perf_counter()
        logits = self._program.run(Batch.pack([(tokens, n_past, pages, [len(tokens) - 1])]))[0]
        row = logits[: self.n_vocab]
        scan = scans(self.n_vocab)
        token = scan.argmax(address(row))
        probability = 1.0 / scan.mass(address(row), float(row[token]), 1.0) if token >= 0 else 0.0
        if len(tokens) == 1:
            self._times.append(time.perf_counter() - start)
        return token, probability


class ModelDrafter:
    """Drafts greedily, as far as the next token is likely to be worth its price.

    How often the drafts are right is learned from the emitted tokens, by the probability that the
    model gives them. Out of pages or past its context it proposes nothing.
    """

    name = "model"
    quick = False

    def __init__(self, model: DraftModel) -> None:
        self.pages: list[int] = []
        self._model = model
        self._ids: list[int] = []
        self._foreign = False
        self._ahead: list[tuple[int, float]] = []  # drafted behind ids, with their odds' basis
        self._n_past = 0  # of ids and what is ahead, in the model's pages
        self._hits = [0.0] * 10  # by tenths of the model's own probability
        self._tries = [0.0] * 10
        self._right = 0.7  # of tokens drafted lately
        self._idle = 0

    def extend(self, ids: Sequence[int]) -> None:
        """Take committed tokens, in order, the prompt first."""
        self._foreign = self._foreign or any(i >= self._model.n_vocab for i in ids)
        if not self._ids:
            self._ids += ids
            return
        for i in ids:
            self._idle += 1
            if self._ahead:
                token, p = self._ahead.pop(0)
                self._learn(p, token == i)
                if token != i:
                    self._ahead.clear()
                    self._n_past = min(self._n_past, len(self._ids))
            self._ids.append(i)

    def draft(self, most: int) -> Draft:
        """At most ``most`` tokens, at most :data:`MOST`."""
        most = min(most, MOST, self._model.n_ctx - len(self._ids))
        if most < 1 or self._foreign or not self._ids or not self._catch_up():
            return Draft()
        price = self._model.price
        path = 1.0
        for _, p in self._ahead:
            path *= self._odds(p)
        if path * self._right > price or self._idle >= _RETRY:
            self._idle = 0
            while len(self._ahead) < most and self._advance():
                path *= self._odds(self._ahead[-1][1])
                if path * self._right < price:
                    break
        kept = self._ahead[:most]
        return Draft(tuple(t for t, _ in kept), tuple(self._odds(p) for _, p in kept))

    @property
    def gain(self) -> float:
        """Tokens that a draft is worth on average, beyond what drafting them costs."""
        price, path, gain = self._model.price, 1.0, 0.0
        for _ in range(MOST):
            path *= self._right
            if path < price:
                break
            gain += path - price
        return gain

    def _catch_up(self) -> bool:
        """Compute a part of the text that the pages lack; True if only its last tokens are left."""
        while (missing := len(self._ids) - self._n_past) > 1 and not self._ahead:
            n = min(missing - 1, _CHUNK)
            if not self._model.grow(self.pages, self._n_past + n):
                return False
            if missing <= 8:
                return True  # goes with the next step
            self._model.compute(
                self._ids[self._n_past : self._n_past + n], self._n_past, self.pages
            )
            self._n_past += n
            if n == _CHUNK:
                return False
        return True

    def _advance(self) -> bool:
        """Draft one more token."""
        end = len(self._ids) + len(self._ahead)
        if not self._model.grow(self.pages, end):
            return False
        text = [*self._ids[self._n_past :], *(t for t, _ in self._ahead)]
        # Tokens ahead that are in the pages already are at its start.
        text = text[max(0, self._n_past - len(self._ids)) :]
        token, p = self._model.next(text, self._n_past, self.pages)
        if token < 0:
            return False
        self._n_past = end
        self._ahead.append((token, p))
        return True

    def _odds(self, p: float) -> float:
        k = min(int(p * 10), 9)
        return min(0.995, (self._hits[k] + 4.0 * p) / (self._tries[k] + 4.0))

    def _learn(self, p: float, right: bool) -> None:
        k = min(int(p * 10), 9)
        self._hits[k] = 0.98 * self._hits[k] + right
        self._tries[k] = 0.98 * self._tries[k] + 1.0
        self._right += 0.05 * (right - self._right)


class BestDrafter:
    """Copies what the text repeats, and asks a model where that promises more."""

    name = "model"
    quick = False

    def __init__(self, ngram: NgramDrafter, model: ModelDrafter) -> None:
        self._ngram = ngram
        self._model = model

    def extend(self, ids: Sequence[int]) -> None:
        """Take committed tokens, in order, the prompt first."""
        self._ngram.extend(ids)
        self._model.extend(ids)

    def draft(self, most: int, after: Sequence[int] = ()) -> Draft:
        """At most ``most`` tokens, all from one of the two. Behind tokens that are not committed
        yet, ``after``, nothing is asked of the model."""
        free = self._ngram.draft(most, after)
        if not after and sum(accumulate(free.probs, mul)) < self._model.gain:
            dear = self._model.draft(most)
            if dear.tokens:
                return dear._replace(origins=((self._model.name, len(dear.tokens)),))
        return free._replace(origins=((self._ngram.name, len(free.tokens)),))
