"""The engine, and the whole product, over the MLX backend in its exact mode."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers import scenarios

pytest.importorskip("mlx.core", reason="MLX is not installed")

from edgerun import LLM, SamplingParams
from edgerun.backends.base import Batch, Memory, Started
from edgerun.backends.mlx import MLXBackend
from edgerun.backends.mlx_program import MLXProgram
from edgerun.backends.mlx_started import StartedStep
from edgerun.engine.drafting import StepCosts
from edgerun.loading import open_backend


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mlx") / "random.gguf"
    return gb.random_model(file, seed=3, n_layer=1, n_ctx=1024)


def test_every_request_gets_what_it_gets_alone(path: Path) -> None:
    """Arrivals, cancels, forks, drafts, prefix reuse, pools down to starvation."""
    cached, drafts = scenarios.run_on_backend(path, MLXBackend(exact=True), range(12), 64, 70)
    assert cached > 0
    assert drafts > 0


def test_steps_start_before_the_ids_they_begin_with_are_known(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy texts, several at once, with ends that nobody foresaw: the same as step by step."""
    started, start = [], MLXProgram.start

    def counted(self: MLXProgram, batch: Batch, after: Started | None = None) -> StartedStep:
        started.append(after is not None)
        return start(self, batch, after)

    monkeypatch.setattr(MLXProgram, "start", counted)
    prompts = [PROMPT, "the sea", "in the rain the sea is"]
    params = [SamplingParams(temperature=0.0, max_tokens=n) for n in (40, 9, 33)]
    texts = []
    for ahead in (0, 64):
        monkeypatch.setattr(MLXProgram, "ahead", ahead)
        with LLM(path, backend="mlx", exact=True, n_ctx=128, speculation="off") as llm:
            streams = [llm.stream(p, x) for p, x in zip(prompts, params, strict=True)]
            texts.append(["".join(c.text for c in s) for s in streams])
        assert (sum(started) > 10) == bool(ahead)
    assert texts[0] == texts[1]


PROMPT = "the rain in the sea is the rain in the sea is the"
PARAMS = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def test_texts_are_the_same_with_and_without_drafts(path: Path) -> None:
    texts = []
    for speculation in ("off", "ngram"):
        with LLM(path, backend="mlx", exact=True, n_ctx=128, speculation=speculation) as llm:
            if llm._speculation is not None:
                llm._speculation.costs = StepCosts({1: 1.0, 64: 1.01}, learn=False)
            texts.append(llm.generate(PROMPT, PARAMS).text)
            if speculation == "ngram":
                assert sum(d.drafted for d in llm.metrics().drafts.values()) > 0
    assert texts[0] == texts[1]
    assert len(texts[0]) >= 24


def test_speculation_is_for_exact_bits(path: Path) -> None:
    """By default drafts could change a text, so there are none."""
    texts = []
    for exact in (False, True):
        with LLM(path, backend="mlx", exact=exact, n_ctx=128) as llm:
            assert (llm._speculation is not None) == exact
            texts.append(llm.generate(PROMPT, PARAMS).text)
    assert texts[0] == texts[1]


def test_several_at_once(path: Path) -> None:
    prompts = [PROMPT, "the sea", "in the rain the sea is"]
    with LLM(path, backend="mlx", n_ctx=128) as llm:
        alone = [llm.generate(p, PARAMS).text for p in prompts]
        streams = [llm.stream(p, PARAMS) for p in prompts]
        together = ["".join(c.text for c in s) for s in streams]
        again = llm.generate(PROMPT, PARAMS)
    assert together == alone
    assert again.usage.cached_tokens > 0


def test_pages_come_back_from_disk(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path))
    prompt = np.random.default_rng(8).integers(3, 60, 600).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    texts, cached = [], []
    for _ in range(2):
        with LLM(path, backend="mlx", n_ctx=1024, kv_disk="64M") as llm:
            done = llm.generate(prompt, params)
        texts.append(done.text)
        cached.append(done.usage.cached_tokens)
    assert texts[0] == texts[1]
    assert cached == [0, 576]


def test_auto_takes_it_on_a_mac(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where Metal is there and the model fits; else the CPU computes."""
    monkeypatch.delenv("EDGERUN_ISA", raising=False)
    monkeypatch.setattr("edgerun.loading.nvidia_driver", lambda: False)
    monkeypatch.setattr("edgerun.loading.apple_silicon", lambda: True)
    assert open_backend("auto").name == "cpu"  # this MLX is without Metal
    facts = MLXBackend.describe
    monkeypatch.setattr(MLXBackend, "describe", lambda self: {**facts(self), "metal": True})
    with LLM(path, n_ctx=64) as llm:
        assert llm.backend.name == "mlx"
        assert llm.generate("the", SamplingParams(max_tokens=2, ignore_eos=True)).text
    monkeypatch.setattr(MLXBackend, "memory", lambda self: Memory(1 << 20, 1 << 16))
    with caplog.at_level(logging.WARNING), LLM(path, n_ctx=64) as llm:
        assert llm.backend.name == "cpu"
    assert "runs on the CPU" in caplog.text
    monkeypatch.setenv("EDGERUN_ISA", "generic")
    assert open_backend("auto").name == "cpu"
