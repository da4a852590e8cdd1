"""The MLX backend on MLX's CPU device; with its Metal kernels where they are run by the SIMT
engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers import mixed_model
from helpers.paths import FIXTURES
from helpers.runner import Runner, arch_fixtures, check_pages, check_window

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from helpers.mlx_harness import Kernels, run, same_bits  # noqa: E402

from edgerun.backends.base import Batch, KVLayer, without_head  # noqa: E402
from edgerun.backends.mlx import MLXBackend  # noqa: E402
from edgerun.backends.reference import ReferenceBackend  # noqa: E402
from edgerun.errors import BackendError, RequestError  # noqa: E402

ARCHS = arch_fixtures(MLXBackend)
F32 = npt.NDArray[np.float32]


def fixture(name: str) -> Path:
    return FIXTURES / "arch" / f"{name}.gguf"


def golden(name: str) -> tuple[list[int], F32]:
    data = np.load(FIXTURES / "arch" / f"{name}.npz")
    return data["ids"].tolist(), data["logits"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_model.write(tmp_path_factory.mktemp("mlx") / "mixed.gguf")


def reference(path: Path, ids: list[int], kv_type: str = "f16") -> F32:
    return Runner(path, ReferenceBackend(), n_ctx=1024, kv_type=kv_type).logits(ids)


# -- every architecture --------------------------------------------------------------------------


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
@pytest.mark.parametrize("name", ARCHS)
def test_architecture(name: str, exact: bool) -> None:
    ids, expected = golden(name)
    runner = run(name, exact=exact, kv_type="f32")
    whole = runner.logits(ids)
    np.testing.assert_allclose(whole, expected, atol=1e-4, rtol=0)
    pieces = runner.logits(ids, chunk=7)
    np.testing.assert_allclose(pieces, expected, atol=1e-4, rtol=0)
    assert not exact or same_bits(whole, pieces)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_kv_types(kv_type: str) -> None:
    """They hold what reference's hold."""
    for name in ("llama3", "gemma2"):
        ids, _ = golden(name)
        found = run(name, kv_type=kv_type).logits(ids, chunk=5)
        expected = reference(fixture(name), ids, kv_type)
        np.testing.assert_allclose(found, expected, atol=2e-3, rtol=0)


def test_float16_products(mixed: Path) -> None:
    ids = np.random.default_rng(0).integers(3, 30, 45).tolist()
    expected = reference(mixed, ids)
    found = Runner(mixed, MLXBackend(narrow=True), n_ctx=256).logits(ids)
    error = np.sqrt(np.mean((found - expected) ** 2)) / np.std(expected)
    assert 1e-5 < error < 0.01


# -- exact ---------------------------------------------------------------------------------------


def among_others(runner: Runner, ids: Sequence[int], vocab: int) -> F32:
    """The same sequence as row 2 of 4, all at different lengths, prefilled in uneven pieces."""
    rng = np.random.default_rng(5)
    sequences = [runner.begin() for _ in range(4)]
    parts: list[F32] = []
    done = 0
    while done < len(ids):
        n = min(len(ids) - done, int(rng.integers(1, 11)))
        rows = []
        for i, s in enumerate(sequences):
            if i == 2:
                rows.append((s, ids[done : done + n], range(n)))
            else:
                other = rng.integers(0, vocab, int(rng.integers(1, 3))).tolist()
                rows.append((s, other, [0]))
        parts.append(runner.step(rows)[2 : 2 + n])
        done += n
    return np.concatenate(parts)


@pytest.mark.parametrize("name", ["mixed", "gemma2"])
def test_exact_bits_do_not_depend_on_the_batch(mixed: Path, name: str) -> None:
    path = mixed if name == "mixed" else fixture(name)
    runner = Runner(path, MLXBackend(exact=True), n_ctx=512, n_pages=60)
    ids = np.random.default_rng(1).integers(0, runner.config.n_vocab, 300).tolist()
    whole = runner.logits(ids)  # two splits of attention
    assert same_bits(whole[:20], runner.logits(ids[:20], chunk=1))
    assert same_bits(whole[:30], among_others(runner, ids[:30], runner.config.n_vocab))
    assert same_bits(whole, runner.logits(ids, chunk=77))


# -- our kernels, as on a Mac ---------------------------------------------------------------------


def test_with_metal_kernels(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that a Mac does differently: kernels for what MLX has none, attention by pages for short
    rows, MLX's own for a prompt beside them."""
    kernels = Kernels(monkeypatch)
    ids = np.random.default_rng(0).integers(3, 30, 45).tolist()
    expected = reference(mixed, ids)
    runner = Runner(mixed, MLXBackend(kernels=True), n_ctx=256)
    for most, name in ((45, "gemm"), (44, "all_rows")):  # tokens that are unpacked tile by tile
        monkeypatch.setattr("edgerun.backends.mlx_metal.SOME", most)
        np.testing.assert_allclose(runner.logits(ids), expected, atol=2e-3 * np.std(expected))
        assert name in kernels.names
        assert not {"attention", "gemv", {"gemm": "all_rows"}.get(name)} & set(kernels.names)
    a, b = runner.begin(), runner.begin()
    first = runner.step([(a, ids[:9], range(9))])
    assert {"attention", "gemv", "gemv_float"} <= set(kernels.names)
    both = runner.step([(a, ids[9:11], [0, 1]), (b, ids[:30], range(30))])
    found = np.concatenate([first, both[:2]])
    np.testing.assert_allclose(found, expected[:11], atol=2e-3 * np.std(expected))
    np.testing.assert_allclose(both[2:], expected[:30], atol=2e-3 * np.std(expected))


def test_exact_with_metal_kernels(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(monkeypatch)
    ids = np.random.default_rng(0).integers(3, 30, 20).tolist()
    runner = Runner(mixed, MLXBackend(exact=True, kernels=True), n_ctx=256, kv_type="q8_0")
    whole = runner.logits(ids)
    assert set(kernels.names) == {"rows", "gemv", "gemv_float", "attention_q8"}
    expected = reference(mixed, ids, "q8_0")
    np.testing.assert_allclose(whole, expected, atol=0.01 * np.std(expected))
    assert same_bits(whole, runner.logits(ids, chunk=11))


# -- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_pages_can_be_copied_exported_and_restored(kv_type: str) -> None:
    runner = run("qwen3", n_pages=8, kv_type=kv_type)
    check_pages(runner)
    with pytest.raises(BackendError, match="not 1"):
        runner.kv.import_page(1, b"x")
    with pytest.raises(IndexError):
        runner.kv.copy_page(0, 8)


def test_writes_take_the_pools_memory() -> None:
    """A step, a copy and an import leave the pool where it is: never two of them."""
    runner = run("llama", n_pages=4000)
    size = runner.kv.page_bytes * 4000
    assert size > 4 << 20

    def peak(call: object) -> int:
        mx.synchronize()
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        call()  # type: ignore[operator]
        return int(mx.get_peak_memory() - before)

    one = size / 2 / runner.config.n_layers
    for want_best in (False, True):
        batch = Batch.pack([([5], 0, [7], [0])], want_best=want_best)
        runner.program.run(batch)
        for _ in range(3):
            assert peak(lambda b=batch: runner.program.run(b)) < one / 2
    page = runner.kv.export_page(7)
    assert peak(lambda: runner.kv.copy_page(7, 8)) < one / 2
    assert peak(lambda: runner.kv.import_page(9, page)) < one / 2


def test_a_window_forgets() -> None:
    """Pages that lie behind a window are not read: NaN in them changes nothing."""
    for exact in (False, True):
        check_window(run("mistral", exact=exact))


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_nan_stays_with_its_sequence(kv_type: str) -> None:
    runner = run("qwen2", exact=True, n_pages=8, kv_type=kv_type)
    alone = runner.logits([8, 9])
    runner.program.run(Batch.pack([([5, 6, 7], 0, [1], [])]))
    bad = np.frombuffer(runner.kv.export_page(1), np.uint8).copy()
    runner.kv.import_page(1, np.full_like(bad, 0x7F).tobytes())  # 0x7F7F is a NaN of float16
    both = Batch.pack([([8], 3, [1], [0]), ([8, 9], 0, [2], [0, 1])], True)
    logits = np.array(runner.program.run(both))
    assert np.isnan(logits[0]).all()
    assert same_bits(alone, logits[1:])
    assert runner.program.best is not None
    assert runner.program.best.tolist() == [-1, *alone.argmax(axis=1).tolist()]


# -- results -------------------------------------------------------------------------------------


def test_the_best_token_is_found_beside_the_logits() -> None:
    runner = run("gemma2", exact=True, n_pages=8)  # capped logits
    ids = list(range(1, 40))
    for rows in ([(ids[:1], 0, [0], [0])], [(ids, 0, [0, 1], range(4, 9))]):
        found = runner.program.run(Batch.pack(rows, want_best=True))
        logits = np.array(found)
        assert runner.program.best is not None
        assert runner.program.best.tolist() == logits.argmax(axis=1).tolist()
        assert same_bits(found[0], logits[0])
        assert same_bits(found[-1:][0], logits[-1])
    runner.program.run(Batch.pack([(ids[:3], 0, [2], [2])]))
    assert runner.program.best is None


def test_steps_without_outputs_and_empty_ones() -> None:
    ids, _ = golden("llama")
    runner = run("llama", exact=True)
    expected = runner.logits(ids[:20])
    sequence = runner.begin()
    assert runner.step([(sequence, ids[:18], [])]).shape == (0, runner.config.n_vocab)
    assert runner.step([]).shape == (0, runner.config.n_vocab)
    assert same_bits(expected[18:], runner.step([(sequence, ids[18:20], [0, 1])]))


def test_hidden_states() -> None:
    from edgerun import arch

    ids, _ = golden("qwen2")
    states = []
    for backend in (MLXBackend(), ReferenceBackend()):
        runner = Runner(fixture("qwen2"), backend, n_ctx=64, kv_type="f32")
        family = arch.get("qwen2")
        specs = family.tensors(runner.config)
        raw = arch.raw_tensors("qwen2", specs, runner.file)
        weights = backend.upload_all({k: (t, specs[k].role) for k, t in raw.items()})
        forward = without_head(family.bind(weights, runner.config))
        program = backend.prepare(forward, runner.kv, 64)
        states.append(np.array(program.run(Batch.pack([(ids[:10], 0, [0], [0, 9])]))))
    assert states[0].shape == (2, 32)
    np.testing.assert_allclose(states[0], states[1], atol=1e-4 * np.abs(states[1]).max())


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (([9999999], 0, [0], [0]), RequestError, "token id 9999999"),
        (([1], 0, [99], [0]), BackendError, "row 0"),
        (([1], 256, [0] * 9, [0]), BackendError, "past the context"),
    ],
)
def test_bad_batches_are_refused(row, error: type[Exception], message: str) -> None:
    runner = run("llama", n_pages=4)
    with pytest.raises(error, match=message):
        runner.program.run(Batch.pack([row]))
    assert np.isfinite(runner.logits([1, 2, 3])).all()


def test_facts() -> None:
    fast, exact = MLXBackend(), MLXBackend(exact=True)
    assert (fast.batch_invariant, exact.batch_invariant) == (False, True)
    assert "--exact" in fast.describe()["last bits"]
    assert fast.numerics() != exact.numerics()
    with pytest.raises(BackendError, match="q4r"):
        fast.new_kv([KVLayer(1, 32)], 1, "q4r")
