"""cuda.core itself over an emulated driver: memory, launches, graphs, threads, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from helpers import emulated_gpu, simt
from helpers import gguf_build as gb
from helpers.host_device import HostDevice

from edgerun import LLM, SamplingParams
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.cuda_driver import open_device
from edgerun.errors import BackendUnavailableError

START = """
import json, sys
from helpers.emulated_gpu import install
gpu = install()
"""


def run(code: str, **env: str) -> Any:
    """What ``code`` prints last, as JSON."""
    done = emulated_gpu.python(START + code, **env)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_the_whole_product_runs_on_it(tmp_path: Path) -> None:
    """``auto`` finds the GPU; the engine's thread uses what the caller's has made."""
    path = gb.random_model(tmp_path / "m.gguf", seed=3, n_layer=1)
    found = run(
        f"""
from edgerun import LLM, SamplingParams
params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
with LLM({str(path)!r}, n_ctx=128) as llm:
    name, facts = llm.backend.name, dict(llm.backend.describe())
    text = llm.generate("the rain in the sea", params).text
print(json.dumps([name, facts, text, gpu.errors, gpu.used(), sum(gpu.launches.values())]))
"""
    )
    name, facts, text, errors, used, launches = found
    assert (name, errors) == ("cuda", [])
    assert facts["device"] == "Emulated GPU"
    assert (facts["compute"], facts["driver"]) == ("8.9", "CUDA 13.0")
    host = CudaBackend(HostDevice())
    with LLM(path, backend=host, n_ctx=128) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
        assert text == llm.generate("the rain in the sea", params).text
    assert used == 0  # all was freed
    assert launches > 20 * 10
    host.close()


def test_memory_copies_and_graphs() -> None:
    found = run(
        """
import threading
import numpy as np
from edgerun.backends.cuda_device import Arena, Launch
from edgerun.backends.cuda_driver import open_device
from edgerun.errors import BackendError, OutOfMemoryError
device = open_device()
a, b = device.alloc(4096), device.alloc(4096)
x = device.pinned(4096).view(np.float32)
x[:] = np.linspace(-2, 2, 1024)
device.upload(a, x)
device.zero(b, 4096)
kernel = device.kernel("glu")
args = (np.uint64(a), np.uint64(a), np.uint64(b), np.int64(1024), np.int32(1))
launch = Launch("glu", kernel, (4, 1, 1), (256, 1, 1), args)
y = np.zeros(1024, np.float32)
out = []
device.launch(launch)
device.download(y, b)
out.append(float(y[-1]))
graph = device.capture([launch])
device.zero(b, 4096)
device.download(y, b)
out.append(float(y[-1]))  # capturing launched nothing
waits = []
plain, device.sync = device.sync, lambda: (waits.append(1), plain())[1]
device.upload(a, x)
assert waits == []  # pinned memory is read when its turn comes
device.upload(a, x * 2)
assert waits == [1]  # what goes away is read at once
device.sync = plain
def replay():
    try:
        graph.replay()
        device.sync()
    except BackendError as e:
        out.append(str(e))
for _ in range(3):  # threads take over the numbers of those that ended
    thread = threading.Thread(target=replay)
    thread.start()
    thread.join()
device.copy(b, b + 2048, 2048)
device.download(y, b)
out.append(float(y[511]))
z = device.pinned(8).view(np.float32)
device.fetch(z, b + 2044)
mark = device.mark()
mark.wait()
out.append(float(z[0]))
assert gpu.events() == 1
del mark
assert gpu.events() == 0
said = []
for call, kind in (
    (lambda: device.alloc(1 << 40), OutOfMemoryError),
    (lambda: device.launch(Launch("few", kernel, (4, 1, 1), (256, 1, 1), args[:4])), BackendError),
):
    try:
        call()
    except kind as e:
        said.append(str(e))
device.free(a)
free = device.memory().free
device.close()
print(json.dumps([out, said, free, gpu.used(), gpu.launches]))
"""
    )
    out, said, free, used, launches = found

    def silu_mul(x: float) -> float:
        return float(x * x / (1 + 2.718281828459045**-x))

    doubled = silu_mul(4.0)
    assert out == pytest.approx([silu_mul(2.0), 0.0, doubled, doubled], rel=1e-5)
    assert "has no 1.10 TB left" in said[0]
    assert said[1] == (
        "kernel few takes arguments of [8, 8, 8, 8, 4] bytes, and was given [8, 8, 8, 8]"
    )
    assert free == (1 << 30) - 4096
    assert used == 0
    assert launches["glu"] == 4


@pytest.mark.parametrize(
    ("machine", "reason"),
    [
        ("devices=0", "the NVIDIA driver finds no GPU: CUDA_ERROR_NO_DEVICE"),
        ("compute=61", "Emulated GPU has compute capability 6.1; 7.5 is the oldest that works"),
        ("version=12040", "the NVIDIA driver supports CUDA 12.4, but 13"),
    ],
)
def test_doctor_says_why_not(machine: str, reason: str) -> None:
    found = run(
        f"""
gpu.machine({machine})
from edgerun.cli.doctor import examine
print(json.dumps(examine()["backends"][0]))
"""
    )
    assert (found["name"], found["available"]) == ("cuda", False)
    assert reason in found["reason"]
    assert "\n" not in found["reason"]


def test_doctor_shows_the_gpu() -> None:
    done = emulated_gpu.python("from edgerun.cli import main; main(['doctor'])")
    assert "ok  cuda       device Emulated GPU, compute 8.9, driver CUDA 13.0" in done.stdout


def test_a_gpu_whose_packages_are_missing(tmp_path: Path) -> None:
    """With the driver there and cuda.core not, ``auto`` says how to get it and takes the CPU."""
    path = gb.random_model(tmp_path / "m.gguf", seed=3, n_layer=1)
    done = emulated_gpu.python(
        f"""
import sys
sys.modules["cuda"] = None
from edgerun import LLM
with LLM({str(path)!r}, n_ctx=64) as llm:
    print(llm.backend.name)
""",
        EDGERUN_HOME=str(tmp_path / "home"),
    )
    assert done.stdout.strip() == "cpu", done.stderr
    assert "pip install 'edgerun[cuda]'" in done.stderr


def test_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgerun.backends.cuda_driver.nvidia_driver", lambda: False)
    with pytest.raises(BackendUnavailableError, match="no NVIDIA driver is installed"):
        open_device()
    with pytest.raises(BackendUnavailableError, match="no NVIDIA driver"):
        CudaBackend()


def test_the_emulation_lies_where_it_is_looked_for() -> None:
    assert emulated_gpu.library().name == "libcuda.so.1"
    assert os.access(emulated_gpu.library(), os.R_OK)
    assert simt.CACHE in emulated_gpu.library().parents
