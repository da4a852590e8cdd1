"""The CUDA backend end to end, its kernels run by the SIMT engine on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers import mixed_model
from helpers.host_device import HostDevice, downloads
from helpers.leading import top_of
from helpers.paths import FIXTURES
from helpers.runner import (
    Runner,
    among_others,
    arch_fixtures,
    check_pages,
    check_window,
    same_bits,
)

from edgerun.backends.base import PAGE_SIZE, Batch, KVLayer, without_head
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.reference import ReferenceBackend
from edgerun.errors import BackendError, OutOfMemoryError, RequestError, UnsupportedModelError

ARCHS = arch_fixtures(CudaBackend)
F32 = npt.NDArray[np.float32]
Open = Callable[..., Runner]


@pytest.fixture
def open_runner() -> Iterator[Open]:
    opened: list[CudaBackend] = []

    def make(path: Path, **kw: object) -> Runner:
        opened.append(CudaBackend(HostDevice()))
        kw.setdefault("n_ctx", 256)
        return Runner(path, opened[-1], **kw)  # type: ignore[arg-type]

    yield make
    for backend in opened:
        backend.close()  # and nothing was written beside what it had


def fixture(name: str) -> Path:
    return FIXTURES / "arch" / f"{name}.gguf"


def golden(name: str) -> tuple[list[int], F32]:
    data = np.load(FIXTURES / "arch" / f"{name}.npz")
    return data["ids"].tolist(), data["logits"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_model.write(tmp_path_factory.mktemp("cuda") / "mixed.gguf")


def device(runner: Runner) -> HostDevice:
    assert isinstance(runner.backend, CudaBackend)
    found = runner.backend.device
    assert isinstance(found, HostDevice)
    return found


def reference(path: Path, ids: list[int], kv_type: str = "f16") -> F32:
    return Runner(path, ReferenceBackend(), n_ctx=1024, kv_type=kv_type).logits(ids)


# -- every architecture --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHS)
def test_architecture(open_runner: Open, name: str) -> None:
    """Weights are floats here, so what is left is the rounding of attention to f16."""
    ids, expected = golden(name)
    runner = open_runner(fixture(name))
    found = runner.logits(ids, chunk=7)
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=2e-3 * scale, rtol=0)
    # steps of seven tokens share a bucket: recorded the second time, replayed from then on
    assert device(runner).n_replays == -(-len(ids) // 7) - 1


@pytest.mark.parametrize("name", ["gemma3", "phi3", "qwen2"])
def test_prompts_have_the_bits_of_single_tokens(open_runner: Open, name: str) -> None:
    ids, _ = golden(name)
    ids *= 2  # 82 tokens: more than are padded
    runner = open_runner(fixture(name))
    whole = runner.logits(ids)
    assert device(runner).n_replays == 0
    for chunk in (3, 20, 41):
        assert same_bits(whole, runner.logits(ids, chunk=chunk)), chunk


def test_threads_may_come_in_any_order(open_runner: Open) -> None:
    ids, _ = golden("qwen3")
    runner = open_runner(fixture("qwen3"))
    expected = runner.logits(ids[:9])
    for order in ((1, 1), (2, 1)):
        device(runner).order = order
        assert same_bits(expected, runner.logits(ids[:9])), order


# -- quantized weights ---------------------------------------------------------------------------


def test_quantized_matrices(open_runner: Open, mixed: Path) -> None:
    """As close to float32 as the CPU backend is, whose activations are rounded alike."""
    ids = np.random.default_rng(0).integers(3, 30, 45).tolist()
    expected = reference(mixed, ids)
    cpu = CPUBackend(threads=1)
    on_cpu = Runner(mixed, cpu, n_ctx=256).logits(ids)
    cpu.close()
    found = open_runner(mixed).logits(ids, chunk=11)
    error, cpu_error = (np.sqrt(np.mean((x - expected) ** 2)) for x in (found, on_cpu))
    assert error < 1.2 * cpu_error
    assert error < 0.03 * np.std(expected)


@pytest.mark.parametrize("name", ["mixed", "gemma2"])
def test_batch_invariance(open_runner: Open, mixed: Path, name: str) -> None:
    runner = open_runner(mixed if name == "mixed" else fixture(name), n_pages=40)
    vocab = runner.config.n_vocab
    ids = np.random.default_rng(1).integers(0, vocab, 66).tolist()
    whole = runner.logits(ids)  # by the kernels of prompts
    assert same_bits(whole[:9], runner.logits(ids[:9], chunk=1))
    assert same_bits(whole[:40], among_others(runner, ids[:40], 4, 10, 2))


def test_a_step_is_ten_launches_a_layer_and_few_beside(open_runner: Open, tmp_path: Path) -> None:
    """Of a model whose matrices go together, as most files'."""
    counts = []
    for n in (1, 3):
        types = {k: t for k, t in mixed_model.TYPES.items() if not k.startswith("blk.1.")} | {
            f"blk.{i}.{k[6:]}": t
            for k, t in mixed_model.TYPES.items()
            for i in range(n)
            if k[:6] == "blk.0."
        }
        path = mixed_model.write(tmp_path / f"{n}.gguf", types, n_layer=n)
        runner = open_runner(path)
        runner.logits([5])
        counts.append(runner.program.n_launches)
    per_layer = (counts[1] - counts[0]) / 2
    assert per_layer == 10
    assert counts[0] - per_layer == 4  # embed, the residual's choice of outputs, norm, head


# -- attention over pages ------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["q8_0", "q4r"])
def test_quantized_pages(open_runner: Open, kv_type: str) -> None:
    """Reading what reference reads: the error is far below what the type itself makes."""
    name = "llama3"
    ids, expected = golden(name)
    judge = reference(fixture(name), ids, kv_type)
    runner = open_runner(fixture(name), kv_type=kv_type)
    found = runner.logits(ids, chunk=5)
    layers = runner.config.attention
    token = sum(KVLayer(a.n_kv_heads, a.head_dim).token_bytes("f16") for a in layers)
    assert runner.kv.page_bytes < 2 * PAGE_SIZE * token  # heads of 8 are padded to 32
    own = np.sqrt(np.mean((judge - expected) ** 2))
    assert np.sqrt(np.mean((found - judge) ** 2)) < 0.5 * own


def test_texts_longer_than_a_split(open_runner: Open) -> None:
    """Two splits of 256 tokens and part of a third: decode divides the work, prompts do not."""
    ids = np.random.default_rng(2).integers(3, 200, 600).tolist()
    runner = open_runner(fixture("llama"), n_ctx=1024, n_pages=40)
    whole = runner.logits(ids, start=590, chunk=300)
    pieces = runner.begin()
    for start, stop in ((0, 250), (250, 590)):
        runner.step([(pieces, ids[start:stop], [])])
    single = [runner.step([(pieces, ids[i : i + 1], [0])])[0] for i in range(590, 600)]
    assert same_bits(whole, np.array(single))
    assert any("merge" in x.name for p in runner.program._plans.values() for x in p.launches)
    expected = reference(fixture("llama"), ids)[590:]
    assert np.sqrt(np.mean((whole - expected) ** 2)) < 2e-3 * np.std(expected)


def test_a_window_forgets(open_runner: Open) -> None:
    """Pages that lie behind a window are not read: NaN in them changes nothing."""
    check_window(open_runner(fixture("mistral")))


# -- pages ---------------------------------------------------------------------------------------


def test_pages_can_be_copied_exported_and_restored(open_runner: Open) -> None:
    runner = open_runner(fixture("qwen3"), n_pages=8)
    check_pages(runner)
    with pytest.raises(ValueError, match="bytes, not 1"):
        runner.kv.import_page(1, b"x")
    with pytest.raises(IndexError):
        runner.kv.copy_page(0, 8)


def test_nan_stays_with_its_sequence(open_runner: Open, mixed: Path) -> None:
    """A sequence of NaN beside a good one; then its pages serve another."""
    runner = open_runner(mixed, n_pages=8)
    bad, good = runner.begin(), runner.begin()
    runner.step([(bad, [5, 6, 7], [])])
    nan = np.full(runner.kv.page_bytes // 2, np.nan, np.float16).tobytes()
    clean = runner.kv.export_page(bad.pages[0])
    runner.kv.import_page(bad.pages[0], nan)
    alone = runner.logits([8, 9])
    both = Batch.pack([([8], 3, bad.pages, [0]), ([8, 9], 0, [good.pages or 7][0:1], [0, 1])], True)
    logits = np.array(runner.program.run(both))
    assert np.isnan(logits[0]).all()
    assert same_bits(alone, logits[1:])
    assert runner.program.best is not None
    assert runner.program.best.tolist() == [-1, *alone.argmax(axis=1).tolist()]
    runner.kv.import_page(bad.pages[0], clean)


# -- results -------------------------------------------------------------------------------------


def test_the_best_token_is_found_beside_the_logits(open_runner: Open) -> None:
    runner = open_runner(fixture("gemma2"), n_pages=8)  # capped logits
    program, ids = runner.program, list(range(1, 40))
    for rows in (
        [(ids[:1], 0, [0], [0])],
        [(ids[:9], 0, [0], range(4, 9))],
        [(ids, 0, [0, 1], range(39))],
    ):
        logits = np.array(program.run(Batch.pack(rows, want_best=True)))
        assert program.best is not None
        assert program.best.tolist() == logits.argmax(axis=1).tolist()
    program.run(Batch.pack([(ids[:3], 0, [2], [2])]))
    assert program.best is None


def test_the_largest_logits_come_over_alone(open_runner: Open) -> None:
    """Of steps that are replayed and of one that is not, of capped logits, of a step that wants
    the best ids as well."""
    runner = open_runner(fixture("gemma2"), n_pages=16)
    program, ids = runner.program, np.random.default_rng(3).integers(1, 60, 70).tolist()
    several = [([i], 0, [3 + i], [0]) for i in range(3)]
    steps = [several, several, several, [(ids[:9], 0, [0], range(4, 9))]]
    down = downloads(device(runner))
    for rows in [*steps, [(ids, 0, [0, 1, 2], range(60, 70))]]:
        wanted = np.array(program.run(Batch.pack(rows)))
        assert program.top is None
        for best in (False, True):
            batch = Batch.pack(rows, want_best=best, want_top=5)
            down.clear()
            logits = program.run(batch)
            (nbytes,) = down
            assert nbytes <= 16 * program.n_top * len(wanted)
            found, expected = program.top, top_of(wanted, program.n_top)
            assert found is not None
            assert found.ids.tolist() == expected.ids.tolist()
            assert same_bits(found.logits, expected.logits)
            assert same_bits(np.array(logits), wanted)
            if best:
                assert program.best is not None
                assert program.best.tolist() == wanted.argmax(axis=1).tolist()
            else:
                assert program.best is None
    assert device(runner).n_replays > 0


def test_logits_stay_on_the_device_until_a_row_is_asked_for(open_runner: Open) -> None:
    runner = open_runner(fixture("llama"))
    ids = [5, 6, 7, 8]
    expected = runner.logits(ids)
    down = downloads(device(runner))
    rows = runner.program.run(Batch.pack([(ids, 0, [0], range(4))], want_best=True))
    assert down == [16]  # four ids
    part = rows[1:][1:3]
    assert len(part) == 2
    for _ in range(2):
        assert same_bits(part[0], expected[2])
        assert same_bits(part[1], expected[3])
    row = expected[0].nbytes
    assert down == [16, row, row]  # those alone, and once
    assert same_bits(np.array(rows[:2]), expected[:2])
    assert same_bits(part[1], expected[3])
    assert down == [16, row, row, 4 * row]
    late = runner.program.run(Batch.pack([([9], 4, [0], [0])], want_best=True))
    runner.program.run(Batch.pack([([9], 4, [0], [0])]))
    with pytest.raises(AssertionError, match="another step"):
        late[0]


def test_steps_without_outputs_and_empty_ones(open_runner: Open) -> None:
    ids, _ = golden("llama")
    runner = open_runner(fixture("llama"))
    expected = runner.logits(ids[:20])
    sequence = runner.begin()
    assert runner.step([(sequence, ids[:18], [])]).shape == (0, runner.config.n_vocab)
    assert runner.step([]).shape == (0, runner.config.n_vocab)
    assert same_bits(expected[18:], runner.step([(sequence, ids[18:20], [0, 1])]))


def test_hidden_states(open_runner: Open) -> None:
    """A program without a head, over the same weights and pages."""
    from edgerun import arch

    ids, _ = golden("qwen2")
    path = fixture("qwen2")
    states = []
    for backend in (CudaBackend(HostDevice()), ReferenceBackend()):
        runner = Runner(path, backend, n_ctx=64, kv_type="f16")
        family = arch.get("qwen2")
        specs = family.tensors(runner.config)
        raw = arch.raw_tensors("qwen2", specs, runner.file)
        weights = backend.upload_all({k: (t, specs[k].role) for k, t in raw.items()})
        forward = without_head(family.bind(weights, runner.config))
        program = backend.prepare(forward, runner.kv, 64)
        states.append(np.array(program.run(Batch.pack([(ids[:10], 0, [0], [0, 9])]))))
        backend.close()
    assert states[0].shape == (2, 32)
    np.testing.assert_allclose(states[0], states[1], atol=5e-3 * np.abs(states[1]).max())


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (([9999999], 0, [0], [0]), RequestError, "token id 9999999"),
        (([1], 0, [99], [0]), BackendError, "row 0"),
        (([1], 256, [0] * 9, [0]), BackendError, "past the context"),
    ],
)
def test_bad_batches_are_refused(
    open_runner: Open, row, error: type[Exception], message: str
) -> None:
    runner = open_runner(fixture("llama"), n_pages=4)
    with pytest.raises(error, match=message):
        runner.program.run(Batch.pack([row]))
    assert np.isfinite(runner.logits([1, 2, 3])).all()


# -- memory --------------------------------------------------------------------------------------


def test_memory_that_does_not_suffice(mixed: Path) -> None:
    small = CudaBackend(HostDevice(total=1 << 19))
    with pytest.raises(OutOfMemoryError):
        Runner(mixed, small)
    assert small.memory().free == small.memory().total  # nothing of the upload stayed
    small.close()
    enough = CudaBackend(HostDevice(total=8 << 20))
    with pytest.raises(OutOfMemoryError, match="KV cache of 10000 pages"):
        enough.new_kv([KVLayer(2, 32)], 10_000)
    enough.close()


def test_a_step_too_large_for_memory_leaves_the_rest_working(mixed: Path) -> None:
    device = HostDevice(total=16 << 20)
    runner = Runner(mixed, CudaBackend(device), n_ctx=1024, n_pages=40)
    expected = runner.logits([3, 4, 5])
    device.total = device.used + (1 << 20)
    with pytest.raises(OutOfMemoryError):
        runner.logits(list(range(3, 30)) * 20)
    runner.end(runner.begin())
    assert same_bits(expected, runner.logits([3, 4, 5]))
    runner.backend.close()


def test_what_it_cannot_do_is_refused(open_runner: Open, tmp_path: Path) -> None:
    runner = open_runner(fixture("llama"))
    with pytest.raises(BackendError, match="'f32' is not one of: f16, q8_0, q4r"):
        runner.backend.new_kv([KVLayer(2, 32)], 4, "f32")
    from helpers import gguf_build as gb

    path = gb.random_model(tmp_path / "wide.gguf", n_embd=1088, n_head=1, n_kv=1, n_layer=1)
    with pytest.raises(UnsupportedModelError, match="heads of 1088 dimensions"):
        open_runner(path)
    path = gb.random_model(tmp_path / "odd.gguf", n_embd=60, n_head=3, n_kv=1, n_layer=1)
    with pytest.raises(UnsupportedModelError, match=r"rows of 60 values: .* multiples of 8; use"):
        open_runner(path)


def test_facts() -> None:
    backend = CudaBackend(HostDevice(total=64 << 20))
    assert backend.describe() == {"device": "harness", "compute": "8.9"}
    assert backend.memory().total == 64 << 20
    assert backend.numerics().startswith("cuda 8.9 ")
    assert backend.numerics() != CudaBackend(HostDevice(capability=(7, 5))).numerics()
