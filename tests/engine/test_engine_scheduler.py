"""The plan of a step: bounds, order, progress."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.engine.scheduler import HEAD_START, Demand, Limits, Plan, plan, rank

# -- plan: one step, any state -------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    demands: list[Demand]
    max_rows: int
    budget: int
    n_free: int
    page_size: int

    def plan(self) -> Plan:
        return plan(self.demands, self.max_rows, self.budget, self.n_free, self.page_size)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    page_size = draw(st.integers(1, 8))
    demands = []
    for _ in range(draw(st.integers(0, 12))):
        n_past = draw(st.sampled_from([0, 0, 1, 3, 8, 20]) | st.integers(0, 60))
        pending = draw(st.sampled_from([1, 1, 1, 2, 7, 300]) | st.integers(1, 60))
        covered = -(-n_past // page_size)
        entered = n_past > 0 and draw(st.sampled_from([True, True, True, False]))
        held = covered + draw(st.integers(0, 1)) if entered else draw(st.integers(0, covered))
        shared = draw(st.integers(0, held)) if entered and draw(st.booleans()) else 0
        demands.append(
            Demand(
                pending,
                n_past,
                held,
                shared=shared if entered else held,
                writes_shared=shared > 0 and n_past % page_size > 0 and draw(st.booleans()),
                entered=entered,
                patient=draw(st.booleans()),
            )
        )
    return Case(
        demands,
        draw(st.integers(1, 14)),
        draw(st.integers(1, 80)),
        draw(st.integers(0, 20)),
        page_size,
    )


@given(cases())
@settings(max_examples=150, deadline=None)
def test_no_step_exceeds_its_bounds(case: Case) -> None:
    demands, p = case.demands, case.plan()
    assert len(p.take) == len(demands)
    assert all(0 <= n <= d.pending for n, d in zip(p.take, demands, strict=True))
    assert sum(p.take) <= case.budget
    assert sum(n > 0 for n in p.take) <= case.max_rows
    assert len(set(p.preempt)) == len(p.preempt)
    assert all(demands[i].n_pages > 0 and demands[i].entered for i in p.preempt)
    freed = sum(demands[i].n_pages - demands[i].shared for i in p.preempt)
    wanted = sum(
        max(0, d.new_pages(n, case.page_size)) for d, n in zip(demands, p.take, strict=True) if n
    )
    assert wanted <= case.n_free + freed
    if p.preempt:  # the hindmost give first, and none of them nor one behind them goes on
        assert not any(p.take[min(p.preempt) :])
        holders = [
            i for i, d in enumerate(demands) if d.entered and d.n_pages and i >= min(p.preempt)
        ]
        assert set(p.preempt) == set(holders)
    for i, d in enumerate(demands):  # nobody enters half-way, but for the foremost
        if i and p.take[i] and not d.entered:
            assert d.new_pages(d.pending, case.page_size) <= case.n_free + freed


@given(cases())
@settings(max_examples=150, deadline=None)
def test_the_foremost_always_goes_on(case: Case) -> None:
    if not case.demands:
        return
    first = case.demands[0]
    p = case.plan()
    assert 0 not in p.preempt
    own = case.n_free + first.n_pages
    own += sum(d.n_pages - d.shared for d in case.demands[1:] if d.entered)
    if (own - first.writes_shared) * case.page_size > first.n_past:
        assert p.take[0] >= 1 or (p.preempt and not first.entered)


@given(cases())
@settings(max_examples=100, deadline=None)
def test_generating_rows_wait_for_no_prompt(case: Case) -> None:
    generating = [i for i, d in enumerate(case.demands) if d.generating]
    room = len(generating) + 1
    p = plan(case.demands, room, room, 10_000, case.page_size)
    assert all(p.take[i] == 1 for i in generating)
    assert p.preempt == ()


def new(n: int, **more: bool) -> Demand:
    return Demand(n, 0, 0, entered=False, **more)


RUNNING = Demand(1, 63, 2)  # its next token fills its second page


def test_a_prompt_of_one_token_is_not_a_generating_row() -> None:
    assert plan([Demand(400, 64, 2), new(1), new(1)], 1, 64, 100, 32).take == (64, 0, 0)


def test_prompts_share_what_running_rows_leave() -> None:
    long, short = new(8000), new(40)
    assert plan([RUNNING, long], 16, 128, 999, 32).take == (1, 127)
    assert plan([RUNNING, long, short], 16, 128, 999, 32).take == (1, 87, 40)
    assert plan([RUNNING, long, short, new(50)], 16, 128, 999, 32).take == (1, 64, 40, 23)
    assert plan([long, short, new(20)], 16, 512, 999, 32).take == (452, 40, 20)
    assert plan([long, long, short], 16, 512, 999, 32).take == (256, 216, 40)


def test_a_prompt_enters_whole_and_in_order() -> None:
    big, small = new(200), new(10)
    assert plan([RUNNING, big, small], 16, 128, 3, 32).take == (1, 0, 0)
    assert plan([RUNNING, big, small], 16, 128, 7, 32).take == (1, 127, 0)
    assert plan([RUNNING, big, small], 16, 128, 8, 32).take == (1, 117, 10)
    assert plan([big, small], 16, 512, 3, 32).take == (96, 0)  # the foremost as far as pages reach


def test_a_patient_prompt_lets_others_overtake_it() -> None:
    small = new(10)
    assert plan([RUNNING, new(200, patient=True), small], 16, 128, 3, 32).take == (1, 0, 10)
    assert plan([RUNNING, new(200), small], 16, 128, 3, 32).take == (1, 0, 0)


def test_a_cached_start_costs_no_page_that_others_use() -> None:
    assert plan([RUNNING, Demand(8, 96, 3, 3, entered=False)], 16, 128, 1, 32).take == (1, 8)
    assert plan([RUNNING, Demand(8, 96, 2, 2, entered=False)], 16, 128, 1, 32).take == (1, 0)


def test_whoever_counts_on_a_victims_pages_enters_a_step_later() -> None:
    """They are used now and will be merely cached then, so that they cost pages after all."""
    first, victim = Demand(8, 96, 3, 3, entered=False), Demand(1, 127, 4)
    assert plan([first, victim], 16, 128, 0, 32) == Plan((0, 0), (1,))
    assert plan([Demand(8, 96, 0, entered=False), victim], 16, 128, 4, 32).take == (8, 1)


def test_a_shared_page_is_copied_before_it_is_written() -> None:
    fork = Demand(1, 40, 2, shared=2, writes_shared=True)
    assert plan([fork, fork], 16, 128, 1, 32).take == (1, 0)
    assert plan([fork, fork], 16, 128, 2, 32).take == (1, 1)


def test_a_prompt_before_running_rows_gets_a_row() -> None:
    """Of a higher priority, say: it does not wait until they end."""
    run = Demand(1, 40, 2)
    assert plan([run, new(10), run, run], 3, 128, 99, 32).take == (1, 10, 1, 0)
    assert plan([run, new(10), run, run], 3, 128, 0, 32).take == (1, 0, 1, 1)  # it cannot enter
    assert plan([run, run, run, new(10)], 3, 128, 99, 32).take == (1, 1, 1, 0)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(-9, 9)), min_size=2, max_size=2))
def test_priorities_are_a_head_start(pair: list[tuple[float, int]]) -> None:
    (t, p), (u, q) = pair
    if p == q:
        assert (rank(t, p) < rank(u, q)) == (t < u)
    if p < q and u - t > HEAD_START * (q - p) + 1e-6:  # it came too much later to overtake
        assert rank(t, p) < rank(u, q)
    if p < q and u - t < HEAD_START * (q - p) - 1e-6:
        assert rank(u, q) < rank(t, p)


@pytest.mark.parametrize("field", ["max_rows", "budget", "busy_budget", "least_budget"])
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
        demands = [
            Demand(j.n_ids - j.n_past, j.n_past, j.n_pages, entered=j.n_pages > 0)
            for j in self.running
        ]
        busy = any(d.generating for d in demands)
        budget = self.limits.busy_budget if busy else self.limits.budget
        p = plan(demands, self.limits.max_rows, budget, free, self.page_size)
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
