"""Texts as vectors: right ones, the same alone and in company, and refusals that name the thing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.paths import ROOT

from edgerun import LLM, SamplingParams
from edgerun.embedding import choose_pooling
from edgerun.errors import ClosedError, ContextLengthError, RequestError

TEXTS = ["a tin hat", "the sea", "an hour or so later, in the rain", "e"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=3)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, backend="cpu", threads=1) as model:
        yield model


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3", "qwen3", "phi3"])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_every_architecture_against_the_reference(family: str, pooling: str) -> None:
    file = ROOT / "tests" / "fixtures" / "arch" / f"{family}.gguf"
    ids = [[3, 5, 7, 9, 11], [4] * 3]
    with LLM(file, backend="cpu", threads=1) as a, LLM(file, backend="reference") as b:
        ours, judge = (x.embed(ids, pooling=pooling).vectors for x in (a, b))
    assert ours.shape == judge.shape
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    assert (ours * judge).sum(axis=1).min() > 0.995


def test_alone_and_in_company_are_the_same_bits(llm: LLM) -> None:
    together = llm.embed(TEXTS)
    for i, text in enumerate(TEXTS):
        assert np.array_equal(llm.embed(text).vectors[0], together.vectors[i])
    assert together.prompt_tokens == sum(len(llm.tokenize(t)) for t in TEXTS)
    assert together.vectors.dtype == np.float32


def test_while_a_text_is_generated(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    alone, vectors = llm.generate("the", params).token_ids, llm.embed(TEXTS).vectors
    stream = llm.stream("the", params)
    first = next(stream)
    assert np.array_equal(llm.embed(TEXTS).vectors, vectors)
    assert (*first.token_ids, *(i for c in stream for i in c.token_ids)) == alone


def test_coroutines_and_their_cancellation(llm: LLM) -> None:
    async def work() -> None:
        both = await asyncio.gather(llm.aembed(TEXTS), llm.aembed(TEXTS[:1]))
        assert np.array_equal(both[0].vectors[0], both[1].vectors[0])
        task = asyncio.create_task(llm.aembed(["the rain " * 40] * 200))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await llm.aembed("e")).vectors.shape[0] == 1

    asyncio.run(work())
    deadline = time.monotonic() + 30
    while llm.metrics().pages_used:  # its turn may just be under way
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_fewer_dimensions(llm: LLM) -> None:
    whole, cut = llm.embed("the").vectors[0], llm.embed("the", dimensions=8).vectors[0]
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), atol=1e-6)


@pytest.mark.parametrize("n", [0, -1, 65, 1.5, True])
def test_dimensions_that_are_not_there(llm: LLM, n: int) -> None:
    with pytest.raises(RequestError, match="64") as e:
        llm.embed("the", dimensions=n)
    assert e.value.param == "dimensions"


def test_refusals(llm: LLM, path: Path) -> None:
    with pytest.raises(RequestError, match="pooling must be one of mean, cls, last, not 'max'"):
        llm.embed("a", pooling="max")
    with pytest.raises(RequestError, match="at least one text"):
        llm.embed([])
    with pytest.raises(RequestError, match="not a token id"):
        llm.embed([[1, 99999]])
    with pytest.raises(RequestError, match="input 1 is empty"):
        llm.embed(["a", []])
    with pytest.raises(ContextLengthError) as e:
        llm.embed([[5] * 600])
    assert (e.value.n_prompt_tokens, e.value.n_ctx) == (600, 512)
    other = LLM(path, backend="cpu", threads=1)
    other.close()
    with pytest.raises(ClosedError):
        other.embed("a")


def test_what_the_file_says_goes_before_the_default() -> None:
    facts = {"general.architecture": "qwen3", "qwen3.pooling_type": 3}
    assert choose_pooling(None, facts) == "last"
    assert choose_pooling("cls", facts) == "cls"
    assert choose_pooling(None, {"general.architecture": "llama"}) == "mean"
    with pytest.raises(RequestError, match="ranks"):
        choose_pooling(None, {**facts, "qwen3.pooling_type": 4})


def test_an_end_token_is_added_where_the_file_wants_one(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.add_eos_token": True}
    file = gb.random_model(tmp_path / "m.gguf", seed=3, extra=extra)
    with LLM(file, backend="cpu", threads=1) as m:
        assert m.embed("the").prompt_tokens == len(m.tokenize("the")) + 1
