"""The native CPU backend, at every instruction set of this machine, against an independent float32
implementation on two real models. Activations are rounded to int8 here, so tolerances are wider
than the reference backend's."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from helpers import golden as g
from helpers.runner import Runner

from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cpu_abi import isa_names
from edgerun.text.tokenizer import load_tokenizer

CASES = [(model, isa) for model in g.MODELS for isa in isa_names()]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def case(request: pytest.FixtureRequest) -> Iterator[tuple[g.Golden, Runner]]:
    model, isa = request.param
    golden = g.load(model)
    backend = CPUBackend(isa=isa)
    yield golden, Runner(golden.model, backend, n_ctx=golden.context)
    backend.close()


def test_first_token_distribution(case: tuple[g.Golden, Runner]) -> None:
    assert np.mean(g.first_token_kl(*case)) < 0.01


def test_greedy(case: tuple[g.Golden, Runner]) -> None:
    g.check_greedy(*case)


@pytest.mark.timeout(900)
def test_perplexity(case: tuple[g.Golden, Runner]) -> None:
    golden, runner = case
    ids = g.eval_ids(golden, load_tokenizer(runner.file.metadata).encode)
    # The baseline set exists for old machines; its full text takes minutes.
    slow = runner.backend.describe()["isa"] == "generic" and not g.full()
    g.check_perplexity(golden, runner, ids, 5e-3, chunks=(0,) if slow else None)
