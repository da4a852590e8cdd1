"""Vectors are computed between steps, with pages that are given back, whatever runs beside."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.fake_program import FakeProgram, ListSink, alone, logits_of, sequence
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.backends.base import Batch
from edgerun.engine import Engine, Limits
from edgerun.engine.embedding import Embedding, Vectors

PAGE = 4


def engine_of(n_pages: int, **limits: int) -> tuple[Engine, FakeProgram]:
    program = FakeProgram(n_pages, PAGE)
    bounds = Limits(gap=None, **limits)
    return Engine(program, n_pages, PAGE, bounds, copy_page=program.copy_page), program


def expected(ids: list[int], pooling: str) -> Vectors:
    """The fake program's hidden states are its logits, a function of all tokens up to there."""
    states = [logits_of(ids[: i + 1]).astype(np.float64) for i in range(len(ids))]
    if pooling == "mean":
        return (sum(states) / len(states)).astype(np.float32)  # type: ignore[no-any-return]
    return states[0 if pooling == "cls" else -1].astype(np.float32)


def drive(engine: Engine, most: int = 5000) -> None:
    for _ in range(most):
        if engine.idle:
            return
        engine.step()
        engine.check()
    raise AssertionError("it does not end")


TEXTS = st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=23), min_size=1, max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    texts=TEXTS,
    pooling=st.sampled_from(["mean", "cls", "last"]),
    prompts=st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=15), max_size=4),
    n_pages=st.integers(6, 14),
    budget=st.integers(1, 9),
    rows=st.integers(1, 3),
)
def test_vectors_beside_anything(
    texts: list[list[int]],
    pooling: str,
    prompts: list[list[int]],
    n_pages: int,
    budget: int,
    rows: int,
) -> None:
    engine, program = engine_of(n_pages, budget=budget, busy_budget=budget, max_rows=rows)
    sinks = [ListSink() for _ in prompts]
    for i, (prompt, sink) in enumerate(zip(prompts, sinks, strict=True)):
        engine.add(sequence(prompt, 6, sink, seed=i))
    parts = [part for part in (texts[: len(texts) // 2], texts[len(texts) // 2 :]) if part]
    works = [Embedding(lambda: program, part, pooling) for part in parts]
    engine.embeddings += works
    drive(engine)
    for work, part in zip(works, parts, strict=True):
        want = np.stack([expected(t, pooling) for t in part])
        np.testing.assert_allclose(work.result.result(0), want, atol=1e-5)
    for i, (prompt, sink) in enumerate(zip(prompts, sinks, strict=True)):
        assert sink.ids == alone(prompt, 6, seed=i).ids
    assert engine.pool.n_free == n_pages


def test_a_full_pool_takes_the_pages_back() -> None:
    """The generating sequence needs the whole pool: it must not end because texts hold a part."""
    engine, program = engine_of(6, budget=4, busy_budget=4)
    work = Embedding(lambda: program, [list(range(1, 21))], "mean")
    engine.embeddings.append(work)
    engine.step()
    engine.step()
    assert work.pages
    sink = ListSink()
    engine.add(sequence(list(range(1, 18)), 6, sink))
    drive(engine)
    assert sink.ids == alone(list(range(1, 18)), 6).ids
    np.testing.assert_allclose(
        work.result.result(0)[0], expected(list(range(1, 21)), "mean"), atol=1e-5
    )


def test_cancelled_half_way() -> None:
    engine, program = engine_of(8, budget=4)
    work = Embedding(lambda: program, [[1] * 20, [2] * 20], "last")
    engine.embeddings.append(work)
    engine.step()
    assert engine.pool.n_free < 8
    assert work.result.cancel()
    engine.step()
    assert engine.idle
    assert engine.pool.n_free == 8


def test_a_failing_program_fails_that_request_alone() -> None:
    engine, program = engine_of(8)

    def fail(batch: Batch) -> None:
        if 7 in batch.tokens:
            raise RuntimeError("broken")

    program.before = fail
    bad, good = (Embedding(lambda: program, [[i] * 9], "mean") for i in (7, 8))
    engine.embeddings += [bad, good]
    drive(engine)
    with pytest.raises(RuntimeError, match="broken"):
        bad.result.result(0)
    assert good.result.result(0).shape[0] == 1
    assert engine.pool.n_free == 8


def test_two_that_need_the_whole_pool_take_turns() -> None:
    """Each could take half of the pages, and neither would ever get the rest."""
    engine, program = engine_of(6, budget=4, busy_budget=4)
    works = [Embedding(lambda: program, [[i] * 23, [i + 1] * 23], "mean") for i in (1, 3)]
    engine.embeddings += works
    drive(engine)
    for i, work in zip((1, 3), works, strict=True):
        want = np.stack([expected([i] * 23, "mean"), expected([i + 1] * 23, "mean")])
        np.testing.assert_allclose(work.result.result(0), want, atol=1e-5)
