"""The reference backend against an independent float32 implementation, on two real models."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers import golden as g
from helpers.runner import Runner

from edgerun.backends.reference import ReferenceBackend
from edgerun.text.tokenizer import load_tokenizer


@pytest.fixture(scope="module", params=g.MODELS)
def case(request: pytest.FixtureRequest) -> Iterator[tuple[g.Golden, Runner]]:
    golden = g.load(request.param)
    backend = ReferenceBackend()
    yield golden, Runner(golden.model, backend, n_ctx=golden.context)
    backend.close()  # a gigabyte of float32 weights


def test_prompt_ids(case: tuple[g.Golden, Runner]) -> None:
    golden, runner = case
    g.check_prompt_ids(golden, load_tokenizer(runner.file.metadata).encode)


def test_first_token_distribution(case: tuple[g.Golden, Runner]) -> None:
    assert max(g.first_token_kl(*case)) < 1e-6


def test_greedy(case: tuple[g.Golden, Runner]) -> None:
    g.check_greedy(*case, limit=None if g.full() else 12)


def test_every_step_of_the_golden_texts(case: tuple[g.Golden, Runner]) -> None:
    g.check_forced(*case, tolerance=1e-3)


@pytest.mark.timeout(900)
def test_perplexity(case: tuple[g.Golden, Runner]) -> None:
    golden, runner = case
    encode = load_tokenizer(runner.file.metadata).encode
    ids = g.eval_ids(golden, encode)
    g.check_perplexity(golden, runner, ids, 1e-4, chunks=None if g.full() else [1])
