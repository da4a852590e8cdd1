"""Taking a model's weights over: in slices, in one block of memory, reported as it goes."""

from __future__ import annotations

import ctypes
from collections import defaultdict

import numpy as np
import pytest
from helpers.packed import Packed
from helpers.paths import FIXTURES
from helpers.runner import Runner
from helpers.weights import gguf_rows

from edgerun.backends import cpu
from edgerun.backends.base import RawTensor, Role
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cpu_abi import isa_names, native
from edgerun.errors import UnsupportedModelError
from edgerun.gguf import GGMLType

LLAMA = FIXTURES / "arch" / "llama.gguf"


def raw(key: str, n_rows: int, n_cols: int, kind: str = "Q4_1", seed: int = 0) -> RawTensor:
    t = GGMLType[kind]
    data = gguf_rows(t, n_rows, n_cols, np.random.default_rng(seed))  # type: ignore[arg-type]
    return RawTensor(key, int(t), (n_rows, n_cols), data)


def model(n: int = 7) -> dict[str, tuple[RawTensor, Role]]:
    """Matrices of many sizes, whose rows do not fill their last tile, and a vector."""
    tensors: dict[str, tuple[RawTensor, Role]] = {
        f"m{i}": (raw(f"m{i}", 5 + 37 * i, 32 + 32 * i, seed=i), "matrix") for i in range(n)
    }
    values = np.arange(40, dtype=np.float32)
    tensors["v"] = (RawTensor("v", 0, (40,), values.view(np.uint8).reshape(1, -1)), "vector")
    return tensors


@pytest.fixture
def backend() -> CPUBackend:
    return CPUBackend(threads=2)


@pytest.mark.parametrize("isa", isa_names())
def test_slices_give_the_same_bits(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(30))
    whole = Runner(LLAMA, CPUBackend(2, isa), n_ctx=64).logits(ids, chunk=9)
    monkeypatch.setattr(cpu, "_SLICE", 1)  # a tile each
    sliced = Runner(LLAMA, CPUBackend(2, isa), n_ctx=64).logits(ids, chunk=9)
    assert np.array_equal(whole.view(np.uint32), sliced.view(np.uint32))


@pytest.mark.parametrize("size", [1, 3000, 1 << 30])
def test_every_row_is_told_of_once(
    backend: CPUBackend, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(cpu, "_SLICE", size)
    tensors = model()
    tensors["again"] = (tensors["m3"][0], "embedding")
    seen: dict[str, list[int]] = defaultdict(list)
    calls = 0

    def taken(tensor: RawTensor, start: int, stop: int) -> None:
        nonlocal calls
        calls += 1
        seen[tensor.key].extend(range(start, stop))

    weights = backend.upload_all(tensors, taken)
    assert weights.keys() == tensors.keys()
    assert seen == {t.key: list(range(len(t.data))) for t, _ in tensors.values()}
    assert calls >= (25 if size == 1 else len(seen))
    backend.close()


def test_what_is_used_twice_is_stored_once(backend: CPUBackend) -> None:
    embedding = raw("token_embd.weight", 300, 64)
    weights = backend.upload_all(
        {"embedding": (embedding, "embedding"), "head": (embedding, "matrix")}
    )
    assert weights["embedding"] is weights["head"]
    size = native().er_weight_bytes(weights["head"].ptr)
    assert embedding.data.nbytes <= size <= embedding.data.nbytes * 1.1
    backend.close()


def test_a_stored_matrix_takes_what_the_file_has(backend: CPUBackend) -> None:
    for kind in ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "MXFP4"):
        tensor = raw(kind, 512, 512, kind)
        size = native().er_weight_bytes(backend.upload(tensor, "matrix").ptr)
        assert size <= 1.02 * tensor.data.nbytes, kind
    backend.close()


def test_an_interrupted_load_leaves_nothing(
    backend: CPUBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "_SLICE", 4096)
    freed: list[str] = []
    free = cpu._free
    monkeypatch.setattr(cpu, "_free", lambda so, owned: (freed.extend(owned), free(so, owned)))
    done = 0

    def taken(tensor: RawTensor, start: int, stop: int) -> None:
        nonlocal done
        done += 1
        if done == 4:
            raise KeyboardInterrupt

    tensors = model()
    with pytest.raises(KeyboardInterrupt):
        backend.upload_all(tensors, taken)
    assert len(freed) == 8  # seven matrices and their memory
    assert backend._owned == []
    assert backend._vectors == []
    done = 100
    assert backend.upload_all(tensors, taken).keys() == tensors.keys()
    backend.close()


def test_a_refused_tensor_leaves_nothing(backend: CPUBackend) -> None:
    tensors = model(2)
    tensors["bad"] = (RawTensor("bad", 999, (4, 32), np.zeros((4, 32), np.uint8)), "matrix")
    with pytest.raises(UnsupportedModelError, match="bad"):
        backend.upload_all(tensors)
    assert backend._owned == []
    assert backend._vectors == []
    backend.close()


def stored(weight: int) -> bytes:
    """A native Weight's memory: its pointer follows linear, n_rows and n_cols (program.h)."""
    data = ctypes.c_void_p.from_address(weight + 24).value
    return ctypes.string_at(data, native().er_weight_bytes(weight))


@pytest.mark.parametrize("isa", isa_names())
@pytest.mark.parametrize("size", [2000, 1 << 20])
def test_slices_lie_where_one_piece_would(
    isa: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also rows that do not lie in one piece in the file."""
    monkeypatch.setattr(cpu, "_SLICE", size)
    backend = CPUBackend(threads=2, isa=isa)
    tensors = {f"w{n}": (raw(f"w{n}", n, 96), "matrix") for n in (1, 15, 16, 33, 260)}
    wide = np.pad(tensors["w33"][0].data, ((0, 0), (3, 3)))
    view = RawTensor("view", tensors["w33"][0].type, (33, 96), wide[:, 3:-3])
    weights = backend.upload_all(tensors | {"view": (view, "matrix")})
    for name, (tensor, _) in [*tensors.items(), ("view", tensors["w33"])]:
        expected = Packed(isa, tensor.type, tensor.data, 96).tiles.tobytes()
        assert stored(weights[name].ptr) == expected, name
    backend.close()
