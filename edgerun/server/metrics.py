"""What the server tells Prometheus: its own timings, and the counts of each model's engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from edgerun.core import Chunk
from edgerun.engine.metrics import STEP_BOUNDS, Metrics

if TYPE_CHECKING:
    from edgerun.llm import LLM

__all__ = ["CONTENT_TYPE", "AnswerClock", "ServerMetrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

#: Seconds: bounds of the histograms of waiting for the first token, and between tokens.
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAP = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class AnswerClock:
    """Times one answer from its acceptance on; told of each of its chunks as they leave."""

    def __init__(
        self, first: Callable[[float], None], gap: Callable[[float], None], began: float
    ) -> None:
        self._first, self._gap = first, gap
        self._began = self._last = began
        #: Seconds to the first token, once it is there.
        self.ttft: float | None = None

    def chunk(self, chunk: Chunk) -> None:
        """Of several tokens that left at once each counts as a gap of its share."""
        n = len(chunk.token_ids)
        if not n:
            return
        now = time.perf_counter()
        if self.ttft is None:
            self.ttft = now - self._began
            self._first(self.ttft)
            n -= 1
        share = (now - self._last) / max(n, 1)
        for _ in range(n):
            self._gap(share)
        self._last = now


class ServerMetrics:
    """Counters of one server.

    Args:
        loaded: the models in memory, by name; asked at each scrape.
    """

    def __init__(self, loaded: Callable[[], Mapping[str, LLM]]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "edgerun_requests",
            "HTTP requests answered",
            ["route", "status"],
            registry=self._registry,
        )
        self._active = Gauge(
            "edgerun_requests_active", "HTTP requests being answered", registry=self._registry
        )
        self._whole = self._histogram(
            "edgerun_request_seconds", "from a request's arrival to its last byte", _WHOLE, "route"
        )
        self._first = self._histogram(
            "edgerun_time_to_first_token_seconds", "from a request's arrival on", _FIRST, "model"
        )
        self._gap = self._histogram(
            "edgerun_inter_token_seconds", "between two tokens of one answer", _GAP, "model"
        )
        self._registry.register(_Engines(loaded))

    def _histogram(self, name: str, text: str, bounds: tuple[float, ...], label: str) -> Histogram:
        return Histogram(name, text, [label], buckets=bounds, registry=self._registry)

    def begun(self) -> None:
        """A request has arrived."""
        self._active.inc()

    def ended(self, route: str, status: int, seconds: float) -> None:
        """It was answered. ``route`` is the route's pattern, never the path: there are few."""
        self._active.dec()
        self._requests.labels(route, str(status)).inc()
        self._whole.labels(route).observe(seconds)

    def clock(self, model: str, began: float) -> AnswerClock:
        """A clock for an answer whose request came at ``began``, of ``time.perf_counter``."""
        return AnswerClock(
            self._first.labels(model).observe, self._gap.labels(model).observe, began
        )

    def text(self) -> bytes:
        """The page that Prometheus reads, of :data:`CONTENT_TYPE`."""
        return generate_latest(self._registry)


#: Name, words and the engine's count: of what happened so far, and of what is now.
_COUNTS: tuple[tuple[str, str, Callable[[Metrics], float]], ...] = (
    ("prompt_tokens", "of requests that got a place", lambda m: m.prompt_tokens),
    ("cached_tokens", "prompt tokens that were not computed", lambda m: m.cached_tokens),
    ("generated_tokens", "that readers got", lambda m: m.generated_tokens),
    ("steps", "computed", lambda m: m.steps),
    ("step_tokens", "computed in steps", lambda m: m.step_tokens),
    ("preemptions", "sequences that lost their pages to another", lambda m: m.preemptions),
    ("page_evictions", "pages given up for something new", lambda m: m.evictions),
    ("pages_swapped_out", "copied to host memory", lambda m: m.swap.pages_out if m.swap else 0),
    ("pages_swapped_in", "copied back to the device", lambda m: m.swap.pages_in if m.swap else 0),
)
_NOW: tuple[tuple[str, str, Callable[[Metrics], float]], ...] = (
    ("running", "sequences with a place", lambda m: m.running),
    ("waiting", "sequences without one", lambda m: m.waiting),
    ("kv_pages", "pages of K and V", lambda m: m.pages_total),
    ("kv_pages_used", "pages in use", lambda m: m.pages_used),
    ("kv_pages_cached", "pages that nobody uses, but may again", lambda m: m.pages_cached),
)


class _Engines(Collector):
    def __init__(self, loaded: Callable[[], Mapping[str, LLM]]) -> None:
        self._loaded = loaded

    def describe(self) -> Iterable[Metric]:
        return ()  # else registering would read the models

    def collect(self) -> Iterator[Metric]:
        snapshots = {name: llm.metrics() for name, llm in self._loaded().items()}
        for kind, counts in ((CounterMetricFamily, _COUNTS), (GaugeMetricFamily, _NOW)):
            for key, text, read in counts:
                family = kind(f"edgerun_{key}", text, labels=["model"])
                for name, m in snapshots.items():
                    family.add_metric([name], read(m))
                yield family
        yield from _drafts(snapshots)
        yield _steps(snapshots)
        finished = CounterMetricFamily(
            "edgerun_finished", "sequences that ended", labels=["model", "reason"]
        )
        for name, m in snapshots.items():
            for reason, n in m.finished.items():
                finished.add_metric([name, reason], n)
        yield finished


def _drafts(snapshots: Mapping[str, Metrics]) -> Iterator[Metric]:
    labels = ["model", "source"]
    drafted = CounterMetricFamily("edgerun_draft_tokens", "that were verified", labels=labels)
    right = CounterMetricFamily("edgerun_draft_tokens_accepted", "that were right", labels=labels)
    for name, m in snapshots.items():
        for source, count in m.drafts.items():
            drafted.add_metric([name, source], count.drafted)
            right.add_metric([name, source], count.accepted)
    yield drafted
    yield right


def _steps(snapshots: Mapping[str, Metrics]) -> Metric:
    family = HistogramMetricFamily("edgerun_step_seconds", "one step", labels=["model"])
    for name, m in snapshots.items():
        buckets, so_far = [], 0
        for bound, n in zip((*map(str, STEP_BOUNDS), "+Inf"), m.step_times, strict=True):
            so_far += n
            buckets.append((bound, so_far))
        family.add_metric([name], buckets, m.step_seconds)
    return family
