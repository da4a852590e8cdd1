"""The cuda backend's device seam on the CPU: memory is numpy, kernels run on the SIMT engine."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.backends import cuda_kernels
from edgerun.backends.base import Memory
from edgerun.backends.cuda_device import Bytes, Device, Graph, Launch, Mark
from edgerun.errors import BackendError, OutOfMemoryError
from helpers import simt

MIB = 1 << 20
_PAIRS = ("12,14", "12,12", "14,14", "6,6", "8,8")  # Q4_K, Q6_K, Q5_0, Q8_0
#: Instances that the models of the tests run: a file is compiled once for all of them.
INSTANCES = {
    "attention.cu": (
        *(f"attention<32,{kv},1,1,0>" for kv in (0, 1, 2)),
        *("attention<32,0,1,1,1>", "attention<32,0,2,2,0>", "attention_merge<32>"),
    ),
    "experts.cu": (),
    "fmm.cu": ("fmm<0>", "fmm<1>", "fmm_experts<1>"),
    "qgemm.cu": ("qgemm<12,14,4>", *(f"qgemm<{p},8>" for p in _PAIRS[1:])),
    "qmm.cu": tuple(f"qmm<{p},{n}>" for p in _PAIRS for n in (1, 2)),
    "repack.cu": tuple(f"repack<{t}>" for t in (6, 8, 12, 14)),
    "repack_float.cu": ("repack_float<0>", "repack_float<1>", "unpack_float_rows<0>",
                        "unpack_float_rows<1>"),
    "rope_kv.cu": ("rope_kv<0>", "rope_kv<1>", "rope_kv<2>"),
    "rows.cu": ("unpack_rows<8>",),
    "tokenwise.cu": ("tokenwise<0>", "tokenwise<1>"),
    "argmax.cu": (),
    "glu.cu": (),
    "rotate_heads.cu": (),
    "topk.cu": (),
}  # fmt: skip


@functools.cache
def _build_all(arch: int) -> None:
    simt.build_all([(simt.KERNELS / f, names) for f, names in INSTANCES.items()], arch)


@functools.cache
def module(file: Path, expression: str, arch: int) -> simt.Module:
    """The library that has a kernel."""
    _build_all(arch)
    names = INSTANCES.get(file.name, ())
    if "<" in expression and expression not in names:
        names = (expression,)
    return simt.build(file, names, arch=arch)


class HostDevice(Device):
    """See the module's docstring. Memory starts as NaN and lies between canaries. Everything is
    done as late as a device may do it: when somebody waits for it; or at once, if it is ``eager``.

    Args:
        total: bytes of memory it claims to have.
        capability: what kernels are compiled for.
    """

    name = "harness"

    def __init__(
        self,
        total: int = 256 * MIB,
        capability: tuple[int, int] = (8, 9),
        eager: bool = False,
    ) -> None:
        self.eager = eager
        self.capability = capability
        self.total = total
        self.used = 0
        self.closed = False
        self.n_launches = 0
        self.n_replays = 0
        self.order = (0, 1)  # of threads, one of simt.ORDERS
        self._memory: dict[int, simt.Guarded] = {}
        self._pinned: list[Bytes] = []
        self._queue: deque[Callable[[], object]] = deque()
        self._n_done = 0  # of all that was ever queued
        self._lock = threading.RLock()
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
        self.sync()
        memory = self._memory.pop(address)
        memory.check()
        self.used -= memory.array.nbytes

    def pinned(self, nbytes: int) -> Bytes:
        self._pinned.append(np.full(nbytes, 0xFF, np.uint8))
        return self._pinned[-1]

    def _at(self, address: int, nbytes: int) -> Bytes:
        for start, memory in self._memory.items():
            if start <= address and address + nbytes <= start + memory.array.nbytes:
                return memory.array[address - start : address - start + nbytes]
        raise BackendError(f"{nbytes} bytes at {address:#x} are not the device's")

    # -- the order of things ----------------------------------------------------------------

    def _later(self, do: Callable[[], object]) -> None:
        assert not self.closed
        with self._lock:
            self._queue.append(do)
            if self.eager:
                self._upto(self._n_done + 1)

    def _upto(self, n: int) -> None:
        with self._lock:
            while self._n_done < n:
                self._n_done += 1
                self._queue.popleft()()

    def mark(self) -> Mark:
        with self._lock:
            return _HostMark(self, self._n_done + len(self._queue))

    def sync(self) -> None:
        self.mark().wait()

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        """Pinned memory is read when its turn comes."""
        assert data.flags.c_contiguous
        if not data.nbytes:
            return
        source = data.reshape(-1).view(np.uint8)
        if not any(np.shares_memory(source, p) for p in self._pinned):
            source = source.copy()
        target = self._at(address, data.nbytes)
        self._later(lambda: np.copyto(target, source))

    def fetch(self, data: npt.NDArray[Any], address: int) -> None:
        if data.nbytes:
            source, target = self._at(address, data.nbytes), data.reshape(-1).view(np.uint8)
            self._later(lambda: np.copyto(target, source))

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        assert data.flags.c_contiguous
        self.fetch(data, address)
        self.sync()

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        source, target = self._at(src, nbytes), self._at(dst, nbytes)
        self._later(lambda: np.copyto(target, source))

    def zero(self, address: int, nbytes: int) -> None:
        self._at(address, nbytes)
        self._later(lambda: self._at(address, nbytes).fill(0))

    def kernel(self, name: str) -> Any:
        if name not in self._kernels:
            file, expression = cuda_kernels.source(name)
            major, minor = self.capability
            found = module(file, expression, 100 * major + 10 * minor)
            self._kernels[name] = (found, expression)
        return self._kernels[name]

    def load(self, names: Iterable[str]) -> None:
        """Nothing: what a test does not run need not be built."""

    def launch(self, launch: Launch) -> None:
        module, expression = launch.kernel
        order = self.order
        self.n_launches += 1

        def run() -> None:
            with simt.ordered(module, order):
                args, smem = launch.args, launch.smem
                module.launch(expression, launch.grid, launch.block, *args, shared=smem)

        self._later(run)

    def capture(self, launches: Sequence[Launch]) -> Graph:
        return _HostGraph(self, list(launches))

    def check(self) -> None:
        """Fail if something wrote beside the memory it was given."""
        self.sync()
        for memory in self._memory.values():
            memory.check()

    def close(self) -> None:
        self.check()
        self.closed = True
        self._memory.clear()


class _HostMark(Mark):
    def __init__(self, device: HostDevice, n: int) -> None:
        self._device = device
        self._n = n

    def wait(self) -> None:
        self._device._upto(self._n)


class _HostGraph(Graph):
    def __init__(self, device: HostDevice, launches: list[Launch]) -> None:
        self._device = device
        self._launches = launches

    def replay(self) -> None:
        self._device.n_replays += 1
        for launch in self._launches:
            self._device.launch(launch)


def downloads(device: Device) -> list[int]:
    """The bytes of each copy to the host from here on."""
    found: list[int] = []
    fetch = device.download

    def counted(data: npt.NDArray[Any], address: int) -> None:
        found.append(data.nbytes)
        fetch(data, address)

    device.download = counted  # type: ignore[method-assign]
    return found
