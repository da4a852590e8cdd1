"""One request inside the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from edgerun.backends.base import F32, I32, Rows, Top
from edgerun.core import FinishReason, SamplingParams, Timings, Usage
from edgerun.engine.draft_source import Drafter
from edgerun.engine.prefix import Node
from edgerun.engine.sampling import Sampled, Sampler
from edgerun.engine.scheduler import rank

__all__ = ["Scores", "Sequence", "Sink"]


class Sink(Protocol):
    """Where a sequence's tokens go. Called on the engine's thread; must not block."""

    def push(self, tokens: Items[Sampled]) -> tuple[int, bool]:
        """Take the next tokens, one or more.

        Returns how many of them are kept and whether the text ends with the last one kept: a stop
        string may be complete before the tokens are.
        """
        ...

    def finish(self, reason: FinishReason, usage: Usage, timings: Timings) -> None: ...

    def fail(self, error: Exception) -> None: ...


class Scores(NamedTuple):
    """What the model says behind some tokens.

    ``logits`` are float32 [n, n_vocab], as the program gave them; ``best`` and ``top`` are as
    :attr:`~edgerun.backends.base.Program.best` and ``top`` say, or None.
    """

    logits: Rows
    best: I32 | None = None
    top: Top | None = None

    def part(self, start: int, stop: int) -> Scores:
        """Those of some of the tokens."""
        best = None if self.best is None else self.best[start:stop]
        top = self.top and Top(self.top.ids[start:stop], self.top.logits[start:stop])
        return Scores(self.logits[start:stop], best, top)

    def row(self, i: int) -> F32:
        """The logits behind one token."""
        return self.logits[i]

    def best_of(self, i: int) -> int | None:
        return None if self.best is None else int(self.best[i])

    def top_of(self, i: int) -> tuple[I32, F32] | None:
        return None if self.top is None else (self.top.ids[i], self.top.logits[i])


@dataclass(eq=False)
class Sequence:
    """Token ids, how many of them are computed, and where.

    Attributes:
        ids: prompt and generated tokens; at least one.
        n_prompt: how many tokens the prompt had.
        max_tokens: most tokens to generate, context already considered; 0 = compute the prompt.
        priority: see :func:`~edgerun.engine.scheduler.rank`.
        n_ctx: where ``ids`` reach this many, the oldest are dropped; 0 = never. See :meth:`shift`.
        n_keep: leading tokens that are never dropped.
        drafter: guesses tokens, or None.
        leader: the sequence whose prompt this one shares, until that is computed; then None.
        n_past: tokens whose K and V are in ``pages``.
        kept: pages behind them that are still to come back from host memory, before any is
            computed.
        n_known: leading pages that were offered to the prefix index.
        node: the last of them; None if this text cannot be cached.
        digests: of the full pages of ``ids``, as far as they were needed.
        n_cached: prompt tokens that came from the cache; None until it has entered.
        n_generated: tokens the sink has kept.
        leads: others may wait for this one's prompt.
    """

    ids: list[int]
    params: SamplingParams
    sampler: Sampler
    sink: Sink
    max_tokens: int
    eog_ids: frozenset[int] = frozenset()
    priority: int = 0
    n_ctx: int = 0
    n_keep: int = 0
    drafter: Drafter | None = None
    leader: Sequence | None = None
    n_past: int = 0
    kept: tuple[bytes, ...] = ()
    pages: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    node: Node | None = None
    n_known: int = 0
    n_cached: int | None = None
    n_generated: int = 0
    cancelled: bool = False
    leads: bool = False
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
    def rank(self) -> float:
        """Its place among others, the smallest first."""
        return rank(self.created, self.priority)

    @property
    def room(self) -> int:
        """Tokens that may still come before it ends or drops some."""
        left = self.max_tokens - self.n_generated
        return min(left, self.n_ctx - len(self.ids)) if self.n_ctx else left

    def sample(
        self, scores: Scores, draft: Items[int] = ()
    ) -> tuple[list[Sampled], bool, Exception | None]:
        """Sample behind the last token, and on while the samples are what was drafted.

        Args:
            scores: 1 + len(draft), behind the last token and each of ``draft``.

        Returns the tokens, whether the text ends after them, as the model or a constraint has it,
        and what went wrong after them.
        """
        out: list[Sampled] = []
        for j in range(len(draft) + 1):
            try:
                known = scores.best_of(j), scores.top_of(j)
                sampled = self.sampler.sample(partial(scores.row, j), *known)
                if sampled.token_id in self.eog_ids and not self.params.ignore_eos:
                    return out, True, None
                self.sampler.accept(sampled.token_id)
            except Exception as e:  # NaN logits: this request's trouble alone
                return out, False, e
            out.append(sampled)
            if self.sampler.ended:
                return out, True, None
            if j == len(draft) or sampled.token_id != draft[j]:
                break
        return out, False, None

    def accept(self, scores: Scores, draft: Items[int] = ()) -> FinishReason | None:
        """Sample, hand the tokens to the sink, keep what it keeps; why the sequence ends, if so.

        The arguments are :meth:`sample`'s. ``draft`` was computed behind the last token.

        Raises:
            Exception: sampling or the sink failed.
        """
        out, ended, error = self.sample(scores, draft)
        if not self.first_token:
            self.first_token = time.perf_counter()
        if out:
            kept, stopped = self.sink.push(out)
            said = [s.token_id for s in out[:kept]]
            self.ids += said
            self.n_generated += kept
            self.n_past += sum(1 for a, b in zip(said, draft, strict=False) if a == b)
            if stopped:
                return FinishReason.STOP
        if error is not None:
            raise error
        if ended:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.n_generated >= self.max_tokens else None

    def shift(self) -> None:
        """Drop the older half of what may be dropped. The rest is computed again: K and V hold
        their positions, and those of earlier tokens."""
        keep = min(self.n_keep, len(self.ids) - 1)
        half = max(1, (len(self.ids) - keep) // 2)
        del self.ids[keep : keep + half]
        self.digests.clear()

    def usage(self) -> Usage:
        cached = self.n_cached or 0
        return Usage(self.n_prompt, self.n_generated, cached, kept_tokens=self.n_keep)

    def timings(self) -> Timings:
        now = time.perf_counter()
        started = self.started or now
        first = self.first_token or now
        return Timings(
            queued=started - self.created,
            prefill=first - started,
            decode=now - first,
            prefill_tokens=self.n_prompt - (self.n_cached or 0),
            decode_tokens=max(0, self.n_generated - 1),
        )
