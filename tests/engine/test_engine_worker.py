"""The engine's thread: requests from everywhere, and every caller hears how it ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from helpers.fake_program import FakeProgram, ListSink, engine, greedy, sequence

from edgerun.backends.base import Batch
from edgerun.core import FinishReason
from edgerun.engine import Limits, Worker
from edgerun.errors import BackendError, ClosedError

PATIENCE = 20.0


class Rig:
    """A worker over the fake program; ``gate`` stops the steps while it is cleared."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.error: Exception | None = None
        self.ended: list[str] = []
        program = FakeProgram(24, 4, self._before)
        self.engine = engine(24, 4, Limits(4, 32, 8), program)
        self.worker = Worker(
            self.engine, lambda: self.ended.append(threading.current_thread().name)
        )

    def _before(self, batch: Batch) -> None:
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        if self.error is not None and 13 in batch.tokens[batch.positions == 0]:
            raise self.error


@pytest.fixture
def rig() -> Iterator[Rig]:
    r = Rig()
    yield r
    r.gate.set()
    r.worker.close()


def test_submit_and_cancel_from_many_threads(rig: Rig) -> None:
    outcomes: list[tuple[list[int], ListSink, bool]] = []

    def client(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(12):
            prompt = rng.integers(0, 61, rng.integers(1, 30)).tolist()
            s, cancel = sequence(prompt, 10), bool(rng.random() < 0.3)
            assert isinstance(s.sink, ListSink)
            rig.worker.submit(s)
            if cancel:
                time.sleep(float(rng.random()) * 0.003)
                rig.worker.cancel(s)
            assert s.sink.ended.wait(PATIENCE)
            outcomes.append((prompt, s.sink, cancel))

    threads = [threading.Thread(target=client, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(PATIENCE)
    assert len(outcomes) == 72
    for prompt, sink, cancelled in outcomes:
        want, reason = greedy(prompt, 10)
        if sink.reason is FinishReason.ABORT:
            assert cancelled
            assert sink.ids == want[: len(sink.ids)]
        else:
            assert (sink.ids, sink.reason) == (want, reason)
    assert rig.engine.idle
    assert rig.engine.pool.n_free == 24


def test_close_while_running_tells_every_caller(rig: Rig) -> None:
    rig.gate.clear()
    asks = [sequence([i + 1], 8) for i in range(8)]
    for s in asks:
        rig.worker.submit(s)
    assert rig.entered.wait(PATIENCE)
    closers = [threading.Thread(target=rig.worker.close) for _ in range(3)]
    for t in closers:
        t.start()
    late = sequence([9], 8)
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:  # submitting goes on until the close is seen
        try:
            rig.worker.submit(late)
        except ClosedError:
            break
        asks.append(late)
        late = sequence([9], 8)
        time.sleep(0.001)
    else:
        pytest.fail("submit did not notice the close")
    rig.gate.set()
    for t in closers:
        t.join(PATIENCE)
        assert not t.is_alive()
    for s in asks:
        assert isinstance(s.sink, ListSink)
        assert s.sink.ended.wait(PATIENCE)
        assert isinstance(s.sink.error, ClosedError)
    assert rig.ended == ["edgerun-engine"]
    rig.engine.check()


def test_close_is_idempotent_and_final(rig: Rig) -> None:
    rig.worker.close()
    rig.worker.close()
    with pytest.raises(ClosedError, match="closed"):
        rig.worker.submit(sequence([1]))
    rig.worker.cancel(sequence([1]))
    assert rig.ended == ["edgerun-engine"]


def test_close_on_the_engines_own_thread_does_not_wait_for_itself(rig: Rig) -> None:
    class Closer(ListSink):
        def finish(self, *args: object) -> None:
            rig.worker.close()
            assert rig.ended == []  # what the step computes with is still there
            super().finish(*args)  # type: ignore[arg-type]

    sink = Closer()
    rig.worker.submit(sequence([5], 2, sink))
    assert sink.ended.wait(PATIENCE)
    assert sink.error is None
    rig.worker.close()
    assert rig.ended == ["edgerun-engine"]


@pytest.mark.parametrize("error", [BackendError("device lost"), ZeroDivisionError("a bug")])
def test_the_worker_survives_a_failing_step(rig: Rig, error: Exception) -> None:
    rig.error = error
    bad = sequence([13, 2])
    rig.worker.submit(bad)
    assert isinstance(bad.sink, ListSink)
    assert bad.sink.ended.wait(PATIENCE)
    assert bad.sink.error is error
    good = sequence([5])
    rig.worker.submit(good)
    assert isinstance(good.sink, ListSink)
    assert good.sink.ended.wait(PATIENCE)
    assert good.sink.ids == greedy([5], 8)[0]


def test_the_worker_survives_a_bug_in_the_step(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as m:
        m.setattr(rig.engine, "_schedule", lambda now: 1 / 0)
        bad = sequence([5])
        rig.worker.submit(bad)
        assert isinstance(bad.sink, ListSink)
        assert bad.sink.ended.wait(PATIENCE)
    assert isinstance(bad.sink.error, ZeroDivisionError)
    assert "step failed" in caplog.text
    good = sequence([5])
    rig.worker.submit(good)
    assert isinstance(good.sink, ListSink)
    assert good.sink.ended.wait(PATIENCE)
    assert good.sink.reason is not None


def test_a_bug_in_the_accounts_costs_the_cache_only(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that breaks off half-way leaves pages that nobody can account for any more."""

    def half(s: object, n: int) -> None:
        rig.engine.pool.allocate(7)
        raise ZeroDivisionError("a bug")

    asks = [sequence([i, 5]) for i in range(1, 4)]
    with monkeypatch.context() as m:
        m.setattr(rig.engine.pager, "grow", half)
        for s in asks:
            rig.worker.submit(s)
        for s in asks:
            assert isinstance(s.sink, ListSink)
            assert s.sink.ended.wait(PATIENCE)
            assert isinstance(s.sink.error, ZeroDivisionError)
    good = sequence([5])
    rig.worker.submit(good)
    assert isinstance(good.sink, ListSink)
    assert good.sink.ended.wait(PATIENCE)
    assert good.sink.ids == greedy([5], 8)[0]
    rig.worker.close()
    rig.engine.check()


def test_metrics_may_be_read_from_any_thread(rig: Rig) -> None:
    stop = threading.Event()
    failed: list[Exception] = []

    def read() -> None:
        while not stop.is_set():
            try:
                m = rig.worker.metrics()
                assert 0 <= m.pages_used <= m.pages_total == 24
                assert m.steps <= m.step_tokens
            except Exception as e:
                failed.append(e)
                return

    readers = [threading.Thread(target=read) for _ in range(3)]
    for t in readers:
        t.start()
    asks = [sequence([i, 5], 12) for i in range(1, 30)]
    for s in asks:
        rig.worker.submit(s)
    for s in asks:
        assert isinstance(s.sink, ListSink)
        assert s.sink.ended.wait(PATIENCE)
    stop.set()
    for t in readers:
        t.join(PATIENCE)
    assert failed == []
    m = rig.worker.metrics()
    assert sum(m.finished.values()) == len(asks)
    assert m.generated_tokens == sum(len(s.sink.ids) for s in asks)  # type: ignore[attr-defined]


def test_an_idle_worker_sleeps(rig: Rig) -> None:
    s = sequence([5])
    rig.worker.submit(s)
    assert isinstance(s.sink, ListSink)
    assert s.sink.ended.wait(PATIENCE)
    steps, before = rig.engine.counters.steps, time.process_time()
    time.sleep(0.3)
    assert rig.engine.counters.steps == steps
    assert time.process_time() - before < 0.15
