"""One model on two backends: any split gives what its parts promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers import mixed_model, scenarios
from helpers.host_device import HostDevice
from helpers.leading import top_of
from helpers.paths import FIXTURES
from helpers.runner import Alone, Runner, among_others, arch_fixtures, check_pages, same_bits

from edgerun import arch
from edgerun.backends.base import (
    PAGE_SIZE,
    Batch,
    Forward,
    KVPool,
    Ops,
    Program,
    RawTensor,
    Role,
    Tensor,
    without_head,
)
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.reference import ReferenceBackend
from edgerun.backends.specs import layer_of
from edgerun.backends.split import SplitBackend, SplitKVPool
from edgerun.engine import Engine, Limits
from edgerun.engine.swap import SwapTier
from edgerun.errors import BackendError, OutOfMemoryError, RequestError, UnsupportedModelError

ARCHS = sorted(p.stem for p in (FIXTURES / "arch").glob("*.npz"))
IDS = np.random.default_rng(0).integers(3, 30, 45).tolist()


def fixture(name: str) -> Path:
    return FIXTURES / "arch" / f"{name}.gguf"


def n_layers(path: Path) -> int:
    return Runner(path, ReferenceBackend(), n_pages=1).config.n_layers


@pytest.fixture
def split() -> Iterator[SplitBackend]:
    """One of two layers on either."""
    backend = SplitBackend(CPUBackend(threads=2), CudaBackend(HostDevice()), 1, 2)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_model.write(tmp_path_factory.mktemp("split") / "mixed.gguf")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("split") / "random.gguf"
    return gb.random_model(file, seed=3, n_layer=2, n_ctx=1024)


# -- what is computed ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHS)
def test_a_split_computes_what_the_whole_does(name: str) -> None:
    """The same numpy on both sides: to the bit, wherever it is cut."""
    ids = np.load(FIXTURES / "arch" / f"{name}.npz")["ids"].tolist()
    path, layers = fixture(name), n_layers(fixture(name))
    whole = Runner(path, ReferenceBackend(), n_ctx=256).logits(ids, chunk=7)
    for n in range(1, layers):
        backend = SplitBackend(ReferenceBackend(), ReferenceBackend(), n, layers)
        runner = Runner(path, backend, n_ctx=256)
        assert same_bits(runner.logits(ids, chunk=7), whole), n
        assert runner.kv.front.page_bytes * (layers - n) == runner.kv.back.page_bytes * n


@pytest.mark.parametrize("name", arch_fixtures(CudaBackend))
def test_cpu_and_gpu_together(name: str) -> None:
    data = np.load(FIXTURES / "arch" / f"{name}.npz")
    ids, expected = data["ids"].tolist(), data["logits"]
    layers = n_layers(fixture(name))
    backend = SplitBackend(CPUBackend(threads=2), CudaBackend(HostDevice()), layers - 1, layers)
    found = Runner(fixture(name), backend, n_ctx=256).logits(ids, chunk=9)
    backend.close()
    np.testing.assert_allclose(found, expected, atol=4e-3 * np.abs(expected).max(), rtol=0)


def test_rounding_is_that_of_the_parts(split: SplitBackend, mixed: Path) -> None:
    expected = Runner(mixed, ReferenceBackend(), n_ctx=256, kv_type="f16").logits(IDS)
    cpu = CPUBackend(threads=2)
    on_cpu = Runner(mixed, cpu, n_ctx=256).logits(IDS)
    cpu.close()
    found = Runner(mixed, split, n_ctx=256).logits(IDS, chunk=11)
    error, cpu_error = (np.sqrt(np.mean((x - expected) ** 2)) for x in (found, on_cpu))
    assert error < 1.2 * cpu_error


def test_bits_do_not_depend_on_the_batch(split: SplitBackend, mixed: Path) -> None:
    assert split.batch_invariant
    runner = Runner(mixed, split, n_ctx=256, n_pages=40)
    ids = np.random.default_rng(1).integers(0, runner.config.n_vocab, 70).tolist()
    whole = runner.logits(ids)
    for chunk in (1, 5, 66):
        assert same_bits(whole[:9], runner.logits(ids[:9], chunk=chunk))
    assert same_bits(whole[:40], among_others(runner, ids[:40], 4, 10, 2))


def test_states_without_a_head(split: SplitBackend, path: Path) -> None:
    states = []
    for backend in (split, ReferenceBackend()):
        runner = Runner(path, backend, n_ctx=64, kv_type="f16")
        family = arch.get("llama")
        specs = family.tensors(runner.config)
        raw = arch.raw_tensors("llama", specs, runner.file)
        weights = backend.upload_all({k: (t, specs[k].role) for k, t in raw.items()})
        forward = without_head(family.bind(weights, runner.config))
        program = backend.prepare(forward, runner.kv, 64)
        states.append(np.array(program.run(Batch.pack([(IDS[:10], 0, [0], [0, 9])]))))
    assert states[0].shape == states[1].shape == (2, runner.config.n_embd)
    np.testing.assert_allclose(states[0], states[1], atol=5e-3 * np.abs(states[1]).max())


def test_the_largest_logits_come_from_the_device(split: SplitBackend, path: Path) -> None:
    runner = Runner(path, split, n_ctx=64, n_pages=4)
    asked = Batch.pack([(IDS[:9], 0, [0], range(4, 9))], want_top=5)
    wanted = top_of(np.array(runner.program.run(asked)), runner.program.n_top)
    assert runner.program.top is not None
    assert runner.program.top.ids.tolist() == wanted.ids.tolist()
    assert same_bits(runner.program.top.logits, wanted.logits)
    assert runner.program.best is None
    runner.program.run(Batch.pack([(IDS[:3], 0, [2], [2])]))
    assert runner.program.top is None


def test_the_best_ids_come_from_the_device(split: SplitBackend, path: Path) -> None:
    runner = Runner(path, split, n_ctx=64, n_pages=4)
    rows = runner.program.run(Batch.pack([(IDS[:9], 0, [0], range(4, 9))], want_best=True))
    assert runner.program.best is not None
    assert runner.program.best.tolist() == np.array(rows).argmax(axis=1).tolist()
    runner.program.run(Batch.pack([(IDS[:3], 0, [2], [2])]))
    assert runner.program.best is None
    assert runner.program.ahead == 0


# -- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_pages_are_both_parts(split: SplitBackend, path: Path, kv_type: str) -> None:
    runner = Runner(path, split, n_pages=8, kv_type=kv_type)
    assert isinstance(runner.kv, SplitKVPool)
    assert runner.kv.page_bytes == runner.kv.front.page_bytes + runner.kv.back.page_bytes
    check_pages(runner)
    with pytest.raises(ValueError, match="bytes, not 1"):
        runner.kv.import_page(1, b"x")


def test_pages_where_one_part_is_wrong_say_something_else(split: SplitBackend, path: Path) -> None:
    """Neither part may be left out of a copy."""
    runner = Runner(path, split, n_pages=8)
    runner.program.run(Batch.pack([(IDS[:32], 0, [0], [])]))
    page = runner.kv.export_page(0)
    at = runner.kv.front.page_bytes
    last = Batch.pack([(IDS[32:33], 32, [0, 1], [0])])
    expected = np.array(runner.program.run(last))
    for wrong in (bytes(at) + page[at:], page[:at] + bytes(len(page) - at)):
        runner.kv.import_page(0, wrong)
        assert not same_bits(expected, np.array(runner.program.run(last)))
    runner.kv.import_page(0, page)
    assert same_bits(expected, np.array(runner.program.run(last)))


def test_every_request_gets_what_it_gets_alone(split: SplitBackend, path: Path) -> None:
    """Arrivals, cancels, forks, drafts, prefix reuse, pools down to starvation."""
    cached, drafts = scenarios.run_on_backend(path, split, range(4), 64, 70)
    assert cached > 0
    assert drafts > 0


def test_swapped_pages_change_nothing(split: SplitBackend, path: Path) -> None:
    r = np.random.default_rng(5)
    asks = [
        scenarios.Ask(
            3 * i, r.integers(1, 64, 50 + 9 * i).tolist(), 40, i,
            scenarios.PARAMS[0], 1, i % 3, None, None, None, 0, 0,
        )
        for i in range(4)
    ]  # fmt: skip
    s = scenarios.Scenario(asks, Limits(4, 64, 16, 4, None, 5), PAGE_SIZE, 6, 0.0)
    runner = Runner(path, split, n_ctx=160, n_pages=6)
    scenarios.expect(s, Alone(Runner(path, split, n_ctx=160, n_pages=5)), 64)
    space = runner.kv.swap_space()
    assert space is not None
    swap = SwapTier(space, lambda n_slots: 100, runner.kv.page_bytes)
    e = Engine(
        runner.program, 6, PAGE_SIZE, s.limits, copy_page=runner.kv.copy_page, swap=swap
    )  # fmt: skip
    scenarios.play(s, e)
    scenarios.judge(s)
    assert swap.count().pages_in > 1
    assert space.copy_seconds > 0


def test_host_memory_alone_needs_no_swap_space(path: Path) -> None:
    backend = SplitBackend(ReferenceBackend(), ReferenceBackend(), 1, 2)
    assert Runner(path, backend, n_pages=2).kv.swap_space() is None


# -- uploads and what is refused -----------------------------------------------------------------


def test_a_tensor_used_by_both_is_told_of_once(path: Path) -> None:
    tied = gb.random_model(path.with_name("tied.gguf"), n_layer=2, tied=True)
    backend = SplitBackend(ReferenceBackend(), ReferenceBackend(), 1, 2)
    runner = Runner(tied, backend, n_pages=2)
    family = arch.get("llama")
    specs = family.tensors(runner.config)
    raw = arch.raw_tensors("llama", specs, runner.file)
    told: list[str] = []
    backend.upload_all(
        {k: (t, specs[k].role) for k, t in raw.items()}, lambda t, a, b: told.append(t.key)
    )
    assert sorted(told) == sorted({t.key for t in raw.values()})


@pytest.mark.parametrize("n", [-1, 0, 2, 3])
def test_parts_that_are_none(n: int) -> None:
    with pytest.raises(BackendError, match=f"{n} of 2 layers"):
        SplitBackend(ReferenceBackend(), ReferenceBackend(), n, 2)


def test_no_room_for_the_second_pool(path: Path) -> None:
    """Nothing of the first one stays."""
    device = HostDevice(total=8 << 20)
    backend = SplitBackend(Stingy(), CudaBackend(device), 1, 2)
    before = device.used
    layers = Runner(path, ReferenceBackend(), n_pages=1)
    with pytest.raises(OutOfMemoryError, match="no room here"):
        backend.new_kv(arch.get("llama").kv_layers(layers.config), 4)
    assert device.used == before
    backend.close()


class Stingy(ReferenceBackend):
    def new_kv(self, layers: Sequence[object], n_pages: int, kv_type: str | None = None) -> object:
        raise OutOfMemoryError("no room here")


def test_layers_that_hang_together_are_not_split() -> None:
    backend = SplitBackend(ReferenceBackend(), ReferenceBackend(), 1, 2)
    pool = SplitKVPool(*(ReferenceBackend().new_kv([], 1) for _ in (0, 1)))

    def two(ops: Ops) -> Tensor:
        x = ops.scale(ops.scale(1.0, 2.0), 3.0)
        y = ops.scale(x, 4.0)
        return ops.logits(ops.add(ops.outputs(x), ops.outputs(y)), None)

    with pytest.raises(UnsupportedModelError, match="2 values go from one layer"):
        backend.prepare(two, pool, 16)
    assert [layer_of(n) for n in ("blk.12.ffn_up", "output", "xblk.3.")] == [12, None, None]


def test_a_program_that_begins_with_states_wants_them(split: SplitBackend, path: Path) -> None:
    runner = Runner(path, split, n_pages=2)
    back = runner.program._back
    with pytest.raises(BackendError, match="begins with states of 64 values"):
        back.run(Batch.pack([([1], 0, [0], [0])]))


def test_bad_batches_are_refused(split: SplitBackend, path: Path) -> None:
    runner = Runner(path, split, n_ctx=64, n_pages=4)
    with pytest.raises((RequestError, BackendError), match="token id"):
        runner.program.run(Batch.pack([([9999999], 0, [0], [0])]))
    with pytest.raises(BackendError):
        runner.program.run(Batch.pack([([1], 0, [99], [0])]))
    assert np.isfinite(runner.logits([1, 2, 3])).all()


def test_weights_that_come_in_one_object(split: SplitBackend) -> None:
    """As experts do: they go where their layer does, and both ops see their own handles."""

    @dataclass(frozen=True)
    class Several:
        first: object
        second: object | None

    seen: list[object] = []

    class Told(ReferenceBackend):
        def upload(self, tensor: RawTensor, role: Role) -> object:
            return tensor.key

        def prepare(self, forward: Forward, kv: KVPool, n_ctx: int) -> Program:
            forward(cast(Ops, self))
            return ReferenceBackend().prepare(lambda ops: np.zeros((1, 1)), kv, n_ctx)

        def __getattr__(self, name: str) -> object:
            return lambda *args, **kwargs: seen.append((name, args[1:])) or "value"

    backend = SplitBackend(Told(), Told(), 1, 2)
    raw = RawTensor("a", 0, (1, 1), np.zeros((1, 4), np.uint8))
    names = ["token_embd", "blk.0.up", "blk.1.up", "blk.1.down"]
    keys = {n: (dataclasses.replace(raw, key=n), "matrix") for n in names}
    keys["token_embd"] = (keys["token_embd"][0], "embedding")  # type: ignore[assignment]
    w = backend.upload_all(keys)  # type: ignore[arg-type]

    def forward(ops: Any) -> Tensor:
        x = ops.embed(w["token_embd"])
        x = ops.moe(x, Several(w["blk.0.up"], None))
        return ops.hidden(ops.moe(ops.outputs(x), Several(w["blk.1.up"], w["blk.1.down"])))

    pool = ReferenceBackend().new_kv([], 1)
    backend.prepare(forward, SplitKVPool(pool, pool), 16)
    moe = [args for name, args in seen if name == "moe"]
    assert moe == [
        (Several("blk.0.up", None),), (Several("blk.1.up", "blk.1.down"),)
    ]  # fmt: skip
