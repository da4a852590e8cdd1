"""The step: schedule rows, pack them, run the model, sample, deliver."""

from __future__ import annotations

import logging
import time

from edgerun.backends.base import F32, Batch, Program
from edgerun.core import FinishReason
from edgerun.engine.pages import PagePool
from edgerun.engine.scheduler import Demand, Limits, plan
from edgerun.engine.sequence import Sequence
from edgerun.errors import OutOfMemoryError

__all__ = ["Engine"]

log = logging.getLogger(__name__)


class Engine:
    """Runs sequences on one program and one page pool. Single-threaded; see :mod:`.worker`.

    Args:
        program: the model, bound to a KV pool of ``n_pages`` pages.
        n_pages, page_size: the pool's shape.
        limits: bounds of a step.
    """

    def __init__(
        self, program: Program, n_pages: int, page_size: int, limits: Limits | None = None
    ) -> None:
        self.program = program
        self.pool = PagePool(n_pages, page_size)
        self.limits = limits or Limits()
        self.sequences: list[Sequence] = []  # in order of arrival
        self.n_steps = 0

    def add(self, sequence: Sequence) -> None:
        self.sequences.append(sequence)

    @property
    def idle(self) -> bool:
        return not self.sequences

    def step(self) -> None:
        """Compute one batch. A sequence that cannot go on is failed or finished; others go on."""
        self._drop_cancelled()
        rows = self._schedule()
        if not rows:
            self._unstick()
            return
        try:
            logits = self.program.run(Batch.pack([_row(s, n) for s, n in rows]))
        except Exception as e:  # whatever it was, sequences outside this batch go on
            for s, _ in rows:
                self._fail(s, e)
            return
        self.n_steps += 1
        out = 0
        for s, n in rows:
            done = n == s.pending
            s.n_past += n
            if done and s.max_tokens == 0:
                self._finish(s, FinishReason.LENGTH)
            elif done:
                self._sample(s, logits[out])
                out += 1

    def fail_all(self, error: Exception) -> None:
        for s in list(self.sequences):
            self._fail(s, error)

    def check(self) -> None:
        """Prove the page accounting; for tests."""
        self.pool.check([s.pages for s in self.sequences])
        for s in self.sequences:
            if s.n_past > len(s.pages) * self.pool.page_size:
                raise AssertionError(f"{s.n_past} tokens in {len(s.pages)} pages")

    def _schedule(self) -> list[tuple[Sequence, int]]:
        demands = [Demand(s.pending, s.n_past, len(s.pages)) for s in self.sequences]
        p = plan(demands, self.limits, self.pool.n_free, self.pool.page_size)
        for i in p.preempt:  # recompute later: its tokens are kept, its cache is not
            s = self.sequences[i]
            self._release(s)
            s.n_past = 0
        rows = []
        for s, n in zip(list(self.sequences), p.take, strict=True):
            if n == 0:
                continue
            need = self.pool.pages_for(s.n_past + n) - len(s.pages)
            if need > 0:
                s.pages += self.pool.allocate(need)
            s.started = s.started or time.perf_counter()
            rows.append((s, n))
        return rows

    def _unstick(self) -> None:
        """Fail the oldest sequence if even alone it gets no page, rather than wait for ever."""
        if self.sequences:
            s = self.sequences[0]
            size = self.pool.n_pages * self.pool.page_size
            self._fail(
                s,
                OutOfMemoryError(
                    f"the sequence has {len(s.ids)} tokens but the KV pool holds {size}: "
                    "load the model with a larger n_ctx"
                ),
            )

    def _sample(self, s: Sequence, logits: F32) -> None:
        try:
            reason = s.accept(s.sampler.sample(logits))
        except Exception as e:  # NaN logits, or a sink that broke: this request's trouble alone
            self._fail(s, e)
            return
        if reason is not None:
            self._finish(s, reason)

    def _drop_cancelled(self) -> None:
        for s in [s for s in self.sequences if s.cancelled]:
            self._finish(s, FinishReason.ABORT)

    def _finish(self, s: Sequence, reason: FinishReason) -> None:
        self._remove(s)
        try:
            s.sink.finish(reason, s.usage(), s.timings())
        except Exception as e:
            self._tell(s, e)

    def _fail(self, s: Sequence, error: Exception) -> None:
        self._remove(s)
        self._tell(s, error)

    def _tell(self, s: Sequence, error: Exception) -> None:
        try:
            s.sink.fail(error)
        except Exception:  # nobody is left to hear it
            log.exception("a request's sink failed while it was told of %r", error)

    def _remove(self, s: Sequence) -> None:
        self._release(s)
        self.sequences.remove(s)

    def _release(self, s: Sequence) -> None:
        self.pool.release(s.pages)
        s.pages = []


def _row(s: Sequence, n: int) -> tuple[list[int], int, list[int], list[int]]:
    """The next ``n`` tokens of ``s`` as a batch's row; logits only where one is sampled."""
    wanted = n == s.pending and s.max_tokens > 0
    return s.ids[s.n_past : s.n_past + n], s.n_past, s.pages, [n - 1] if wanted else []
