"""A process in which cuda.core finds a GPU: the driver is tests/simt/driver.cpp, kernels run on the
SIMT engine. Start one with :func:`python`; in it, call :func:`install` before anything else."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import simt
from helpers.host_device import module
from helpers.paths import ROOT


def library() -> Path:
    """The emulated driver, built if need be."""
    source = simt.ENGINE / "driver.cpp"
    folder = simt.CACHE / f"driver-{simt.digest(source.read_text(), simt.compiler())}"
    out = folder / "libcuda.so.1"
    if not out.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"part-{os.getpid()}"
        flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wl,-soname,libcuda.so.1"]
        command = [*simt.compiler(), *flags, str(source), "-o", str(part)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[:4000]
        os.replace(part, out)
    return out


def python(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``code`` where the emulated driver is the one that is found."""
    if sys.platform != "linux":
        pytest.skip("the emulated driver is built for Linux")
    pytest.importorskip("cuda.core", reason="cuda-core is not installed")
    found = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "tests"), str(ROOT)]), **env)
    found["LD_LIBRARY_PATH"] = str(library().parent)
    found.pop("EDGERUN_ISA", None)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=found, capture_output=True, text=True, timeout=120)


_Run = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_uint),
    ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p),
)  # fmt: skip


class Emulation:
    """Counts launches by kernel; ``errors`` are what the engine said of wrong ones."""

    def __init__(self) -> None:
        self.launches: dict[str, int] = {}
        self.errors: list[str] = []
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._kernels: dict[str, tuple[simt.Module, int]] = {}
        self._run = _Run(self._launch)  # kept: the driver has its address
        self._driver.on_launch(self._run)

    def machine(self, *, devices: int = 1, version: int = 13000, compute: int = 89,
                memory: int = 1 << 30) -> None:  # fmt: skip
        """What the driver says of itself and its GPU."""
        self._driver.emulate(devices, version, compute, ctypes.c_size_t(memory))

    def used(self) -> int:
        """Bytes of the GPU's memory in use."""
        self._driver.memory_used.restype = ctypes.c_size_t
        return int(self._driver.memory_used())

    def events(self) -> int:
        """Marks that are still kept."""
        return int(self._driver.events())

    def cubin(self, name: str, capability: tuple[int, int]) -> tuple[bytes, str]:
        """Stands for ``cuda_kernels.cubin``: makes a kernel known to the driver."""
        from edgerun.backends import cuda_kernels

        if name not in self._kernels:
            file, expression = cuda_kernels.source(name)
            kernel = module(file, expression, 100 * capability[0] + 10 * capability[1])
            found, sizes = kernel.signature(expression)
            self._kernels[name] = (kernel, found)
            array = (ctypes.c_uint * len(sizes))(*sizes)
            self._driver.add_kernel(name.encode(), len(sizes), array)
        return b"\x7fELF" + name.encode(), name

    def _launch(self, name: bytes, grid: Any, block: Any, shared: int, args: Any) -> int:
        kernel, found = self._kernels[name.decode()]
        self.launches[name.decode()] = self.launches.get(name.decode(), 0) + 1
        error = kernel.run(found, grid[:3], block[:3], shared, args)
        if error:
            self.errors.append(error)
        return 700 if error else 0


def install() -> Emulation:
    """Take the place of machine code and its launches; call it in a process of its own."""
    from edgerun.backends import cuda_kernels

    emulation = Emulation()
    cuda_kernels.cubin = emulation.cubin
    cuda_kernels.prepare = lambda names, capability: [emulation.cubin(n, capability) for n in names]
    return emulation
