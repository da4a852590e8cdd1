"""Attention of the CPU backend against the reference, on every instruction set of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest
from helpers.attention import Rig, ids_of
from helpers.runner import same_bits

from edgerun.backends.base import Attention, KVLayer
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cpu_abi import isa_names
from edgerun.backends.reference import ReferenceBackend
from edgerun.errors import BackendError

F32 = npt.NDArray[np.float32]
ISAS = isa_names()
KV = ("f16", "f32", "q8_0", "q4r")
SPECS = {
    "mha": Attention(3, 3, 64, 64**-0.5),
    "group 3, head 48": Attention(9, 3, 48, 48**-0.5),
    "group 4, window": Attention(8, 2, 128, 128**-0.5, window=70),
    "group 4, head 256": Attention(4, 1, 256, 1 / 16, softcap=20.0, window=512),
    "group 8, head 80": Attention(8, 1, 80, 80**-0.5),
    "group 5, head 96": Attention(10, 2, 96, 96**-0.5, softcap=50.0),
    "group 7, head 20": Attention(7, 1, 20, 0.2),
    "group 3, head 33": Attention(3, 1, 33, 0.2),
    "group 71, head 16": Attention(71, 1, 16, 0.25),
}
by_spec = pytest.mark.parametrize("name", SPECS)
by_isa = pytest.mark.parametrize("isa", ISAS)
by_kv = pytest.mark.parametrize("kv_type", KV)

Open = Callable[..., Rig]


@pytest.fixture
def open_rig() -> Iterator[Open]:
    backends: list[CPUBackend] = []

    def make(
        name: str, kv_type: str, isa: str | None = None, threads: int = 2, **kw: object
    ) -> Rig:
        backends.append(CPUBackend(threads=threads, isa=isa))
        return Rig(backends[-1], SPECS[name], kv_type, **kw)  # type: ignore[arg-type]

    yield make
    for b in backends:
        b.close()


@by_isa
@by_kv
@by_spec
def test_against_the_reference(open_rig: Open, name: str, kv_type: str, isa: str) -> None:
    ids = ids_of(150)
    expected = Rig(ReferenceBackend(), SPECS[name], kv_type).run(ids, [150], 150)
    found = open_rig(name, kv_type, isa).run(ids, [100, 3, 47], 150)
    np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)


@by_isa
@by_kv
@by_spec
def test_chunks_leave_no_trace(open_rig: Open, name: str, kv_type: str, isa: str) -> None:
    rig = open_rig(name, kv_type, isa)
    ids = ids_of(140)
    whole = rig.run(ids, [140], 140)
    for chunks in ([1], [7], [16], [33], [5, 64, 1, 2, 3]):
        assert same_bits(whole, rig.run(ids, chunks, 140)), chunks


@by_kv
@pytest.mark.parametrize("name", ["mha", "group 4, window", "group 8, head 80"])
def test_splits_by_many_threads(open_rig: Open, name: str, kv_type: str) -> None:
    """Beyond 2048 tokens a row's splits are work for several threads, folded afterwards."""
    n = 4500
    ids = ids_of(n)
    kw = {"n_pages": 145}
    one = open_rig(name, kv_type, threads=1, **kw).run(ids, [512], 20)
    judge = Rig(ReferenceBackend(), SPECS[name], kv_type, **kw)
    expected = judge.run(ids, [20], 20, judge.remember(ids[:-20]))
    np.testing.assert_allclose(one, expected, atol=2e-5, rtol=0)
    for threads in (1, 2, 5):
        rig = open_rig(name, kv_type, threads=threads, **kw)
        pages: list[int] = []
        rig.step([(pages, ids[:-20], 0, 0)])
        for last in ([1], [16], [3, 1, 9]):
            assert same_bits(one, rig.run(ids, last, 20, pages)), (threads, last)


def test_rows_of_one_and_of_several_splits_share_a_batch(open_rig: Open) -> None:
    rig = open_rig("group 8, head 80", "f16", threads=3, n_pages=290)
    lengths = [4130, 5, 2047, 2048, 90]
    alone = [rig.run(ids_of(n + 6, n), [n, 2], 6) for n in lengths]
    pages: list[list[int]] = [[] for _ in lengths]
    for p, n in zip(pages, lengths, strict=True):
        rig.step([(p, ids_of(n + 6, n)[:n], 0, 0)])
    found = [
        rig.step(
            [
                (p, ids_of(n + 6, n)[n + i : n + i + 3], n + i, 3)
                for p, n in zip(pages, lengths, strict=True)
            ]
        )
        for i in (0, 3)
    ]
    for r, want in enumerate(alone):
        got = np.concatenate([part[3 * r : 3 * r + 3] for part in found])
        assert same_bits(want, got), lengths[r]


@pytest.mark.parametrize(("head_dim", "codes", "blocks"), [(64, 64, 2), (80, 80, 3), (48, 48, 2)])
def test_q8_0_takes_a_bit_more_than_a_byte_a_value(head_dim: int, codes: int, blocks: int) -> None:
    backend = CPUBackend(threads=1)
    layer = KVLayer(3, head_dim)
    kv = backend.new_kv([layer], 2, "q8_0")
    assert kv.page_bytes == 32 * 2 * 3 * (codes + 2 * blocks) == 32 * layer.token_bytes("q8_0")
    backend.close()


@pytest.mark.parametrize(("head_dim", "scales"), [(64, 2), (80, 3), (48, 2), (256, 8)])
def test_q4r_takes_a_bit_more_than_half_a_byte_a_value(head_dim: int, scales: int) -> None:
    backend = CPUBackend(threads=1)
    layer = KVLayer(3, head_dim)
    kv = backend.new_kv([layer], 2, "q4r")
    assert kv.page_bytes == 32 * 2 * 3 * (head_dim // 2 + 2 * scales)
    assert kv.page_bytes == 32 * layer.token_bytes("q4r")
    with pytest.raises(BackendError, match="up to 1024 dimensions, not 1032: use q8_0"):
        backend.new_kv([KVLayer(1, 1032)], 2, "q4r")
    backend.close()


@by_isa
@pytest.mark.parametrize(
    "name", ["mha", "group 8, head 80", "group 3, head 48", "group 7, head 20"]
)
def test_q4r_codes_are_those_of_the_reference(open_rig: Open, name: str, isa: str) -> None:
    """Every code and scale of a page, on every set: floats are compared in the same order."""
    spec = SPECS[name]
    rig, judge = open_rig(name, "q4r", isa), Rig(ReferenceBackend(), spec, "q4r")
    pages: list[int] = []
    for r in (rig, judge):
        r.step([(pages, ids_of(32), 0, 0)])
    raw = np.frombuffer(rig.kv.export_page(pages[0]), np.uint8)
    dim, blocks = spec.head_dim, -(-spec.head_dim // 32)
    k_codes, v_codes = -(-dim // 8) * 4, -(-dim // 16) * 8  # bytes a token
    at = 0
    for store, size in ((judge.kv.keys[0], k_codes), (judge.kv.values[0], v_codes)):  # type: ignore[attr-defined]
        codes, scales = (a[pages[0]] for a in store.arrays)
        codes = np.concatenate([codes & 15, codes >> 4], axis=-1).reshape(32, spec.n_kv_heads, -1)
        for head in range(spec.n_kv_heads):
            part, at = raw[at : at + 32 * size], at + 32 * size
            if store in judge.kv.keys:  # type: ignore[attr-defined]
                quads = part.reshape(-1, 32, 4).swapaxes(0, 1)  # tokens first
                found = np.stack([quads & 15, quads >> 4], axis=2)
            else:  # byte b of 8: dword b // 4, nibbles 2 * (b % 4) and the next
                dwords = part.reshape(32, -1, 2, 4)
                found = np.stack([dwords & 15, dwords >> 4], axis=4)  # group, dword, byte, nibble
                found = found.transpose(0, 1, 3, 4, 2)
            np.testing.assert_array_equal(found.reshape(32, -1)[:, :dim], codes[:, head, :dim])
            part, at = raw[at : at + 64 * blocks], at + 64 * blocks
            found = part.view(np.float16).reshape(blocks, 32).T
            np.testing.assert_array_equal(found, scales[:, head, :, 0])


@by_kv
def test_sets_agree(open_rig: Open, kv_type: str) -> None:
    ids = ids_of(100)
    found = {
        isa: open_rig("group 5, head 96", kv_type, isa).run(ids, [100], 100)
        for isa in ISAS
        if isa != "generic"
    }
    for other in found.values():
        assert same_bits(other, next(iter(found.values())))


@by_kv
def test_old_pages_do_not_show(open_rig: Open, kv_type: str) -> None:
    """Pages come back dirty, here with bytes that are NaN to every type."""
    rig = open_rig("group 4, window", kv_type, n_pages=8)
    ids = ids_of(100)
    expected = rig.run(ids, [37], 100)
    assert np.isfinite(expected).all()
    for chunks in ([100], [37], [1]):
        for page in range(8):
            rig.kv.import_page(page, b"\xff" * rig.kv.page_bytes)
        assert same_bits(expected, rig.run(ids, chunks, 100))
