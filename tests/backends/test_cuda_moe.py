"""Mixtures of experts on the CUDA backend, end to end on the SIMT engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.gguf_build import GGML_F16, GGML_Q8_0
from helpers.host_device import HostDevice
from helpers.moe_model import (
    MXFP4,
    check_each_row_is_told_of_once,
    check_nan_stays_with_its_token,
    moe_model,
)
from helpers.runner import Runner, among_others, same_bits

from edgerun import LLM, SamplingParams
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.reference import ReferenceBackend
from edgerun.errors import UnsupportedModelError

Q5_1, Q4_K, Q6_K = 7, 12, 14
WIDE = {"n_embd": 256, "n_ff": 256}
Open = Callable[..., Runner]


@pytest.fixture
def on_cuda() -> Iterator[Open]:
    opened: list[CudaBackend] = []

    def make(path: Path, **kw: object) -> Runner:
        opened.append(CudaBackend(HostDevice()))
        return Runner(path, opened[-1], **kw)  # type: ignore[arg-type]

    yield make
    for backend in opened:
        backend.close()  # and nothing was written beside what it had


def ids(n: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 280, n)]


def names(runner: Runner) -> set[str]:
    """Kernels of products with experts that padded steps have launched."""
    launches = [x.name for p in runner.program._plans.values() for x in p.launches]
    return {n for n in launches if "_experts<" in n}


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("qwen3moe", {"kind": Q4_K, "down": Q6_K, **WIDE}),
        # Of gate and up one has a kernel for one column tile at a time, the other for two.
        ("qwen3moe", {"kind": Q5_1, "up": MXFP4, "n_experts": 5, "n_used": 5}),
        ("qwen3moe", {"kind": GGML_F16, "n_ff": 40, "n_experts": 5, "n_used": 2}),
        ("gpt-oss", {"kind": MXFP4, "n_ff": 64}),
        ("gpt-oss", {"kind": GGML_Q8_0, "up": MXFP4, "down": GGML_F16, "n_used": 1}),
    ],
)
def test_as_close_to_float32_as_the_cpu(
    on_cuda: Open, tmp_path: Path, family: str, shape: dict[str, int]
) -> None:
    """Whose activations are rounded alike. In a second layer another expert could be chosen where
    two are close."""
    path = moe_model(tmp_path / "m.gguf", family, **{**shape, "n_layer": 1})  # type: ignore[arg-type]
    text = ids(40)
    wanted = Runner(path, ReferenceBackend(), n_ctx=128, kv_type="f16").logits(text)
    cpu = CPUBackend(threads=1)
    on_cpu = Runner(path, cpu, n_ctx=128).logits(text)
    cpu.close()
    found = on_cuda(path, n_ctx=128).logits(text, chunk=25)
    error, cpu_error = (np.sqrt(np.mean((x - wanted) ** 2)) for x in (found, on_cpu))
    assert error < 1.2 * cpu_error + 1e-3 * wanted.std()
    assert error < 0.03 * wanted.std()


@pytest.mark.parametrize(
    ("family", "shape", "kernels"),
    [
        ("qwen3moe", {"kind": Q4_K, "down": Q6_K, **WIDE}, {"qmm_experts<12,1>"}),
        ("gpt-oss", {"kind": MXFP4, "n_ff": 96, "n_experts": 6, "n_used": 2},
         {"qmm_experts<39,1>", "qmm_experts<39,2>", "qgemm_experts<39,4>"}),
    ],
    ids=["qwen3moe", "gpt-oss"],
)  # fmt: skip
def test_batch_invariance(
    on_cuda: Open, tmp_path: Path, family: str, shape: dict[str, int], kernels: set[str]
) -> None:
    """Prompts, decoding, verification and other sequences beside it: the same bits."""
    path = moe_model(tmp_path / "m.gguf", family, n_layer=1, **shape)  # type: ignore[arg-type]
    text = ids(68)  # more than are padded
    runner = on_cuda(path, n_ctx=128, n_pages=40)
    alone = runner.logits(text)
    for chunk, n in ((1, 6), (12, 36), (40, 40)):
        assert same_bits(alone[:n], runner.logits(text[:n], chunk=chunk)), chunk
    assert same_bits(alone[:30], among_others(runner, text[:30], 4, 10, 2))
    assert names(runner) >= kernels


def test_threads_may_come_in_any_order(on_cuda: Open, tmp_path: Path) -> None:
    path = moe_model(tmp_path / "m.gguf", "gpt-oss", kind=MXFP4, n_ff=64, n_layer=1)
    runner = on_cuda(path, n_ctx=64)
    alone = runner.logits(ids(36), chunk=36)
    device = runner.backend.device  # type: ignore[attr-defined]
    for order in ((1, 1), (2, 1)):
        device.order = order
        assert same_bits(alone, runner.logits(ids(36), chunk=36)), order


@pytest.mark.parametrize("n_ff", [32, 40])  # 40 rows: half a tile behind each expert
def test_each_row_of_the_file_is_told_of_once(tmp_path: Path, n_ff: int) -> None:
    path = moe_model(tmp_path / "m.gguf", kind=GGML_F16, n_embd=24, head_dim=8, n_ff=n_ff)
    check_each_row_is_told_of_once(path, CudaBackend(HostDevice()))


def test_padding_asks_for_no_expert(on_cuda: Open, tmp_path: Path) -> None:
    """Five tokens are padded to eight: no work item has a token that is not there."""
    path = moe_model(tmp_path / "m.gguf", kind=GGML_F16, n_experts=8, n_used=3, n_layer=2)
    runner = on_cuda(path, n_ctx=64)
    runner.logits(ids(5))
    backend = runner.backend
    assert isinstance(backend, CudaBackend)
    (plan,) = runner.program._plans.values()
    first = next(x for x in plan.launches if x.name.startswith("fmm_experts"))
    items = np.zeros((first.grid[1], 4), np.int32)
    backend.device.download(items, int(first.args[2]))
    used = items[items[:, 0] >= 0]
    assert used[:, 2].sum() == 5 * 3
    assert first.grid[1] == 8
    assert len(set(used[:, 0].tolist())) == len(used)


@pytest.mark.parametrize("n", [1, 20])
def test_nan_stays_with_its_token(on_cuda: Open, tmp_path: Path, n: int) -> None:
    check_nan_stays_with_its_token(on_cuda, tmp_path / "m.gguf", n)


def test_texts_of_many_do_not_depend_on_one_another(tmp_path: Path) -> None:
    """Through the engine: at once, and alone after a prefix that is there."""
    path = moe_model(tmp_path / "m.gguf", "gpt-oss", kind=MXFP4, n_ff=64, n_layer=1)
    greedy = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    prompts = [ids(5 + 32 * i, seed=i) for i in range(3)]
    backend = CudaBackend(HostDevice())
    with LLM(path, backend=backend, n_ctx=128) as llm:
        streams = [llm.stream(p, greedy) for p in prompts]
        together = [[i for chunk in s for i in chunk.token_ids] for s in streams]
        again = [llm.generate(p, greedy) for p in prompts]
    backend.close()
    assert [list(c.token_ids) for c in again] == together
    assert again[-1].usage.cached_tokens >= 64


@pytest.mark.parametrize("shape", [{"n_experts": 40, "n_used": 33}, {"n_experts": 1025}])
def test_more_experts_than_a_warp_chooses_from(
    on_cuda: Open, tmp_path: Path, shape: dict[str, int]
) -> None:
    path = moe_model(tmp_path / "m.gguf", n_layer=1, n_ff=8, n_embd=32, **shape)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedModelError, match=r"the cuda backend takes up to 32 of 1024"):
        on_cuda(path, n_ctx=64)


def test_half_quantized_experts_are_refused(on_cuda: Open, tmp_path: Path) -> None:
    path = moe_model(tmp_path / "m.gguf", n_layer=1, kind=GGML_Q8_0, up=GGML_F16)
    with pytest.raises(UnsupportedModelError, match="only one is quantized: use --backend cpu"):
        on_cuda(path, n_ctx=64)
