"""The SIMT engine itself: barriers, warp operations, copies and matrix products mean what they mean
on a GPU, and every planted fault is found by the check that is there for it."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import simt

PLANTED = simt.ENGINE / "planted.cu"


def module(arch: int = 890) -> simt.Module:
    return simt.build(PLANTED, arch=arch, optimize="-O0")


def run(kernel: str, threads: int = 64, blocks: int = 1, shared: int = 0) -> np.ndarray:
    x = np.arange(128, dtype=np.float32)
    module().launch(kernel, blocks, threads, x, shared=shared)
    return x


@pytest.fixture(autouse=True, params=simt.ORDERS, ids=["rising", "falling", "random1", "random2"])
def turns(request: pytest.FixtureRequest) -> object:
    with simt.ordered(module(), request.param):
        yield request.param


def test_sound_kernels_are_right_in_every_order() -> None:
    assert (run("reverse")[:64] == np.arange(64)[::-1]).all()
    assert (
        run("warp_sum", 128).reshape(4, 32) == np.arange(128).reshape(4, 32).sum(1)[:, None]
    ).all()
    assert (run("copy_waits", 32)[:32] == 127 - np.arange(32)).all()
    assert (run("dynamic", shared=256)[:64] == np.arange(64) ^ 1).all()
    count = np.zeros(1, np.int32)
    module().launch("count_all", (3, 2), (40, 2), count)
    assert count[0] == 480
    lanes = np.zeros(32, np.int32)
    module().launch("half_warps", 1, 32, lanes)
    low, high = np.arange(16) ^ 1, np.arange(16, 32)
    high = np.where(high < 30, high + 2, high)
    assert (lanes - 100 == np.concatenate([low, high])).all()


def test_a_missing_barrier_gives_wrong_numbers() -> None:
    assert not (run("no_barrier")[:64] == np.arange(64)[::-1]).all()


def test_overwriting_too_early_is_found_by_some_order() -> None:
    want = (np.arange(64) + 4).astype(np.float32)
    wrong = 0
    for seed in range(1, 9):
        module().order(2, seed)
        wrong += not (run("no_second_barrier")[:64] == want).all()
    assert wrong


def test_what_depends_on_the_order_of_blocks_differs() -> None:
    last = {run("race_of_blocks", 2, 5)[0]}
    for order in simt.ORDERS:
        module().order(*order)
        last.add(run("race_of_blocks", 2, 5)[0])
    assert len(last) > 1


def test_shared_memory_starts_as_nan() -> None:
    out = run("uninitialized", 32)
    assert np.isnan(out[31])
    assert (out[:31] == np.arange(31)).all()


def test_a_copy_without_its_wait_leaves_poison() -> None:
    assert np.isnan(run("copy_does_not_wait", 32)[:32]).all()


@pytest.mark.parametrize(
    ("kernel", "threads", "says"),
    [
        ("barrier_in_branch", 32, "different barriers"),
        ("barrier_of_some", 32, "deadlock"),
        ("shuffle_of_some", 32, "(ended or do not exist|deadlock)"),
        ("shuffle_of_ended", 32, "(ended or do not exist|deadlock)"),
        ("misaligned", 1, "a load of 16 bytes"),
    ],
)
def test_what_a_gpu_forbids_is_an_error(kernel: str, threads: int, says: str) -> None:
    with pytest.raises(simt.SimtError, match=says):
        run(kernel, threads)
    assert (run("reverse")[:64] == np.arange(64)[::-1]).all()  # the next launch is sound


def test_writes_past_an_array_are_found() -> None:
    with pytest.raises(simt.SimtError, match="past its dynamic shared memory"):
        run("past_dynamic", shared=256)
    x = simt.Guarded(64, np.float32, 0)
    module().launch("past_global", 1, 64, x.array)
    with pytest.raises(AssertionError, match="past the array"):
        x.check()


def test_launches_are_checked() -> None:
    x = np.zeros(64, np.float32)
    for args in ((x, x), ()):
        with pytest.raises(TypeError, match="takes 1 arguments"):
            module().launch("reverse", 1, 32, *args)
    with pytest.raises(TypeError, match="4 bytes, not 8"):
        module().launch("reverse", 1, 32, np.float32(1))
    with pytest.raises(KeyError):
        module().launch("absent", 1, 32, x)
    for grid, block, shared in ((0, 32, 0), (1, 1025, 0), (1, 32, 49153), ((1, 65536), 32, 0)):
        with pytest.raises(simt.SimtError):
            module().launch("reverse", grid, block, x, shared=shared)


@pytest.mark.parametrize("arch", [890, 750])
def test_matrix_products_against_numpy(arch: int) -> None:
    """Fragments laid out from the PTX manual's words: row g, columns 4t.. of 16, halves after one
    another."""
    rng = np.random.default_rng(arch)
    a = rng.integers(-128, 128, (16, 32))
    b = rng.integers(-128, 128, (8, 32))
    g, t = np.divmod(np.arange(32), 4)
    k = 4 * t[:, None] + np.arange(4)
    words_a = [a[g[:, None] + 8 * (i & 1), (i >> 1) * 16 + k] for i in range(4)]
    words_b = [b[g[:, None], i * 16 + k] for i in range(2)]
    words = [np.ascontiguousarray(np.stack(w, 1).astype(np.int8)) for w in (words_a, words_b)]
    d = np.zeros((32, 4), np.int32)
    module(arch).launch("one_imma_s8", 1, 32, *words, d)
    rows = np.stack([g, g, g + 8, g + 8], 1)
    cols = np.stack([2 * t, 2 * t + 1] * 2, 1)
    assert (d == (a @ b.T)[rows, cols] + np.arange(1, 5)).all()
    module(arch).launch("one_imma_u8", 1, 32, *words, d)
    assert (d == ((a[:, :16] & 255) @ b[:, :16].T)[rows, cols]).all()
    x, y = (rng.standard_normal((n, 16)).astype(np.float16) for n in (16, 8))
    out = np.zeros((16, 8), np.float32)
    module(arch).launch("one_mma_f16", 1, 32, x, y, out)
    assert np.abs(out - x.astype(np.float64) @ y.astype(np.float64).T).max() < 1e-5
