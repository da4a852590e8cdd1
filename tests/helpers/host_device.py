"""The cuda backend's device seam on the CPU: memory is numpy, kernels run on the SIMT engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.backends import cuda_kernels
from edgerun.backends.base import Memory
from edgerun.backends.cuda_device import Bytes, Device, Graph, Launch
from edgerun.errors import BackendError, OutOfMemoryError
from helpers import simt

MIB = 1 << 20


class HostDevice(Device):
    """See the module's docstring. Memory starts as NaN and lies between canaries.

    Args:
        total: bytes of memory it claims to have.
        capability: what kernels are compiled for.
    """

    name = "harness"

    def __init__(self, total: int = 256 * MIB, capability: tuple[int, int] = (8, 9)) -> None:
        self.capability = capability
        self.total = total
        self.used = 0
        self.closed = False
        self.n_launches = 0
        self.n_replays = 0
        self.order = (0, 1)  # of threads, one of simt.ORDERS
        self._memory: dict[int, simt.Guarded] = {}
        self._kernels: dict[str, tuple[simt.Module, str]] = {}

    def memory(self) -> Memory:
        return Memory(self.total, self.total - self.used)

    def alloc(self, nbytes: int) -> int:
        assert not self.closed
        assert nbytes > 0
        if nbytes > self.total - self.used:
            raise OutOfMemoryError(f"the harness has no {nbytes} bytes left")
        memory = simt.Guarded(nbytes, np.uint8)
        self.used += nbytes
        self._memory[memory.array.ctypes.data] = memory
        return int(memory.array.ctypes.data)

    def free(self, address: int) -> None:
        memory = self._memory.pop(address)
        memory.check()
        self.used -= memory.array.nbytes

    def pinned(self, nbytes: int) -> Bytes:
        return np.full(nbytes, 0xFF, np.uint8)

    def _at(self, address: int, nbytes: int) -> Bytes:
        for start, memory in self._memory.items():
            if start <= address and address + nbytes <= start + memory.array.nbytes:
                return memory.array[address - start : address - start + nbytes]
        raise BackendError(f"{nbytes} bytes at {address:#x} are not the device's")

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        assert data.flags.c_contiguous
        if data.nbytes:
            self._at(address, data.nbytes)[:] = data.reshape(-1).view(np.uint8)

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        assert data.flags.c_contiguous
        if data.nbytes:
            data.reshape(-1).view(np.uint8)[:] = self._at(address, data.nbytes)

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self._at(dst, nbytes)[:] = self._at(src, nbytes)

    def zero(self, address: int, nbytes: int) -> None:
        self._at(address, nbytes)[:] = 0

    def kernel(self, name: str) -> Any:
        if name not in self._kernels:
            file, expression = cuda_kernels.source(name)
            major, minor = self.capability
            arch = 100 * major + 10 * minor
            names = (expression,) if "<" in expression else ()
            self._kernels[name] = (simt.build(file, names, arch=arch), expression)
        return self._kernels[name]

    def launch(self, launch: Launch) -> None:
        assert not self.closed
        module, expression = launch.kernel
        self.n_launches += 1
        with simt.ordered(module, self.order):
            module.launch(expression, launch.grid, launch.block, *launch.args, shared=launch.smem)

    def capture(self, launches: Sequence[Launch]) -> Graph:
        return _HostGraph(self, list(launches))

    def check(self) -> None:
        """Fail if something wrote beside the memory it was given."""
        for memory in self._memory.values():
            memory.check()

    def sync(self) -> None:
        pass

    def close(self) -> None:
        self.check()
        self.closed = True
        self._memory.clear()


class _HostGraph(Graph):
    def __init__(self, device: HostDevice, launches: list[Launch]) -> None:
        self._device = device
        self._launches = launches

    def replay(self) -> None:
        self._device.n_replays += 1
        for launch in self._launches:
            self._device.launch(launch)
