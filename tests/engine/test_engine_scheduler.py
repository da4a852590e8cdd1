"""Pages and the plan of a step: accounting, bounds, progress."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edgerun.engine.pages import PagePool
from edgerun.engine.scheduler import Demand, Limits, Plan, plan
from edgerun.errors import OutOfMemoryError


class PoolMachine(RuleBasedStateMachine):
    """Allocate and release at random; every page is free or has one owner, always."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(12, 4)
        self.owners: list[list[int]] = []

    @rule(n=st.integers(0, 14))
    def allocate(self, n: int) -> None:
        free = self.pool.n_free
        if n > free:
            with pytest.raises(OutOfMemoryError):
                self.pool.allocate(n)
            assert self.pool.n_free == free
        else:
            self.owners.append(self.pool.allocate(n))
            assert len(self.owners[-1]) == n

    @rule(i=st.integers(0, 100))
    def release(self, i: int) -> None:
        if self.owners:
            pages = self.owners.pop(i % len(self.owners))
            self.pool.release(pages)
            if pages:
                with pytest.raises(ValueError, match="released twice"):
                    self.pool.release(pages)

    @invariant()
    def sound(self) -> None:
        self.pool.check(self.owners)
        assert self.pool.n_free == 12 - sum(map(len, self.owners))


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPagePool = PoolMachine.TestCase


def test_pages_for() -> None:
    pool = PagePool(4, 32)
    assert [pool.pages_for(n) for n in (0, 1, 31, 32, 33, 64, 65)] == [0, 1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("owners", [[], [[0]], [[0, 1], [1]], [[0, 1, 2]]])
def test_check_finds_wrong_accounts(owners: list[list[int]]) -> None:
    pool = PagePool(3, 4)
    assert sorted(pool.allocate(2)) == [0, 1]
    pool.check([[1], [0]])
    with pytest.raises(AssertionError):
        pool.check(owners)


# -- plan: one step, any state -------------------------------------------------------------------


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Demand], Limits, int, int]:
    page_size = draw(st.integers(1, 8))
    demands = []
    for _ in range(draw(st.integers(0, 12))):
        n_past = draw(st.sampled_from([0, 0, 1, 3, 8, 20]) | st.integers(0, 60))
        spare = draw(st.integers(0, 1))
        pending = draw(st.sampled_from([1, 1, 1, 2, 7, 300]) | st.integers(1, 60))
        demands.append(Demand(pending, n_past, -(-n_past // page_size) + spare))
    limits = Limits(draw(st.integers(1, 14)), draw(st.integers(1, 80)), draw(st.integers(1, 40)))
    return demands, limits, draw(st.integers(0, 20)), page_size


def new_pages(d: Demand, n: int, page_size: int) -> int:
    return max(0, -(-(d.n_past + n) // page_size) - d.n_pages)


@given(situations())
@settings(max_examples=200, deadline=None)
def test_no_step_exceeds_its_bounds(case: tuple[list[Demand], Limits, int, int]) -> None:
    demands, limits, n_free, page_size = case
    p = plan(*case)
    busy = any(d.pending == 1 and d.n_past for d in demands)
    assert len(p.take) == len(demands)
    assert all(0 <= n <= d.pending for n, d in zip(p.take, demands, strict=True))
    assert sum(p.take) <= (limits.busy_budget if busy else limits.budget)
    assert sum(n > 0 for n in p.take) <= limits.max_rows
    assert len(set(p.preempt)) == len(p.preempt)
    assert all(demands[i].n_pages > 0 for i in p.preempt)
    freed = sum(demands[i].n_pages for i in p.preempt)
    wanted = sum(new_pages(d, n, page_size) for d, n in zip(demands, p.take, strict=True) if n)
    assert wanted <= n_free + freed
    if p.preempt:  # the youngest give first, and none of them nor one younger goes on
        assert not any(p.take[min(p.preempt) :])
        holders = [i for i, d in enumerate(demands) if d.n_pages and i >= min(p.preempt)]
        assert set(p.preempt) == set(holders)


@given(situations())
@settings(max_examples=200, deadline=None)
def test_the_oldest_always_goes_on(case: tuple[list[Demand], Limits, int, int]) -> None:
    demands, _, n_free, page_size = case
    pool = n_free + sum(d.n_pages for d in demands)
    if demands and pool * page_size > demands[0].n_past:
        p = plan(*case)
        assert p.take[0] >= 1
        assert 0 not in p.preempt


@given(situations())
@settings(max_examples=200, deadline=None)
def test_generating_rows_wait_for_no_prefill(
    case: tuple[list[Demand], Limits, int, int],
) -> None:
    demands, _, _, page_size = case
    generating = [i for i, d in enumerate(demands) if d.pending == 1 and d.n_past]
    room = len(generating) + 1
    p = plan(demands, Limits(room, 512, room), 10_000, page_size)
    assert all(p.take[i] == 1 for i in generating)
    assert p.preempt == ()


def test_a_prompt_of_one_token_is_not_a_generating_row() -> None:
    old, new = Demand(400, 64, 2), Demand(1, 0, 0)
    assert plan([old, new, new, new], Limits(2, 64, 16), 100, 32).take == (64, 0, 0, 0)


def test_a_prompt_enters_whole_and_in_order() -> None:
    first = Demand(1, 63, 2)
    big, small = Demand(200, 0, 0), Demand(10, 0, 0)
    assert plan([first, big, small], Limits(), 3, 32).take == (1, 0, 0)
    assert plan([first, big, small], Limits(), 7, 32).take == (1, 127, 0)
    assert plan([big, small], Limits(), 3, 32).take == (96, 0)  # the oldest as far as pages reach


@pytest.mark.parametrize("field", ["max_rows", "budget", "busy_budget"])
def test_limits_below_one_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}=0"):
        Limits(**{field: 0})


# -- plan: many steps ----------------------------------------------------------------------------


@dataclass(eq=False)
class Job:
    arrival: int
    n_prompt: int
    n_generate: int
    n_ids: int = 0
    n_past: int = 0
    n_pages: int = 0

    @property
    def total(self) -> int:
        return self.n_prompt + self.n_generate


class Simulation:
    """Jobs through plans, with the engine's rules for what a plan means."""

    def __init__(self, limits: Limits, n_pages: int, page_size: int) -> None:
        self.limits, self.n_pages, self.page_size = limits, n_pages, page_size
        self.running: list[Job] = []
        self.steps = 0

    def add(self, job: Job) -> None:
        job.n_ids = job.n_prompt
        self.running.append(job)

    def step(self) -> Plan:
        free = self.n_pages - sum(j.n_pages for j in self.running)
        assert free >= 0
        demands = [Demand(j.n_ids - j.n_past, j.n_past, j.n_pages) for j in self.running]
        p = plan(demands, self.limits, free, self.page_size)
        assert not self.running or p.take[0] > 0
        for i in p.preempt:
            self.running[i].n_past = self.running[i].n_pages = 0
        for job, n in zip(self.running, p.take, strict=True):
            job.n_past += n
            job.n_pages = max(job.n_pages, -(-job.n_past // self.page_size))
            if n and job.n_past == job.n_ids:
                job.n_ids += 1
        self.running = [j for j in self.running if j.n_ids < j.total]
        self.steps += 1
        return p


@given(
    jobs=st.lists(
        st.builds(Job, st.integers(0, 60), st.integers(1, 40), st.integers(1, 24)), max_size=12
    ),
    limits=st.builds(Limits, st.integers(1, 6), st.integers(1, 40), st.integers(1, 12)),
    page_size=st.integers(1, 8),
    spare=st.integers(0, 6),
)
@settings(max_examples=150, deadline=None)
def test_every_job_ends(jobs: list[Job], limits: Limits, page_size: int, spare: int) -> None:
    largest = max((j.total for j in jobs), default=1)
    sim = Simulation(limits, -(-largest // page_size) + spare, page_size)
    jobs = sorted(jobs, key=lambda j: j.arrival)
    # The oldest gets a token every step, so one after another is the worst that can be.
    bound = sum(j.total for j in jobs) + 60
    while jobs or sim.running:
        while jobs and jobs[0].arrival <= sim.steps:
            sim.add(jobs.pop(0))
        sim.step()
        assert sim.steps <= bound


@pytest.mark.parametrize("n_prompt", [1, 2])
def test_a_flood_of_short_prompts_starves_no_long_one(n_prompt: int) -> None:
    sim = Simulation(Limits(4, 16, 8), 40, 8)
    sim.add(Job(0, 3, 5))
    long = Job(0, 200, 10)
    sim.add(long)
    for _ in range(120):
        for _ in range(3):
            sim.add(Job(sim.steps, n_prompt, 20))
        sim.step()
    assert long not in sim.running


def test_preemption_does_not_repeat_itself() -> None:
    """Two jobs that do not fit together: the younger waits instead of starting over each step."""
    sim = Simulation(Limits(4, 64, 64), 8, 4)
    old, young = Job(0, 16, 16), Job(0, 15, 16)
    sim.add(old)
    sim.add(young)
    evictions = 0
    while sim.running:
        evictions += len(sim.step().preempt)
    assert evictions == 1
    assert sim.steps < 40
