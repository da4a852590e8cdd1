"""Steps of the CUDA backend that are started behind others, on devices that do everything as late
as they may, and at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.host_device import HostDevice
from helpers.runner import Runner, same_bits

from edgerun import LLM, SamplingParams
from edgerun.backends.base import Batch, Started
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.cuda_program import CudaProgram
from edgerun.errors import RequestError

Row = tuple[int, int, list[int]]  # token, tokens before it, pages


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("cuda") / "random.gguf"
    return gb.random_model(file, seed=3, n_layer=1, n_ctx=1024)


@pytest.fixture(params=["late", "eager"])
def runner(path: Path, request: pytest.FixtureRequest) -> Iterator[Runner]:
    backend = CudaBackend(HostDevice(eager=request.param == "eager"))
    yield Runner(path, backend, n_ctx=512, n_pages=24)
    backend.close()


def step(*rows: Row) -> Batch:
    return Batch.pack([([token], past, pages, [0]) for token, past, pages in rows], want_best=True)


def prompts(runner: Runner, lengths: tuple[int, ...] = (3, 31, 9)) -> list[tuple[list[int], int]]:
    """Pages and lengths of texts that are computed; page 0 stays free."""
    found = []
    for i, n in enumerate(lengths):
        n_pages = n // 32 + 2
        first = 1 + sum(len(p) for p, _ in found)
        pages = list(range(first, first + n_pages))
        ids = np.random.default_rng(i).integers(3, 200, n).tolist()
        runner.program.run(Batch.pack([(ids, 0, pages, [])]))
        found.append((pages, n))
    return found


def one_by_one(runner: Runner, texts: list[tuple[list[int], int]], n: int) -> list[list[int]]:
    """What each says, steps waited for."""
    said = [[5] for _ in texts]
    for i in range(n):
        rows = [(s[-1], past + i, pages) for s, (pages, past) in zip(said, texts, strict=True)]
        runner.program.run(step(*rows))
        assert runner.program.best is not None
        for s, token in zip(said, runner.program.best.tolist(), strict=True):
            s.append(token)
    return [s[1:] for s in said]


def chained(runner: Runner, texts: list[tuple[list[int], int]], n: int) -> list[list[int]]:
    """The same, each step started before the one before it was waited for."""
    before = runner.program.start(step(*[(5, past, pages) for pages, past in texts]))
    said = []
    for i in range(1, n):
        rows = [(-1 - j, past + i, pages) for j, (pages, past) in enumerate(texts)]
        behind = runner.program.start(step(*rows), before)
        before.wait()
        said.append(before.best.tolist())
        before = behind
    before.wait()
    said.append(before.best.tolist())
    return [list(s) for s in zip(*said, strict=True)]


def test_ids_and_pages_are_the_same(runner: Runner, path: Path) -> None:
    """One text goes on to its next page, one past a split of attention, so that a step's memory
    moves on the way."""
    backend = CudaBackend(HostDevice())
    other = Runner(path, backend, n_ctx=512, n_pages=24)
    expected = one_by_one(other, prompts(other, (3, 31, 250)), 12)
    pages = [other.kv.export_page(p) for p in range(24)]
    backend.close()
    assert chained(runner, prompts(runner, (3, 31, 250)), 12) == expected
    assert [runner.kv.export_page(p) for p in range(24)] == pages


def test_fewer_rows_and_another_order(runner: Runner) -> None:
    texts = prompts(runner)
    expected = one_by_one(runner, texts, 2)
    first = runner.program.start(step(*[(5, past, pages) for pages, past in texts]))
    (a, n_a), (c, n_c) = texts[0], texts[2]
    second = runner.program.start(step((-3, n_c + 1, c), (-1, n_a + 1, a)), first)
    first.wait()
    second.wait()
    assert second.best.tolist() == [expected[2][1], expected[0][1]]


def test_logits_of_a_step_that_another_was_started_behind(runner: Runner) -> None:
    """They are computed again: what the device had is gone."""
    texts = prompts(runner)
    first = step(*[(5, past, pages) for pages, past in texts])
    expected = np.array(runner.program.run(first))
    best = runner.program.best
    assert best is not None
    second = step(*[(t, past + 1, p) for t, (p, past) in zip(best.tolist(), texts, strict=True)])
    expected_second = np.array(runner.program.run(second))
    best_second = runner.program.best
    assert best_second is not None

    a = runner.program.start(first)
    named = [(-1 - j, past + 1, pages) for j, (pages, past) in enumerate(texts)]
    b = runner.program.start(step(*named), a)
    rows = a.wait()
    assert same_bits(rows[1], expected[1])
    assert same_bits(rows[2], expected[2])
    # That came in between, and takes nothing from what goes on.
    c = runner.program.start(
        step(*[(-1 - j, past + 2, pages) for j, (pages, past) in enumerate(texts)]), b
    )
    rows = b.wait()
    assert b.best.tolist() == best_second.tolist()
    assert same_bits(rows[0], expected_second[0])
    third = [(t, past + 2, p) for t, (p, past) in zip(b.best.tolist(), texts, strict=True)]
    expected_third = np.array(runner.program.run(step(*third)))
    assert same_bits(c.wait()[2], expected_third[2])


def test_behind_a_step_whose_ids_were_written_over(runner: Runner) -> None:
    texts = prompts(runner)
    expected = one_by_one(runner, texts, 2)
    first = runner.program.start(step(*[(5, past, pages) for pages, past in texts]))
    runner.program.run(step((7, 0, [0])))
    rows = [(-1 - j, past + 1, pages) for j, (pages, past) in enumerate(texts)]
    second = runner.program.start(step(*rows), first)
    second.wait()
    said = zip(first.best.tolist(), second.best.tolist(), strict=True)
    assert [list(x) for x in said] == expected


def test_steps_that_nobody_waits_for(runner: Runner) -> None:
    texts = prompts(runner)
    expected = one_by_one(runner, texts, 3)
    rows = [(5, past, pages) for pages, past in texts]
    for _ in range(3):
        dropped = runner.program.start(step(*rows))
        for i in (1, 2):
            behind = [(-1 - j, past + i, pages) for j, (pages, past) in enumerate(texts)]
            dropped = runner.program.start(step(*behind), dropped)
    dropped.wait()  # but for the last one
    assert dropped.best.tolist() == [said[2] for said in expected]
    assert chained(runner, texts, 3) == expected


def test_a_row_of_nan_names_nothing(runner: Runner) -> None:
    """Beside a good one, which does not notice."""
    (bad, n_bad), (good, n_good) = prompts(runner, (3, 9))
    expected = one_by_one(runner, [(good, n_good)], 2)[0]
    nan = np.full(runner.kv.page_bytes // 2, np.nan, np.float16).tobytes()
    runner.kv.import_page(bad[0], nan)
    first = runner.program.start(step((5, n_bad, bad), (5, n_good, good)))
    second = runner.program.start(step((-1, n_bad + 1, bad), (-2, n_good + 1, good)), first)
    first.wait()
    second.wait()
    assert first.best.tolist() == [-1, expected[0]]
    assert second.best.tolist() == [-1, expected[1]]


@pytest.mark.parametrize("token", [-2, -100, 100_000])
def test_tokens_that_stand_for_nothing_are_refused(runner: Runner, token: int) -> None:
    ((pages, n),) = prompts(runner, (3,))
    first = runner.program.start(step((5, n, pages)))
    with pytest.raises(RequestError, match=f"token id {token} is outside"):
        runner.program.start(step((token, n + 1, pages)), first)
    with pytest.raises(RequestError, match="token id -1 is outside"):
        runner.program.start(step((-1, n + 1, pages)))
    first.wait()
    assert first.best[0] >= 0


def test_the_product_runs_ahead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once drafts were rare for a while; and texts are what they are without."""
    behind: list[bool] = []
    begin = CudaProgram.start

    def start(self: CudaProgram, batch: Batch, after: Started | None = None) -> Started:
        behind.append(after is not None)
        return begin(self, batch, after)

    params = SamplingParams(temperature=0.0, max_tokens=40)
    texts = []
    for ahead in (0, 64):
        monkeypatch.setattr(CudaProgram, "ahead", ahead)
        monkeypatch.setattr(CudaProgram, "start", start)
        for speculation in ("off", "auto"):
            backend = CudaBackend(HostDevice())
            with LLM(path, backend=backend, n_ctx=128, speculation=speculation) as llm:
                texts.append(llm.generate("the rain in the sea", params).text)
            backend.close()
            if not ahead:
                assert not behind
            elif speculation == "off":
                assert sum(behind) > 30
    assert len(set(texts)) == 1
