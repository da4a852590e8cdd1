"""The product with a part of a model's layers on the GPU."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.host_device import HostDevice

from edgerun import LLM, SamplingParams
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.split import SplitBackend
from edgerun.cli.show import run as show
from edgerun.errors import OutOfMemoryError, RequestError

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
PROMPT = "the rain in the sea is the rain in the sea is the"
Open = Callable[..., HostDevice]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four layers of 148 kB and two matrices of 8 kB."""
    file = tmp_path_factory.mktemp("split") / "random.gguf"
    return gb.random_model(file, seed=3, n_layer=4, n_ctx=1024)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Makes a GPU of so much memory be found."""
    opened: list[HostDevice] = []
    monkeypatch.delenv("EDGERUN_ISA", raising=False)
    monkeypatch.setattr("edgerun.loading.nvidia_driver", lambda: True)

    def make(total: int = 64 << 20) -> None:
        def device() -> HostDevice:
            opened.append(HostDevice(total=total))
            return opened[-1]

        monkeypatch.setattr("edgerun.backends.cuda.open_device", device)

    yield make
    assert all(d.closed for d in opened)


def texts(path: Path, **options: Any) -> list[str]:
    with LLM(path, n_ctx=256, **options) as llm:
        return [llm.generate(p, GREEDY).text for p in (PROMPT, "the", PROMPT + " rain")]


def test_drafts_and_the_cache_change_nothing(gpu: Open, path: Path) -> None:
    gpu()
    for n in (1, 3):
        options = {"backend": "cuda", "gpu_layers": n, "threads": 2}
        expected = texts(path, speculation="off", **options)
        assert texts(path, speculation="ngram", **options) == expected
        with LLM(path, n_ctx=256, **options) as llm:
            assert isinstance(llm.backend, SplitBackend)
            assert llm.backend.describe()["layers"] == f"{n} of 4 layers on the GPU"
            alone = llm.generate(PROMPT, GREEDY)
            again = llm.generate(PROMPT, GREEDY)
            assert again.usage.cached_tokens > 0
            assert alone.text == again.text == expected[0]
            vectors = llm.embed(["rain", "sea"]).vectors
            assert vectors.shape == (2, 64)


def test_embeddings_are_the_models(gpu: Open, path: Path) -> None:
    gpu()
    found = []
    for options in ({"backend": "cuda", "gpu_layers": 2}, {"backend": "reference"}):
        with LLM(path, n_ctx=128, **options) as llm:
            found.append(llm.embed([PROMPT]).vectors)
    np.testing.assert_allclose(found[0], found[1], atol=5e-3)


def test_pages_come_back_from_disk(
    gpu: Open, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the same layers lie where they did."""
    monkeypatch.setenv("EDGERUN_HOME", str(tmp_path))
    gpu()
    prompt = np.random.default_rng(8).integers(3, 60, 600).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=4)
    found = []
    for n in (2, 2, 3):
        with LLM(path, n_ctx=1024, gpu_layers=n, kv_disk="64M") as llm:
            done = llm.generate(prompt, params)
        found.append((done.text, done.usage.cached_tokens))
    assert found[1] == (found[0][0], 576)
    assert [cached for _, cached in found] == [0, 576, 0]


def test_layers_that_do_not_fit_stay_on_the_cpu(
    gpu: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """1 MB, of which a quarter is left alone: three layers and 256 tokens of their K and V."""
    gpu(total=1_000_000)
    with LLM(path, n_ctx=256) as llm:
        backend = llm.backend
        assert isinstance(backend, SplitBackend)
        assert (backend.name, backend.n_front) == ("cuda", 1)
        text = llm.generate(PROMPT, GREEDY).text
    assert "random.gguf does not fit on the GPU: 3 of 4 layers on the GPU" in caplog.text
    assert text == texts(path, backend="cuda", gpu_layers=3)[0]


def test_all_of_them_and_none(gpu: Open, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    gpu()
    for options, name in (
        ({}, "cuda"),
        ({"gpu_layers": 4}, "cuda"),
        ({"gpu_layers": 999, "backend": "cuda"}, "cuda"),
        ({"gpu_layers": 0}, "cpu"),
        ({"gpu_layers": 0, "backend": "cuda"}, "cpu"),
    ):
        with LLM(path, n_ctx=64, **options) as llm:
            assert llm.backend.name == name
            assert not isinstance(llm.backend, SplitBackend)
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gpu_layers": -1}, RequestError, "at least 0, not -1"),
        ({"gpu_layers": 1.5}, RequestError, "a whole number, not 1.5"),
        ({"gpu_layers": 2, "backend": "cpu"}, RequestError, "backend cpu computes no part"),
        ({"gpu_layers": 4}, OutOfMemoryError, "weights take"),
        ({"gpu_layers": 3, "n_ctx": 1024}, OutOfMemoryError, "1024 tokens"),
    ],
)
def test_what_cannot_be_is_refused(
    gpu: Open, path: Path, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    gpu(total=800_000)
    with pytest.raises(error, match=message):
        LLM(path, **{"n_ctx": 256, **options})


def test_a_backend_of_the_callers_own_stays_open(path: Path) -> None:
    device = HostDevice()
    backend = CudaBackend(device)
    with LLM(path, backend=backend, n_ctx=64, gpu_layers=1, threads=1) as llm:
        assert isinstance(llm.backend, SplitBackend)
        assert llm.generate("the", GREEDY).usage.completion_tokens > 0
        with pytest.raises(RequestError, match="is the GPU: choose backend cpu"):
            LLM(path, backend=backend, gpu_layers=0)
    assert not device.closed
    backend.close()


def test_what_was_opened_is_closed_when_a_load_fails(
    gpu: Open, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu()
    closed: list[int] = []
    close = CPUBackend.close
    monkeypatch.setattr(CPUBackend, "close", lambda self: (closed.append(1), close(self))[1])

    def fail(*args: object) -> None:
        raise RequestError("stop")

    with pytest.raises(RequestError, match="stop"):
        LLM(path, n_ctx=64, backend="cuda", gpu_layers=1, progress=fail)
    assert closed == [1]


def test_show_says_how_many_fit(gpu: Open, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gpu(total=1_400_000)

    class Args:
        model, json, tensors, metadata = str(path), True, False, False

    assert show(Args) == 0  # type: ignore[arg-type]
    memory = json.loads(capsys.readouterr().out)["memory"]
    assert memory["backend"] == "cuda"
    n = memory["gpu_layers"]
    assert (0 < n < 4, memory["layers"]) == (True, 4)
    with LLM(path) as llm:  # and that is what it is loaded with
        assert isinstance(llm.backend, SplitBackend)
        assert 4 - llm.backend.n_front == n
        assert llm.n_ctx == memory["kv"][0]["n_ctx"]
        page_tokens = llm.model.kv.n_pages * 32
        assert page_tokens * memory["kv"][0]["token_bytes"] == memory["kv"][0]["kv_bytes"]
    Args.json = False
    assert show(Args) == 0  # type: ignore[arg-type]
    assert f"{n} of 4 layers fit on the GPU" in " ".join(capsys.readouterr().out.split())
