"""One request inside the engine."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from edgerun.core import FinishReason, SamplingParams, Timings, Usage
from edgerun.engine.sampling import Sampled, Sampler

__all__ = ["Sequence", "Sink"]


class Sink(Protocol):
    """Where a sequence's tokens go. Called on the engine's thread; must not block."""

    def push(self, token: Sampled) -> bool:
        """Take the next token; True if a stop string ended the text with it."""
        ...

    def finish(self, reason: FinishReason, usage: Usage, timings: Timings) -> None: ...

    def fail(self, error: Exception) -> None: ...


@dataclass(eq=False)
class Sequence:
    """Token ids, how many of them are in the cache, and where.

    Attributes:
        ids: prompt and generated tokens; at least one.
        n_prompt: how many of ``ids`` are the prompt.
        max_tokens: most tokens to generate, context already considered; 0 = compute the prompt.
        n_past: tokens whose K and V are in ``pages``.
    """

    ids: list[int]
    params: SamplingParams
    sampler: Sampler
    sink: Sink
    max_tokens: int
    eog_ids: frozenset[int] = frozenset()
    n_past: int = 0
    pages: list[int] = field(default_factory=list)
    cancelled: bool = False
    created: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first_token: float = 0.0
    n_prompt: int = field(init=False)

    def __post_init__(self) -> None:
        if not self.ids:
            raise ValueError("a sequence needs at least one token")
        self.n_prompt = len(self.ids)

    @property
    def pending(self) -> int:
        """Tokens to compute before the next one can be sampled."""
        return len(self.ids) - self.n_past

    @property
    def n_generated(self) -> int:
        return len(self.ids) - self.n_prompt

    def accept(self, sampled: Sampled) -> FinishReason | None:
        """Hand a sampled token to the sink and decide whether the sequence ends with it."""
        if not self.first_token:
            self.first_token = time.perf_counter()
        if sampled.token_id in self.eog_ids and not self.params.ignore_eos:
            return FinishReason.STOP
        self.ids.append(sampled.token_id)
        self.sampler.accept(sampled.token_id)
        if self.sink.push(sampled):
            return FinishReason.STOP
        return FinishReason.LENGTH if self.n_generated >= self.max_tokens else None

    def usage(self) -> Usage:
        return Usage(prompt_tokens=self.n_prompt, completion_tokens=self.n_generated)

    def timings(self) -> Timings:
        now = time.perf_counter()
        started = self.started or now
        first = self.first_token or now
        return Timings(
            queued=started - self.created,
            prefill=first - started,
            decode=now - first,
            prefill_tokens=self.n_prompt,
            decode_tokens=max(0, self.n_generated - 1),
        )
