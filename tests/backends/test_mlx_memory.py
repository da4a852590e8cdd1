"""What the MLX backend takes of memory, and that it says when there is not enough."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import mixed_model
from helpers.runner import Runner

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")


from helpers.mlx_harness import run, same_bits  # noqa: E402

from edgerun.backends.base import PAGE_SIZE, KVLayer, Memory  # noqa: E402
from edgerun.backends.mlx import MLXBackend  # noqa: E402
from edgerun.backends.mlx_experts import TILE  # noqa: E402
from edgerun.backends.mlx_memory import StepMemory  # noqa: E402
from edgerun.errors import BackendError, OutOfMemoryError  # noqa: E402


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_model.write(tmp_path_factory.mktemp("mlx") / "mixed.gguf")


def test_memory_that_does_not_suffice(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before anything is taken: a GPU would end the process."""
    free = [1 << 19]
    monkeypatch.setattr(MLXBackend, "memory", lambda self: Memory(1 << 30, free[0]))
    with pytest.raises(OutOfMemoryError, match="MB of weights"):
        Runner(mixed, MLXBackend())
    free[0] = 64 << 20
    runner = Runner(mixed, MLXBackend(), n_ctx=1024, n_pages=40)
    with pytest.raises(OutOfMemoryError, match="KV cache of 1000000 pages"):
        runner.backend.new_kv([KVLayer(2, 32)], 1_000_000)
    expected = runner.logits([5, 6, 7])
    free[0] = 1 << 20
    with pytest.raises(OutOfMemoryError, match="step of 500 tokens"):
        runner.logits(list(range(3, 28)) * 20)
    assert same_bits(expected, runner.logits([5, 6, 7]))


@pytest.mark.parametrize("name", ["llama3", "gemma2", "gpt_oss", "qwen3moe"])
def test_a_step_takes_what_was_reserved_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not a small part of that: with a long text before it, capped scores, experts."""
    runner = run(name, n_ctx=1024, n_pages=40)
    asked = []
    of_step = StepMemory.of_step

    def noted(self: StepMemory, rows: list[tuple[int, int]], n_outputs: int) -> int:
        asked.append(of_step(self, rows, n_outputs))
        return asked[-1]

    monkeypatch.setattr(StepMemory, "of_step", noted)
    sequence = runner.begin()
    for n, outputs in ((512, []), (300, range(300))):
        mx.synchronize()
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        runner.step([(sequence, [5] * n, outputs)])
        took = mx.get_peak_memory() - before
        experts = 3 * TILE if name in ("gpt_oss", "qwen3moe") else 0
        assert took < asked[-1] < 4 * took + experts


def test_a_step_that_fails_loses_the_pages_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = run("llama", n_pages=4)
    runner.logits([1, 2])

    def fail(*args: object) -> None:
        raise RuntimeError("[metal::malloc] Unable to allocate 12 bytes.")

    with monkeypatch.context() as m:
        m.setattr("edgerun.backends.mlx_started.mx.async_eval", fail)
        with pytest.raises(OutOfMemoryError, match="Unable to allocate"):
            runner.logits([1, 2])
    with pytest.raises(BackendError, match="the KV cache was lost"):
        runner.logits([1, 2])


def test_pages_are_counted_as_planned() -> None:
    for kv_type in ("f16", "f32", "q8_0"):
        layers = [KVLayer(2, 48), KVLayer(1, 64)]
        pool = MLXBackend().new_kv(layers, 3, kv_type)
        assert pool.page_bytes == len(pool.export_page(2))
        if kv_type != "q8_0":
            assert pool.page_bytes == PAGE_SIZE * sum(x.token_bytes(kv_type) for x in layers)


def test_memory_is_the_gpus_share_and_wired_while_a_model_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits = [7]

    def set_limit(limit: int) -> int:
        limits.append(limit)
        return limits[-2]

    with monkeypatch.context() as m:
        m.setattr(mx.metal, "is_available", lambda: True)
        facts = {"max_recommended_working_set_size": 3 << 30}
        m.setattr("edgerun.backends.mlx._device_info", lambda: facts)
        m.setattr(mx, "set_wired_limit", set_limit)
        m.setattr("edgerun.backends.mlx.host_memory", lambda: Memory(8 << 30, 2 << 30))
        first, second = MLXBackend(), MLXBackend()
        assert first.memory() == Memory(3 << 30, 2 << 30)
        m.setattr(mx, "get_active_memory", lambda: 5 << 29)
        assert first.memory() == Memory(3 << 30, 1 << 29)
        first.close()
        first.close()
        assert limits == [7, 3 << 30]
        second.close()
        assert limits == [7, 3 << 30, 7]
