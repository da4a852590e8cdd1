"""CUDA's attention, and the writing of K and V, against the reference backend's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import numpy as np
import pytest
from helpers import simt
from helpers.cuda_attention import (
    Q4_LEVELS,
    CudaAttention,
    Heads,
    page_table,
    places,
    random_heads,
    ways,
)
from helpers.simt import KERNELS, ORDERS
from kernels.cases_attention import ATTENTION, KV_TYPES
from numpy.typing import NDArray

from edgerun.backends import cuda_attention as shapes
from edgerun.backends.base import PAGE_SIZE, Attention, Batch, KVLayer, Rope
from edgerun.backends.reference import _NumpyOps
from edgerun.backends.reference_kv import ReferenceKV, Store

F32 = NDArray[np.float32]
SPEC = Attention(6, 2, 64, 0.125)
SMALL = Attention(2, 1, 64, 0.125)
#: Rounding of queries, weights and V to halves: a part in 2^11 of values about 1.
CLOSE = {"atol": 4e-3, "rtol": 0}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


@dataclasses.dataclass
class Sequences:
    """Sequences that grow step by step in scattered pages, with the tokens' heads."""

    spec: Attention
    lengths: list[int]
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.pages = page_table(self.lengths, self.rng)
        self.n_pages = sum(map(len, self.pages)) + 2
        self.heads = [random_heads(self.spec, n, self.rng) for n in self.lengths]

    def batch(self, rows: list[tuple[int, int, int]]) -> tuple[Batch, list[F32]]:
        """``(sequence, n_past, n)`` a row: the batch and its Q, K and V."""
        packed = [([0] * n, past, self.pages[i], range(n)) for i, past, n in rows]
        parts = [[x[past : past + n] for x in self.heads[i]] for i, past, n in rows]
        return Batch.pack(packed), [np.concatenate(x) for x in zip(*parts, strict=True)]


def step(
    device: CudaAttention,
    sequences: Sequences,
    rows: list[tuple[int, int, int]],
    tile: tuple[int, int] = (1, 1),
    parts: bool = True,
    spare: int = 0,
) -> F32:
    batch, (q, k, v) = sequences.batch(rows)
    queries = device.write(batch, Heads(q, k, v), places(batch))
    return device.attend(batch, queries, tile, parts, spare)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("case", ATTENTION, ids=lambda c: "-".join(map(str, c)))
def test_agrees_with_the_reference(
    case: tuple[int, int, int, int, float, int, bool, bool],
    kv_type: str,
    rng: np.random.Generator,
) -> None:
    check_against_reference(case, kv_type, rng)


@pytest.mark.parametrize(
    ("case", "kv_type"),
    [(ATTENTION[0], "f16"), (ATTENTION[1], "q4r"), (ATTENTION[2], "q8_0"), (ATTENTION[4], "q4r")],
    ids=lambda c: "-".join(map(str, c)) if isinstance(c, tuple) else c,
)
def test_sinks_agree_with_the_reference(
    case: tuple[int, int, int, int, float, int, bool, bool],
    kv_type: str,
    rng: np.random.Generator,
) -> None:
    sinks = rng.normal(0, 3, case[0]).astype(np.float32)
    sinks[:2] = 60, -60  # one head that looks at nothing else, one that is left alone
    check_against_reference(case, kv_type, rng, sinks)


def check_against_reference(
    case: tuple[int, int, int, int, float, int, bool, bool],
    kv_type: str,
    rng: np.random.Generator,
    sinks: F32 | None = None,
) -> None:
    n_heads, n_kv, head_dim, window, softcap, n_rot, interleaved, normed = case
    spec = Attention(n_heads, n_kv, head_dim, head_dim**-0.5, softcap, window)
    freq = (1 / 10000 ** (np.arange(n_rot // 2) * 2 / max(n_rot, 1))).astype(np.float32)
    rope = Rope(freq, interleaved, 1.1) if n_rot else None
    weights = rng.standard_normal((2, head_dim), np.float32) if normed else None
    norms = (weights[0], weights[1]) if weights is not None else None
    long = 290 if head_dim == 64 and n_heads < 20 else 50
    s = Sequences(spec, [long + 12, 9, 40], rng)
    device = CudaAttention(spec, kv_type, s.n_pages, rope=rope, norms=norms, sinks=sinks)
    reference = ReferenceKV([KVLayer(n_kv, head_dim, window)], s.n_pages, kv_type)
    steps = [
        [(0, 0, long), (1, 0, 2)],
        [(2, 0, 33), (0, long, 1), (1, 2, 7)],
        [(0, long + 1, 11), (2, 33, 1)],
    ]
    for i, rows in enumerate(steps):
        batch, (q, k, v) = s.batch(rows)
        device.order = ORDERS[i]
        queries = device.write(batch, Heads(q, k, v), places(batch))
        ops = _NumpyOps(batch, reference)
        if norms is not None:
            q, k = ops.rms_norm(q, norms[0], 1e-5), ops.rms_norm(k, norms[1], 1e-6)
        if rope is not None:
            q, k = ops.rope(q, head_dim, rope), ops.rope(k, head_dim, rope)
        wanted = ops.attention(q, k, v, 0, spec, sinks)
        found = [device.attend(batch, queries, *way) for way in ways(head_dim)]
        np.testing.assert_allclose(found[0], wanted, **CLOSE)
        assert np.sqrt(np.mean(np.square(found[0] - wanted))) < 4e-4
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])


def test_the_longest_heads(rng: np.random.Generator) -> None:
    """Which keep the sums of earlier splits beside their registers."""
    spec = Attention(2, 1, shapes.MAX_HEAD_DIM, shapes.MAX_HEAD_DIM**-0.5)
    s = Sequences(spec, [300], rng)
    names = [shapes.name(spec.head_dim, "q8_0", (1, 1), parts) for parts in (False, True)]
    kernels = (*names, shapes.merge_name(spec.head_dim))
    device = CudaAttention(spec, "q8_0", s.n_pages, only=kernels)
    reference = ReferenceKV([KVLayer(1, spec.head_dim, 0)], s.n_pages, "q8_0")
    for row in ((0, 0, 290), (0, 290, 10)):
        batch, (q, k, v) = s.batch([row])
        queries = device.write(batch, Heads(q, k, v), places(batch))
        wanted = _NumpyOps(batch, reference).attention(q, k, v, 0, spec)
    whole, split = (device.attend(batch, queries, (1, 1), parts) for parts in (False, True))
    np.testing.assert_allclose(whole, wanted, **CLOSE)
    np.testing.assert_array_equal(split, whole)


def _stored(store: Store, page: int) -> F32:
    """[PAGE, n_kv_heads, head_dim]: of a type that turns heads, the codes' own values."""
    x = store.read(np.array([page], np.int32))[0]
    if len(store.arrays) == 1 or store.arrays[0].shape[-1] == 32:
        return x
    codes, scales = (a[page] for a in store.arrays)
    both = np.concatenate([codes & 15, codes >> 4], axis=-1)
    values = Q4_LEVELS[both] * scales.astype(np.float32)
    return values.reshape(*values.shape[:-2], -1)[..., : x.shape[-1]]


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("head_dim", [20, 64, 80, 128, 256])
def test_k_and_v_are_stored_as_the_reference_stores_them(
    kv_type: str, head_dim: int, rng: np.random.Generator
) -> None:
    spec = Attention(1, 3, head_dim, 1.0)
    spec = dataclasses.replace(spec, n_heads=3)
    s = Sequences(spec, [45], rng)
    for x in s.heads[0]:
        x[3] = 0
        x[4] *= 1e-6
        x[5, 7:9] = 1e4
    device = CudaAttention(spec, kv_type, s.n_pages)
    device.order = ORDERS[2]
    reference = ReferenceKV([KVLayer(3, head_dim)], s.n_pages, kv_type)
    batch, (q, k, v) = s.batch([(0, 0, 45)])
    device.write(batch, Heads(q, k, v), places(batch))
    _NumpyOps(batch, reference).attention(q, k, v, 0, spec)
    for i, page in enumerate(s.pages[0]):
        n = min(PAGE_SIZE, 45 - i * PAGE_SIZE)
        for mine, store in zip(
            device.stored(page), (reference.keys[0], reference.values[0]), strict=True
        ):
            wanted = _stored(store, page)
            np.testing.assert_array_equal(mine[:n], wanted[:n])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("window", [0, 100])
def test_bits_depend_on_the_sequence_alone(
    kv_type: str, window: int, rng: np.random.Generator
) -> None:
    spec = dataclasses.replace(SMALL, window=window)
    n = 560  # three splits
    s = Sequences(spec, [n, 60], rng)
    device = CudaAttention(spec, kv_type, s.n_pages)
    step(device, s, [(1, 0, 50)], (2, 2), False)
    whole = step(device, s, [(0, 0, n)], (2, 2), False)
    # Chunks of a prompt in other company, then decoding and verification.
    kept = [device.stored(p) for p in s.pages[0]]
    ends = (150, 407, 530, 531, 536, n)
    for start, end in zip((0, *ends), ends, strict=False):
        rows = [(0, start, end - start)]
        for at, together in enumerate((rows, [(1, 50, 3), *rows])):
            tile, parts = ((1, 1), True) if end - start < 20 else ((2, 2), bool(at))
            part = step(device, s, together, tile, parts, spare=at)
            np.testing.assert_array_equal(part[-(end - start) :], whole[start:end])
    for before, page in zip(kept, s.pages[0], strict=True):
        np.testing.assert_array_equal(device.stored(page), before)


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("which", [1, 2], ids=["k", "v"])
def test_a_token_that_is_not_finite_spoils_only_those_who_see_it(
    kv_type: str, bad: float, which: int, rng: np.random.Generator
) -> None:
    s = Sequences(SPEC, [70], rng)
    device = CudaAttention(SPEC, kv_type, s.n_pages)
    clean = step(device, s, [(0, 0, 70)], (2, 2), False)
    s.heads[0][which][40, 64 + 9] = bad  # head 1
    found = step(device, s, [(0, 0, 70)], (2, 2), False).reshape(70, 6, 64)
    clean = clean.reshape(70, 6, 64)
    np.testing.assert_array_equal(found[:40], clean[:40])
    np.testing.assert_array_equal(found[40:, :3], clean[40:, :3])
    assert np.isnan(found[40:, 3:]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e6])
def test_a_query_that_halves_do_not_hold_is_nan(bad: float, rng: np.random.Generator) -> None:
    s = Sequences(SPEC, [5], rng)
    s.heads[0][0][2, 70] = bad
    found = step(CudaAttention(SPEC, "f16", s.n_pages), s, [(0, 0, 5)], (1, 1), False)
    assert np.isnan(found.reshape(5, 6, 64)).all(axis=2).tolist() == [
        [t == 2 and h == 1 for h in range(6)] for t in range(5)
    ]


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_what_others_left_in_a_page_does_not_count(kv_type: str, rng: np.random.Generator) -> None:
    s = Sequences(SPEC, [40, 64], rng)
    s.pages[1] = s.pages[0]
    s.heads[1][1][20:] = np.nan  # K of NaN, and V that stays finite
    device = CudaAttention(SPEC, kv_type, s.n_pages)
    clean = step(device, s, [(0, 0, 40)], (2, 2), False)
    step(device, s, [(1, 0, 64)], (2, 2), False)
    np.testing.assert_array_equal(step(device, s, [(0, 0, 40)], (2, 2), False), clean)


def test_padding_writes_nothing(rng: np.random.Generator) -> None:
    s = Sequences(SPEC, [6], rng)
    device = CudaAttention(SPEC, "q8_0", s.n_pages)
    batch, (q, k, v) = s.batch([(0, 0, 6)])
    where = places(batch)
    where[2:] = -1
    queries = device.write(batch, Heads(q, k, v), where)
    assert np.isfinite(queries.array.astype(np.float32)).all()
    for page in s.pages[0]:
        keys, _ = device.stored(page)
        assert (keys[:2] != 0).any(axis=(1, 2)).all() or page != s.pages[0][0]
        assert not keys[2:].any()


#: Bugs, one line each, in the kernels' own text.
BUGS = {
    "queries are read before all are there": (
        "attention.cu",
        "n_heads, &shared.q[0][0]);\n  __syncthreads();",
        "n_heads, &shared.q[0][0]);",
    ),
    "weights are read before all are there": (
        "attention.cu",
        "&shared.p[rows][warp * 64]);\n  __syncthreads();",
        "&shared.p[rows][warp * 64]);",
    ),
    "maxima are read before all are there": (
        "attention.cu",
        "shared.tops[rows][warp]);\n  __syncthreads();",
        "shared.tops[rows][warp]);",
    ),
    "one token too many is seen": ("attention.cu", "(token > at ||", "(token > at + 1 ||"),
    "the window is one too wide": ("attention.cu", "token <= at - window", "token < at - window"),
    "a raised maximum leaves the sums": (
        "attention.cu",
        "    sum[m][h] *= shrink;\n",
        "",
    ),
    "splits are folded without their maxima": (
        "attention.cu",
        "now = m == -INFINITY_F ? 0.0f : exp2_fast(m - top);",
        "now = 1.0f;",
    ),
    "the merge leaves out a split": ("attention.cu", "int i = first;", "int i = first + 1;"),
    "a sink is a score of another base": ("attention.cu", "*sink * LOG2_E", "*sink"),
    "a sink knows no shifted maxima": ("attention.cu", "SHIFTED_ONE, now)", "1.0f, now)"),
    "a sink leaves the sums": ("attention.cu", "return before * recip", "return recip"),
    "the merge knows no sinks": ("attention.cu", "sinks ? sinks + head : nullptr", "nullptr"),
    "queries are scaled after they are halves": (
        "rope_kv.cu",
        "float_to_half(x * q_scale)",
        "float_to_half(x)",
    ),
    "V of NaN is stored": ("rope_kv.cu", "    v_code = 0;\n    v_scale = 0;\n", ""),
    "a norm forgets its barrier": (
        "rope_kv.cu",
        "part[warp] = mine;\n  __syncthreads();",
        "part[warp] = mine;",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug: str, rng: np.random.Generator) -> None:
    file, old, new = BUGS[bug]
    source = (KERNELS / file).read_text()
    for header in re.findall(r'#include "(attention_tile\.cuh)"', source):
        source = source.replace(f'#include "{header}"', (KERNELS / header).read_text())
    assert source.count(old) == 1
    spec = dataclasses.replace(SMALL, window=270)
    norms = (np.full(64, 0.9, np.float32), np.full(64, 1.1, np.float32))
    s = Sequences(spec, [290], rng)
    s.heads[0][2][286] = np.nan
    rows = [[(0, 0, 260)], [(0, 260, 30)]]
    sinks = np.array([0.7, -0.4], np.float32)
    sound = CudaAttention(spec, "f16", s.n_pages, norms=norms, sinks=sinks)
    wanted = [step(sound, s, r, (1, 1), True) for r in rows]
    sources = {file: source.replace(old, new)}
    broken = CudaAttention(spec, "f16", s.n_pages, norms=norms, sinks=sinks, sources=sources)
    assert any(_differs(broken, order, s, rows, wanted) for order in ORDERS)


def _differs(
    device: CudaAttention,
    order: tuple[int, int],
    sequences: Sequences,
    steps: Sequence[list[tuple[int, int, int]]],
    wanted: list[F32],
) -> bool:
    """Whether a run in this order fails, or gives other results."""
    device.order = order
    device.pool.array[:] = 0
    try:
        found = [step(device, sequences, rows, (1, 1), True) for rows in steps]
    except (simt.SimtError, AssertionError):
        return True
    return not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(found, wanted, strict=True))


def test_sound_kernels_differ_in_no_order(rng: np.random.Generator) -> None:
    s = Sequences(SMALL, [70], rng)
    device = CudaAttention(SMALL, "q4r", s.n_pages)
    rows = [[(0, 0, 60)], [(0, 60, 10)]]
    wanted = [step(device, s, r, (1, 1), True) for r in rows]
    assert not any(_differs(device, order, s, rows, wanted) for order in ORDERS)


def test_shapes_are_what_the_kernels_say() -> None:
    text = (KERNELS / "attention_tile.cuh").read_text()
    assert "STEP = WARPS * PAGE, SPLIT_STEPS = 2, SPLIT = STEP * SPLIT_STEPS" in text
    assert shapes.SPLIT == 4 * PAGE_SIZE * 2
    # 32 tokens of 3 heads of 64: q8_0 has two scales a token and head.
    assert shapes.kv_part_bytes("f16", 3, 64) == 32 * 3 * 64 * 2
    assert shapes.kv_part_bytes("q8_0", 3, 64) == 32 * 3 * (64 + 2 * 2)
    assert shapes.kv_part_bytes("q4r", 3, 40) == 32 * 3 * (32 + 2 * 2)


@pytest.mark.parametrize(
    ("n_past", "n", "window", "splits"),
    [(0, 1, 0, 1), (255, 1, 0, 1), (255, 2, 0, 2), (1000, 1, 0, 4), (1000, 1, 100, 1),
     (1000, 300, 100, 3), (767, 1, 256, 1), (768, 1, 257, 2), (99, 1, 100, 1)],
)  # fmt: skip
def test_splits_that_tokens_see(n_past: int, n: int, window: int, splits: int) -> None:
    seen = {
        j // shapes.SPLIT
        for i in range(n_past, n_past + n)
        for j in range(max(0, i - window + 1) if window else 0, i + 1)
    }
    assert shapes.n_splits(n_past, n, window) == len(seen) == splits


def test_tiles_cover_every_query_once() -> None:
    tiles = shapes.query_tiles([0, 3, 3, 40], 7, (2, 2), 10)
    assert tiles.tolist() == [
        [0, 0], [2, 0], [2, 64], [2, 128], [2, 192], [2, 256], *[[-1, -1]] * 4
    ]  # fmt: skip
