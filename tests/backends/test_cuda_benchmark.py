"""benchmarks/gpu.py runs, on the SIMT engine and with small numbers: it must work the first time it
meets a GPU."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.host_device import HostDevice
from helpers.paths import ROOT

from edgerun.backends.base import Attention
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.cuda_kernels import source


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    module = importlib.import_module("gpu")
    monkeypatch.setattr(module.speed, "seconds", lambda device, act, least=0.0: (act(), 1e-3)[1])
    monkeypatch.setattr(module.cases, "LINEAR_TYPES", (0, 8, 12))
    return module


def opened() -> CudaBackend:
    return CudaBackend(HostDevice())


def test_correctness(gpu: ModuleType) -> None:
    run = gpu.Run(5)
    backend = opened()
    for name in gpu.cases.product_kernels():
        assert source(name)[1] == name
    run.check("products", lambda: gpu.cases.products(backend, rows=40, ks=(256,)))
    run.check("experts", lambda: gpu.cases.experts(backend, 256, 256, 20))
    run.check("architectures", lambda: gpu.cases.architectures(backend, ["gemma2"]))
    run.check("long", lambda: gpu.cases.long_texts(backend, 300))
    backend.close()
    assert run.out["failures"] == []
    assert [r["ok"] for r in run.out["products"]] == [True] * 3
    assert [r["ok"] for r in run.out["experts"]] == [True] * 3
    assert [r["case"] for r in run.out["architectures"]] == [
        "architecture gemma2", "pages of q8_0", "pages of q4r",
    ]  # fmt: skip
    assert len(run.out["long"]) == 1


def test_a_wrong_kernel_is_a_failure(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = gpu.cases.dequantize
    monkeypatch.setattr(gpu.cases, "dequantize", lambda *a: plain(*a) * 1.02)
    run = gpu.Run(5)
    backend = opened()
    run.check("products", lambda: gpu.cases.products(backend, rows=40, ks=(256,)))
    assert len(run.out["failures"]) == 3
    assert "error 2.0e-02" in run.out["failures"][0]
    backend.close()


def test_measurements(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    run, speed = gpu.Run(5), gpu.speed
    device = HostDevice()
    assert speed.copies(device, 1 << 16)["copy_gbs"] > 0
    assert speed.overheads(device)["graph_us"] > 0
    device.close()
    run.part("products", lambda: speed.products(opened, (12,), (1, 8), 32, 256, spread=9000))
    heads = Attention(4, 2, 32, 0.2)
    run.part("attention", lambda: speed.attention(opened, (40,), (1, 2), ("f16",), heads, 2))
    run.part("models", lambda: speed.models(opened, "llama-tiny", "Q8_0", 1.0, n_ctx=320))
    run.part("experts", lambda: speed.experts(opened, 12, [(2, 4, 256, 256)], (1, 9), 1))
    assert run.out["failures"] == []
    assert [r["tokens"] for r in run.out["experts"]] == [1, 9]
    assert [r["tokens"] for r in run.out["products"]] == [1, 8]
    assert [r["rows"] for r in run.out["attention"]] == [1, 2]
    assert [r["what"] for r in run.out["models"]] == ["load", *["decode"] * 6, "prompt"]
    assert json.loads(json.dumps(run.out)) == run.out
    assert "skipped" not in run.out


def test_time_and_memory_that_are_up(gpu: ModuleType) -> None:
    run = gpu.Run(0)
    run.part("late", lambda: pytest.fail("begun"))
    assert run.out["skipped"] == ["late"]
    run = gpu.Run(5)

    def rows() -> Any:
        yield {"a": 1}
        raise gpu.OutOfMemoryError("full")

    run.part("large", rows)
    assert run.out["skipped"] == ["large: full"]
    assert run.out["failures"] == []
    run.part("broken", lambda: iter([1 / 0]))
    assert run.out["failures"] == ["broken: ZeroDivisionError: division by zero"]


def test_without_a_gpu_it_says_so(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("edgerun.backends.cuda_driver.nvidia_driver", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu.py", "--json", str(tmp_path / "out.json")])
    assert gpu.main() == 1
    assert "FAILED no NVIDIA driver is installed" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["failures"]
