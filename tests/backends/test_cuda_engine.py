"""The engine, and the whole product, over the CUDA backend on the SIMT engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers import scenarios
from helpers.host_device import HostDevice
from helpers.runner import Runner

from edgerun import LLM, SamplingParams
from edgerun.backends.base import F32, PAGE_SIZE
from edgerun.backends.cuda import CudaBackend
from edgerun.engine import Engine


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("cuda") / "random.gguf"
    return gb.random_model(file, seed=3, n_layer=1, n_ctx=1024)


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    opened = CudaBackend(HostDevice())
    yield opened
    opened.close()


class Alone:
    """Logits of a text in pages of its own; goes on where it can."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._text: list[int] = []
        self._tokens = runner.begin()

    def __call__(self, ids: Sequence[int]) -> F32:
        n = len(self._text)
        if n >= len(ids) or self._text != list(ids[:n]):
            self._runner.end(self._tokens)
            self._text, n = [], 0
        self._text = list(ids)
        return np.array(self._runner.step([(self._tokens, ids[n:], [len(ids) - n - 1])])[0])


def test_every_request_gets_what_it_gets_alone(path: Path, backend: CudaBackend) -> None:
    """Arrivals, cancels, forks, drafts, prefix reuse, pools down to starvation."""
    predict = Alone(Runner(path, backend, n_ctx=128, n_pages=8))
    runner = Runner(path, backend, n_ctx=128, n_pages=20)
    cached = drafts = 0
    for seed in range(12):
        s = scenarios.draw(seed, PAGE_SIZE, 64, 70, poison=False)
        scenarios.expect(s, predict, 64)
        copy = runner.kv.copy_page
        e = Engine(runner.program, min(20, s.n_pages), PAGE_SIZE, s.limits, copy_page=copy)
        try:
            scenarios.play(s, e)
            scenarios.judge(s)
        except AssertionError as error:
            raise AssertionError(f"scenario {seed}: {error}") from error
        m = e.metrics()
        cached += m.cached_tokens
        drafts += sum(d.accepted for d in m.drafts.values())
    assert cached > 0
    assert drafts > 0


PROMPT = "the rain in the sea is the rain in the sea is the"


def test_texts_are_the_same_with_and_without_drafts(path: Path, backend: CudaBackend) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    texts = []
    for speculation in ("off", "ngram"):
        with LLM(path, backend=backend, n_ctx=128, speculation=speculation) as llm:
            texts.append(llm.generate(PROMPT, params).text)
            if speculation == "ngram":
                assert sum(d.drafted for d in llm.metrics().drafts.values()) > 0
    assert texts[0] == texts[1]
    assert len(texts[0]) >= 24


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
