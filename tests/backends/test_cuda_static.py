"""benchmarks/cuda_static.py: the arithmetic behind its tables."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
from helpers.paths import ROOT

from edgerun.backends.cuda_kernels import FILES
from edgerun.backends.cuda_nvrtc import Resources


@pytest.fixture
def static(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("cuda_static")


@pytest.mark.parametrize(
    ("card", "registers", "shared", "threads", "blocks"),
    [
        ("RTX 3060", 32, 0, 256, 6),  # 1536 threads
        ("RTX 3060", 80, 0, 256, 3),  # 65536 registers
        ("RTX 3060", 128, 0, 256, 2),
        ("RTX 3060", 255, 0, 128, 2),
        ("RTX 3060", 32, 40 << 10, 128, 2),  # 100 KiB, less one for each block
        ("RTX 3060", 16, 0, 32, 16),
        ("RTX 4090", 16, 0, 32, 24),
        ("RTX 2080 Ti", 32, 0, 256, 4),
    ],
)
def test_blocks_of_a_multiprocessor(
    static: ModuleType, card: str, registers: int, shared: int, threads: int, blocks: int
) -> None:
    takes = Resources(registers, 0, 0, shared)
    assert static.occupancy(static.CARDS[card], takes, threads) == blocks


def test_predictions_are_bound_by_memory_and_by_starts(static: ModuleType) -> None:
    takes = dict.fromkeys(FILES, Resources(64, 0, 0, 4096))

    class Any(dict[str, Resources]):
        def __missing__(self, name: str) -> Resources:
            return takes[name.partition("<")[0]]

    def predicted(card: str, model: str, *case: object) -> object:
        return static.predict(card, static.CARDS[card], model, Any(), *case)

    small, large = (predicted("RTX 3060", m, 1, 64, "f16") for m in ("smollm2-135m", "llama-8b"))
    assert small.share < large.share < 1
    assert 4600 < large.megabytes < 5100  # a Q4_K_M file of 8B parameters, without its embedding
    eight = predicted("RTX 3060", "llama-8b", 8, 64, "f16")
    assert eight.microseconds < 1.25 * large.microseconds
    full, tight = (predicted("RTX 3060", "llama-8b", 1, 4096, kv) for kv in ("f16", "q8_0"))
    # K and V of 32 layers, 8 heads of 128.
    assert full.megabytes - large.megabytes == pytest.approx(
        32 * 4096 * 8 * 128 * 4 / 1e6, rel=0.03
    )
    assert tight.megabytes < full.megabytes
    assert 5 < large.largest < 0.01 * large.microseconds  # the search's rounds, not its bytes


def test_a_mixture_reads_the_experts_it_chose(static: ModuleType) -> None:
    m = static.MODELS["qwen3-30b-a3b"]
    layer = 3 * m.width * m.ff * m.layers * 4.5 / 8  # bytes of one expert in all layers, Q4_K
    found = {
        t: sum(x.n * x.bytes for x in static.feed_forward(m, t) if "experts<" in x.kernel)
        for t in (1, 16)
    }
    assert 8 * layer < found[1] < 8 * 1.4 * layer  # the down projection's are Q6_K
    assert found[16] / found[1] == pytest.approx(16, rel=0.05)
    dense = static.MODELS["llama-8b"]
    assert sum(x.n for x in static.feed_forward(dense, 1)) == 4 * dense.layers
    assert sum(x.n for x in static.feed_forward(m, 1)) == 8 * m.layers


def test_the_results_leave_no_kernel_out(static: ModuleType) -> None:
    """Those kept under benchmarks/results: every kernel on every architecture, none that spills."""
    path = max((ROOT / "benchmarks" / "results").glob("*-cuda-static.json"))
    data = static.load(path)
    assert set(data["takes"]) == {str(a) for a in static.ARCHITECTURES}
    matrix = importlib.import_module("_cuda_matrix")
    for arch, takes in data["takes"].items():
        assert set(takes) == set(static.everything()), arch
        bad = {name: matrix.wrong(name, t) for name, t in takes.items()}
        assert not any(bad.values()), (arch, bad)
    assert {p["card"] for p in data["predictions"]} >= {"RTX 3060", "RTX 4090", "RTX 5090"}


def test_what_is_compiled_is_kept(
    static: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Who is interrupted goes on; what changed is compiled again, and what is wrong is said."""
    matrix = importlib.import_module("_cuda_matrix")
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(matrix, "_takes", lambda n, a: (done.append((n, a)), [300, 0, 0])[1])
    monkeypatch.setattr(matrix.cuda_kernels, "nvrtc_version", lambda: (13, 0))
    file, said = tmp_path / "out.json", list[str]()
    names = ("glu", "copy_page")
    found, bad = matrix.matrix((75, 89), names, file, said.append)
    assert found[89] == {"glu": [300, 0, 0], "copy_page": [300, 0, 0]}
    assert len(done) == 4
    assert bad[0] == "glu on sm_75: 77824 registers a block"
    assert said[-1] == f"WRONG {bad[-1]}"
    digest = matrix.cuda_kernels.digest
    changed = {"glu.cu": "other"}
    monkeypatch.setattr(matrix.cuda_kernels, "digest", lambda f: changed.get(f) or digest(f))
    matrix.matrix((75,), names, file, said.append)
    assert done[4:] == [("glu", 75)]
    assert matrix.wrong("glu", [64, 8, 0]) == "8 bytes of registers lie in memory"
    assert matrix.wrong("glu", [64, 0, 50_000]) == "50000 bytes of shared memory"
    assert matrix.wrong("tokenwise<0>", [64, 0, 48 << 10]) is None
