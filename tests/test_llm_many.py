"""Several answers to one prompt, full contexts that go on, and what the engine tells of itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import gguf_build as gb

from edgerun import LLM, Completion, FinishReason, SamplingParams
from edgerun.core import Chunk
from edgerun.errors import ContextLengthError, RequestError

N_CTX = 160
PROMPT = [5 + i % 90 for i in range(70)]
HOT = SamplingParams(temperature=1.3, seed=11, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=3)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, backend="cpu", threads=1, n_ctx=N_CTX) as model:
        yield model


@pytest.fixture
def fresh(path: Path) -> Iterator[LLM]:
    with LLM(path, backend="cpu", threads=1, n_ctx=N_CTX) as model:
        yield model


# -- n -------------------------------------------------------------------------------------------


def said(done: Completion) -> list[tuple[int, ...]]:
    return [c.token_ids for c in done.choices]


def test_four_answers_from_one_seed(fresh: LLM) -> None:
    one = fresh.generate(PROMPT, HOT, n=4)
    assert len(set(said(one))) == 4
    assert [c.finish_reason for c in one.choices] == [FinishReason.LENGTH] * 4
    m = fresh.metrics()
    assert m.step_tokens == len(PROMPT) + 4 * 11  # the prompt was computed once
    assert said(fresh.generate(PROMPT, HOT, n=4)) == said(one)
    assert fresh.generate(PROMPT, HOT).token_ids == one.token_ids  # the first is the only one's
    assert said(fresh.generate(PROMPT, HOT, n=2)) == said(one)[:2]
    assert said(fresh.generate(PROMPT, HOT, n=4, seed=12)) != said(one)


def test_usage_of_several_answers(llm: LLM) -> None:
    done = llm.generate([9] * 40, HOT, n=3)
    assert [c.usage.completion_tokens for c in done.choices] == [12] * 3
    total = done.total_usage
    assert (total.prompt_tokens, total.completion_tokens) == (40, 36)
    assert json.loads(json.dumps(done.to_dict()))["others"][1]["text"] == done.others[1].text
    assert llm.generate([9] * 40, HOT).others == ()


def test_streams_of_several_answers(llm: LLM) -> None:
    want = said(llm.generate(PROMPT, HOT, n=3, max_tokens=6))

    def joined(chunks: list[Chunk]) -> list[tuple[int, ...]]:
        assert sum(c.finish_reason is not None for c in chunks) == 3
        return [
            tuple(i for c in chunks if c.index == index for i in c.token_ids) for index in range(3)
        ]

    async def collect() -> list[Chunk]:
        return [c async for c in llm.astream(PROMPT, HOT, n=3, max_tokens=6)]

    assert joined(list(llm.stream(PROMPT, HOT, n=3, max_tokens=6))) == want
    assert joined(asyncio.run(collect())) == want


def test_stop_strings_end_each_answer_on_its_own(llm: LLM) -> None:
    free = llm.generate(PROMPT, HOT, n=4, max_tokens=30)
    stop = next(c for c in free.others[0].text if c.isprintable())
    done = llm.generate(PROMPT, HOT, n=4, max_tokens=30, stop=[stop])
    for whole, cut in zip(free.choices, done.choices, strict=True):
        assert cut.text == whole.text.split(stop)[0]
        assert (cut.finish_reason is FinishReason.STOP) == (stop in whole.text)


def test_leaving_several_answers_frees_all_their_places(llm: LLM) -> None:
    for wait in (False, True):
        stream = llm.stream(PROMPT, HOT, n=4, max_tokens=80)
        if wait:
            next(stream)
        stream.close()
        assert list(stream) == []
        assert len(llm.generate(PROMPT, HOT).token_ids) == 12
        llm._worker._engine.check()


def test_greedy_answers_are_equal(llm: LLM) -> None:
    done = llm.generate(PROMPT, n=3, temperature=0, max_tokens=5, ignore_eos=True)
    assert len(set(said(done))) == 1


@pytest.mark.parametrize("n", [0, -1, 129, 1.5, True, "2"])
def test_bad_counts_are_refused(llm: LLM, n: object) -> None:
    with pytest.raises(RequestError, match="n must be") as e:
        llm.generate(PROMPT, n=n)
    assert e.value.param == "n"


# -- the context's end ---------------------------------------------------------------------------


def test_a_full_context_ends_with_length(llm: LLM) -> None:
    done = llm.generate(PROMPT, temperature=0, ignore_eos=True)
    assert done.finish_reason is FinishReason.LENGTH
    assert len(done.token_ids) == N_CTX - len(PROMPT)


@pytest.mark.parametrize("n_keep", [0, 10, -1])
def test_a_shifted_context_goes_on_as_a_new_prompt_would(llm: LLM, n_keep: int) -> None:
    """What comes after a shift is what the kept tokens give when sent as a prompt."""
    params = SamplingParams(temperature=0, ignore_eos=True, context_shift=True, n_keep=n_keep)
    done = llm.generate(PROMPT, params, max_tokens=250)
    assert len(done.token_ids) == 250
    assert done.usage.completion_tokens == 250
    text, out = list(PROMPT), []
    keep = len(PROMPT) if n_keep < 0 else n_keep
    while len(out) < 250:
        room = min(N_CTX - len(text), 250 - len(out))
        part = llm.generate(text, temperature=0, ignore_eos=True, max_tokens=room).token_ids
        out += part
        text += part
        if len(text) == N_CTX:
            del text[keep : keep + (N_CTX - keep) // 2]
    assert done.token_ids == tuple(out)


def test_a_shift_is_repeatable_and_alike_for_all_answers(llm: LLM) -> None:
    params = SamplingParams(
        temperature=1.1, seed=4, ignore_eos=True, context_shift=True, max_tokens=200, n=2
    )
    one = said(llm.generate(PROMPT, params, repeat_penalty=1.1))
    assert said(llm.generate(PROMPT, params, repeat_penalty=1.1)) == one
    assert llm.generate(PROMPT, params, repeat_penalty=1.1, n=1).token_ids == one[0]


def test_without_a_limit_a_shifting_request_runs_until_it_is_closed(llm: LLM) -> None:
    stream = llm.stream(PROMPT, temperature=0, ignore_eos=True, context_shift=True)
    n = 0
    for chunk in stream:
        n += len(chunk.token_ids)
        if n > 3 * N_CTX:
            break
    stream.close()


def test_a_prompt_too_long_is_refused_with_both_numbers(llm: LLM) -> None:
    for shift in (False, True):
        with pytest.raises(ContextLengthError, match="200 tokens but the context holds 160") as e:
            llm.generate([5] * 200, context_shift=shift)
        assert (e.value.n_prompt_tokens, e.value.n_ctx) == (200, 160)


def test_keeping_too_much_is_refused(llm: LLM) -> None:
    for more in ({"n_keep": 90}, {"n_keep": -1}):
        with pytest.raises(RequestError, match="at most half of it, 80") as e:
            llm.generate([5] * 100, context_shift=True, **more)
        assert e.value.param == "n_keep"


# -- what it tells of itself ---------------------------------------------------------------------


def test_metrics(fresh: LLM) -> None:
    first = fresh.generate(PROMPT, HOT)
    again = fresh.generate(PROMPT, HOT)
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 69)
    m = fresh.metrics()
    assert m.finished["length"] == 2
    assert (m.prompt_tokens, m.cached_tokens, m.generated_tokens) == (140, 69, 24)
    assert m.cache_hit_rate == 69 / 140
    assert (m.waiting, m.running, m.pages_used) == (0, 0, 0)
    assert json.loads(json.dumps(m.to_dict()))["pages_total"] == m.pages_total > 0
    fresh.close()
    assert fresh.metrics().steps == m.steps


@pytest.mark.parametrize("gap", [0, -1.0, float("nan"), float("inf"), "0.1", True])
def test_a_gap_is_a_time(path: Path, gap: Any) -> None:
    with pytest.raises(RequestError, match="token_gap must be a number of seconds above 0"):
        LLM(path, token_gap=gap)


def test_the_gap_reaches_the_engine(path: Path) -> None:
    with LLM(path, backend="cpu", threads=1, token_gap=0.03) as llm:
        assert llm._worker._engine.limits.gap == 0.03
