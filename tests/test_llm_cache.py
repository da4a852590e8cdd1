"""Cold or cached, alone or under load: the same logprobs, and less to compute."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers import gguf_build as gb

from edgerun import LLM, Completion, SamplingParams
from edgerun.backends.base import PAGE_SIZE

N_CTX = 1024
HOT = SamplingParams(temperature=1.2, seed=5, max_tokens=10, ignore_eos=True, logprobs=3)


def ids(n: int, seed: int) -> list[int]:
    r = random.Random(seed)
    return [r.randrange(3, 270) for _ in range(n)]


def load(path: Path, **more: Any) -> LLM:
    return LLM(path, backend="cpu", threads=1, **{"n_ctx": N_CTX, **more})


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(
        tmp_path_factory.mktemp("m") / "random.gguf", seed=3, n_layer=1, n_ctx=16384
    )


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Attention sees 16 tokens, so far less than a page."""
    extra = {"llama.attention.sliding_window": 16}
    path = tmp_path_factory.mktemp("w") / "windowed.gguf"
    return gb.random_model(path, seed=4, extra=extra)


@pytest.fixture
def llm(path: Path) -> Iterator[LLM]:
    with load(path) as model:
        yield model


def cold(path: Path, prompt: Sequence[int], kv_type: str | None = None) -> Completion:
    with load(path, kv_type=kv_type) as llm:
        done = llm.generate(prompt, HOT)
    assert done.usage.cached_tokens == 0
    return done


def same(a: Completion, b: Completion) -> bool:
    return (a.token_ids, a.logprobs) == (b.token_ids, b.logprobs)  # floats: exact


def test_prompts_that_share_a_start(llm: LLM, path: Path) -> None:
    """P+X and the shorter P+Y, cold, warm, and twelve at once."""
    start = ids(300, 1)
    asks = [start + ids(90, 2), start + ids(20, 3)]
    want = [cold(path, a) for a in asks]
    for _ in range(2):
        for a, w in zip(asks, want, strict=True):
            assert same(llm.generate(a, HOT), w)
    assert llm.generate(asks[1], HOT).usage.cached_tokens == 319
    many = [start + ids(5 + 7 * i, 10 + i) for i in range(12)]
    streams = [llm.stream(m, HOT) for m in many]
    for m, stream in zip(many, streams, strict=True):
        chunks = list(stream)
        w = cold(path, m)
        assert tuple(i for c in chunks for i in c.token_ids) == w.token_ids
        assert tuple(p for c in chunks for p in c.logprobs) == w.logprobs


@pytest.mark.parametrize("kv_type", ["q8_0", "q4r:force"])
def test_rounded_keys_and_values_are_found_as_they_were(path: Path, kv_type: str) -> None:
    """Whatever is found of a start that ends inside a page: it was rounded token by token."""
    start = ids(300, 1)
    asks = [start + ids(n, n) for n in (90, 20, 33)]
    want = [cold(path, a, kv_type) for a in asks]
    assert not same(want[0], cold(path, asks[0]))  # it does round
    with load(path, kv_type=kv_type) as llm:
        assert same(llm.generate(asks[0], HOT), want[0])
        for a, w in zip(asks[1:], want[1:], strict=True):
            done = llm.generate(a, HOT)
            assert done.usage.cached_tokens == 300
            assert same(done, w)


def test_twelve_at_once_compute_their_start_once(path: Path) -> None:
    start = ids(300, 1)
    many = [start + ids(5 + 7 * i, 10 + i) for i in range(12)]
    with load(path) as llm:
        streams = [llm.stream(m, HOT) for m in many]
        for stream in streams:
            assert sum(len(c.token_ids) for c in stream) == 10
        computed = llm.metrics().step_tokens
    rest = sum(len(m) - 300 + 9 for m in many)
    assert computed <= 300 + rest + 12 * (300 % PAGE_SIZE)


def test_a_middle_turn_edited_and_reverted(llm: LLM, path: Path) -> None:
    first, middle, last = ids(100, 1), ids(60, 2), ids(80, 3)
    edited = [*middle[:20], 7, *middle[21:]]
    for turn, cached in ((middle, 0), (edited, 120), (middle, 239)):
        prompt = first + turn + last
        done = llm.generate(prompt, HOT)
        assert same(done, cold(path, prompt))
        assert done.usage.cached_tokens == cached


@pytest.mark.parametrize("n", [PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE])
def test_the_same_prompt_again_at_the_edge_of_a_page(llm: LLM, path: Path, n: int) -> None:
    prompt = ids(n, n)
    want = cold(path, prompt)
    for turn in range(3):
        done = llm.generate(prompt, HOT)
        assert same(done, want)
        assert done.usage.cached_tokens == (n - 1 if turn else 0)  # the last token is computed


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4r:force"])
def test_a_window_smaller_than_the_prompt(windowed: Path, kv_type: str) -> None:
    """Window 16, prompts of 40 tokens that branch at 20."""
    one = ids(40, 1)
    other = one[:20] + ids(20, 2)
    want = [cold(windowed, one, kv_type), cold(windowed, other, kv_type)]
    with load(windowed, kv_type=kv_type) as llm:
        for _ in range(3):
            assert same(llm.generate(one, HOT), want[0])
            done = llm.generate(other, HOT)
            assert same(done, want[1])
            assert 20 <= done.usage.cached_tokens < 40


def test_a_prompt_cancelled_half_way_and_sent_again(path: Path) -> None:
    """At twenty random moments: a page that was not finished never counts as one that was."""
    r = random.Random(8)
    found = []
    with load(path, n_ctx=4096) as llm:
        for i in range(20):
            prompt = ids(3000, 100 + i)
            stream = llm.stream(prompt, HOT)
            while llm.metrics().running == 0:
                time.sleep(0.0001)
            time.sleep(r.random() * 0.02)
            stream.close()
            done = llm.generate(prompt, HOT)
            found.append(done.usage.cached_tokens)
            with load(path, n_ctx=4096) as fresh:
                assert same(done, fresh.generate(prompt, HOT))
        llm._worker._engine.check()
    assert any(0 < n < 2999 for n in found)  # some were cut half-way


def test_a_cancelled_prompt_stops_within_a_step(path: Path) -> None:
    with load(path, n_ctx=16384) as llm:
        stream = llm.stream(ids(16000, 1), HOT)
        while llm.metrics().step_tokens == 0:
            time.sleep(0.0001)
        stream.close()
        steps = llm.metrics().steps
        while not llm.metrics().finished.get("abort"):  # counted when the pages are given back
            time.sleep(0.0001)
        m = llm.metrics()
        assert m.steps <= steps + 1
        assert m.finished["abort"] == 1
        assert m.pages_used == 0


def test_a_long_prompt_arrives_while_another_streams(path: Path) -> None:
    """The prompt enters in pieces; the stream gets a token with each of them."""
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=3000)
    with load(path, n_ctx=16384) as llm:
        stream = llm.stream(ids(20, 1), params)
        for _ in range(30):
            next(stream)
        times: list[float] = []
        seen = threading.Event()

        def read() -> None:
            for _ in stream:
                times.append(time.perf_counter())
                if seen.is_set():
                    break

        reader = threading.Thread(target=read)
        reader.start()
        start = time.perf_counter()
        llm.generate(ids(8000, 2), params, max_tokens=1)
        end = time.perf_counter()
        seen.set()
        reader.join()
        stream.close()
        inside = [t for t in times if start <= t <= end]
    gaps = [b - a for a, b in itertools.pairwise(inside)]
    assert len(inside) > 8000 / 512
    assert max(gaps) < max(2.0, (end - start) / 4)  # the machine may be busy


def test_priorities_go_first(path: Path) -> None:
    """Where requests wait for a row, a higher priority is served before those that came before."""
    with load(path, max_batch=1) as llm:
        first = llm.stream(ids(20, 1), HOT, max_tokens=400)
        next(first)
        order: list[str] = []

        def client(name: str, priority: int) -> None:
            llm.generate(ids(20, len(name)), HOT, priority=priority)
            order.append(name)

        threads = []
        for name, priority in (("low", -1), ("plain", 0), ("urgent", 1)):
            t = threading.Thread(target=client, args=(name, priority))
            t.start()
            threads.append(t)
            while llm.metrics().waiting + llm.metrics().running < 1 + len(threads):
                time.sleep(0.001)
        first.close()
        for t in threads:
            t.join(20)
    assert order == ["urgent", "plain", "low"]
