"""One LLM, many callers: threads, coroutines, abandoned streams, closing."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.cli import environment

from edgerun import LLM, Completion, FinishReason, SamplingParams
from edgerun.backends.base import Batch
from edgerun.backends.cpu import CPUBackend
from edgerun.errors import (
    ClosedError,
    ContextLengthError,
    RequestError,
)

PATIENCE = 30.0
USER = [{"role": "user", "content": "the"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=3, n_ctx=8192)


@pytest.fixture(scope="module", params=["cpu", "reference"])
def llm(path: Path, request: pytest.FixtureRequest) -> Iterator[LLM]:
    with LLM(path, backend=request.param, threads=1) as model:
        yield model


@pytest.fixture
def mine(path: Path) -> Iterator[LLM]:
    """A model the test may close."""
    with LLM(path, backend="cpu", threads=1) as model:
        yield model


def endless(**more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, ignore_eos=True, **more)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def idle(llm: LLM) -> bool:
    engine = llm._worker._engine
    return engine.idle and not llm._worker._new and engine.pool.n_free == engine.pool.n_pages


# -- many callers --------------------------------------------------------------------------------


def prompts(n: int) -> list[list[int]]:
    rng = np.random.default_rng(5)
    return [rng.integers(3, 270, rng.integers(1, 90)).tolist() for _ in range(n)]


def test_alone_and_with_seven_others_are_the_same_bits(
    mine: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    run = mine.model.program.run

    def spy(batch: Batch) -> Any:
        rows.append(batch.n_rows)
        return run(batch)

    monkeypatch.setattr(mine.model.program, "run", spy)
    params = SamplingParams(temperature=1.2, seed=9, max_tokens=24, ignore_eos=True, logprobs=5)
    alone = [mine.generate(p, params) for p in prompts(8)]
    assert set(rows) == {1}
    streams = [mine.stream(p, params) for p in prompts(8)]  # they run from here on
    for one, stream in zip(alone, streams, strict=True):
        chunks = list(stream)
        assert tuple(i for c in chunks for i in c.token_ids) == one.token_ids
        assert tuple(p for c in chunks for p in c.logprobs) == one.logprobs  # floats: exact
    assert max(rows) == 8


def test_four_threads_on_one_model(llm: LLM) -> None:
    """Seeded answers under load, among other requests that come, go and fail."""
    params = SamplingParams(temperature=1.3, max_tokens=16, ignore_eos=True)
    asks = prompts(8)
    alone = [llm.generate(p, params, seed=i).token_ids for i, p in enumerate(asks)]

    def client(i: int) -> list[tuple[int, ...]]:
        with pytest.raises(ContextLengthError):
            llm.generate([5] * 9000)
        stream = llm.stream([7] * (i + 1), endless())
        next(stream)
        stream.close()
        llm.chat(USER, params, max_tokens=3)
        return [llm.generate(asks[k], params, seed=k).token_ids for k in (i, i + 4)]

    with ThreadPoolExecutor(4) as pool:
        for i, got in enumerate(pool.map(client, range(4))):
            if llm.backend.name == "cpu":  # numpy's matmul may round differently in a batch
                assert got == [alone[i], alone[i + 4]]
            assert [len(g) for g in got] == [16, 16]
    until(lambda: idle(llm))


def test_max_batch_makes_others_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(path, backend="cpu", threads=1, max_batch=2) as llm:
        rows: list[int] = []
        run = llm.model.program.run
        monkeypatch.setattr(
            llm.model.program, "run", lambda batch: (rows.append(batch.n_rows), run(batch))[1]
        )
        streams = [llm.stream("the", endless(max_tokens=6)) for _ in range(5)]
        assert len({tuple(i for c in s for i in c.token_ids) for s in streams}) == 1
        assert max(rows) == 2


# -- abandoned -----------------------------------------------------------------------------------


def test_a_dropped_iterator_frees_its_place(llm: LLM) -> None:
    stream = llm.stream("the", endless())
    next(stream)
    assert not idle(llm)
    del stream
    until(lambda: idle(llm))


def test_a_closed_iterator_frees_its_place(llm: LLM) -> None:
    stream = llm.stream("the", endless())
    next(stream)
    stream.close()
    assert list(stream) == []
    until(lambda: idle(llm))


def test_leaving_a_loop_frees_its_place(llm: LLM) -> None:
    for chunk in llm.stream_chat(USER, endless()):
        if chunk.text:
            break
    until(lambda: idle(llm))


def test_closing_from_elsewhere_ends_a_waiting_reader(llm: LLM) -> None:
    stream = llm.stream("the", endless())
    closer = threading.Timer(0.05, stream.close)
    closer.start()
    reasons = [c.finish_reason for c in stream]
    closer.join()
    assert reasons[-1] in (None, FinishReason.ABORT)
    until(lambda: idle(llm))


def test_abandoned_before_the_first_step(llm: LLM) -> None:
    for _ in range(50):
        llm.stream([5] * 200, endless()).close()
    until(lambda: idle(llm))


# -- coroutines ----------------------------------------------------------------------------------


def test_async_twins_say_the_same(llm: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=12, logprobs=1)

    async def both() -> tuple[Completion, Completion, list[str], list[str]]:
        said = [c.text async for c in llm.astream("the", params)]
        talked = [c.text async for c in llm.astream_chat(USER, params)]
        return await llm.agenerate("the", params), await llm.achat(USER, params), said, talked

    once, chat, said, talked = asyncio.run(both())
    sync, sync_chat = llm.generate("the", params), llm.chat(USER, params)
    assert (once.text, once.token_ids) == (sync.text, sync.token_ids)
    assert once.usage.total_tokens == sync.usage.total_tokens
    assert once.logprobs == sync.logprobs is not None
    assert chat.text == sync_chat.text
    assert chat.usage.total_tokens == sync_chat.usage.total_tokens
    assert ("".join(said), "".join(talked)) == (sync.text, sync_chat.text)


def test_async_chat_takes_the_options_of_chat(llm: LLM) -> None:
    messages = [*USER, {"role": "assistant", "content": "tea"}]

    async def run() -> Completion:
        return await llm.achat(messages, max_tokens=4, temperature=0, continue_final=True)

    want = llm.chat(messages, max_tokens=4, temperature=0, continue_final=True)
    assert asyncio.run(run()).token_ids == want.token_ids


def test_many_coroutines(llm: LLM) -> None:
    params = endless(max_tokens=8)

    async def run() -> list[Completion]:
        return await asyncio.gather(*(llm.agenerate(p, params) for p in prompts(6)))

    got = [c.token_ids for c in asyncio.run(run())]
    if llm.backend.name == "cpu":
        assert got == [llm.generate(p, params).token_ids for p in prompts(6)]


def test_a_cancelled_task_frees_its_place(llm: LLM) -> None:
    async def run() -> None:
        task = asyncio.create_task(llm.agenerate("the", endless()))
        while idle(llm):
            await asyncio.sleep(0.002)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert llm._worker._engine.idle or all(s.cancelled for s in llm._worker._engine.sequences)

    asyncio.run(run())
    until(lambda: idle(llm))


def test_leaving_an_async_loop_frees_its_place(llm: LLM) -> None:
    async def run() -> None:
        async for chunk in llm.astream("the", endless()):
            if chunk.text:
                break

    asyncio.run(run())
    until(lambda: idle(llm))


def test_async_errors(llm: LLM) -> None:
    async def run() -> None:
        with pytest.raises(ContextLengthError):
            await llm.agenerate([5] * 9000)
        with pytest.raises(RequestError, match="temprature"):
            await llm.agenerate("x", temprature=1)
        with pytest.raises(RequestError, match="temprature"):
            await llm.achat(USER, temprature=1)
        with pytest.raises(RequestError, match="messages"):
            await llm.achat([])

    asyncio.run(run())


# -- closing -------------------------------------------------------------------------------------


def test_use_after_close(mine: LLM) -> None:
    mine.close()
    mine.close()
    for call in (mine.generate, mine.stream):
        with pytest.raises(ClosedError, match="closed"):
            call("x")
    with pytest.raises(ClosedError):
        mine.chat(USER)
    with pytest.raises(ClosedError):
        asyncio.run(mine.agenerate("x"))


def test_close_ends_running_requests(mine: LLM) -> None:
    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(mine.generate, "the", endless()) for _ in range(3)]

        async def one() -> None:
            await mine.agenerate("the", endless())

        running.append(pool.submit(asyncio.run, one()))
        until(lambda: len(mine._worker._engine.sequences) == 4)
        mine.close()
        for r in running:
            assert isinstance(r.exception(timeout=PATIENCE), ClosedError)


def threads() -> int:
    return sum(t.name == "edgerun-engine" for t in threading.enumerate())


def test_the_with_block_closes(path: Path) -> None:
    before = threads()
    with LLM(path, backend="cpu") as llm:
        assert threads() == before + 1
    assert threads() == before
    with pytest.raises(ClosedError):
        llm.generate("x")


def test_a_forgotten_model_goes_away(path: Path) -> None:
    before = threads()
    llm = LLM(path, backend="cpu")
    llm.chat(USER, max_tokens=2)
    del llm
    gc.collect()
    assert threads() == before


def test_a_stream_keeps_its_model(path: Path) -> None:
    before = threads()
    stream = LLM(path, backend="cpu").stream("the", endless(max_tokens=40))
    gc.collect()
    assert sum(len(c.token_ids) for c in stream) == 40
    del stream
    gc.collect()
    assert threads() == before


def test_a_lent_backend_stays_open(path: Path) -> None:
    backend = CPUBackend(threads=1)
    texts = []
    for _ in range(2):
        with LLM(path, backend=backend) as llm:
            texts.append(llm.generate("the", endless(max_tokens=5)).token_ids)
    assert texts[0] == texts[1]
    backend.close()


def test_leaving_the_program_ends_everything(path: Path) -> None:
    code = (
        "import sys; from edgerun import LLM; llm = LLM(sys.argv[1], backend='cpu', threads=2);"
        "stream = llm.stream('the', ignore_eos=True); print(len(next(stream).token_ids) > 0)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n", "")
