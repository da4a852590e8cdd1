"""A step's inputs: shapes, padding, what is refused. No device."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from edgerun.backends import cuda_attention
from edgerun.backends.base import PAGE_SIZE, Batch
from edgerun.backends.cuda_step import Block, Tiling, check, padded_shape
from edgerun.errors import BackendError, RequestError

TILINGS = [Tiling(4, (1, 1)), Tiling(32, (1, 1))]


def decode(*n_past: int) -> Batch:
    """One token behind each of ``n_past``."""
    rows = []
    for i, n in enumerate(n_past):
        pages = [10 * i + p for p in range(n // PAGE_SIZE + 1)]
        rows.append(([7 + i], n, pages, [0]))
    return Batch.pack(rows)


def test_steps_of_one_bucket_have_one_shape() -> None:
    shapes = {padded_shape(decode(*[100 + i] * n), TILINGS) for i in range(50) for n in (5, 6, 8)}
    assert len(shapes) == 1
    (shape,) = shapes
    assert (shape.n_tokens, shape.n_rows, shape.n_outputs, shape.padded) == (8, 8, 8, True)
    # 150 tokens are one split; its pages all have a place
    assert (shape.n_splits, shape.n_pages) == (1, 256 // PAGE_SIZE)
    # 32 heads of a token fill two tiles of 16
    assert shape.n_tiles == (8, 16)


def test_longer_texts_double_the_shape() -> None:
    found = [padded_shape(decode(n), TILINGS).n_splits for n in (0, 255, 256, 511, 512, 5000)]
    assert found == [1, 1, 2, 2, 4, 32]
    assert padded_shape(decode(5000), TILINGS).n_pages * PAGE_SIZE >= 5001


def test_many_tokens_are_not_padded() -> None:
    batch = Batch.pack([(list(range(80)), 0, [0, 1, 2], [79]), ([5], 70, [4, 5, 6], [0])])
    shape = padded_shape(batch, [Tiling(4, (2, 2))])
    assert (shape.n_tokens, shape.n_rows, shape.n_outputs, shape.padded) == (81, 2, 2, False)
    assert (shape.n_pages, shape.n_tiles) == (3, (5 + 1,))


def read(block: Block, memory: np.ndarray, name: str, n: int) -> list[int]:
    start = block.offset(name)
    return memory[start : start + 4 * n].view(np.int32).tolist()


def test_padding_is_nowhere() -> None:
    batch = Batch.pack([([1, 2, 3], 40, [9, 8], [2]), ([4, 5], 0, [3], [0, 1])])
    shape = padded_shape(batch, TILINGS)
    block = Block(shape, TILINGS, [4])
    memory = np.full(block.nbytes, 0xFF, np.uint8)
    table = np.arange(400, dtype=np.float32).reshape(100, 4)
    block.inputs(memory).fill(batch, [table])
    assert read(block, memory, "tokens", 8) == [1, 2, 3, 4, 5, 0, 0, 0]
    assert read(block, memory, "row_of", 8) == [0, 0, 0, 1, 1, 0, 0, 0]
    assert read(block, memory, "kvpos", 8) == [40, 41, 42, 0, 1, -1, -1, -1]
    assert read(block, memory, "row_start", 9) == [0, 3, 5, 5, 5, 5, 5, 5, 5]
    assert read(block, memory, "n_past", 8) == [40, 0, 0, 0, 0, 0, 0, 0]
    assert read(block, memory, "outputs", 4) == [2, 3, 4, 0]
    # three tokens of four heads are a tile; the other row has its own; the rest is empty
    assert read(block, memory, "tiles0", 16) == [0, 0, 1, 0] + [-1] * 12
    # 96 and 64 queries, 16 a tile
    tiles = [x for q in range(0, 96, 16) for x in (0, q)]
    tiles += [x for q in range(0, 64, 16) for x in (1, q)]
    assert read(block, memory, "tiles1", 32) == tiles + [-1] * 12
    pages = np.array(read(block, memory, "pages", 8 * shape.n_pages)).reshape(8, -1)
    assert pages[0, :3].tolist() == [9, 8, -1]
    assert pages[1, :2].tolist() == [3, -1]
    assert (pages[2:] == -1).all()
    start = block.offset("turns0")
    found = memory[start : start + 8 * 16].view(np.float32).reshape(8, 4)
    np.testing.assert_array_equal(found[:5], table[[40, 41, 42, 0, 1]])
    assert (found[5:] == 0).all()


@pytest.mark.parametrize("tile", [(1, 1), (2, 2), (2, 1)])
def test_tiles_are_attentions(tile: tuple[int, int]) -> None:
    tiling = Tiling(5, tile)
    batch = Batch.pack([(list(range(n)), 0, [0, 1, 2, 3], []) for n in (1, 40, 3, 100)])
    shape = padded_shape(batch, [tiling])
    block = Block(shape, [tiling], [])
    memory = np.zeros(block.nbytes, np.uint8)
    block.inputs(memory).fill(batch, [])
    expected = cuda_attention.query_tiles(batch.row_start.tolist(), 5, tile)
    assert read(block, memory, "tiles0", 2 * shape.n_tiles[0]) == expected.reshape(-1).tolist()


def test_inputs_do_not_overlap() -> None:
    shape = padded_shape(decode(3000, 17), TILINGS)
    block = Block(shape, TILINGS, [64, 32])
    names = ["tokens", "row_of", "kvpos", "row_start", "n_past", "outputs", "tiles0", "tiles1"]
    names += ["pages", "turns0", "turns1"]
    starts = [block.offset(n) for n in names]
    assert sorted(starts) == starts
    assert len(set(starts)) == len(starts)
    assert all(s % 16 == 0 for s in starts)
    sizes = {
        "tokens": 2,
        "row_start": 3,
        "outputs": 2,
        "tiles1": 8,
        "pages": 2 * 128,
        "turns0": 128,
    }
    for name, n in sizes.items():
        i = names.index(name)
        assert starts[i + 1] - starts[i] >= 4 * n, name


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (([300], 0, [0], [0]), RequestError, "token id 300"),
        (([-1], 0, [0], [0]), RequestError, "token id -1"),
        (([1], 0, [4], [0]), BackendError, "row 0"),
        (([1], 0, [-1], [0]), BackendError, "row 0"),
        (([1], 32, [0], [0]), BackendError, "row 0"),
        (([1], 64, [0, 1, 2], [0]), BackendError, "past the context"),
        (([1], 0, [0], [3]), BackendError, "names no token"),
    ],
)
def test_bad_batches_are_refused(row, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check(Batch.pack([row]), n_vocab=300, n_ctx=64, n_pool=4)


def test_arrays_that_disagree_are_refused() -> None:
    good = decode(3)
    for name in ("positions", "row_start", "n_past", "pages"):
        longer = np.concatenate([getattr(good, name)] * 2)
        with pytest.raises(BackendError, match="disagree"):
            check(dataclasses.replace(good, **{name: longer}), 300, 64, 64)
    check(good, 300, 64, 64)
