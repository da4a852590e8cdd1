"""What CUDA kernels do to a token's row between products: tokenwise, glu, argmax, copy_page."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import simt
from helpers.cuda_act import Digits
from helpers.simt import KERNELS, ORDERS, Guarded
from numpy.typing import NDArray

from edgerun.backends import cuda_kernels
from edgerun.backends.reference import _best

F32 = NDArray[np.float32]
i32, i64, f32 = np.int32, np.int64, np.float32
INSTANCES = ("tokenwise<0>", "tokenwise<1>")


@pytest.fixture(params=ORDERS, ids=str)
def order(request: pytest.FixtureRequest) -> tuple[int, int]:
    found: tuple[int, int] = request.param
    return found


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def tokenwise(
    x: F32,
    *,
    acts: bool = False,
    y: F32 | None = None,
    gather: list[int] | None = None,
    wy: F32 | None = None,
    keep_sum: bool = False,
    scale: float = 1.0,
    w: F32 | None = None,
    order: tuple[int, int] = (0, 1),
    folder: Path = KERNELS,
) -> tuple[Guarded, F32]:
    """Launch it: (out, the sums). Rows lie further apart than they are wide."""
    k = x.shape[1]
    n = len(x) if gather is None else len(gather)
    name, threads = cuda_kernels.tokenwise(k, acts)
    wide = [None if a is None else _spread(a) for a in (x, y)]
    sums = Guarded((n, k + 4), np.float32)
    out = (
        Guarded((-(-n // 8) * -(-k // 64) * 1280,), np.uint8) if acts else Guarded((n, k + 8), f32)
    )
    module = simt.build(folder / "tokenwise.cu", INSTANCES)
    with simt.ordered(module, order):
        module.launch(
            *(name, n, threads, wide[0], i32(k + 4), wide[1], i32(k + 4 if y is not None else 0)),
            *(None if gather is None else np.array(gather, np.int32), wy, f32(1e-5)),
            *(sums.array if keep_sum else None, i32(k + 4), f32(scale), w, f32(1e-6)),
            *(i32(0 if w is None else len(w)), out.array, i32(k + 8), i32(k)),
        )
    out.check()
    sums.check()
    return out, sums.array[:, :k]


def _spread(x: F32) -> F32:
    wide = np.full((len(x), x.shape[1] + 4), np.nan, np.float32)
    wide[:, : x.shape[1]] = x
    return wide


def assert_digits(out: Guarded, x: F32) -> None:
    """All of what lies in memory but the bits of a NaN; nothing else was written."""
    found, wanted = (a.reshape(-1, 1280) for a in (out.array, Digits(x).packed()))
    for part in (slice(0, 512), slice(768, 1280)):
        np.testing.assert_array_equal(found[:, part], wanted[:, part])
    lines = [np.ascontiguousarray(a[:, 512:768]).view(np.float32) for a in (found, wanted)]
    np.testing.assert_array_equal(*lines)


def rms_norm(x: F32, w: F32, eps: float) -> NDArray[np.float64]:
    groups = x.astype(np.float64).reshape(len(x), -1, len(w))
    normed = groups / np.sqrt(np.square(groups).mean(-1, keepdims=True) + eps)
    found: NDArray[np.float64] = (normed * w).reshape(x.shape)
    return found


# Widths of one chunk, of more than a thread's one, and of many a thread.
@pytest.mark.parametrize("k", [8, 264, 576, 8200, 36864])
def test_rows_are_added_scaled_and_normed(
    k: int, order: tuple[int, int], rng: np.random.Generator
) -> None:
    x, y = rng.standard_normal((2, 3, k), np.float32)
    w, wy = rng.standard_normal((2, k), np.float32)
    out, sums = tokenwise(x, y=y, wy=wy, keep_sum=True, scale=0.5, w=w, order=order)
    summed = x + rms_norm(y, wy, 1e-5)
    np.testing.assert_allclose(sums, summed, atol=1e-5)
    np.testing.assert_allclose(out.array[:, :k], rms_norm(0.5 * sums, w, 1e-6), atol=2e-5)


def test_plain_sums_and_scales_are_exact(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 4, 96), np.float32)
    out, _ = tokenwise(x, y=y, scale=3.0)
    np.testing.assert_array_equal(out.array[:, :96], (x + y) * f32(3))


def test_sums_and_results_may_take_the_place_of_inputs(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 2, 520), np.float32)
    w, wy = rng.standard_normal((2, 520), np.float32)
    wanted, sums = tokenwise(x, y=y, wy=wy, keep_sum=True, w=w)
    module = simt.build(KERNELS / "tokenwise.cu", INSTANCES)
    threads = cuda_kernels.tokenwise(520, False)[1]
    for order in ORDERS:
        a, b = x.copy(), y.copy()
        with simt.ordered(module, order):
            module.launch(
                *("tokenwise<0>", 2, threads, a, i32(520), b, i32(520), None, wy, f32(1e-5)),
                *(a, i32(520), f32(1), w, f32(1e-6), i32(520), b, i32(520), i32(520)),
            )
        np.testing.assert_array_equal(a, sums)
        np.testing.assert_array_equal(b, wanted.array[:, :520])


def test_rows_are_gathered(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((2, 5, 64), np.float32)
    out, _ = tokenwise(x, y=y, gather=[4, 0, 4])
    np.testing.assert_array_equal(out.array[:, :64], (x + y)[[4, 0, 4]])


@pytest.mark.parametrize("group", [8, 64, 80])
def test_heads_are_normed_each(
    group: int, order: tuple[int, int], rng: np.random.Generator
) -> None:
    x = rng.standard_normal((2, 9 * group), np.float32)
    w = rng.standard_normal(group, np.float32)
    out, _ = tokenwise(x, w=w, order=order)
    np.testing.assert_allclose(out.array[:, : 9 * group], rms_norm(x, w, 1e-6), atol=1e-5)


@pytest.mark.parametrize("k", [32, 96, 576, 1024, 8224, 36864])
@pytest.mark.parametrize("n", [1, 9])
def test_rows_become_digits(
    k: int, n: int, order: tuple[int, int], rng: np.random.Generator
) -> None:
    x = rng.standard_normal((n, k), np.float32)
    x[:, ::37] *= 20  # blocks that tower over the rest get second digits
    x[0, :32] = 0
    out, _ = tokenwise(x, acts=True, order=order)
    assert (Digits(x).d2 != 0).any() or k < 256
    assert_digits(out, x)


def test_what_is_not_finite_poisons_its_block_alone(rng: np.random.Generator) -> None:
    x = rng.standard_normal((3, 256), np.float32)
    x[0, 40], x[1, 7], x[2, 255] = np.nan, np.inf, -np.inf
    out, _ = tokenwise(x, acts=True)
    assert_digits(out, x)
    assert np.isnan(Digits(x).d).sum() == 3


def test_a_norm_of_what_is_not_finite_is_not(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 64), np.float32)
    w = np.ones(64, np.float32)
    clean, _ = tokenwise(x, w=w, acts=True)
    x[0, 3] = np.nan
    out, _ = tokenwise(x, w=w, acts=True)
    spoilt, sound = (np.ascontiguousarray(a.array[512:768]).view(np.float32) for a in (out, clean))
    changed = ~((spoilt == sound) | (np.isnan(spoilt) & np.isnan(sound)))
    assert changed.sum() == 2 * 3  # d, x and x1 of the token's two blocks
    assert np.isnan(spoilt[changed]).all()
    assert not out.array[:64].any()
    np.testing.assert_array_equal(out.array[64:128], clean.array[64:128])


def test_norm_and_digits_are_those_of_the_normed_row(rng: np.random.Generator) -> None:
    x = rng.standard_normal((2, 320), np.float32)
    w = rng.standard_normal(320, np.float32)
    floats, _ = tokenwise(x, w=w)
    out, _ = tokenwise(x, w=w, acts=True)
    # The same code norms both, but digits count whole groups of 64.
    assert_digits(out, floats.array[:, :320].copy())


@pytest.mark.parametrize("act", ["silu", "gelu"])
def test_glu(act: str, rng: np.random.Generator) -> None:
    check_units(act, rng, KERNELS)


def check_units(act: str, rng: np.random.Generator, folder: Path) -> None:
    gate = np.concatenate([rng.standard_normal(1000) * 4, [-1e30, -200, 0, 200, 1e30, np.nan]])
    gate = gate.astype(np.float32)
    up = rng.standard_normal(len(gate), np.float32)
    out = Guarded(len(gate), np.float32)
    module = simt.build(folder / "glu.cu")
    code = i32({"silu": 1, "gelu": 2}[act])
    module.launch("glu", 3, 64, gate, up, out.array, i64(len(gate)), code)
    out.check()
    x = gate.astype(np.float64)
    with np.errstate(all="ignore"):
        inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
        wanted = x / (1 + np.exp(-x)) if act == "silu" else x / 2 * (1 + np.tanh(inner))
    np.testing.assert_allclose(out.array, wanted * up, rtol=2e-6, atol=2e-6)


def best_of(
    logits: F32, cap: float = 0.0, order: tuple[int, int] = (0, 1), folder: Path = KERNELS
) -> list[int]:
    """Launch both kernels; ``logits`` are capped in place."""
    module = simt.build(folder / "argmax.cu")
    n, vocab = logits.shape
    chunks = cuda_kernels.argmax_chunks(vocab)
    parts, best = Guarded((n, chunks, 2), np.float32), Guarded(n, np.int32)
    with simt.ordered(module, order):
        args: tuple[Any, ...] = (logits, i32(vocab), i32(vocab), f32(cap), parts.array)
        module.launch("argmax_part", (chunks, n), 256, *args)
        module.launch("argmax", n, 256, parts.array, i32(chunks), best.array)
    parts.check()
    best.check()
    return [int(b) for b in best.array]


def _rows_of_logits(rng: np.random.Generator, vocab: int) -> Iterator[F32]:
    row = rng.standard_normal(vocab).astype(np.float32)
    yield row
    yield np.zeros_like(row)
    yield np.where(rng.random(vocab) < 0.5, f32(-0.0), f32(0.0))  # equal, so the lowest counts
    yield np.full_like(row, -3e38)
    ties = row.copy()
    ties[[vocab // 3, vocab - 1]] = 9
    yield ties
    for bad, at in itertools.product((np.nan, np.inf, -np.inf), (0, vocab - 1)):
        spoilt = row.copy()
        spoilt[at] = bad
        yield spoilt


@pytest.mark.parametrize("vocab", [1, 257, 1025, 4099])
def test_argmax(vocab: int, order: tuple[int, int], rng: np.random.Generator) -> None:
    logits = np.stack(list(_rows_of_logits(rng, vocab)))
    wanted = [int(b) for b in _best(logits)]
    kept = logits.copy()
    assert best_of(logits, order=order) == wanted
    np.testing.assert_array_equal(logits, kept)


def test_argmax_of_many(rng: np.random.Generator) -> None:
    """Chunks that take a block more than one turn; the last of each counts as well."""
    logits = rng.standard_normal((3, 70_001)).astype(np.float32)
    logits[0, [1093, 1094, 70_000]] = 9.0
    logits[1, 70_000] = 9.0
    logits[2, 1093] = np.nan
    assert best_of(logits) == [1093, 70_000, -1]


def test_logits_are_capped_and_never_hidden(rng: np.random.Generator) -> None:
    logits = (rng.standard_normal((3, 700)) * 60).astype(np.float32)
    logits[1, 5], logits[2, 6] = np.inf, np.nan
    wanted = 30 * np.tanh(logits.astype(np.float64) / 30)
    best = best_of(logits, cap=30.0)
    np.testing.assert_allclose(logits[0], wanted[0], rtol=1e-6)
    assert best == [int(logits[0].argmax()), -1, -1]
    assert np.isinf(logits[1, 5])
    assert np.isnan(logits[2, 6])


def test_a_page_is_copied() -> None:
    check_copies(KERNELS)


def check_copies(folder: Path) -> None:
    pool = Guarded((4, 1040), np.uint8)
    pool.array[:] = np.arange(pool.array.size, dtype=np.uint64).reshape(4, 1040).astype(np.uint8)
    wanted = pool.array.copy()
    wanted[1] = wanted[3]
    module = simt.build(folder / "copy_page.cu")
    module.launch("copy_page", 2, 32, pool.array, i64(1040), i32(3), i32(1))
    pool.check()
    np.testing.assert_array_equal(pool.array, wanted)


def test_heads_are_turned() -> None:
    check_turns(KERNELS)


def check_turns(folder: Path) -> None:
    """Against the matrix, over the largest power of two that divides a head."""
    module = simt.build(folder / "rotate_heads.cu")
    for dim in (1, 20, 64, 80, 96, 512):
        x = np.random.default_rng(dim).standard_normal((2, 3, dim), np.float32)
        n = dim & -dim
        turn = np.ones((1, 1))
        while len(turn) < n:
            turn = np.block([[turn, turn], [turn, -turn]])
        wanted = x.reshape(2, 3, -1, n).astype(np.float64) @ turn / np.sqrt(n)
        for order in ORDERS:
            found = Guarded(x.shape, np.float32)
            found.array[:] = x
            with simt.ordered(module, order):
                module.launch("rotate_heads", (2, 3), -(-dim // 32) * 32, found.array, i32(dim))
            found.check()
            np.testing.assert_allclose(found.array, wanted.reshape(x.shape), atol=1e-5)
