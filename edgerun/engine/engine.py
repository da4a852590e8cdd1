"""The step: schedule rows, pack them, run the model, sample, deliver."""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgerun.backends.base import Program
from edgerun.core import FinishReason
from edgerun.engine.admission import Pager
from edgerun.engine.ahead import Ahead, Flight
from edgerun.engine.budget import StepCost
from edgerun.engine.disk import DiskTier
from edgerun.engine.draft_source import Widths, whole_drafts
from edgerun.engine.metrics import Counters, Metrics
from edgerun.engine.pacing import Pacer
from edgerun.engine.pages import Match, PagePool
from edgerun.engine.rows import Row, add_drafts, feed, pack
from edgerun.engine.scheduler import Limits, plan
from edgerun.engine.sequence import Scores, Sequence
from edgerun.engine.swap import SwapTier
from edgerun.errors import ContextLengthError, GenerationError

if TYPE_CHECKING:
    from edgerun.engine.embedding import Embedding

__all__ = ["Engine"]

log = logging.getLogger(__name__)

#: Waiting sequences looked at in one step, and more while neither its rows nor its tokens are all
#: asked for. Those behind them wait in turn.
_LOOK = 4
#: Seconds a sequence that finds no pages lets others overtake it.
_PATIENCE = 5.0


class Engine:
    """Runs sequences on one program and one page pool. Single-threaded; see :mod:`.worker`.

    Args:
        program: the model, bound to a KV pool of ``n_pages`` pages.
        n_pages, page_size: the pool's shape.
        limits: bounds of a step.
        copy_page: copies a page of that pool, ``(source, destination)``.
        widths: how many draft tokens each row verifies, for sequences that have a drafter.
        disk: where pages of ended sequences go, and come back from.
        swap: keeps in host memory what the pool gives up.
    """

    def __init__(
        self,
        program: Program,
        n_pages: int,
        page_size: int,
        limits: Limits | None = None,
        *,
        copy_page: Callable[[int, int], None],
        widths: Widths = whole_drafts,
        disk: DiskTier | None = None,
        swap: SwapTier | None = None,
    ) -> None:
        self.program = program
        self.pager = Pager(PagePool(n_pages, page_size), copy_page, swap)
        self.limits = limits or Limits()
        self.widths = widths
        self.disk = disk
        self.swap = swap
        self._swapped = False  # pages came back before this step
        self.sequences: list[Sequence] = []  # the foremost first
        self.embeddings: list[Embedding] = []
        self.pacer = Pacer(self.limits, program.width)
        self.counters = Counters()
        self._ahead = Ahead(program, self.pager)
        self._landed = 0.0  # when the last step was over that another was started behind
        if swap is not None:
            swap.serve(self.pool)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in, or tell its sink at once that it can never fit."""
        size = self.pool.n_pages * self.pool.page_size
        if sequence.n_prompt > size - (sequence.max_tokens > 0):
            self._count(FinishReason.ERROR)
            self._tell(sequence, ContextLengthError(sequence.n_prompt, size))
            return
        if sequence.leader is not None:
            if sequence.leader in self.sequences and not sequence.leader.n_generated:
                sequence.leader.leads = True
            else:
                sequence.leader = None  # it has gone, or gone on: the prompt's pages are cached
        feed(sequence, sequence.ids)
        bisect.insort(self.sequences, sequence, key=lambda s: s.rank)

    @property
    def pool(self) -> PagePool:
        return self.pager.pool

    @property
    def cost(self) -> StepCost:
        """What steps take."""
        return self.pacer.cost

    @property
    def idle(self) -> bool:
        return not self.sequences and not self.embeddings

    def step(self) -> None:
        """Compute one batch. A sequence that cannot go on is failed or finished; others go on.

        Behind it the first of ``embeddings`` has its turn.
        """
        if self.sequences:
            self._step()
        if self.embeddings:
            first = self.embeddings[0]
            start, before = time.perf_counter(), first.n_computed
            generating = sum([s.n_generated > 0 for s in self.sequences if s.pages])
            going_on = first.turn(self, self.pacer.spare(generating, len(self.sequences)))
            if first.n_computed > before:
                self.cost.add(first.n_computed - before, time.perf_counter() - start)
            # Whoever holds pages keeps the turn: two that held some could wait for each other's.
            if not (going_on and first.pages):
                del self.embeddings[0]
                self.embeddings += [first] if going_on else []

    def _step(self) -> None:
        start = time.perf_counter()
        self._drop_cancelled()
        flight = self._ahead.take()
        if flight is not None:
            self._swapped = False
            self._land(flight)
            return
        rows = self._schedule(start)
        if not rows:
            if self.disk is not None:
                self.disk.wait()
            return
        add_drafts(rows, self.limits.max_draft, self.widths, self.pager.reserve)
        if self._ahead.suits(rows):
            self._begin(rows)
        else:
            self._compute(rows, start)

    def _compute(self, rows: list[Row], start: float) -> None:
        """A step that nothing is started behind."""
        batch = pack(rows, self.program)
        try:
            logits = self.program.run(batch)
        except Exception as e:  # whatever it was, sequences outside this batch go on
            for r in rows:
                self._fail(r.sequence, e, keep=False)
            return
        best = self.program.best if batch.want_best else None
        scores = Scores(logits, best, self.program.top if batch.want_top else None)
        out = 0
        for r in rows:
            n_out = 1 + len(r.draft) if r.wants else 0
            self._advance(r, scores if len(rows) == 1 else scores.part(out, out + n_out))
            out += n_out
        self._timed(rows, batch.n_tokens, time.perf_counter() - start)

    def _begin(self, rows: list[Row]) -> None:
        try:
            flight = self._ahead.begin(rows)
        except Exception as e:
            for r in rows:
                self._fail(r.sequence, e, keep=False)
            return
        self._land(flight)

    def _land(self, flight: Flight) -> None:
        """Start the step behind one under way, if that may be, and go on behind this one."""
        behind = None
        if not self.embeddings:
            behind = self._ahead.follow(flight, len(self.sequences))
        rows = flight.standing()
        try:
            scores = Scores(flight.step.wait(), flight.step.best)
        except Exception as e:
            for i in rows:
                self._fail(flight.sequences[i], e, keep=False)
            return
        for i in rows:
            self._advance(Row(flight.sequences[i], 1), scores.part(i, i + 1))
        if behind is not None and self.sequences:
            behind.know(flight.step.best)
            self._ahead.flight = behind
        began, self._landed = max(flight.began, self._landed), time.perf_counter()
        self._timed([], len(flight.sequences), self._landed - began)

    def fail_all(self, error: Exception) -> None:
        for s in list(self.sequences):
            self._fail(s, error)
        for e in self.embeddings:
            e.fail(error, self.pool)
        self.embeddings.clear()
        self._ahead.flight = None

    def start_over(self, error: Exception) -> None:
        """After a bug, whose traces nobody knows: fail every sequence and forget every page."""
        failed, self.sequences = self.sequences, []
        self._ahead.flight = None
        self.pager.pool = PagePool(self.pool.n_pages, self.pool.page_size)
        if self.disk is not None:
            self.disk.reset()
        if self.swap is not None:
            self.swap.serve(self.pool)
        for s in failed:
            self._count(FinishReason.ERROR)
            self._tell(s, error)
        for e in self.embeddings:
            e.fail(error, None)
        self.embeddings.clear()

    def check(self) -> None:
        """Prove the page accounting; for tests."""
        self.pool.check([s.pages for s in self.sequences] + [e.pages for e in self.embeddings])
        if self.swap is not None:
            self.swap.check()
        for s in self.sequences:
            if s.n_past > len(s.pages) * self.pool.page_size:
                raise AssertionError(f"{s.n_past} tokens in {len(s.pages)} pages")
            if s.leader is not None and s.leader not in self.sequences:
                raise AssertionError("a sequence waits for one that has gone")
        ranks = [s.rank for s in self.sequences]
        if ranks != sorted(ranks):
            raise AssertionError("the sequences are out of order")

    def metrics(self, waiting: int = 0) -> Metrics:
        """A snapshot, from any thread; ``waiting`` more requests are on their way in."""
        pool, sequences = self.pool, list(self.sequences)
        running = sum(bool(s.pages) for s in sequences)
        cached, free = pool.n_cached, pool.n_free
        return self.counters.snapshot(
            waiting=waiting + len(sequences) - running,
            running=running,
            evictions=pool.n_evicted,
            pages_total=pool.n_pages,
            pages_used=pool.n_pages - free,
            pages_cached=cached,
            disk=self.disk.count() if self.disk is not None else None,
            swap=self.swap.count() if self.swap is not None else None,
        )

    # -- scheduling ---------------------------------------------------------------------------

    def _schedule(self, now: float) -> list[Row]:
        """The rows of the next step, with pages for their pending tokens."""
        if self.disk is not None:
            self.disk.turn(self.pool, len(self.sequences), self.cost.seconds)
        pool, rows_most = self.pool, self.limits.max_rows
        if (rows := self._going_on()) is not None:
            return rows
        asking = self._asking()
        # New pages of a step: those its tokens fill, and at either end of a row one more.
        scarce = pool.n_free < pool.pages_for(self.limits.budget) + 2 * len(asking)
        demands = [
            self.pager.demand(s, match, now - s.created < _PATIENCE, scarce) for s, match in asking
        ]
        budget = self.pacer.budget(demands, bool(self.embeddings))
        p = plan(demands, rows_most, budget, pool.n_free, pool.page_size)
        for i in p.preempt:  # computed again later: the tokens stay, and the pages while they can
            self.pager.release(asking[i][0])
            self.counters.preemptions += 1
        taken = [(s, m, n) for (s, m), n in zip(asking, p.take, strict=True) if n]
        new = [(s, m) for s, m, _ in taken if m is not None]
        waiting = [s for s, _, _ in taken if s.kept]
        self.pager.enter(new)
        back, most = 0, self.pacer.pages(demands, self.swap.copy_seconds) if self.swap else 0
        for s in [*waiting, *(s for s, _ in new)]:
            back += self.pager.restore(s, most - back)
        self._swapped = back > 0
        for s, _ in new:
            if s.n_cached is None:  # else it enters again
                found = s.n_past + len(s.kept) * pool.page_size
                self._entered(s, found, found)
        rows = []
        for s, _, n in taken:
            if s.kept or s in waiting:
                continue
            # What one gives up may be what another enters with: then the plan counted it twice.
            if self.pager.grow(s, n):
                s.started = s.started or now
                rows.append(Row(s, n))
        if not taken and not p.preempt and asking:
            if any(e.pages for e in self.embeddings):
                for e in self.embeddings:
                    e.give_back(pool)
                return self._schedule(now)  # before an embedding takes them again
            self._give_up(asking[0][0])
        return rows

    def _going_on(self) -> list[Row] | None:
        """The rows where nothing is to be decided, as in most steps: every sequence generates and
        there is room for all; else None."""
        n = len(self.sequences)
        if n > min(self.limits.max_rows, self.limits.budget) or self.pool.n_free < 2 * n:
            return None
        for s in self.sequences:
            if not s.n_past or len(s.ids) - s.n_past != 1 or not s.started:
                return None
        self._swapped = False
        return [Row(s, 1) for s in self.sequences if self.pager.grow(s, 1)]

    def _asking(self) -> list[tuple[Sequence, Match | None]]:
        """Who asks for a part of the next step, in order; those without pages with their match.

        Whoever would compute a page that one before it is about to compute waits for that.
        """
        found: list[tuple[Sequence, Match | None]] = []
        coming: set[bytes] = set()
        running = sum([bool(s.pages) for s in self.sequences])
        looks, most = 0, max(_LOOK, self.limits.max_rows - running)
        tokens = 0  # asked for by those that were looked at
        for s in self.sequences:
            if s.leader is not None:
                continue
            match = None
            if not s.pages:
                if looks >= most or (looks >= _LOOK and tokens >= self.limits.budget):
                    continue
                match = self.pager.match(s)
                at = len(match.nodes)
                if at < len(s.digests) and s.digests[at] in coming:
                    continue
                if self.disk is not None and self.disk.awaits(s, match, self.pool):
                    coming.update(s.digests[at:])
                    continue
                looks += 1
                tokens += len(s.ids) - match.n_tokens
            found.append((s, match))
            if s.pending > 1:
                coming.update(s.digests[s.n_past // self.pool.page_size :])
        return found

    def _timed(self, rows: list[Row], n_tokens: int, seconds: float) -> None:
        """Learn from a step."""
        self.counters.step(n_tokens, seconds)
        if self._swapped:  # its time is not only that of its tokens
            return
        if self.swap is not None:
            self.swap.timed(n_tokens, seconds)
        prompts = sum([r.n for r in rows if r.n > 1 or not r.wants])
        self.pacer.learn(n_tokens, prompts, seconds)

    def _entered(self, s: Sequence, n_cached: int, not_computed: int) -> None:
        """``s`` has its place for the first time."""
        s.n_cached = n_cached
        self.counters.prompt_tokens += s.n_prompt
        self.counters.cached_tokens += not_computed

    def _give_up(self, s: Sequence) -> None:
        """The foremost sequence fills the pool alone: end it, rather than wait for ever."""
        self._finish(s, FinishReason.LENGTH)

    # -- results ------------------------------------------------------------------------------

    def _advance(self, row: Row, scores: Scores) -> None:
        """Go on behind a row that was computed; ``scores`` are of its last token and its draft."""
        s = row.sequence
        s.n_past += row.n
        self.pager.note(s)
        if s.pending:
            return
        for t in self._followers(s, row.wants):  # before s, which may end and give up its pages
            self._sample(t, scores)
        if row.wants:
            self._sample(s, scores, row.draft, row.origins)
        else:
            self._finish(s, FinishReason.LENGTH)

    def _followers(self, leader: Sequence, sampled: bool) -> list[Sequence]:
        """Those who waited for this prompt and may sample behind it, now with its pages."""
        if not leader.leads:
            return []
        leader.leads = False
        found = [s for s in self.sequences if s.leader is leader]
        for s in found:
            s.leader = None  # if nothing is sampled, it finds the prompt cached
            if sampled:
                self.pager.share(leader, s)
                self._entered(s, leader.n_cached or 0, s.n_prompt)
        return found if sampled else []

    def _sample(
        self,
        s: Sequence,
        scores: Scores,
        draft: tuple[int, ...] = (),
        origins: tuple[tuple[str, int], ...] = (),
    ) -> None:
        before, n_past = len(s.ids), s.n_past
        try:
            reason = s.accept(scores, draft)
        except Exception as e:  # NaN logits, or a sink that broke: this request's trouble alone
            self._fail(s, e, keep=not isinstance(e, GenerationError))
            return
        self.counters.generated_tokens += len(s.ids) - before
        if draft:
            self.counters.draft(origins, len(draft), s.n_past - n_past)
        feed(s, s.ids[before:])
        self.pager.note(s)
        if reason is not None:
            self._finish(s, reason)
        elif s.n_ctx and len(s.ids) >= s.n_ctx:
            self.pager.release(s)
            s.shift()

    def _drop_cancelled(self) -> None:
        for s in [s for s in self.sequences if s.cancelled]:
            self._finish(s, FinishReason.ABORT)

    def _count(self, reason: FinishReason) -> None:
        self.counters.finished[str(reason)] += 1

    def _finish(self, s: Sequence, reason: FinishReason) -> None:
        self._remove(s)
        self._count(reason)
        try:
            s.sink.finish(reason, s.usage(), s.timings())
        except Exception as e:
            self._tell(s, e)

    def _fail(self, s: Sequence, error: Exception, keep: bool = True) -> None:
        """End ``s`` with an error; without ``keep`` nobody uses what it computed."""
        self._remove(s, keep)
        self._count(FinishReason.ERROR)
        self._tell(s, error)

    def _tell(self, s: Sequence, error: Exception) -> None:
        try:
            s.sink.fail(error)
        except Exception:  # nobody is left to hear it
            log.exception("a request's sink failed while it was told of %r", error)

    def _remove(self, s: Sequence, keep: bool = True) -> None:
        self.sequences.remove(s)
        if self.disk is not None:
            self.disk.ended(s, keep, len(self.sequences))
        self.pager.release(s, keep)
        if s.leads:  # its prompt is not computed: the first follower leads on
            followers = [x for x in self.sequences if x.leader is s]
            for x in followers:
                x.leader = followers[0] if x is not followers[0] else None
                x.leads = x is followers[0]
