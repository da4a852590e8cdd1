"""Pages that go to host memory when the pool gives them up, and come back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from helpers import scenarios
from helpers.disk_rig import LONG, Rig, same, wait_until
from helpers.disk_rig import run as disk_run
from helpers.fake_program import (
    N_VOCAB,
    FakeProgram,
    FakeSpace,
    alone,
    drain,
    engine,
    logits_of,
    sequence,
    sink_of,
)

from edgerun.backends.base import F32, Batch
from edgerun.engine import Engine
from edgerun.engine import Sequence as EngineSequence
from edgerun.engine.admission import Pager
from edgerun.engine.metrics import SwapCount
from edgerun.engine.pages import PagePool
from edgerun.engine.swap import SwapTier, worth_moving
from edgerun.errors import BackendError, OutOfMemoryError
from edgerun.planning import Room, swap_pages

SIZE = 4


def swap_of(e: Engine) -> SwapCount:
    count = e.metrics().swap
    assert count is not None
    return count


def rig(n_pages: int, limit: int = 1 << 20) -> tuple[FakeProgram, FakeSpace, Engine]:
    program = FakeProgram(n_pages, SIZE)
    space = FakeSpace(program, limit)
    return program, space, engine(n_pages, SIZE, program=program, space=space)


def run(e: Engine, ids: Sequence[int], n: int = 2) -> int:
    """It says what it should; returns the cached tokens."""
    s = sequence(ids, n, ignore_eos=True)
    e.add(s)
    drain(e)
    assert sink_of(s).ids == alone(ids, n, ignore_eos=True).ids
    return s.usage().cached_tokens


def text(k: int, n: int = 15) -> list[int]:
    return [1 + (k * 31 + i * i) % 60 for i in range(n)]


# -- random loads ---------------------------------------------------------------------------------


class Poisoned(FakeProgram):
    def predict(self, ids: Sequence[int]) -> F32:
        return scenarios.poisoned(logits_of)(ids)


def hold_to_content(e: Engine, space: FakeSpace) -> None:
    """From here on ``e.check`` also proves that slots and known pages hold what they stand for."""
    accounts, swap = e.check, e.swap
    assert swap is not None

    def check() -> None:
        accounts()
        for saved in swap._saved.values():
            assert tuple(space.slots[saved.slot].tolist()) == saved.tokens
        for page, node in e.pool.index._by_page.items():
            held = tuple(space.program._memory[page].tolist())
            assert held[: len(node.tokens)] == node.tokens

    e.check = check  # type: ignore[method-assign]


@pytest.mark.parametrize("block", range(5))
def test_every_request_gets_what_it_gets_alone(block: int) -> None:
    """Arrivals, cancels, forks, drafts, shifts, NaN; pools and host memory down to starvation."""
    counts = dict.fromkeys(("preemptions", "out", "in", "cached", "dropped"), 0)
    for seed in range(10_000 + block * 100, 10_000 + (block + 1) * 100):
        s = scenarios.draw(seed, None, N_VOCAB, 24, poison=True)
        scenarios.expect(s, scenarios.poisoned(logits_of), N_VOCAB)
        program = Poisoned(s.n_pages, s.page_size)
        space = FakeSpace(program, (1, 2, 7, 1 << 20)[seed % 4])
        e = engine(s.n_pages, s.page_size, s.limits, program, space=space)
        hold_to_content(e, space)
        scenarios.run(s, e, seed)
        count = swap_of(e)
        counts["preemptions"] += e.metrics().preemptions
        counts["cached"] += e.metrics().cached_tokens
        counts["out"] += count.pages_out
        counts["in"] += count.pages_in
        counts["dropped"] += count.pages_out - count.pages_kept
    assert all(n > 5 for n in counts.values()), counts  # it all did happen


# -- what it saves --------------------------------------------------------------------------------


def test_who_lost_its_pages_gets_them_back() -> None:
    """The same without host memory computes 12 tokens more; see test_engine_step.py."""
    program, _, e = rig(8)
    old, young = sequence([3] * 15, 14, ignore_eos=True), sequence([4] * 15, 3, ignore_eos=True)
    e.add(old)
    e.add(young)
    drain(e)
    assert e.metrics().preemptions == 1
    assert sum(tokens for _, tokens in program.widths) == 28 + 17
    assert sink_of(old).ids == alone([3] * 15, 14, ignore_eos=True).ids
    assert sink_of(young).ids == alone([4] * 15, 3, ignore_eos=True).ids
    assert young.usage().cached_tokens == 0  # of the first time
    assert swap_of(e).pages_in == 3


def test_what_ended_comes_back_too() -> None:
    _, space, e = rig(8)
    texts = [text(k, 17) for k in range(6)]
    assert [run(e, t) for t in texts] == [0] * 6
    before = swap_of(e)
    assert before.pages_in == 0
    assert before.pages_kept == before.pages_out > 15
    assert (before.bytes_out, before.pages_total) == (before.pages_out * 32, len(space.slots))
    assert run(e, texts[0]) == 16
    assert swap_of(e).pages_in == 4
    # What went out before does not go again: its copy is still there.
    again = swap_of(e).pages_out
    assert run(e, texts[1]) == 16
    assert run(e, texts[0]) == 16
    assert swap_of(e).pages_out < again + 8


def test_two_that_begin_alike_share_what_comes_back() -> None:
    program, _, e = rig(10)
    start = text(0, 16)
    run(e, start)
    for k in range(1, 4):
        run(e, text(k, 30))
    assert swap_of(e).pages_kept > 4
    program.widths.clear()
    both = [sequence([*start, i, i], 2, ignore_eos=True) for i in (5, 6)]
    for s in both:
        e.add(s)
    drain(e)
    for s in both:
        assert sink_of(s).ids == alone(s.ids[:18], 2, ignore_eos=True).ids
        assert s.usage().cached_tokens == 16
    assert swap_of(e).pages_in == 4
    assert sum(tokens for _, tokens in program.widths) == 2 * 3


def test_a_short_host_memory_keeps_starts_and_what_was_used_last() -> None:
    _, _, e = rig(8, limit=4)
    run(e, text(0, 17))
    for k in range(1, 3):
        run(e, text(k, 30))
    count = swap_of(e)
    assert count.pages_total == count.pages_kept == 4
    assert count.pages_out > 4
    assert run(e, text(0, 17)) == 0
    assert run(e, text(2, 30)) > 0


@pytest.mark.parametrize(("slots", "read"), [(100, 0), (4, 17)])
def test_the_disk_is_asked_for_what_host_memory_lacks(
    tmp_path: Path, slots: int, read: int
) -> None:
    rig = Rig(tmp_path / "kv")
    e = rig(n_pages=26, slots=slots)
    assert same(disk_run(e, LONG), LONG) == 0
    wait_until(lambda: e.disk is not None and e.disk.n_written >= 20)
    other = LONG[::-1]
    disk_run(e, other)
    assert same(disk_run(e, LONG), LONG) == 80
    m = e.metrics()
    assert m.disk is not None
    assert m.disk.pages_read == read
    assert (swap_of(e).pages_in > 0) == (read == 0)
    rig.close()


# -- doubt ----------------------------------------------------------------------------------------


def test_what_a_failed_batch_stood_on_does_not_come_back() -> None:
    """Neither what it used, nor what others computed behind that, wherever it lies."""
    fails = False

    def before(batch: Batch) -> None:
        if fails:
            raise BackendError("the device is gone")

    program = FakeProgram(12, SIZE, before)
    space = FakeSpace(program)
    e = engine(12, SIZE, program=program, space=space)
    start = text(0, 8)
    longer, other = [*start, *text(1, 9)], text(2, 17)
    for ids in (longer, other, text(3, 40)):
        run(e, ids)
    assert e.swap is not None
    assert run(e, [*start, 9]) == 8  # the start is back in the pool
    digests: list[bytes] = []
    e.pool.index.extend(digests, longer)
    assert e.swap.match(longer, digests, 2)
    fails = True
    doubtful = sequence([*start, 7, 8], 2)
    e.add(doubtful)
    drain(e)
    assert isinstance(sink_of(doubtful).error, BackendError)
    fails = False
    assert not e.swap.match(longer, digests, 2)
    assert run(e, longer) == 0
    for k in range(4, 6):
        run(e, text(k, 40))
    assert run(e, other) == 16


def test_after_a_bug_nothing_is_known() -> None:
    _, _, e = rig(8)
    for k in range(3):
        run(e, text(k, 17))
    e.start_over(RuntimeError("a bug"))
    e.check()
    assert swap_of(e).pages_kept == 0
    assert swap_of(e).pages_total > 0
    assert run(e, text(0, 17)) == 0


class Failing(FakeSpace):
    """Breaks at the n-th save or restore."""

    def __init__(self, program: FakeProgram, saves: int, restores: int) -> None:
        super().__init__(program)
        self.left = [saves, restores]

    def _use(self, i: int) -> None:
        self.left[i] -= 1
        if not self.left[i]:
            raise BackendError("a copy failed")

    def save(self, page: int, slot: int) -> None:
        self._use(0)
        super().save(page, slot)

    def restore(self, slot: int, page: int) -> None:
        self._use(1)
        super().restore(slot, page)


@pytest.mark.parametrize(("saves", "restores"), [(1, 0), (9, 0), (0, 1), (0, 3)])
def test_copies_that_fail_end_it_and_hurt_nobody(
    saves: int, restores: int, caplog: pytest.LogCaptureFixture
) -> None:
    program = FakeProgram(8, SIZE)
    e = engine(8, SIZE, program=program, space=Failing(program, saves, restores))
    for k in [*range(4), *range(4)]:
        run(e, text(k, 17))
    assert caplog.text.count("no longer kept in host memory: a copy failed") == 1
    assert swap_of(e).pages_kept == 0


def test_memory_that_cannot_be_had_is_done_without() -> None:
    class Full(FakeSpace):
        asked = 0

        def grow(self, most: int) -> None:
            self.asked += 1
            if self.asked > 1:
                raise OutOfMemoryError("no memory")
            super().grow(most)

    program = FakeProgram(8, SIZE)
    space = Full(program)
    e = engine(8, SIZE, program=program, space=space)
    for k in range(6):
        run(e, text(k, 17))
    assert swap_of(e).pages_total == 3
    assert swap_of(e).pages_out > 6
    assert space.asked == 2  # and not again for every page


# -- the tier alone -------------------------------------------------------------------------------


class Shelf:
    """A pool with a swap tier, and texts that lie in it."""

    def __init__(self, n_pages: int, limit: int = 1 << 20) -> None:
        self.program = FakeProgram(n_pages, SIZE)
        self.space = FakeSpace(self.program, limit)
        self.tier = SwapTier(self.space, lambda n_slots: 1 << 20, 32)
        self.pool = PagePool(n_pages, SIZE)
        self.pager = Pager(self.pool, self.program.copy_page, self.tier)
        self.tier.serve(self.pool)

    def enter(self, ids: Sequence[int]) -> EngineSequence:
        """With what is cached of them, and pages for the rest, as if computed."""
        s = sequence(ids)
        self.pager.enter([(s, self.pager.match(s))])
        self.pager.restore(s, 1 << 20)
        self.found = s.n_past
        assert self.pager.grow(s, s.pending)
        for i in range(s.n_past, len(ids)):
            self.program._memory[s.pages[i // SIZE], i % SIZE] = ids[i]
        s.n_past = len(ids)
        self.pager.note(s)
        return s

    def leave(self, ids: Sequence[int]) -> EngineSequence:
        s = self.enter(ids)
        self.pager.release(s)
        return s

    def squeeze(self, n: int) -> None:
        """Have ``n`` cached pages given up."""
        self.pool.release(self.pool.allocate(self.pool.n_free - self.pool.n_cached + n))
        self.check()

    def check(self) -> None:
        self.pool.check([])
        self.tier.check()

    @property
    def kept(self) -> int:
        return self.tier.count().pages_kept


def test_doubt_reaches_what_is_kept_behind_pages_of_the_pool() -> None:
    shelf = Shelf(8)
    ids = text(0, 17)
    shelf.leave(ids)
    shelf.squeeze(2)  # the rest of a page, which is not kept, and the last full one
    assert shelf.kept == 1
    doubtful = shelf.enter([*ids[:8], 7])
    assert shelf.found == 8
    shelf.pager.release(doubtful, keep=False)
    assert shelf.kept == 0
    shelf.check()


def test_what_can_be_doubted_no_more_is_not_kept() -> None:
    """A page leaves the pool without a copy: those behind it cannot be found, nor doubted."""
    shelf = Shelf(8)
    shelf.leave(text(0, 17))
    shelf.squeeze(2)
    assert shelf.kept == 1
    shelf.tier.timed(64, 1e-9)
    shelf.space.copy_seconds = 1.0
    shelf.squeeze(1)
    assert shelf.kept == 0


def test_two_texts_with_one_digest_do_not_mix() -> None:
    shelf = Shelf(8)
    s = shelf.leave(text(0, 17))
    shelf.squeeze(5)
    assert shelf.tier.match(s.ids, s.digests, 0) == tuple(s.digests[:4])
    assert shelf.tier.match(text(1, 17), s.digests, 0) == ()
    assert shelf.tier.match(s.ids[4:], s.digests[1:], 0) == ()  # behind something else


def test_what_comes_back_does_not_go_for_what_goes_out() -> None:
    shelf = Shelf(8, limit=3)
    ids = text(0, 17)
    shelf.leave(ids)
    shelf.squeeze(3)
    shelf.leave(text(1, 5))
    shelf.squeeze(4)  # the first text's other two, and the second
    assert shelf.kept == 3
    shelf.leave(text(2, 33)[:32])  # fills the pool
    shelf.leave(ids)
    assert shelf.found >= 8
    shelf.check()


# -- policy ---------------------------------------------------------------------------------------


def test_a_copy_is_worth_it_where_computing_takes_longer() -> None:
    assert worth_moving(2, 0.001, None)  # unknown
    assert worth_moving(2, 0.001, 0.0021)
    assert not worth_moving(2, 0.001, 0.0019)
    assert worth_moving(1, 0.001, 0.0019)  # it went out already


def test_steps_with_pages_that_come_back_teach_nothing() -> None:
    """Their time is not that of their tokens."""
    _, _, e = rig(8)
    for k in range(3):
        run(e, text(k, 17), 1)
    learnt, steps = e.cost.n, e.metrics().steps
    assert learnt == steps
    assert run(e, text(0, 17), 1) == 16
    assert (e.cost.n, e.metrics().steps) == (learnt, steps + 1)


@pytest.mark.parametrize(("copy", "moves"), [(1e-9, True), (10.0, False)])
def test_measured_steps_decide(copy: float, moves: bool) -> None:
    program = FakeProgram(40, SIZE)
    space = FakeSpace(program)
    space.copy_seconds = copy
    e = engine(40, SIZE, program=program, space=space)
    run(e, text(0, 70))  # wide enough to be measured
    for k in range(1, 5):
        run(e, text(k, 70))
    assert (swap_of(e).pages_out > 0) == moves
    assert (run(e, text(0, 70)) > 0) == moves


def test_how_many_pages_host_memory_takes() -> None:
    gib = 1 << 30
    room = Room(total=32 * gib, free=18 * gib, weights=0)  # of which 2 are left alone
    assert swap_pages(room, gib, n_pages=100, n_slots=0) == 8
    assert swap_pages(room, gib, n_pages=5, n_slots=0) == 5  # no more than the pool has
    # What was taken counts: half of all that was free, however often it is asked.
    assert swap_pages(Room(32 * gib, 10 * gib, 0), gib, n_pages=100, n_slots=8) == 8
    assert swap_pages(Room(32 * gib, 1 * gib, 0), gib, n_pages=100, n_slots=0) == 0
