"""The reference backend's own parts: pages, bounds, memory. Its arithmetic: tests/arch, golden."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from helpers.paths import FIXTURES
from helpers.runner import Runner

from edgerun.backends.base import PAGE_SIZE, Batch, KVLayer, Memory, RawTensor, Rope
from edgerun.backends.reference import ReferenceBackend, _NumpyOps
from edgerun.backends.reference_kv import ReferenceKV, rotated
from edgerun.errors import BackendError, OutOfMemoryError, RequestError, UnsupportedModelError
from edgerun.gguf import GGMLType

IDS = [5, 9, 77, 12, 200, 8, 45, 133, 3, 61] * 4


@pytest.fixture
def runner() -> Runner:
    return Runner(FIXTURES / "arch" / "llama.gguf", ReferenceBackend(), n_ctx=128, n_pages=8)


def test_a_packed_batch_shows_its_numbers_as_arrays() -> None:
    rows = [([7, 8, 9], 4, [3], [2]), ([5], 0, [1, 2], []), ([6], 40, [9, 4], [0])]
    batch = Batch.pack(rows, want_best=True)
    assert (batch.n_tokens, batch.n_rows, batch.n_outputs, batch.want_best) == (5, 3, 2, True)
    assert "tokens" not in vars(batch)  # nobody has looked
    assert batch.n_past.tolist() == [4, 0, 40]
    assert batch.tokens.tolist() == [7, 8, 9, 5, 6]
    assert batch.positions.tolist() == [4, 5, 6, 0, 40]
    assert batch.row_start.tolist() == [0, 3, 4, 5]
    assert batch.pages.tolist() == [[3, -1], [1, 2], [9, 4]]
    assert batch.outputs.tolist() == [2, 4]
    assert {a.dtype for a in (batch.tokens, batch.pages, batch.outputs)} == {np.dtype(np.int32)}
    other = dataclasses.replace(batch, tokens=batch.tokens + 1)
    assert other.packed is None
    assert (other.n_tokens, other.n_rows, other.n_outputs) == (5, 3, 2)
    with pytest.raises(AttributeError, match="has no colour"):
        batch.colour  # noqa: B018
    assert Batch.pack([]).tokens.tolist() == []


def test_n_vocab_is_known_before_the_first_run(runner: Runner) -> None:
    assert runner.program.n_vocab == 300


@pytest.mark.parametrize("kv_type", ["f32", "f16", "q8_0", "q4r"])
def test_pages_move_by_copy_and_by_export(kv_type: str) -> None:
    runner = Runner(
        FIXTURES / "arch" / "llama.gguf", ReferenceBackend(), n_ctx=128, kv_type=kv_type
    )
    a, b, c = runner.begin(), runner.begin(), runner.begin()
    runner.step([(a, IDS[:-1], [])])
    b.pages, c.pages = [60, 61], [62, 63]
    for i, page in enumerate(a.pages):
        runner.kv.copy_page(page, b.pages[i])
        data = runner.kv.export_page(page)
        assert len(data) == runner.kv.page_bytes
        runner.kv.import_page(c.pages[i], data)
    b.n_past = c.n_past = a.n_past
    logits = runner.step([(s, IDS[-1:], [0]) for s in (a, b, c)])
    np.testing.assert_allclose(logits[1:], np.stack([logits[0]] * 2), atol=1e-5)
    expected = runner.logits(IDS, start=len(IDS) - 1)
    np.testing.assert_allclose(logits[:1], expected, atol=1e-4)


def test_page_bytes() -> None:
    kv = ReferenceBackend().new_kv([KVLayer(2, 8), KVLayer(1, 16)], 3, "f16")
    assert kv.page_bytes == PAGE_SIZE * 2 * (16 + 16) * 2
    with pytest.raises(BackendError, match="not 3"):
        kv.import_page(0, b"abc")


@pytest.mark.parametrize("head_dim", [64, 80, 96, 48, 20, 33])
def test_q4r_turns_heads_and_back(head_dim: int) -> None:
    """By a Hadamard matrix over the largest power of two in the head: orthogonal, its own
    inverse, and what towers is spread."""
    block = head_dim & -head_dim
    h = np.ones((1, 1))
    while len(h) < block:
        h = np.block([[h, h], [h, -h]])
    x = np.random.default_rng(1).standard_normal((5, 2, head_dim)).astype(np.float32)
    want = (x.reshape(5, 2, -1, block) @ h / np.sqrt(block)).reshape(x.shape)
    np.testing.assert_allclose(rotated(x), want, atol=1e-5)
    np.testing.assert_allclose(rotated(rotated(x)), x, atol=1e-5)
    one = np.eye(head_dim, dtype=np.float32)
    np.testing.assert_allclose(np.abs(rotated(one)).max(axis=-1), block**-0.5, rtol=1e-6)


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_q4r_rounds_by_a_thirteenth(head_dim: int) -> None:
    """Root mean square, also of heads in which one dimension towers over the others; a head that
    is not finite reads as NaN, and spoils no other."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((32, 4, head_dim)).astype(np.float32)
    x *= np.float32(10) ** rng.integers(-4, 4, (32, 4, 1))
    x[:16, :, 5] *= 20
    kv = ReferenceBackend().new_kv([KVLayer(4, head_dim)], 1, "q4r")
    pages, where = np.array([0], np.int32), (np.zeros(32, np.int64), np.arange(32))
    kv.keys[0].write(where, x)
    error = np.square(kv.keys[0].read(pages)[0] - x).sum(-1) / np.square(x).sum(-1)
    assert np.sqrt(error.mean()) < 1 / 13
    x[3, 1, 0], x[4, 2, 1], x[5, 0] = np.inf, np.nan, 0
    kv.keys[0].write(where, x)
    found = kv.keys[0].read(pages)[0]
    assert np.isnan(found[3, 1]).all()
    assert np.isnan(found[4, 2]).all()
    assert (found[5, 0] == 0).all()
    found[3, 1], found[4, 2] = 0, 0
    assert np.isfinite(found).all()


@pytest.mark.parametrize("token", [-1, 300, 2**31 - 1])
def test_ids_past_the_embedding_are_refused(runner: Runner, token: int) -> None:
    with pytest.raises(RequestError, match=f"{token} is outside the vocabulary of 300"):
        runner.logits([3, token])


def test_positions_past_the_context_are_refused(runner: Runner) -> None:
    with pytest.raises(BackendError, match="128 tokens"):
        runner.logits([3] * 129)


def test_a_token_without_a_page_is_refused(runner: Runner) -> None:
    for pages in ([0], [0, -1]):
        before = [a.copy() for a in runner.kv._arrays()]  # type: ignore[attr-defined]
        with pytest.raises(BackendError, match="row 1 has 33 tokens"):
            runner.program.run(Batch.pack([([3], 0, [1], [0]), ([3] * 33, 0, pages, [])]))
        for a, b in zip(before, runner.kv._arrays(), strict=True):  # type: ignore[attr-defined]
            np.testing.assert_array_equal(a, b)


def test_an_empty_batch(runner: Runner) -> None:
    assert runner.program.run(Batch.pack([])).shape == (0, 300)


def test_unknown_kv_type_and_foreign_pool() -> None:
    backend = ReferenceBackend()
    with pytest.raises(BackendError, match=r"'q1' is not one of .*f32, f16, q8_0"):
        backend.new_kv([KVLayer(1, 8)], 1, "q1")
    with pytest.raises(BackendError, match="its own KV pool"):
        backend.prepare(lambda ops: None, object(), 8)  # type: ignore[arg-type]


def test_a_tensor_is_decoded_once() -> None:
    backend = ReferenceBackend()
    raw = RawTensor("t", GGMLType.F32, (2, 3), np.zeros((2, 12), np.uint8))
    weights = backend.upload_all({"embedding": (raw, "embedding"), "head": (raw, "matrix")})
    assert weights["embedding"] is weights["head"]


def test_types_without_a_decoder_are_named() -> None:
    raw = RawTensor("blk.0.x", GGMLType.I32, (2, 3), np.zeros((2, 12), np.uint8))
    with pytest.raises(UnsupportedModelError, match=r"'blk.0.x': I32"):
        ReferenceBackend().upload(raw, "matrix")


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ReferenceBackend()
    monkeypatch.setattr(backend, "memory", lambda: Memory(total=2**21, free=2**20))
    raw = RawTensor("big", GGMLType.Q8_0, (2**10, 2**10), np.zeros((2**10, 2**10), np.uint8))
    with pytest.raises(OutOfMemoryError, match=r"'big' needs 4\.19 MB"):
        backend.upload(raw, "matrix")
    with pytest.raises(OutOfMemoryError, match="64 pages"):
        backend.new_kv([KVLayer(8, 128)] * 4, 64)


def test_glu_and_norms_stay_finite_at_the_extremes() -> None:
    kv = ReferenceKV([], 0, "f32")
    ops = _NumpyOps(Batch.pack([([1], 0, [0], [])]), kv)
    gate = np.float32([[-1e4, -100, -1, 0, 1, 100]])
    with np.errstate(all="raise", under="ignore"):
        for act in ("silu", "gelu"):
            out = ops.glu(gate, np.ones_like(gate), act)
            np.testing.assert_allclose(out[0, [3, 5]], [0, 100], atol=1e-6)
        np.testing.assert_allclose(ops.glu(gate, np.ones_like(gate), "silu")[0, 2], -0.26894142)
        big = np.float32([[3e30, -3e30]])  # its square is past float32
        np.testing.assert_allclose(ops.rms_norm(big, np.ones(2, np.float32), 1e-6), [[1, -1]])


def test_rope_leaves_the_rest_of_a_head_alone() -> None:
    kv = ReferenceKV([], 0, "f32")
    ops = _NumpyOps(Batch.pack([([1, 1], 4, [0], [])]), kv)
    x = np.arange(1, 17, dtype=np.float32).reshape(2, 8)
    for interleaved, (a, b) in ((True, (0, 1)), (False, (0, 2))):
        out = ops.rope(x, 8, Rope(np.float32([0.5, 0.25]), interleaved, 2.0))
        np.testing.assert_array_equal(out[:, 4:], x[:, 4:])
        turned = 2 * (x[1, a] + 1j * x[1, b]) * np.exp(0.5j * 5)
        np.testing.assert_allclose(out[1, [a, b]], [turned.real, turned.imag], rtol=1e-6)
