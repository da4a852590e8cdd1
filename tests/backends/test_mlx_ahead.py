"""Steps of the MLX backend that are started before the ids they begin with are known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.runner import Runner

mx = pytest.importorskip("mlx.core", reason="MLX is not installed")

from edgerun.backends.base import Batch, KVLayer, Started  # noqa: E402
from edgerun.backends.mlx import MLXBackend  # noqa: E402
from edgerun.backends.mlx_kv import MLXKVPool  # noqa: E402
from edgerun.backends.mlx_started import StartedStep  # noqa: E402
from edgerun.errors import BackendError  # noqa: E402

PROMPTS = [[5, 6, 7], [9, 8, 11, 12, 3], [40]]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("mlx") / "random.gguf"
    return gb.random_model(file, seed=3, n_layer=9, n_ctx=1024)


def rig(path: Path, n_pages: int = 8, exact: bool = True) -> Runner:
    """Row i's pages are 2 i and 2 i + 1; the prompts are computed."""
    runner = Runner(path, MLXBackend(exact), n_ctx=64, n_pages=n_pages)
    rows = [(p, 0, [2 * i, 2 * i + 1], []) for i, p in enumerate(PROMPTS)]
    runner.program.run(Batch.pack(rows))
    return runner


def batch(tokens: list[int], step: int) -> Batch:
    rows = [([0], len(p) + step, [2 * i, 2 * i + 1], [0]) for i, p in enumerate(PROMPTS)]
    packed = Batch.pack(rows[: len(tokens)], want_best=True)
    packed.tokens[:] = tokens
    return packed


NEXT = [-1, -2, -3]


def one_by_one(runner: Runner, n: int) -> tuple[list[list[int]], list[np.ndarray]]:
    ids, logits, tokens = [], [], [1, 2, 3]
    for step in range(n):
        logits.append(np.array(runner.program.run(batch(tokens, step))))
        assert runner.program.best is not None
        tokens = runner.program.best.tolist()
        ids.append(tokens)
    return ids, logits


def started(runner: Runner, n: int) -> tuple[list[list[int]], list[np.ndarray]]:
    ids, logits = [], []
    under_way = runner.program.start(batch([1, 2, 3], 0))
    for step in range(1, n + 1):
        behind = runner.program.start(batch(NEXT, step), under_way)  # the last is dropped
        logits.append(np.array(under_way.wait()))
        ids.append(under_way.best.tolist())
        under_way = behind
    return ids, logits


@pytest.mark.parametrize("exact", [False, True], ids=["fast", "exact"])
def test_the_same_ids_and_bits(path: Path, exact: bool) -> None:
    wanted, theirs = one_by_one(rig(path, exact=exact), 12)
    runner = rig(path, exact=exact)
    assert runner.program.ahead
    found, ours = started(runner, 12)
    assert found == wanted
    assert len({tuple(x) for x in wanted}) > 6  # not one id over and over
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n_layers", [1, 2])
def test_the_pool_is_not_copied(n_layers: int) -> None:
    """While a step is in flight as a whole and the next one is handed over. On a CPU MLX waits
    behind every ten operations, so these steps have few, and slow ones."""
    work = mx.zeros((400, 400))
    pool = MLXBackend().new_kv([KVLayer(1, 64)] * n_layers, 4000)
    one = pool.keys[0].parts[0].nbytes
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    step = None
    for i in range(4):
        behind = _slow_step(pool, work, i, step)
        if step is not None:
            step.wait()
            assert step.best.tolist() == [i - 1]
        step = behind
    pool.copy_page(0, 7)
    assert mx.get_peak_memory() - before < one / 2


def _slow_step(pool: MLXKVPool, work: mx.array, i: int, before: StartedStep | None) -> StartedStep:
    attended = []
    x = mx.array([[[float(i)]]]) if before is None else before.lazy_best[:, None, None] + 1
    for keys in pool.keys:
        keys.parts[0][mx.array([i])] = x.astype(mx.float16)
        x = keys.parts[0][mx.array([i])][:, :, :1] + (work @ work)[:1, :1, None]
        attended.append(x)
    step = StartedStep(attended, x.reshape(1), x.reshape(1, 1), before, pool)
    pool.started = step
    step.give_half()
    return step


def test_whatever_comes_between_keeps_its_order(path: Path) -> None:
    """A run, a page that is copied, exported, restored, a step behind one that was waited for long
    ago: all see what was started before them."""
    wanted, _ = one_by_one(rig(path), 6)
    runner = rig(path)
    first = runner.program.start(batch([1, 2, 3], 0))
    second = runner.program.start(batch(NEXT, 1), first)
    runner.kv.import_page(6, runner.kv.export_page(0))
    assert (first.wait(), first.best.tolist())[1] == wanted[0]
    third = runner.program.start(batch(NEXT, 2), second)
    runner.kv.copy_page(1, 7)
    runner.program.run(Batch.pack([([4, 5], 0, [7], [1])]))
    again = runner.program.start(batch([-1, *wanted[1][1:]], 2), second)
    assert (third.wait(), third.best.tolist())[1] == wanted[2]
    assert (second.wait(), second.best.tolist())[1] == wanted[1]
    assert (again.wait(), again.best.tolist())[1] == wanted[2]
    fourth = runner.program.start(batch(NEXT, 3), again)
    assert (fourth.wait(), fourth.best.tolist())[1] == wanted[3]


def test_rows_that_are_not_numbers_harm_nobody(path: Path) -> None:
    wanted, _ = one_by_one(rig(path), 3)
    runner = rig(path)
    page = np.frombuffer(runner.kv.export_page(2), np.uint8)
    runner.kv.import_page(2, np.full_like(page, 0x7F).tobytes())  # NaN as float16
    found, _ = started(runner, 3)
    assert [x[0] for x in found] == [x[0] for x in wanted]
    assert [x[1] for x in found] == [-1] * 3
    assert [x[2] for x in found] == [x[2] for x in wanted]


def test_a_bad_batch_leaves_what_is_under_way(path: Path) -> None:
    wanted, _ = one_by_one(rig(path), 1)
    runner = rig(path)
    step = runner.program.start(batch([1, 2, 3], 0))
    with pytest.raises(BackendError, match="past the context"):
        runner.program.start(batch(NEXT, 62), step)
    step.wait()
    assert step.best.tolist() == wanted[0]


def test_a_device_that_fails_says_so_to_all(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = rig(path)
    step: Started = runner.program.start(batch([1, 2, 3], 0))

    def fail(*args: object) -> None:
        raise RuntimeError("the device is gone")

    behind = runner.program.start(batch(NEXT, 1), step)
    with monkeypatch.context() as m:
        m.setattr("edgerun.backends.mlx_started.mx.async_eval", fail)
        with pytest.raises(BackendError, match="the device is gone"):
            behind.wait()
    for call in (
        lambda: runner.program.run(batch([1, 2, 3], 0)),
        lambda: runner.program.start(batch(NEXT, 2), behind),
        lambda: runner.kv.copy_page(0, 1),
        lambda: runner.kv.export_page(0),
    ):
        with pytest.raises(BackendError, match="the KV cache was lost"):
            call()
