"""The native CPU backend: every architecture, batch invariance, bad input."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers import models
from helpers.leading import top_of
from helpers.paths import FIXTURES
from helpers.runner import Runner, among_others, check_pages, cpu_runners, same_bits

from edgerun.backends.base import Batch
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cpu_abi import isa_names
from edgerun.errors import BackendError, BackendUnavailableError

ARCHS = sorted(p.stem for p in (FIXTURES / "arch").glob("*.npz"))
ISAS = isa_names()
F32 = npt.NDArray[np.float32]


@pytest.fixture
def open_runner() -> Iterator[object]:
    yield from cpu_runners()


def fixture(name: str) -> Path:
    return FIXTURES / "arch" / f"{name}.gguf"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ARCHS)
def test_architecture(open_runner, name: str, isa: str) -> None:
    data = np.load(FIXTURES / "arch" / f"{name}.npz")
    expected = data["logits"]
    for kv_type, tolerance in (("f32", 1e-4), ("f16", 0.02 * np.abs(expected).max())):
        runner = open_runner(fixture(name), isa, n_ctx=256, kv_type=kv_type)
        found = runner.logits(data["ids"].tolist(), chunk=7)
        np.testing.assert_allclose(found, expected, atol=tolerance, rtol=0)


def check_batch_invariance(runner: Runner, n_tokens: int) -> None:
    vocab = runner.config.n_vocab
    ids = np.random.default_rng(1).integers(0, vocab, n_tokens).tolist()
    alone = runner.logits(ids, chunk=512)
    for chunk in (1, 7, 64):
        assert same_bits(alone, runner.logits(ids, chunk=chunk)), chunk
    assert same_bits(alone, among_others(runner, ids))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "qwen3", "qwen3moe", "gpt_oss"])
def test_batch_invariance(open_runner, name: str, isa: str) -> None:
    runner = open_runner(fixture(name), isa, n_ctx=256, n_pages=128)
    check_batch_invariance(runner, n_tokens=200)


@pytest.mark.parametrize("model", [models.smollm2, models.gemma3], ids=["smollm2", "gemma3"])
def test_batch_invariance_of_a_real_model(open_runner, model) -> None:
    runner = open_runner(model(), n_ctx=1024, n_pages=128)
    check_batch_invariance(runner, n_tokens=70)


def test_first_step_may_want_no_logits(open_runner) -> None:
    ids = list(range(40, 70))
    whole, parts = (open_runner(models.smollm2(), n_ctx=64, n_pages=4) for _ in range(2))
    assert same_bits(whole.logits(ids, start=29), parts.logits(ids, start=29, chunk=20))


def test_long_context_crosses_a_split(open_runner) -> None:
    """2 048 tokens end a split of the attention sum; chunks and threads must not show there."""
    ids = np.random.default_rng(2).integers(0, 200, 2200).tolist()
    one = open_runner(fixture("llama"), threads=1, n_ctx=4096, n_pages=80)
    three = open_runner(fixture("llama"), threads=3, n_ctx=4096, n_pages=80)
    a, b = one.logits(ids, start=2000, chunk=512), three.logits(ids, start=2000, chunk=333)
    assert same_bits(a, b)


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_instruction_sets_agree(open_runner, name: str) -> None:
    """Bit for bit; the generic one, whose fma rounds twice, up to flips of f16 K and V."""
    ids = np.random.default_rng(3).integers(0, 200, 50).tolist()
    found = {isa: open_runner(fixture(name), isa, n_ctx=256).logits(ids) for isa in ISAS}
    generic = found.pop("generic")
    for other in found.values():
        assert same_bits(other, next(iter(found.values())))
        np.testing.assert_allclose(generic, other, atol=5e-3, rtol=0)


def test_pages_can_be_copied_exported_and_restored(open_runner) -> None:
    runner = open_runner(fixture("qwen3"), n_ctx=256, n_pages=8)
    check_pages(runner)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (([9999999], 0, [0], [0]), "token id"),
        (([-1], 0, [0], [0]), "token id"),
        (([1], 0, [99], [0]), "block table"),
        (([1], 0, [-1], [0]), "block table"),
        (([1], 64, [0, 1], [0]), "block table"),
        (([1], -1, [0], [0]), "negative"),
        (([1], 0, [0], [3]), "out of range"),
    ],
)
def test_bad_batches_are_refused(open_runner, row, message: str) -> None:
    runner = open_runner(fixture("llama"), n_ctx=256, n_pages=4)
    with pytest.raises(BackendError, match=message):
        runner.program.run(Batch.pack([row]))
    assert np.isfinite(runner.logits([1, 2, 3])).all()


def test_a_batch_may_be_put_together_by_hand(open_runner) -> None:
    """Its arrays need not lie side by side; and a packed one may be changed."""
    program = open_runner(fixture("llama"), n_ctx=256, n_pages=4).program
    packed = Batch.pack([([5, 6, 7], 0, [0], [2]), ([9], 0, [1], [0])])
    everything = np.arange(4, dtype=np.int32)
    changed = dataclasses.replace(packed, outputs=everything)
    loose = Batch(
        tokens=np.array(packed.tokens), positions=np.array(packed.positions),
        row_start=np.array(packed.row_start), n_past=np.array(packed.n_past),
        pages=np.array(packed.pages), outputs=everything,
    )  # fmt: skip
    wanted, of_all, by_hand = (np.array(program.run(b)) for b in (packed, changed, loose))
    assert of_all.shape == (4, program.n_vocab)
    assert same_bits(of_all, by_hand)
    assert same_bits(of_all[2:], wanted)
    with pytest.raises(BackendError, match="disagree"):
        program.run(dataclasses.replace(loose, positions=loose.positions[:2]))


def test_a_program_keeps_its_backend() -> None:
    runner = Runner(fixture("llama"), CPUBackend(threads=2), n_ctx=256, n_pages=4)
    backend, program, kv = weakref.ref(runner.backend), runner.program, runner.kv
    runner.file.close()
    del runner
    gc.collect()
    assert np.isfinite(program.run(Batch.pack([([1, 2], 0, [0], [1])]))).all()
    del program
    gc.collect()
    assert len(kv.export_page(0)) == kv.page_bytes
    del kv
    gc.collect()
    assert backend() is None


def test_unknown_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BackendUnavailableError, match=r"sse9.*generic"):
        CPUBackend(isa="sse9")
    monkeypatch.setenv("EDGERUN_ISA", "generic")
    assert CPUBackend().isa == "generic"


def test_stale_pages_do_not_leak_into_another_sequence(open_runner) -> None:
    """Pages come back dirty, here with NaN in every slot."""
    runner = open_runner(fixture("llama"), n_ctx=256, n_pages=4, kv_type="f32")
    ids = list(range(1, 40))
    expected = np.array(runner.program.run(Batch.pack([(ids, 0, [0, 1], range(39))])))
    for page in range(4):
        runner.kv.import_page(
            page, np.full(runner.kv.page_bytes // 4, np.nan, np.float32).tobytes()
        )
    assert same_bits(
        expected, np.array(runner.program.run(Batch.pack([(ids, 0, [2, 3], range(39))])))
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_largest_logits_are_found_beside_all(open_runner, isa: str, threads: int) -> None:
    """Of a decode, a short and a long row, a few, many and all of them; of tokens that are all
    alike the first; of a sequence with NaN in its cache none."""
    runner = open_runner(
        fixture("llama"), isa, threads=threads, n_ctx=256, n_pages=8, kv_type="f32"
    )
    program, ids = runner.program, list(range(1, 60))
    for k in (1, 7, 40, program.n_top):
        for rows in (
            [(ids[:1], 0, [0], [0])],
            [(ids[:9], 0, [0], range(4, 9))],
            [(ids, 0, [0, 1], range(59))],
        ):
            logits = np.array(program.run(Batch.pack(rows, want_best=k == 7, want_top=k)))
            wanted = top_of(logits, k)
            assert program.top is not None
            assert program.top.ids.tolist() == wanted.ids.tolist()
            assert same_bits(program.top.logits, wanted.logits)
            assert (program.best is not None) == (k == 7)
    program.run(Batch.pack([(ids[:3], 0, [2], [2])], want_best=True))
    assert program.top is None
    nan = np.full(runner.kv.page_bytes // 4, np.nan, np.float32).tobytes()
    runner.kv.import_page(3, nan)
    pair = Batch.pack([([5], 3, [3], [0]), ([5], 3, [2], [0])], want_top=3)
    wanted = top_of(np.array(program.run(pair)), 3)
    assert wanted.ids[0].tolist() == [-1] * 3
    assert program.top.ids.tolist() == wanted.ids.tolist()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("threads", [1, 3])
def test_the_best_token_is_found_beside_the_logits(open_runner, isa: str, threads: int) -> None:
    """Of a decode, a short and a long row; the sequence with NaN in its cache has none."""
    runner = open_runner(
        fixture("llama"), isa, threads=threads, n_ctx=256, n_pages=8, kv_type="f32"
    )
    program, ids = runner.program, list(range(1, 60))
    for rows in (
        [(ids[:1], 0, [0], [0])],
        [(ids[:9], 0, [0], range(4, 9))],
        [(ids, 0, [0, 1], range(59))],
    ):
        logits = np.array(program.run(Batch.pack(rows, want_best=True)))
        assert program.best is not None
        assert program.best.tolist() == logits.argmax(axis=1).tolist()
    program.run(Batch.pack([(ids[:3], 0, [2], [2])]))
    assert program.best is None
    nan = np.full(runner.kv.page_bytes // 4, np.nan, np.float32).tobytes()
    runner.kv.import_page(3, nan)
    pair = Batch.pack([([5], 3, [3], [0]), ([5], 3, [2], [0])], want_best=True)
    logits = np.array(program.run(pair))
    assert np.isnan(logits[0]).all()
    assert program.best.tolist() == [-1, logits[1].argmax()]
