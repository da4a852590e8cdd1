"""Experts on the native CPU backend: quantized ones, any division of tokens among them, trouble."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.gguf_build import GGML_F16, GGML_F32, GGML_Q8_0
from helpers.moe_model import (
    MXFP4,
    check_each_row_is_told_of_once,
    check_nan_stays_with_its_token,
    moe_model,
)
from helpers.runner import Runner, among_others, cpu_runners, same_bits

from edgerun import LLM, SamplingParams
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cpu_abi import isa_names
from edgerun.backends.reference import ReferenceBackend

Q4_0, Q4_K, Q6_K = 2, 12, 14
WIDE = {"n_embd": 256, "n_ff": 256}


@pytest.fixture
def on_cpu() -> Iterator[object]:
    yield from cpu_runners()


def ids(n: int, seed: int = 1) -> list[int]:
    return [int(i) for i in np.random.default_rng(seed).integers(0, 280, n)]


@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("qwen3moe", {"kind": GGML_Q8_0}),
        ("qwen3moe", {"kind": Q4_K, "down": Q6_K, **WIDE}),
        ("qwen3moe", {"kind": GGML_F16, "n_ff": 40, "n_experts": 5, "n_used": 5}),
        ("gpt-oss", {"kind": MXFP4, "n_ff": 64}),
        ("gpt-oss", {"kind": Q4_0, "down": GGML_Q8_0, "n_experts": 3, "n_used": 1}),
    ],
)
def test_it_computes_what_the_reference_does(on_cpu, tmp_path: Path, family: str, shape) -> None:
    # In a second layer inputs rounded to int8 would choose another expert where two are close.
    path = moe_model(tmp_path / "m.gguf", family, **{**shape, "n_layer": 1})
    wanted = Runner(path, ReferenceBackend(), n_ctx=128).logits(ids(60))
    found = on_cpu(path, n_ctx=128, kv_type="f32").logits(ids(60), chunk=25)
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()
    assert np.abs(found - wanted).mean() < 0.01 * wanted.std()


@pytest.mark.parametrize("n_ff", [32, 40])  # 40 rows: a gap behind each expert in memory
def test_each_row_of_the_file_is_told_of_once(tmp_path: Path, n_ff: int) -> None:
    path = moe_model(tmp_path / "m.gguf", kind=GGML_F16, n_ff=n_ff)
    check_each_row_is_told_of_once(path, CPUBackend(threads=2))


@pytest.mark.parametrize("isa", isa_names())
@pytest.mark.parametrize(
    ("family", "shape"),
    [
        ("qwen3moe", {"kind": Q4_K, "down": Q6_K, **WIDE}),
        ("gpt-oss", {"kind": MXFP4, "n_ff": 96, "n_experts": 6, "n_used": 2}),
    ],
    ids=["qwen3moe", "gpt-oss"],
)
def test_batch_invariance(on_cpu, tmp_path: Path, family: str, shape, isa: str) -> None:
    path = moe_model(tmp_path / "m.gguf", family, **shape)
    text = ids(120)
    runner = on_cpu(path, isa, n_ctx=256, n_pages=128)
    alone = runner.logits(text, chunk=512)
    for chunk in (1, 7, 16, 40):
        assert same_bits(alone, runner.logits(text, chunk=chunk)), chunk
    assert same_bits(alone, among_others(runner, text))
    for threads in (1, 5):
        other = on_cpu(path, isa, threads=threads, n_ctx=256)
        assert same_bits(alone, other.logits(text, chunk=9)), threads


def test_instruction_sets_agree(on_cpu, tmp_path: Path) -> None:
    path = moe_model(tmp_path / "m.gguf", "gpt-oss", kind=MXFP4, n_ff=64)
    found = {isa: on_cpu(path, isa, n_ctx=128).logits(ids(40)) for isa in isa_names()}
    generic = found.pop("generic")
    for other in found.values():
        assert same_bits(other, next(iter(found.values())))
        np.testing.assert_allclose(generic, other, atol=5e-3, rtol=0)


@pytest.mark.parametrize("n", [1, 9, 30])
def test_equal_logits_choose_the_first_experts(on_cpu, tmp_path: Path, n: int) -> None:
    """A router of zeros: the first n_used experts, in equal parts, whatever else there is."""
    flat = {"blk.0.ffn_gate_inp.weight": 0.0}
    shape = {"n_layer": 1, "n_used": 2, "spoil": flat}
    few = moe_model(tmp_path / "few.gguf", n_experts=2, **shape)
    many = moe_model(tmp_path / "many.gguf", n_experts=7, **shape)
    text = ids(n)
    wanted = Runner(many, ReferenceBackend(), n_ctx=64).logits(text)
    found = on_cpu(many, n_ctx=64, kv_type="f32").logits(text)
    np.testing.assert_allclose(found, wanted, atol=1e-4, rtol=0)
    # The models differ in their weights, so only the rule is the same.
    assert not same_bits(found, on_cpu(few, n_ctx=64, kv_type="f32").logits(text))


@pytest.mark.parametrize("n", [1, 20])
def test_nan_stays_with_its_token(on_cpu, tmp_path: Path, n: int) -> None:
    check_nan_stays_with_its_token(on_cpu, tmp_path / "m.gguf", n)


def test_steps_of_all_sizes_after_one_another(on_cpu, tmp_path: Path) -> None:
    """What a thread keeps of one step's choices is not taken for another's."""
    path = moe_model(tmp_path / "m.gguf", kind=GGML_F32, n_experts=16, n_used=4)
    runner = on_cpu(path, threads=3, n_ctx=256, n_pages=64)
    text = ids(90)
    alone = runner.logits(text, chunk=512)
    rng = np.random.default_rng(8)
    for _ in range(6):
        tokens, parts, done = runner.begin(), [], 0
        while done < len(text):
            n = min(len(text) - done, int(rng.choice([1, 2, 3, 16, 17, 33])))
            parts.append(runner.step([(tokens, text[done : done + n], range(n))]))
            done += n
        runner.end(tokens)
        assert same_bits(np.concatenate(parts), alone)


def test_texts_of_many_do_not_depend_on_one_another(tmp_path: Path) -> None:
    """Through the engine: at once, alone, and with drafts."""
    path = moe_model(tmp_path / "m.gguf", "gpt-oss", kind=MXFP4, n_ff=64)
    greedy = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    prompts = [ids(5 + 9 * i, seed=i) for i in range(5)]
    with LLM(path, backend="cpu", n_ctx=256, threads=2) as llm:
        streams = [llm.stream(p, greedy) for p in prompts]
        together = [[i for chunk in s for i in chunk.token_ids] for s in streams]
    with LLM(path, backend="cpu", n_ctx=256, threads=1, speculation="off") as llm:
        assert [list(llm.generate(p, greedy).token_ids) for p in prompts] == together
