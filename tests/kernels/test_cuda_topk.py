"""The largest logits of a row on the CUDA kernels, against numpy: which, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers import simt
from helpers.leading import top_of
from helpers.simt import KERNELS, ORDERS, Guarded
from numpy.typing import NDArray

from edgerun.backends.cuda_kernels import TOP, topk_chunks

F32, I32 = NDArray[np.float32], NDArray[np.int32]
i32, f32 = np.int32, np.float32


def leading(
    logits: F32, cap: float = 0.0, order: tuple[int, int] = (0, 1), folder: Path = KERNELS
) -> tuple[I32, F32]:
    """Launch both kernels; ``logits`` are capped in place. Ids and values, [rows, TOP]."""
    module = simt.build(folder / "topk.cu")
    n, vocab = logits.shape
    chunks = topk_chunks(vocab)
    parts = Guarded((n, chunks, TOP, 2), np.int32)
    ids, values = Guarded((n, TOP), np.int32), Guarded((n, TOP), np.float32)
    with simt.ordered(module, order):
        wide = i32(vocab)
        module.launch("topk_part", (chunks, n), 256, logits, wide, wide, f32(cap), parts.array)
        ends = (logits, wide, ids.array, values.array)
        module.launch("topk", n, 256, parts.array, i32(chunks), *ends)
    for memory in (parts, ids, values):
        memory.check()
    return ids.array, values.array


def check(logits: F32, order: tuple[int, int] = (0, 1), folder: Path = KERNELS) -> None:
    """Ids, order and the values' bits, and that the logits stay."""
    kept = logits.copy()
    found, wanted = leading(logits, order=order, folder=folder), top_of(logits, TOP)
    np.testing.assert_array_equal(found[0], wanted[0])
    np.testing.assert_array_equal(found[1].view(np.int32), wanted[1].view(np.int32))
    np.testing.assert_array_equal(logits.view(np.int32), kept.view(np.int32))


def rows(rng: np.random.Generator, vocab: int) -> Iterator[F32]:
    """Logits as they come, ties at every place, and what no model should say."""
    row = (rng.standard_normal(vocab) * 3).astype(np.float32)
    yield row
    yield np.sort(row)  # all of the largest in one chunk
    yield np.round(row)  # ties across the last place
    yield np.where(rng.random(vocab) < 0.5, f32(-0.0), f32(0.0))  # equal, so the lowest count
    yield np.full_like(row, -3.4028235e38)
    yield (row * 1e-42).astype(np.float32)  # too small to be normal, and in order
    few = np.full_like(row, -np.inf)
    few[:: vocab // 50 + 1] = row[:: vocab // 50 + 1]
    yield few
    yield np.full_like(row, -np.inf)
    for bad in (np.nan, -np.nan, np.inf):
        spoilt = row.copy()
        spoilt[vocab // 2] = bad
        yield spoilt
    yield np.full_like(row, np.nan)


@pytest.mark.parametrize("order", ORDERS, ids=str)
@pytest.mark.parametrize("vocab", [1, 128, 5003])
def test_the_largest_in_order(vocab: int, order: tuple[int, int]) -> None:
    check(np.stack(list(rows(np.random.default_rng(vocab), vocab))), order)


def test_more_than_one_round_of_chunks() -> None:
    check_chunks(KERNELS)


def test_chunks_that_fill_a_block() -> None:
    row = np.random.default_rng(4).standard_normal(64 * 4096).astype(np.float32)
    row[[0, 255, 4095, 4096, -1]] = 8.5
    check(row[None])


def check_chunks(folder: Path) -> None:
    """A vocabulary whose parts are more than the second kernel holds at once."""
    rng = np.random.default_rng(3)
    row = rng.standard_normal(64 * 4096 + 5).astype(np.float32)
    row[-5:] += 9
    row[[7, 4097, len(row) - 1]] = 8.5
    assert topk_chunks(len(row)) == 65
    check(np.round(row, 2)[None], folder=folder)


def test_a_row_does_not_depend_on_others() -> None:
    logits = np.random.default_rng(5).standard_normal((5, 900)).astype(np.float32)
    together = leading(logits.copy())
    for i, row in enumerate(logits):
        alone = leading(row[None].copy())
        for a, b in zip(alone, together, strict=True):
            np.testing.assert_array_equal(a[0].view(np.int32), b[i].view(np.int32))


def check_caps(folder: Path) -> None:
    """The same capped bits as the kernel for the best id leaves, and infinity does not hide."""
    logits = (np.random.default_rng(6).standard_normal((3, 700)) * 60).astype(np.float32)
    logits[1, 5], logits[2, 6] = np.inf, np.nan
    wanted = 30 * np.tanh(logits.astype(np.float64) / 30)
    ids, values = leading(logits, cap=30.0, folder=folder)
    np.testing.assert_allclose(logits[0], wanted[0], rtol=1e-6)
    np.testing.assert_array_equal(ids[0], top_of(logits[:1], TOP).ids[0])
    np.testing.assert_array_equal(values[0], logits[0, ids[0]])
    assert (ids[1:] == -1).all()
    assert np.isinf(logits[1, 5])
    assert np.isnan(logits[2, 6])


def test_logits_are_capped_on_the_way() -> None:
    check_caps(KERNELS)
