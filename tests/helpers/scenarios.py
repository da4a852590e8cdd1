"""Random loads for an engine, and what each request of them gets alone."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edgerun.backends.base import F32, PAGE_SIZE, Backend
from edgerun.core import FinishReason
from edgerun.engine import Engine, Limits
from edgerun.engine import Sequence as EngineSequence
from edgerun.errors import GenerationError
from helpers.fake_program import ListSink, alone, sequence, sink_of
from helpers.runner import Alone, Runner
from helpers.scripted_drafter import Scripted

Predict = Callable[[Sequence[int]], F32]

PARAMS: list[dict[str, Any]] = [
    {"temperature": 0.0, "ignore_eos": True},
    {"temperature": 0.0},  # the only one that needs no logits
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 0.8, "ignore_eos": True},
    {"temperature": 1.1, "repeat_penalty": 1.2, "frequency_penalty": 0.3, "ignore_eos": True},
]
#: Mostly such as let a step start before the ids of the one before it are known.
GREEDY = PARAMS[:2] * 5 + PARAMS[2:]
#: Prompts that begin with it give NaN logits from ``POISON_AT`` tokens on.
POISON, POISON_AT = 13, 9


@dataclass
class Ask:
    """One request. It arrives before step ``arrival``; it is cancelled, if ever, before step
    ``cancel``."""

    arrival: int
    prompt: list[int]
    max_tokens: int
    seed: int
    params: dict[str, Any]
    n: int
    priority: int
    cancel: int | None
    stop_at: int | None
    right: list[int] | None  # see Scripted; None = no drafter
    n_ctx: int
    n_keep: int
    sequences: list[EngineSequence] = field(default_factory=list)
    wanted: list[ListSink] = field(default_factory=list)


@dataclass
class Scenario:
    asks: list[Ask]
    limits: Limits
    page_size: int
    n_pages: int
    age: float


def poisoned(predict: Predict) -> Predict:
    """``predict``, but NaN where it should be."""

    def wrong(ids: Sequence[int]) -> F32:
        logits = predict(ids)
        if ids[0] == POISON and len(ids) >= POISON_AT:
            logits = np.full_like(logits, np.nan)
        return logits

    return wrong


def draw(
    seed: int,
    page_size: int | None,
    n_vocab: int,
    ctx: int,
    poison: bool,
    params: Sequence[dict[str, Any]] = PARAMS,
) -> Scenario:
    """A scenario. Prompts share starts, and a pool may hold no more than one context."""
    r = random.Random(seed)
    size = page_size or r.randint(1, 5)
    starts = [[r.randrange(1, n_vocab) for _ in range(r.randint(0, ctx // 2))] for _ in range(3)]
    asks = []
    for i in range(r.choice([1, 2, 2, 3, 4])):
        start = r.choice(starts)
        prompt = start[: r.randint(0, len(start))] if r.random() < 0.3 else list(start)
        prompt += [r.randrange(1, n_vocab) for _ in range(r.choice([0, 1, 3, ctx // 4]))]
        if poison and r.random() < 0.1:
            prompt = [POISON, *prompt]
        prompt = (prompt or [5])[: ctx - 2]
        shift = r.random() < 0.15
        asks.append(
            Ask(
                arrival=r.choice([0, 0, r.randint(0, 20)]),
                prompt=prompt,
                max_tokens=r.choice([0, 1, 5, ctx // 2]) if not shift else ctx,
                seed=i,
                params=r.choice(params),
                n=r.choice([1, 1, 1, 1, 2, 3]),
                priority=r.choice([0, 0, 0, -1, 2]),
                cancel=r.randint(0, 25) if r.random() < 0.15 else None,
                stop_at=r.randint(0, 12) if r.random() < 0.15 else None,
                right=[r.choice([0, 1, 4]) for _ in range(3)] if r.random() < 0.4 else None,
                n_ctx=ctx if shift else 0,
                n_keep=r.choice([0, 3]) if shift else 0,
            )
        )
        if not shift:
            asks[-1].max_tokens = min(asks[-1].max_tokens, ctx - len(prompt))
    one = -(-ctx // size)
    return Scenario(
        asks,
        Limits(r.randint(1, 6), r.randint(2, 40), r.randint(1, 12), r.randint(1, 4), None, 5),
        size,
        one + r.choice([0, 0, 1, one // 2, 3 * one]),
        r.choice([0.0, 100.0]),
    )


def expect(scenario: Scenario, predict: Predict, n_vocab: int) -> None:
    """Fill in the requests' sequences and what each should get."""
    base = time.perf_counter() - scenario.age
    for a in scenario.asks:
        for stream in range(a.n):
            more = {"n_vocab": n_vocab, "stream": stream, **a.params}
            shift = {"n_ctx": a.n_ctx, "n_keep": a.n_keep}
            want = alone(a.prompt, a.max_tokens, a.seed, predict=predict, **shift, **more)
            drafter = Scripted(a.prompt, want.ids, a.right, 5) if a.right else None
            stop: list[int] = []
            if a.stop_at is not None and a.stop_at < len(want.ids):
                stop = want.ids[max(0, a.stop_at - 1) : a.stop_at + 1]
                want = alone(
                    a.prompt, a.max_tokens, a.seed, predict=predict, stop=stop, **shift, **more
                )
            s = sequence(
                a.prompt,
                a.max_tokens,
                ListSink(stop),
                a.seed,
                drafter=drafter,
                leader=a.sequences[0] if a.sequences else None,
                priority=a.priority,
                **shift,
                **more,
            )
            s.created = base + a.arrival * 1e-3
            a.sequences.append(s)
            a.wanted.append(want)


def play(scenario: Scenario, e: Engine) -> None:
    """Run it to the end, with the accounts checked at every step."""
    waiting = sorted(scenario.asks, key=lambda a: a.arrival)
    work = sum((len(a.prompt) + a.max_tokens) * a.n for a in scenario.asks)
    # Each step takes one token at least. Shifts and preemption repeat work, never for ever.
    for now in range(60 + 6 * work):
        while waiting and waiting[0].arrival <= now:
            for s in waiting.pop(0).sequences:
                e.add(s)
        for a in scenario.asks:
            if a.cancel is not None and a.arrival + a.cancel <= now:
                a.sequences[a.seed % a.n].cancelled = True  # one of its answers
        e.step()
        e.check()
        if e.idle and not waiting:
            break
    else:
        raise AssertionError("somebody starves")
    assert e.pool.n_free == e.pool.n_pages


def judge(scenario: Scenario) -> None:
    """Each request got what it gets alone, or the beginning of it if it was cancelled."""
    for a in scenario.asks:
        for s, want in zip(a.sequences, a.wanted, strict=True):
            got = sink_of(s)
            assert got.ended.is_set()
            if got.reason is FinishReason.ABORT:
                assert a.cancel is not None
                assert got.ids == want.ids[: len(got.ids)]
                continue
            assert got.ids == want.ids
            assert got.reason is want.reason
            assert got.logprobs == want.logprobs
            assert isinstance(got.error, GenerationError) == (want.error is not None)
            if got.usage is not None:
                assert got.usage.prompt_tokens == len(a.prompt)
                assert got.usage.completion_tokens == len(want.ids)
                assert got.usage.cached_tokens < len(a.prompt)


def run(scenario: Scenario, e: Engine, seed: int) -> None:
    """Play and judge; ``seed`` names the scenario in what went wrong."""
    try:
        play(scenario, e)
        judge(scenario)
    except AssertionError as error:
        raise AssertionError(f"scenario {seed}: {error}") from error


def run_on_backend(
    path: Path, backend: Backend, seeds: Iterable[int], n_vocab: int, ctx: int
) -> tuple[int, int]:
    """Random loads over a real program, each request held to what it gets alone; how many tokens
    came from the cache, and how many drafts were right."""
    predict = Alone(Runner(path, backend, n_ctx=128, n_pages=8))
    runner = Runner(path, backend, n_ctx=128, n_pages=20)
    cached = drafts = 0
    for seed in seeds:
        params = PARAMS if seed % 2 else GREEDY
        s = draw(seed, PAGE_SIZE, n_vocab, ctx, poison=False, params=params)
        expect(s, predict, n_vocab)
        n_pages = min(20, s.n_pages)
        e = Engine(runner.program, n_pages, PAGE_SIZE, s.limits, copy_page=runner.kv.copy_page)
        run(s, e, seed)
        m = e.metrics()
        cached += m.cached_tokens
        drafts += sum(d.accepted for d in m.drafts.values())
    return cached, drafts
