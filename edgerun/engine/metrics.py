"""What the engine has done and is doing: counted as it goes, read as one snapshot."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from edgerun.core import FinishReason

__all__ = ["STEP_BOUNDS", "Counters", "DiskCount", "DraftCount", "Metrics", "SwapCount"]

#: Upper bounds of the step-time histogram's classes, seconds; one more class holds the rest.
STEP_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True)
class DraftCount:
    """Draft tokens of one source that were verified, and those of them that were right."""

    drafted: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float:
        """Share of right ones; 0 if there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0


@dataclass(frozen=True)
class DiskCount:
    """What went to disk and came back.

    Attributes:
        pages_written, bytes_written: of KV.
        pages_read, bytes_read: the same, whole and of the text that was asked for.
        hit_tokens: tokens of the pages read that a prompt found in time; ``cached_tokens`` has
            them, too.
        errors: pages refused, for instance for their checksum, and the error of the file system,
            if any, that ended it all.
    """

    pages_written: int = 0
    bytes_written: int = 0
    pages_read: int = 0
    bytes_read: int = 0
    hit_tokens: int = 0
    errors: int = 0


@dataclass(frozen=True)
class SwapCount:
    """What went from a device's pool to host memory and came back.

    Attributes:
        pages_out, bytes_out: copied there.
        pages_in, bytes_in: copied back.
        pages_kept, pages_total: there now, and how many there is memory for by now.
    """

    pages_out: int = 0
    bytes_out: int = 0
    pages_in: int = 0
    bytes_in: int = 0
    pages_kept: int = 0
    pages_total: int = 0


@dataclass(frozen=True)
class Metrics:
    """A snapshot. Counts run from the start of the engine; the first two are of now.

    Attributes:
        waiting, running: requests without and with a place.
        finished: ended requests by reason, one of :class:`~edgerun.core.FinishReason`'s values.
        prompt_tokens: of requests that got a place.
        cached_tokens: those of them that were not computed.
        generated_tokens: that readers got.
        drafts: by source.
        steps: steps computed.
        step_tokens: tokens in them.
        step_seconds: time they took, all together.
        step_times: how many steps took up to each of ``STEP_BOUNDS`` seconds and more than the
            bound before; one more number for longer ones.
        preemptions: times a sequence lost its pages to another.
        evictions: pages whose content was given up for something new.
        pages_total, pages_used, pages_cached: of the KV pool; the rest is empty.
        disk: pages that outlive the process; None where none are kept.
        swap: pages in host memory; None where the pool's lie there themselves.
    """

    waiting: int = 0
    running: int = 0
    finished: Mapping[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafts: Mapping[str, DraftCount] = field(default_factory=dict)
    steps: int = 0
    step_tokens: int = 0
    step_seconds: float = 0.0
    step_times: tuple[int, ...] = (0,) * (len(STEP_BOUNDS) + 1)
    preemptions: int = 0
    evictions: int = 0
    pages_total: int = 0
    pages_used: int = 0
    pages_cached: int = 0
    disk: DiskCount | None = None
    swap: SwapCount | None = None

    @property
    def cache_hit_rate(self) -> float:
        """Share of the prompts' tokens that were not computed; 0 if there were none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict, the rates with it."""
        out = asdict(self)
        out["step_times"] = list(self.step_times)
        out["cache_hit_rate"] = self.cache_hit_rate
        for source, count in self.drafts.items():
            out["drafts"][source]["acceptance"] = count.acceptance
        return out


class Counters:
    """What only grows. Written on the engine's thread; any thread may take a copy."""

    def __init__(self) -> None:
        self.finished = {str(r): 0 for r in FinishReason}
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = 0
        self.drafts: dict[str, list[int]] = {}  # drafted and accepted
        self.steps = self.step_tokens = self.preemptions = 0
        self.step_seconds = 0.0
        self._times = [0] * (len(STEP_BOUNDS) + 1)

    def step(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        self.step_tokens += tokens
        self.step_seconds += seconds
        self._times[bisect.bisect_left(STEP_BOUNDS, seconds)] += 1

    def draft(self, origins: Iterable[tuple[str, int]], drafted: int, accepted: int) -> None:
        """The first ``accepted`` of ``drafted`` tokens were right; ``origins`` drafted them."""
        for source, n in origins:
            n, right = min(n, drafted), min(n, accepted)
            count = self.drafts.get(source)
            if count is None:
                self.drafts[source] = [n, right]
            else:
                count[0] += n
                count[1] += right
            drafted, accepted = drafted - n, accepted - right

    def snapshot(self, **now: Any) -> Metrics:
        """A copy, with what :class:`Metrics` has besides."""
        return Metrics(
            finished=dict(self.finished),
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            generated_tokens=self.generated_tokens,
            drafts={source: DraftCount(*n) for source, n in list(self.drafts.items())},
            steps=self.steps,
            step_tokens=self.step_tokens,
            step_seconds=self.step_seconds,
            step_times=tuple(self._times),
            preemptions=self.preemptions,
            **now,
        )
