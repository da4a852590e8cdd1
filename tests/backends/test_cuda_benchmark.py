"""benchmarks/gpu.py runs, over an emulated driver and with small numbers: it must work the first
time it meets a GPU, and lose nothing to a case that goes wrong."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from helpers import emulated_gpu
from helpers.host_device import HostDevice
from helpers.paths import ROOT

from edgerun.backends.cuda import CudaBackend
from edgerun.backends.cuda_kernels import source

_BENCHMARKS = str(ROOT / "benchmarks")
#: A process that finds the emulated GPU, and is the script.
_CHILD = f"""
from helpers.emulated_gpu import install
install()
import sys
sys.path.insert(0, {_BENCHMARKS!r})
import gpu
sys.exit(gpu.main())
"""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(_BENCHMARKS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "tests"), str(ROOT)]))
    return importlib.import_module("gpu")


def opened() -> CudaBackend:
    return CudaBackend(HostDevice())


def rows(gpu: ModuleType, part: str, *names: str) -> list[Any]:
    """What the named cases of a part yield, in this process; all cases without names."""
    cases = list(gpu.cases_of(part, opened, gpu.SMALL))
    assert set(names) <= {name for name, _ in cases}
    return [row for name, act in cases if not names or name in names for row in act()]


def test_a_run_from_end_to_end(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Parts that differ in what they ask of cuda.core; the others run below."""
    if sys.platform != "linux":
        pytest.skip("the emulated driver is built for Linux")
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(emulated_gpu.library().parent))
    monkeypatch.setattr(gpu, "CHECKS", ("pages",))
    file = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", ["gpu.py", "--small", "--json", str(file), "--only",
                                     "correctness", "rates"])  # fmt: skip
    status = gpu.main([sys.executable, "-c", _CHILD])
    out = json.loads(file.read_text())
    assert (status, out["failures"], out["skipped"]) == (0, [], []), capsys.readouterr().out
    assert out["device"][0]["device"] == "Emulated GPU"
    assert [r["case"] for r in out["pages"] if r["ok"]] == [
        "pages of q8_0", "pages of q4r", "copies and swap", "300 tokens of context", "steps ahead",
    ]  # fmt: skip
    assert out["rates"][0]["graph_us"] > 0


def test_what_must_be_right(gpu: ModuleType) -> None:
    for name in gpu.cases.product_kernels():
        assert source(name)[1] == name
    for part, n in (
        ("architectures", 1), ("products right", 3), ("experts right", 3), ("attention right", 3),
        ("largest right", 1),
    ):  # fmt: skip
        found = rows(gpu, part)
        assert len(found) == n, part
        assert all(r["ok"] for r in found), found


def test_every_part_has_cases(gpu: ModuleType) -> None:
    full = gpu.Sizes()
    counts = {p: len(list(gpu.cases_of(p, opened, full))) for p in (*gpu.CHECKS, *gpu.SPEEDS)}
    assert all(counts.values()), counts
    assert counts["products right"] == 2 * len(gpu.LINEAR_TYPES)
    assert counts["attention right"] == 3 * len(gpu.ATTENTION)
    assert counts["architectures"] == len(list((ROOT / "tests/fixtures/arch").glob("*.npz")))
    assert counts["products"] + counts["types"] == len(gpu.LINEAR_TYPES)


def test_a_wrong_kernel_is_said(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = gpu.cases.dequantize
    monkeypatch.setattr(gpu.cases, "dequantize", lambda *a: plain(*a) * 1.02)
    (found,) = rows(gpu, "products right", "Q8_0 k 256")
    assert (found["ok"], found["bad"]) == (False, "error 2.0e-02")
    a = np.ones((2, 3), np.float32)
    b = a.copy()
    b[1, 2] = 2
    assert gpu.cases.other_bits(a, a, "x") == []
    said = "x have other bits in 1 of 6 values, first [1, 2]: 2.0 for 1.0"
    assert gpu.cases.other_bits(b, a, "x") == [said]


def test_measurements(gpu: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    speed = gpu.speed
    monkeypatch.setattr(speed, "seconds", lambda device, act: (act(), 1e-3)[1])
    monkeypatch.setattr(gpu.models, "seconds", speed.seconds)
    found = rows(gpu, "experts")
    assert [r["way"] for r in found] == ["rule"] * 4 + ["qmm", "qgemm 32", "qgemm 64"]
    assert found[0]["chosen"] == 2  # a token's two of four
    assert len(rows(gpu, "attention", "q8_0 40")) == 2
    assert [r["tokens"] for r in rows(gpu, "products")] == [1, 8]
    assert [r["kernels"] for r in rows(gpu, "compile")] == [2]
    found = rows(gpu, "choices")
    assert [(r["vocab"], r["rows"]) for r in found] == [(300, 1), (300, 2)]
    assert set(found[0]) - {"vocab", "rows"} == {
        "argmax_us", "argmax_step_us", "topk_us", "topk_step_us", "rows_step_us",
    }  # fmt: skip
    found = rows(gpu, "models")
    assert [r.get("what") for r in found] == ["load", None, *["decode"] * 6, "prompt"]
    assert found[1]["ok"]
    assert json.loads(json.dumps(found)) == found


def test_a_model_without_room_is_left_out(gpu: ModuleType, tmp_path: Path) -> None:
    cases = gpu.models.models(opened, (("llama-tiny", "Q8_0", 1e12),))
    with pytest.raises(gpu.models.OutOfMemoryError, match=r"0\.3 GB are free, 1000\.0 are needed"):
        list(next(iter(cases))[1]())


#: Cases that go wrong in every way there is, one behind another.
_TROUBLE = f"""
import os, sys, time
sys.path[:0] = [{_BENCHMARKS!r}, {str(ROOT)!r}]
from _gpu_run import serve
from edgerun.errors import OutOfMemoryError
def fine():
    yield {{"case": "fine", "ok": True}}
def wrong():
    yield {{"case": "wrong", "ok": False, "bad": "a bit"}}
def broken():
    yield {{"a": 1}}
    1 / 0
def full():
    raise OutOfMemoryError("full")
def crash():
    print("last words", flush=True)
    os.abort()
def hang():
    time.sleep(60)
    yield {{}}
acts = {{k: v for k, v in globals().items() if callable(v)}}
part, start = sys.argv[1:]
sys.exit(serve([(name, acts[name]) for name in part.split()], int(start)))
"""


def test_nothing_is_lost_to_a_case_that_goes_wrong(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "out.json"
    run = gpu.Run(5, file, [sys.executable, "-c", _TROUBLE])
    part = "fine wrong broken full crash fine"
    run.part(part)
    out = json.loads(file.read_text())
    assert [r.get("case", "a") for r in out[part]] == ["fine", "wrong", "a", "fine"]
    failures = [f.removeprefix(f"{part}: ") for f in out["failures"]]
    assert failures[:2] == ["wrong: a bit", "broken: ZeroDivisionError: division by zero"]
    assert failures[2].startswith("crash: the process ended with")
    assert "last words" in out["traces"][-1]
    assert out["skipped"] == [f"{part}: full: full"]
    monkeypatch.setattr("_gpu_run.QUIET", 1.0)
    run.part("hang fine")
    assert run.out["failures"][-1] == "hang fine: hang: the process said nothing for 1 s"
    assert len(run.out["hang fine"]) == 1
    run.part("nonesuch")  # a process that does not even begin
    assert run.out["failures"][-1].startswith("nonesuch: nonesuch: the process ended with 1")


def test_time_that_is_up(gpu: ModuleType) -> None:
    run = gpu.Run(0, None, ["nonesuch"])
    run.part("late")
    assert run.out["skipped"] == ["late"]
    run = gpu.Run(0.02, None, [sys.executable, "-c", _TROUBLE])
    run.part("hang")
    assert (run.out["skipped"], run.out["failures"]) == (["the rest of hang"], [])


def test_without_a_gpu_it_says_so(
    gpu: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr("sys.argv", ["gpu.py", "--json", str(tmp_path / "out.json")])
    hidden = (
        "import sys; from edgerun.backends import cuda_driver; "
        f"cuda_driver.nvidia_driver = lambda: False; sys.path.insert(0, {_BENCHMARKS!r}); "
        "import gpu; sys.exit(gpu.main())"
    )
    assert gpu.main([sys.executable, "-c", hidden]) == 1
    assert "BackendUnavailableError: no NVIDIA driver is installed" in capsys.readouterr().out
    assert json.loads((tmp_path / "out.json").read_text())["failures"]


def test_it_needs_numpy_and_cuda_alone() -> None:
    """Importing it asks for no other package."""
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in allowed and top not in sys.stdlib_module_names:
            raise ImportError(name + " is asked for")
allowed = {{"numpy", "cuda", "edgerun", "backends", "helpers", "kernels", "gpu"}}
sys.path.insert(0, {_BENCHMARKS!r})
sys.meta_path.insert(0, Refuse())
allowed |= {{"_blocks", *(f"_gpu_{{x}}" for x in "attention cases models run speed".split())}}
import gpu
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
