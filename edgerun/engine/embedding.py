"""Vectors for texts: computed between the steps of generating sequences, with own pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import Batch, Program
from edgerun.engine.pages import PagePool

if TYPE_CHECKING:
    from edgerun.engine.engine import Engine

__all__ = ["POOLINGS", "Embedding", "Vectors"]

#: How the hidden states of a text's tokens become one vector.
POOLINGS = ("mean", "cls", "last")

Vectors = npt.NDArray[np.float32]


@dataclass(eq=False)
class _Text:
    ids: Sequence[int]
    n_past: int = 0
    pages: list[int] = field(default_factory=list)
    total: npt.NDArray[np.float64] | None = None

    def wanted(self, n: int, pooling: str) -> range:
        """Which of its next ``n`` tokens' hidden states count."""
        if pooling == "mean":
            return range(n)
        if pooling == "cls":
            return range(1 if self.n_past == 0 else 0)
        return range(n - 1, n) if self.n_past + n == len(self.ids) else range(0)

    def start_over(self, pool: PagePool) -> None:
        pool.release(self.pages)
        self.n_past, self.pages, self.total = 0, [], None


class Embedding:
    """One request's texts. The engine gives it a turn after each step, until it is done.

    Args:
        program: gives the program whose result is the hidden states; called on the engine's thread.
        texts: token ids of each text, none empty, none longer than the context.
        pooling: one of :data:`POOLINGS`.

    Attributes:
        result: float32 [n_texts, n_embd] in the end. Cancelling it ends the work.
        n_computed: tokens so far, those that were computed again among them.
    """

    def __init__(
        self, program: Callable[[], Program], texts: Sequence[Sequence[int]], pooling: str
    ) -> None:
        self.result: Future[Vectors] = Future()
        self.n_computed = 0
        self._program = program
        self._texts = [_Text(ids) for ids in texts]
        self._pooling = pooling
        self._done = 0  # texts before this one are finished

    @property
    def pages(self) -> list[int]:
        """The pages it holds."""
        return [p for t in self._texts[self._done :] for p in t.pages]

    def turn(self, engine: Engine, budget: int) -> bool:
        """Compute about ``budget`` tokens, as far as there are pages; False when there is nothing
        left to do."""
        if self.result.cancelled():
            self.give_back(engine.pool)
            return False
        rows = self._rows(engine.pool, budget, engine.limits.max_rows)
        if not rows:
            self.give_back(engine.pool)  # others need the room; it begins again when there is some
            return True
        try:
            batch = Batch.pack(
                [
                    (t.ids[t.n_past : t.n_past + n], t.n_past, t.pages, t.wanted(n, self._pooling))
                    for t, n in rows
                ]
            )
            hidden = self._program().run(batch)
        except Exception as e:
            self.fail(e, engine.pool)
            return False
        self._add(rows, hidden, engine.pool)
        if self._done < len(self._texts):
            return True
        self._finish()
        return False

    def give_back(self, pool: PagePool) -> None:
        """Leave the pages to others; unfinished texts begin again."""
        for t in self._texts[self._done :]:
            t.start_over(pool)

    def fail(self, error: Exception, pool: PagePool | None) -> None:
        """End with ``error``; without ``pool`` its pages are gone already."""
        if pool is not None:
            self.give_back(pool)
        if self.result.set_running_or_notify_cancel():
            self.result.set_exception(error)

    def _rows(self, pool: PagePool, budget: int, most: int) -> list[tuple[_Text, int]]:
        """Texts and how many tokens of each come next, with pages for these."""
        rows: list[tuple[_Text, int]] = []
        for t in self._texts[self._done : self._done + most]:
            n = min(budget, len(t.ids) - t.n_past)
            more = pool.pages_for(t.n_past + n) - len(t.pages)
            if n < 1 or more > pool.n_free:
                break
            t.pages += pool.allocate(more)
            rows.append((t, n))
            budget -= n
        return rows

    def _add(self, rows: list[tuple[_Text, int]], hidden: Vectors, pool: PagePool) -> None:
        at = 0
        for t, n in rows:
            k = len(t.wanted(n, self._pooling))
            if k:
                part = hidden[at : at + k].sum(axis=0, dtype=np.float64)
                t.total = part if t.total is None else t.total + part
            at += k
            t.n_past += n
            self.n_computed += n
            if t.n_past == len(t.ids):
                pool.release(t.pages)
                t.pages = []
                self._done += 1

    def _finish(self) -> None:
        vectors: list[Any] = []
        for t in self._texts:
            assert t.total is not None
            vectors.append(t.total / len(t.ids) if self._pooling == "mean" else t.total)
        if self.result.set_running_or_notify_cancel():
            self.result.set_result(np.stack(vectors).astype(np.float32))
