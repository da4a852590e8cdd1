"""The engine, and the whole product, over the CUDA backend on the SIMT engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers import scenarios
from helpers.host_device import HostDevice, downloads
from helpers.runner import Alone, Runner

from edgerun import LLM, SamplingParams
from edgerun.backends.base import PAGE_SIZE, Memory
from edgerun.backends.cuda import CudaBackend
from edgerun.engine import Engine, Limits
from edgerun.engine.drafting import StepCosts
from edgerun.engine.swap import SwapTier
from edgerun.errors import OutOfMemoryError


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("cuda") / "random.gguf"
    return gb.random_model(file, seed=3, n_layer=1, n_ctx=1024)


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    opened = CudaBackend(HostDevice())
    yield opened
    opened.close()


def test_every_request_gets_what_it_gets_alone(path: Path, backend: CudaBackend) -> None:
    """Arrivals, cancels, forks, drafts, prefix reuse, pools down to starvation."""
    cached, drafts = scenarios.run_on_backend(path, backend, range(12), 64, 70)
    assert cached > 0
    assert drafts > 0


@pytest.mark.parametrize("slots", [2, 100])
def test_swapped_pages_change_nothing(path: Path, backend: CudaBackend, slots: int) -> None:
    """Five that fill a pool of little more than one context; copies are done as late as a device
    may do them."""
    r = np.random.default_rng(slots)
    asks = [
        scenarios.Ask(
            arrival=3 * i,
            prompt=r.integers(1, 64, 50 + 9 * i).tolist(),
            max_tokens=60,
            seed=i,
            params=scenarios.PARAMS[2 * (i % 2)] | {"ignore_eos": True},
            n=1 + (i == 1),
            priority=i % 3,
            cancel=70 if i == 3 else None,
            stop_at=None,
            right=[4, 0, 1] if i == 2 else None,
            n_ctx=0,
            n_keep=0,
        )
        for i in range(5)
    ]
    s = scenarios.Scenario(asks, Limits(4, 64, 16, 4, None, 5), PAGE_SIZE, 7, 0.0)
    runner = Runner(path, backend, n_ctx=160, n_pages=7)
    scenarios.expect(s, Alone(Runner(path, backend, n_ctx=160, n_pages=5)), 64)
    space = runner.kv.swap_space()
    assert space is not None
    swap = SwapTier(space, lambda n_slots: slots, runner.kv.page_bytes)
    copy = runner.kv.copy_page
    e = Engine(runner.program, 7, PAGE_SIZE, s.limits, copy_page=copy, swap=swap)
    scenarios.play(s, e)
    scenarios.judge(s)
    assert e.metrics().preemptions > 2
    assert swap.count().pages_in > 1


def test_a_text_that_the_pool_gave_up_is_not_computed_again(
    path: Path, backend: CudaBackend
) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    prompts = np.random.default_rng(9).integers(3, 60, (6, 100)).tolist()
    with LLM(path, backend=backend, n_ctx=128, speculation="off") as llm:
        assert llm.model.kv.n_pages == 16
        cold = [llm.generate(p, params) for p in prompts]
        warm = [llm.generate(p, params) for p in prompts]
        count = llm.metrics().swap
    assert [c.usage.cached_tokens for c in cold] == [0] * 6
    assert [c.usage.cached_tokens for c in warm] == [96] * 6
    assert [c.text for c in cold] == [c.text for c in warm]
    assert count is not None
    assert count.pages_in >= 9
    assert count.bytes_in == count.pages_in * llm.model.kv.page_bytes
    assert count.pages_total == 16


PROMPT = "the rain in the sea is the rain in the sea is the"


def test_texts_are_the_same_with_and_without_drafts(path: Path, backend: CudaBackend) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    texts = []
    for speculation in ("off", "ngram"):
        with LLM(path, backend=backend, n_ctx=128, speculation=speculation) as llm:
            if llm._speculation is not None:
                llm._speculation.costs = StepCosts({1: 1.0, 64: 1.01}, learn=False)
            texts.append(llm.generate(PROMPT, params).text)
            if speculation == "ngram":
                assert sum(d.drafted for d in llm.metrics().drafts.values()) > 0
    assert texts[0] == texts[1]
    assert len(texts[0]) >= 24


#: Settings, and the share of a text's rows of logits that come over whole at most.
_CHAINS: list[tuple[dict[str, Any], float]] = [
    ({}, 0.0),
    ({"temperature": 3.0, "top_k": 100, "top_p": 1.0, "min_p": 0.0}, 0.0),
    ({"temperature": 1.5, "repeat_penalty": 1.1, "frequency_penalty": 0.2, "top_k": 20}, 0.3),
    ({"temperature": 0.0, "repeat_penalty": 1.1}, 0.3),
    ({"temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.2}, 0.3),
    ({"temperature": 1.0, "top_k": 0, "min_p": 0.0}, 1.0),
    ({"logprobs": 2}, 1.0),
]


@pytest.mark.parametrize(("params", "share"), _CHAINS, ids=str)
def test_texts_need_few_rows_of_logits_and_are_the_same(
    path: Path, backend: CudaBackend, params: dict[str, Any], share: float
) -> None:
    """With drafts, and of two answers at once: what is drawn is what whole rows would give."""
    texts, counts = [], []
    with LLM(path, backend=backend, n_ctx=128) as llm:
        assert llm._speculation is not None
        llm._speculation.costs = StepCosts({1: 1.0, 64: 1.01}, learn=False)
        program = llm._worker._engine.program
        wide = 4 * program.n_vocab
        assert program.n_vocab > program.n_top == 128
        down = downloads(backend.device)
        for program.n_top in (128, 0):
            down.clear()
            for seed in range(2):
                p = SamplingParams(max_tokens=10, ignore_eos=seed == 1, seed=seed, n=2, **params)
                texts.append([c.token_ids for c in llm.generate(PROMPT, p).choices])
            counts.append(sum(n // wide for n in down if n % wide == 0))
    assert texts[:2] == texts[2:]
    assert len({str(t) for t in texts}) > 1 or params["temperature"] == 0.0
    assert counts[0] <= share * counts[1]


def test_pages_come_back_from_disk(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path))
    prompt = np.random.default_rng(8).integers(3, 60, 600).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    texts, cached = [], []
    for _ in range(2):
        device = CudaBackend(HostDevice())
        with LLM(path, backend=device, n_ctx=1024, kv_disk="64M") as llm:
            done = llm.generate(prompt, params)
        device.close()
        texts.append(done.text)
        cached.append(done.usage.cached_tokens)
    assert texts[0] == texts[1]
    assert cached == [0, 576]


def test_auto_goes_to_the_cpu_where_a_model_does_not_fit(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("EDGERUN_ISA", raising=False)
    monkeypatch.setattr("edgerun.loading.nvidia_driver", lambda: True)
    device: list[HostDevice] = []

    def opened() -> HostDevice:
        device.append(HostDevice(total=sizes.pop(0)))
        return device[-1]

    sizes = [1 << 30, 1 << 18]
    monkeypatch.setattr("edgerun.backends.cuda.open_device", opened)
    for name in ("cuda", "cpu"):
        with LLM(path, n_ctx=64) as llm:
            assert llm.backend.name == name
            assert llm.generate("the", SamplingParams(max_tokens=2, ignore_eos=True)).text
        assert device[-1].closed
    assert "runs on the CPU" in caplog.text


class Crowded(HostDevice):
    """Other programs take memory behind what it says is free, or as a piece of it is asked for."""

    taken = 0
    refused = 0  # bytes

    def memory(self) -> Memory:
        return Memory(self.total, self.total - self.used)

    def alloc(self, nbytes: int) -> int:
        kept, self.total = self.total, self.total - self.taken
        if nbytes == self.refused:
            self.total = 0
        try:
            return super().alloc(nbytes)
        finally:
            self.total = kept


def test_a_pool_that_does_not_fit_is_halved(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    device = Crowded(total=24 << 20)
    with LLM(path, backend=CudaBackend(device), n_ctx=128) as llm:
        wanted = llm.model.kv.n_pages
        size = wanted * llm.model.kv.page_bytes
        text = llm.generate("the rain", SamplingParams(temperature=0.0, max_tokens=4)).text
    assert wanted > 8
    crowded = Crowded(total=24 << 20)
    crowded.refused = size
    with LLM(path, backend=CudaBackend(crowded), n_ctx=128) as llm:
        assert llm.model.kv.n_pages == wanted // 2
        params = SamplingParams(temperature=0.0, max_tokens=4)
        assert llm.generate("the rain", params).text == text
    assert f"a KV cache of {wanted // 2} pages is tried" in caplog.text


def test_memory_that_is_gone_fails_a_request_and_no_other(path: Path) -> None:
    """A long prompt wants room that other programs have taken since."""
    device = Crowded(total=64 << 20)
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    prompt = np.random.default_rng(4).integers(3, 60, 100).tolist()
    with LLM(path, backend=CudaBackend(device), n_ctx=128, speculation="off") as llm:
        expected = llm.generate([5, 6, 7], params).token_ids
        device.taken = device.total - device.used
        with pytest.raises(OutOfMemoryError, match="harness has no"):
            llm.generate(prompt, params)
        assert llm.generate([5, 6, 7], params).token_ids == expected
        device.taken = 0
        assert len(llm.generate(prompt, params).token_ids) == 6
