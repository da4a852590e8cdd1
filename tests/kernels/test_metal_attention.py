"""Metal's attention over pages against the reference backend's, on the SIMT engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import simt
from helpers.cuda_attention import page_table, places, random_heads
from helpers.metal import Modules
from kernels.cases_attention import ATTENTION
from numpy.typing import NDArray

from edgerun.backends import mlx_kernels as mk
from edgerun.backends.base import PAGE_SIZE, Attention, Batch, KVLayer
from edgerun.backends.reference import _NumpyOps
from edgerun.backends.reference_kv import ReferenceKV, Store
from edgerun.errors import BackendError

F32 = NDArray[np.float32]
SPECS = tuple(Attention(h, kv, d, d**-0.5, cap, w) for h, kv, d, w, cap, *_ in ATTENTION)
SMALL = Attention(2, 1, 64, 0.125)
WINDOW = Attention(2, 1, 64, 0.125, 30.0, 300)
#: Head sizes, windows, soft-caps, and storages of K and V that differ in how lanes share a head.
CASES = (
    *((s, "f16") for s in SPECS if s.head_dim not in (80, 256) and s.window != 70),
    *((s, "q8_0") for s in SPECS if s.head_dim in (80, 256) or s == SPECS[0]),
)


def test_sizes_are_what_the_kernels_say() -> None:
    text = (simt.ROOT / "kernels_metal" / "attention.h").read_text()
    assert "PAGE = 32, SPLIT = 8 * PAGE" in text
    assert (PAGE_SIZE, mk.SPLIT) == (32, 8 * 32)


class Pages:
    """One layer's K and V, filled by the reference backend, as Metal's kernels read them."""

    def __init__(self, spec: Attention, kv_type: str, lengths: list[int], seed: int = 3) -> None:
        rng = np.random.default_rng(seed)
        self.spec = spec
        self.pages = page_table(lengths, rng)
        n_pages = max(map(max, self.pages)) + 3
        self.reference = ReferenceKV(
            [KVLayer(spec.n_kv_heads, spec.head_dim, spec.window)], n_pages, kv_type
        )
        self.heads = [random_heads(spec, n, rng) for n in lengths]

        for i, n in enumerate(lengths):
            self.write(i, range(n))

    def write(self, sequence: int, at: range) -> None:
        """K and V of some tokens into their pages."""
        pages = np.array(self.pages[sequence])[np.array(at) // PAGE_SIZE]
        where = (pages, np.array(at) % PAGE_SIZE)
        _, k, v = self.heads[sequence]
        for store, x in ((self.reference.keys[0], k), (self.reference.values[0], v)):
            store.write(where, x[at].reshape(len(at), self.spec.n_kv_heads, -1))

    def step(
        self, rows: list[tuple[int, int, int]], sinks: F32 | None = None
    ) -> tuple[Batch, F32, F32]:
        """``(sequence, n_past, n)`` a row: the batch, queries, and what they should give."""
        batch, (q, k, v) = self.batch(rows)
        wanted = _NumpyOps(batch, self.reference).attention(q, k, v, 0, self.spec, sinks)
        return batch, self.split(q), self.split(wanted)

    def queries(self, rows: list[tuple[int, int, int]]) -> tuple[Batch, F32]:
        batch, (q, _, _) = self.batch(rows)
        return batch, self.split(q)

    def split(self, x: F32) -> F32:
        return x.reshape(len(x), self.spec.n_heads, self.spec.head_dim)

    def batch(self, rows: list[tuple[int, int, int]]) -> tuple[Batch, list[F32]]:
        batch = Batch.pack([([0] * n, past, self.pages[i], []) for i, past, n in rows])
        parts = [[x[past : past + n] for x in self.heads[i]] for i, past, n in rows]
        return batch, [np.concatenate(x) for x in zip(*parts, strict=True)]

    def kv(self) -> tuple[NDArray[Any], ...]:
        return kv_arrays(self.reference.keys[0], self.reference.values[0], self.spec.head_dim)


def kv_arrays(k: Store, v: Store, head_dim: int) -> tuple[NDArray[Any], ...]:
    if len(k.arrays) == 1:
        return k.arrays[0], v.arrays[0]
    codes = [s.arrays[0] for s in (k, v)]
    codes = [np.ascontiguousarray(c.reshape(*c.shape[:3], -1)[..., :head_dim]) for c in codes]
    return (*codes, *(s.arrays[1].reshape(s.arrays[1].shape[:-1]) for s in (k, v)))


def table(batch: Batch) -> tuple[NDArray[np.int32], ...]:
    rows = np.repeat(np.arange(batch.n_rows, dtype=np.int32), np.diff(batch.row_start))
    return batch.pages, rows, places(batch)


def attend(
    m: Modules,
    pages: Pages,
    batch: Batch,
    q: Any,
    splits: int = 1,
    sinks: Sequence[float] | F32 = (),
) -> NDArray[Any]:
    """With more than one split: in parts, put together."""
    factors = np.array([pages.spec.scale, pages.spec.softcap, *sinks], np.float32)
    where = table(batch)
    launch = mk.launch_attention(q, pages.kv(), where, pages.spec, factors, splits)
    found = m.run(launch)
    if splits == 1:
        return found
    return m.run(mk.launch_merge(found, where[2], factors, pages.spec, str(q.dtype)))


def splits_of(batch: Batch, window: int) -> int:
    news = np.diff(batch.row_start)
    return max(mk.n_splits(int(p), int(n), window) for p, n in zip(batch.n_past, news, strict=True))


@pytest.fixture(scope="module")
def metal() -> Modules:
    """All kernels of these tests, compiled at once."""
    modules = Modules()
    launches = []
    for spec, kv_type in CASES:
        pages = Pages(spec, kv_type, [2])
        batch, q = pages.queries([(0, 0, 2)])
        factors = np.zeros(2, np.float32)
        args = (q, pages.kv(), table(batch), spec, factors)
        launches.append(mk.launch_attention(*args))
        if not in_parts(spec, kv_type):
            continue
        launches.append(mk.launch_attention(*args, 2))
        parts = np.zeros((2, spec.n_heads, 2, spec.head_dim + 2), np.float32)
        launches.append(mk.launch_merge(parts, table(batch)[2], factors, spec, "float32"))
    modules.prepare(launches)
    return modules


def in_parts(spec: Attention, kv_type: str) -> bool:
    """Not for every case: the kernel has to be compiled once more."""
    return spec.head_dim == 64


def ids(case: Attention | str) -> str:
    return case if isinstance(case, str) else f"{case.n_heads}-{case.head_dim}-{case.window}"


@pytest.mark.parametrize(("spec", "kv_type"), CASES, ids=ids)
def test_agrees_with_the_reference(spec: Attention, kv_type: str, metal: Modules) -> None:
    past = 310 if spec.window == 300 else 260
    pages = Pages(spec, kv_type, [past + 3, 9, 40])
    for rows in ([(2, 31, 2), (0, past, 1)], [(1, 0, 3), (0, past + 1, 2)]):
        batch, q, wanted = pages.step(rows)
        found = attend(metal, pages, batch, q)
        np.testing.assert_allclose(found, wanted, atol=4e-6, rtol=2e-6)
        if in_parts(spec, kv_type):
            splits = splits_of(batch, spec.window)
            assert splits == 2
            np.testing.assert_array_equal(attend(metal, pages, batch, q, splits), found)


def test_sinks_take_their_part(metal: Modules) -> None:
    """Of each head its own: one that is above every score, one below, whole and in parts."""
    pages = Pages(SMALL, "f16", [300, 3])
    sinks = np.array([40.0, -1.5], np.float32)
    batch, q, wanted = pages.step([(1, 1, 2), (0, 299, 1)], sinks)
    found = attend(metal, pages, batch, q, 1, sinks)
    np.testing.assert_allclose(found, wanted, atol=4e-6, rtol=2e-6)
    assert np.abs(wanted[:, 0]).max() < 1e-6 < np.abs(wanted[:, 1]).min(axis=1).max()
    assert np.abs(found - attend(metal, pages, batch, q)).max() > 1e-3
    np.testing.assert_array_equal(attend(metal, pages, batch, q, 2, sinks), found)


@pytest.mark.parametrize(("spec", "kv_type"), [(SMALL, "q8_0"), (WINDOW, "f16")], ids=ids)
def test_bits_depend_on_the_sequence_alone(spec: Attention, kv_type: str, metal: Modules) -> None:
    pages = Pages(spec, kv_type, [560, 60])
    batch, q = pages.queries([(1, 55, 3), (0, 509, 6)])
    whole = attend(metal, pages, batch, q)[3:]
    for past, n in ((509, 1), (511, 2), (513, 2)):
        batch, q = pages.queries([(0, past, n)])
        for splits in (1, splits_of(batch, spec.window), splits_of(batch, spec.window) + 2):
            found = attend(metal, pages, batch, q, splits)
            np.testing.assert_array_equal(found, whole[past - 509 :][:n])


@pytest.mark.parametrize("order", simt.ORDERS[1:], ids=["falling", "random1", "random2"])
def test_bits_do_not_depend_on_the_order_of_threads(order: tuple[int, int], metal: Modules) -> None:
    pages = Pages(SMALL, "q8_0", [300])
    batch, q = pages.queries([(0, 297, 3)])
    want = [attend(metal, pages, batch, q, s) for s in (1, 2)]
    metal.order = order
    try:
        for splits, expected in zip((1, 2), want, strict=True):
            np.testing.assert_array_equal(attend(metal, pages, batch, q, splits), expected)
    finally:
        metal.order = (0, 1)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("which", [1, 2], ids=["k", "v"])
def test_a_token_that_is_not_finite_spoils_only_those_who_see_it(
    kv_type: str, bad: float, which: int, metal: Modules
) -> None:
    spec = SPECS[0]
    pages = Pages(spec, kv_type, [50])
    batch, q = pages.queries([(0, 36, 8)])
    clean = attend(metal, pages, batch, q)
    pages.heads[0][which][40, 9] = bad
    with np.errstate(all="ignore"):
        pages.write(0, range(40, 41))
    found = attend(metal, pages, batch, q)
    np.testing.assert_array_equal(found[:4], clean[:4])
    spoilt = found[4:] if which == 1 else found[4:, :, 9]
    assert not np.isfinite(spoilt).any()


def test_what_others_left_in_a_page_does_not_count(metal: Modules) -> None:
    pages = Pages(SMALL, "f16", [40])
    batch, q = pages.queries([(0, 36, 4)])
    clean = attend(metal, pages, batch, q)
    for store in (pages.reference.keys[0], pages.reference.values[0]):
        store.arrays[0][pages.pages[0][1], 8:] = np.nan
    np.testing.assert_array_equal(attend(metal, pages, batch, q), clean)


@pytest.mark.parametrize(
    ("n_past", "n", "window", "splits"),
    [(0, 1, 0, 1), (255, 1, 0, 1), (255, 2, 0, 2), (1000, 1, 0, 4), (1000, 1, 100, 1),
     (1000, 300, 100, 2), (767, 1, 256, 1), (768, 1, 257, 2), (99, 1, 100, 1)],
)  # fmt: skip
def test_splits_that_tokens_see(n_past: int, n: int, window: int, splits: int) -> None:
    most = max(
        len({j // mk.SPLIT for j in range(max(0, i - window + 1) if window else 0, i + 1)})
        for i in range(n_past, n_past + n)
    )
    assert mk.n_splits(n_past, n, window) == most == splits


#: What stands in the kernel, the fault.
FAULTS = {
    "the window is one too wide": ("at - WINDOW + 1", "at - WINDOW"),
    "a raised maximum leaves the sums": ("sums.v[e] *= shrink", "sums.v[e] *= 1.0f"),
    "weights of other keys": ("ushort(4 * (j & 7) + (j >> 3))", "ushort(j)"),
    "a sink leaves the sums": ("v[e] *= mine", "v[e] *= 1.0f"),
    "splits are added without their maxima": ("its = power(o.top, now)", "its = 1.0f"),
    "pages of another row": ("uint(row[token]) *", "uint(row[token] ^ 1) *"),
}  # fmt: skip


def results(m: Modules, pages: Pages) -> F32:
    batch, q = pages.queries([(1, 3, 1), (0, 318, 2)])
    return attend(m, pages, batch, q, 1, (3.0, 1.0))


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault: str, metal: Modules) -> None:
    pages = Pages(WINDOW, "f16", [320, 9])
    found = results(Modules(planted=FAULTS[fault]), pages)
    want = results(metal, pages)
    assert not np.allclose(found, want, atol=4e-6, rtol=2e-6)


def test_refusal() -> None:
    q = np.zeros((1, 2, 6), np.float32)
    spec = Attention(2, 1, 6, 1.0)
    with pytest.raises(BackendError, match="multiple of 4 values, not 6"):
        mk.launch_attention(q, (q, q), (q, q, q), spec, q)
