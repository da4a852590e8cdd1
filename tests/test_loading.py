"""A load in the middle of things: what it tells, how it ends early, and what memory it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.gguf_build import (
    GGML_Q8_0,
    Tensor,
    random_model,
    spm_vocab,
    tensor,
    write,
)
from helpers.paths import ROOT

from edgerun.backends.base import Batch
from edgerun.backends.cpu import CPUBackend
from edgerun.backends.cpu_abi import native
from edgerun.errors import UnsupportedModelError
from edgerun.gguf import GGUFFile
from edgerun.loading import load, open_backend

VOCAB, N_EMBD, N_FF, N_LAYER = 65536, 1024, 8192, 2


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 125 MB that ties its output head to its embedding."""

    def matrix(name: str, rows: int, cols: int) -> Tensor:
        return Tensor(name, (rows, cols), bytes(rows * cols // 32 * 34), GGML_Q8_0)

    def norm(name: str) -> Tensor:
        return tensor(name, [1.0] * N_EMBD)

    tensors = [matrix("token_embd.weight", VOCAB, N_EMBD), norm("output_norm.weight")]
    for i in range(N_LAYER):
        tensors += [norm(f"blk.{i}.{n}_norm.weight") for n in ("attn", "ffn")]
        shapes = {"attn_q": (N_EMBD, N_EMBD), "attn_k": (256, N_EMBD), "attn_v": (256, N_EMBD)}
        shapes |= {"attn_output": (N_EMBD, N_EMBD), "ffn_gate": (N_FF, N_EMBD)}
        shapes |= {"ffn_up": (N_FF, N_EMBD), "ffn_down": (N_EMBD, N_FF)}
        tensors += [matrix(f"blk.{i}.{n}.weight", *s) for n, s in shapes.items()]
    meta: dict[str, Any] = {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "llama.embedding_length": N_EMBD,
        "llama.block_count": N_LAYER,
        "llama.feed_forward_length": N_FF,
        "llama.attention.head_count": 16,
        "llama.attention.head_count_kv": 4,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 64,
        **spm_vocab(),
    }
    return write(tmp_path_factory.mktemp("big") / "big.gguf", meta, tensors)


MEASURE = """
import sys
from pathlib import Path
from edgerun.loading import load, open_backend

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith(key)) * 1024

backend = open_backend("cpu", 2)
before = status("VmRSS")
load(Path(sys.argv[1]), backend)
print(before, status("VmHWM"), status("RssFile"))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/status")
def test_peak_memory_is_little_more_than_the_file(big: Path) -> None:
    """File pages that stay in memory would double it; a second embedding table adds half."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(big)],
        capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
    )  # fmt: skip
    before, peak, file_pages = map(int, done.stdout.split())
    size = big.stat().st_size
    assert size > 100e6
    assert peak - before < 1.3 * size
    assert file_pages < 0.5 * size


def test_the_embedding_is_stored_once(big: Path) -> None:
    backend = open_backend("cpu", 2)
    assert isinstance(backend, CPUBackend)
    load(big, backend)
    weights = [ptr for free, ptr in backend._owned if free == "er_weight_free"]
    assert len(weights) == 1 + 7 * N_LAYER
    total = sum(native().er_weight_bytes(ptr) for ptr in weights)
    assert total == pytest.approx(big.stat().st_size, rel=0.01)
    backend.close()


def test_progress_goes_through_big_tensors(big: Path) -> None:
    backend = open_backend("cpu", 2)
    seen: list[tuple[int, int]] = []
    load(big, backend, progress=lambda done, total: seen.append((done, total)))
    backend.close()
    with GGUFFile.open(big) as file:
        total = sum(t.nbytes for t in file.tensors.values())
        largest = max(t.nbytes for t in file.tensors.values())
    done = [d for d, _ in seen]
    assert {t for _, t in seen} == {total}
    assert done == sorted(set(done))
    assert done[-1] == total
    assert max(b - a for a, b in zip([0, *done], done, strict=False)) < largest / 2


def test_ctrl_c_ends_a_load_between_slices(big: Path) -> None:
    backend = open_backend("cpu", 2)
    seen: list[int] = []

    def progress(done: int, total: int) -> None:
        seen.append(done)
        if done > total // 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load(big, backend, progress=progress)
    assert max(seen) < 0.7 * big.stat().st_size
    assert isinstance(backend, CPUBackend)
    assert backend._owned == []
    load(big, backend)  # the backend is none the worse
    backend.close()


def test_reference_reports_too(tmp_path: Path) -> None:
    path = random_model(tmp_path / "m.gguf", tied=True)
    seen: list[tuple[int, int]] = []
    load(path, open_backend("reference"), progress=lambda *a: seen.append(a))
    with GGUFFile.open(path) as file:
        total = sum(t.nbytes for t in file.tensors.values())
    assert seen[-1] == (total, total)
    assert len(seen) == len(file.tensors)


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_two_models_on_one_backend_keep_their_own_weights(tmp_path: Path, name: str) -> None:
    """Their tensors have the same names."""
    paths = [random_model(tmp_path / f"{i}.gguf", seed=i) for i in range(2)]
    batch = Batch.pack([([5, 6, 7], 0, [0], [2])])
    single = [load(path, open_backend(name)) for path in paths]
    alone = [model.program.run(batch).copy() for model in single]
    backend = open_backend(name)
    both = [load(path, backend) for path in paths]
    assert not np.allclose(*alone)
    for model, expected in zip(both, alone, strict=True):
        assert np.array_equal(model.program.run(batch), expected)


def test_a_bad_tokenizer_ends_the_load(tmp_path: Path) -> None:
    path = random_model(tmp_path / "m.gguf", extra={"tokenizer.ggml.model": "nonsense"})
    with pytest.raises(UnsupportedModelError, match="nonsense"):
        load(path, open_backend("cpu", 2))
