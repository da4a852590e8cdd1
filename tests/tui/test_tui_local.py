"""A model in this process: loaded behind the chat, asked, stopped, changed, let go."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import gguf_build as gb
from helpers.tui import stopped_at

from edgerun import loading
from edgerun.catalog import Resolved
from edgerun.chat import ChatOptions
from edgerun.core import Chunk, FinishReason, SamplingParams
from edgerun.errors import (
    ClosedError,
    ContextLengthError,
    DownloadError,
    GGUFError,
    ModelFileError,
    ModelNotFoundError,
)
from edgerun.llm import LLM
from edgerun.tui import local
from edgerun.tui.conversation import Conversation
from edgerun.tui.local import LocalPartner
from edgerun.tui.store import Store
from edgerun.tui.turn import Turn

HELLO = [{"role": "user", "content": "Hello"}]
OPTIONS = ChatOptions()


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "bad.gguf").write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 64)
    return {
        "scripted": gb.scripted_model(folder / "scripted.gguf", ["Hel", "lo", "!"], vocab=[" "]),
        "random": gb.random_model(folder / "random.gguf", seed=3, n_ctx=8192),
        "small": gb.random_model(folder / "small.gguf", seed=4, n_ctx=64),
        "bad": folder / "bad.gguf",
    }


@pytest.fixture(autouse=True)
def no_threads_stay() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    ends = time.monotonic() + 30
    while left := [t.name for t in set(threading.enumerate()) - before if "edgerun" in t.name]:
        assert time.monotonic() < ends, left
        time.sleep(0.01)


def run(work: Callable[[LocalPartner], Awaitable[Any]], **options: Any) -> Any:
    async def main() -> Any:
        partner = LocalPartner(**{"backend": "cpu", "threads": 1} | options)
        try:
            return await asyncio.wait_for(work(partner), 60)
        finally:
            await partner.close()

    return asyncio.run(main())


async def text(partner: LocalPartner, **params: Any) -> str:
    chunks = partner.answer(HELLO, SamplingParams(**params), OPTIONS)
    return "".join([c.text async for c in chunks])


def silent(stage: str, done: int, total: int | None) -> None:
    pass


def test_a_model_is_looked_for_before_it_is_loaded(models: dict[str, Path]) -> None:
    async def work(partner: LocalPartner) -> None:
        await partner.check(str(models["scripted"]))
        await partner.check("smollm2-135m")  # it can be fetched, and is not
        for name in ("smollm3-typo", "/no/such.gguf", str(models["scripted"].parent)):
            with pytest.raises((ModelNotFoundError, ModelFileError)):
                await partner.check(name)
        assert partner.about is None

    run(work)


def test_a_model_is_loaded_with_progress_and_answers(models: dict[str, Path]) -> None:
    seen: list[tuple[str, int, int | None]] = []

    async def work(partner: LocalPartner) -> None:
        main = threading.get_ident()
        threads = set()

        def progress(stage: str, done: int, total: int | None) -> None:
            threads.add(threading.get_ident())
            seen.append((stage, done, total))

        assert partner.about is None
        about = await partner.load(str(models["scripted"]), progress)
        assert partner.about is about
        assert (about.model, about.n_ctx, about.where) == ("scripted", 512, "")
        assert about.n_ctx_max == 512
        assert about.backend.startswith("cpu ")
        assert about.size == models["scripted"].stat().st_size
        assert about.fallback is None
        assert threads == {main}
        chunks = [c async for c in partner.answer(HELLO, SamplingParams(), OPTIONS)]
        assert "".join(c.text for c in chunks) == "Hello!"
        first, last = chunks[0], chunks[-1]
        assert first.usage is not None
        assert last.usage is not None
        assert first.usage.prompt_tokens == last.usage.prompt_tokens > 0
        assert last.finish_reason is FinishReason.STOP
        assert last.timings is not None
        assert await partner.count_prompt(HELLO) == last.usage.prompt_tokens
        with LLM(models["scripted"], backend="cpu", threads=1) as llm:
            for said in ("Hel lo", "", "x" * 1000):
                assert await partner.count(said) == len(llm.tokenize(said, add_bos=False))

    run(work)
    stages = [s for s, _, _ in seen]
    assert set(stages) == {"load"}
    done = [d for _, d, t in seen if t]
    assert done == sorted(done)
    assert seen[-1][1] == seen[-1][2]


def test_live_figures(models: dict[str, Path]) -> None:
    async def work(partner: LocalPartner) -> None:
        assert partner.live().computed is None
        await partner.load(str(models["random"]), silent)
        before = partner.live()
        assert before.computed == 0
        assert before.memory is not None
        assert before.memory > 20_000_000
        n = await partner.count_prompt(HELLO)
        await text(partner, max_tokens=10, temperature=0, ignore_eos=True)
        after = partner.live()
        assert n is not None
        assert after.computed is not None
        assert after.computed >= n + 8  # the last step may not be counted yet
        assert after.cached is not None
        assert after.cached >= n
        assert after.acceptance is None or 0 <= after.acceptance <= 1

    run(work)


def test_a_stopped_answer_ends_within_a_step(models: dict[str, Path]) -> None:
    async def work(partner: LocalPartner) -> None:
        await partner.load(str(models["random"]), silent)
        c, store = Conversation(), Store(memory=True)
        c.add("user", "Hello")
        turn = Turn(c, partner, store, SamplingParams(ignore_eos=True))
        assert await stopped_at(turn, 3) < 5  # the model goes on for ever
        llm = partner._llm
        assert llm is not None
        while llm.metrics().running:
            await asyncio.sleep(0.005)
        computed = partner.live().computed
        await asyncio.sleep(0.05)
        assert partner.live().computed == computed
        # The next turn begins at once, and has nothing of the old one.
        c.add("user", "And now?")
        second = Turn(c, partner, store, SamplingParams(max_tokens=4, ignore_eos=True))
        out = "".join([chunk.text async for chunk in second])
        assert second.message.text == out
        assert second.message.state == "length"
        assert second.message.usage is not None
        assert second.message.usage.completion_tokens == 4
        store.close()

    run(work)


def test_a_full_context(models: dict[str, Path]) -> None:
    async def work(partner: LocalPartner) -> None:
        await partner.load(str(models["small"]), silent)
        long = [{"role": "user", "content": "word " * 100}]
        with pytest.raises(ContextLengthError):
            _ = [c async for c in partner.answer(long, SamplingParams(), OPTIONS)]
        assert await partner.count_prompt(long) is not None
        assert await text(partner, max_tokens=1) is not None

    run(work)


def test_another_model_takes_the_place_of_the_one_before(models: dict[str, Path]) -> None:
    async def work(partner: LocalPartner) -> None:
        await partner.load(str(models["random"]), silent)
        assert partner._llm is not None
        closed: list[bool] = []
        weakref.finalize(partner._llm, closed.append, True)
        backend = weakref.ref(partner._llm.backend)
        order: list[Any] = []

        def progress(stage: str, done: int, total: int | None) -> None:
            gc.collect()
            order.append((stage, bool(closed), partner.about))

        await partner.load(str(models["scripted"]), progress)
        # When the first byte of the new one is in, the old one is gone.
        assert order[-1][:2] == ("load", True)
        assert order[-1][2] is None
        gc.collect()
        assert backend() is None
        assert await text(partner) == "Hello!"

    run(work)


@pytest.mark.parametrize(
    ("name", "error"), [("no-such-model", ModelNotFoundError), ("bad", GGUFError)]
)
def test_what_cannot_be_loaded(models: dict[str, Path], name: str, error: type[Exception]) -> None:
    async def work(partner: LocalPartner) -> None:
        about = await partner.load(str(models["scripted"]), silent)
        with pytest.raises(error) as caught:
            await partner.load(str(models.get(name, name)), silent)
        assert "\n" not in str(caught.value)
        if name == "bad":  # it was found, and the old one made room for it
            assert partner.about is None
            with pytest.raises(ClosedError, match="no model"):
                await text(partner)
        else:
            assert partner.about is about
        await partner.load(str(models["scripted"]), silent)
        assert await text(partner) == "Hello!"

    run(work)


class SlowLoad:
    """Stands in for a large file: holds the first load at its first report of progress."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        self.ended = threading.Event()
        real, loads = loading._upload, itertools.count()

        def upload(family: Any, config: Any, file: Any, backend: Any, progress: Any, c: Any) -> Any:
            def slow(done: int, total: int) -> None:
                self.begun.set()
                while not self.go.wait(0.01):
                    progress(done, total)
                progress(done, total)

            if next(loads):
                assert self.ended.is_set(), "two models were being loaded at once"
                return real(family, config, file, backend, progress, c)
            try:
                return real(family, config, file, backend, slow, c)
            finally:
                self.ended.set()

        monkeypatch.setattr(loading, "_upload", upload)


def test_a_load_is_given_up(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(partner: LocalPartner) -> None:
        slow = SlowLoad(monkeypatch)
        load = asyncio.create_task(partner.load(str(models["random"]), silent))
        await asyncio.to_thread(slow.begun.wait, 20)
        began = time.perf_counter()
        load.cancel()
        with pytest.raises(asyncio.CancelledError):
            await load
        assert time.perf_counter() - began < 5
        assert partner.about is None
        await partner.load(str(models["scripted"]), silent)
        assert await text(partner) == "Hello!"

    run(work)


def test_a_new_load_takes_over_from_one_that_runs(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(partner: LocalPartner) -> None:
        slow = SlowLoad(monkeypatch)
        first = asyncio.create_task(partner.load(str(models["random"]), silent))
        await asyncio.to_thread(slow.begun.wait, 20)
        about = await partner.load(str(models["scripted"]), silent)
        assert about.model == "scripted"
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await text(partner) == "Hello!"

    run(work)


def test_closing_is_quick_in_the_middle_of_a_load(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> float:
        slow = SlowLoad(monkeypatch)
        partner = LocalPartner(backend="cpu", threads=1)
        load = asyncio.create_task(partner.load(str(models["random"]), silent))
        await asyncio.to_thread(slow.begun.wait, 20)
        began = time.perf_counter()
        await partner.close()
        took = time.perf_counter() - began
        slow.go.set()
        with pytest.raises((asyncio.CancelledError, ClosedError)):
            await load
        with pytest.raises(ClosedError):
            await partner.load(str(models["random"]), silent)
        return took

    assert asyncio.run(main()) < 5


def test_closing_is_quick_in_the_middle_of_an_answer(models: dict[str, Path]) -> None:
    async def main() -> tuple[float, BaseException | None]:
        partner = LocalPartner(backend="cpu", threads=1)
        await partner.load(str(models["random"]), silent)

        async def endless() -> list[Chunk]:
            params = SamplingParams(ignore_eos=True)
            return [c async for c in partner.answer(HELLO, params, OPTIONS)]

        answer = asyncio.create_task(endless())
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        await partner.close()
        await partner.close()
        took = time.perf_counter() - began
        await asyncio.wait({answer}, timeout=5)
        return took, answer.exception()

    took, error = asyncio.run(main())
    assert took < 5
    assert isinstance(error, ClosedError)


def test_a_step_that_takes_long_does_not_hold_up_the_end(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_CLOSING", 0.3)

    async def main() -> None:
        partner = LocalPartner(backend="cpu", threads=1)
        await partner.load(str(models["random"]), silent)
        llm, go = partner._llm, threading.Event()
        assert llm is not None
        engine = llm._worker._engine
        begun, step = threading.Event(), engine.step

        def slow() -> None:
            begun.set()
            go.wait(30)
            step()

        monkeypatch.setattr(engine, "step", slow)
        answer = asyncio.create_task(text(partner, max_tokens=3))
        await asyncio.to_thread(begun.wait, 10)
        answer.cancel()
        began = time.perf_counter()
        await partner.close()
        assert time.perf_counter() - began < 5
        assert not partner.ended
        go.set()
        while not partner.ended:
            await asyncio.sleep(0.01)

    asyncio.run(main())


def fake_find(found: Path, steps: int, seen: threading.Event) -> Callable[..., Resolved]:
    def find(model: Any, progress: Any = None) -> Resolved:
        for i in range(steps):
            progress(i * 1000, steps * 1000)
            seen.set()
            time.sleep(0.005)
        return Resolved(found, "pulled-one")

    return find


def test_a_model_that_is_not_here_is_fetched_first(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = fake_find(models["scripted"], 30, threading.Event())
    monkeypatch.setattr(loading, "find", find)
    seen: list[str] = []

    async def work(partner: LocalPartner) -> None:
        about = await partner.load(None, lambda stage, done, total: seen.append(stage))
        assert about.model == "pulled-one"
        assert await text(partner) == "Hello!"

    run(work)
    assert seen == sorted(seen, reverse=True)  # all of "pull", then all of "load"
    assert set(seen) == {"pull", "load"}


def test_a_pull_can_be_given_up_and_the_model_goes_on(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(partner: LocalPartner) -> None:
        await partner.load(str(models["scripted"]), silent)
        begun = threading.Event()
        monkeypatch.setattr(loading, "find", fake_find(models["random"], 10_000, begun))
        seen: list[tuple[str, int, int | None]] = []
        pull = asyncio.create_task(partner.pull("x", lambda *a: seen.append(a)))
        await asyncio.to_thread(begun.wait, 10)
        assert await text(partner) == "Hello!"
        await asyncio.sleep(0.1)
        assert seen
        assert {s for s, _, _ in seen} == {"pull"}
        pull.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pull
        n = len(seen)
        await asyncio.sleep(0.1)
        assert len(seen) == n
        assert await text(partner) == "Hello!"

        def fails(model: Any, progress: Any = None) -> Resolved:
            raise DownloadError("no network: try again")

        monkeypatch.setattr(loading, "find", fails)
        with pytest.raises(DownloadError, match="no network"):
            await partner.pull("x", silent)

    run(work)
