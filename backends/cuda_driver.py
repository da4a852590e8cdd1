"""An NVIDIA GPU as a :class:`~edgerun.backends.cuda_device.Device`, over cuda.core.

cuda.core owns context, stream, modules, launches and graphs; memory and copies go to the driver
through cuda.bindings, as addresses are all that kernels need.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.amounts import size_text
from edgerun.backends import cuda_kernels
from edgerun.backends.base import Memory
from edgerun.backends.cuda_device import Bytes, Device, Graph, Launch, Mark
from edgerun.backends.host import nvidia_driver
from edgerun.errors import BackendError, BackendUnavailableError, OutOfMemoryError

__all__ = ["CudaDevice", "open_device"]

log = logging.getLogger(__name__)

#: Turing, the first with int8 tensor cores; also the oldest that CUDA 13 compiles for.
OLDEST = (7, 5)
_INSTALL = "pip install 'edgerun[cuda]'"


def open_device(index: int = 0) -> CudaDevice:
    """GPU ``index`` of those that ``CUDA_VISIBLE_DEVICES`` leaves.

    Raises:
        BackendUnavailableError: no driver, no GPU, too old ones, or a Python package is missing.
    """
    if not nvidia_driver():
        raise BackendUnavailableError("no NVIDIA driver is installed")
    try:
        from cuda.bindings import driver
        from cuda.core import Device as CoreDevice
    except ImportError as e:
        raise BackendUnavailableError(
            f"a driver is here, but not {e.name or e}: {_INSTALL}"
        ) from None
    except RuntimeError as e:  # cuda.pathfinder: a driver library that cannot be loaded
        raise BackendUnavailableError(f"the NVIDIA driver cannot be loaded: {_line(e)}") from None
    (status,) = driver.cuInit(0)
    if int(status):
        raise BackendUnavailableError(f"the NVIDIA driver finds no GPU: {_name(driver, status)}")
    _check_driver(driver)
    try:
        device = CoreDevice(index)
        device.set_current()
    except Exception as e:
        raise BackendUnavailableError(f"GPU {index} cannot be used: {_line(e)}") from None
    capability = tuple(device.compute_capability)
    if capability < OLDEST:
        raise BackendUnavailableError(
            f"{device.name} has compute capability {_dots(capability)}; "
            f"{_dots(OLDEST)} is the oldest that works (GeForce RTX 20, GTX 16)"
        )
    return CudaDevice(device, driver)


def _check_driver(driver: Any) -> None:
    """A cubin of one major version of CUDA does not load with a driver of an earlier one."""
    try:
        compiler = cuda_kernels.nvrtc_version()
    except Exception as e:
        raise BackendUnavailableError(f"NVRTC is missing ({_line(e)}): {_INSTALL}") from None
    status, number = driver.cuDriverGetVersion()
    version = (number // 1000, number % 1000 // 10)
    if int(status) or version[0] < compiler[0]:
        raise BackendUnavailableError(
            f"the NVIDIA driver supports CUDA {_dots(version)}, but {_dots(compiler)} is installed "
            f"here: update the driver, or install cuda-core[cu{version[0]}]"
        )


def _dots(version: Sequence[int]) -> str:
    return ".".join(map(str, version))


def _line(e: object) -> str:
    return " ".join(str(e).split())[:200]


def _name(driver: Any, status: Any) -> str:
    found, name = driver.cuGetErrorName(status)
    return f"error {int(status)}" if int(found) else name.decode()


class CudaDevice(Device):
    """See :func:`open_device`. One stream; threads take turns, each with the context current."""

    def __init__(self, device: Any, driver: Any) -> None:
        from cuda import core

        self._core = core
        self._driver = driver
        self._device = device
        self.name = device.name
        self.capability = tuple(device.compute_capability)
        self._stream = device.create_stream()
        self._handle = self._stream.handle
        self._threads = threading.local()
        self._kernels: dict[str, Any] = {}
        self._modules: dict[bytes, Any] = {}
        self._configs: dict[Any, Any] = {}
        self._checked: set[str] = set()
        self._allocated: set[int] = set()
        self._pinned: dict[int, int] = {}  # address -> bytes
        self._graphs: list[Any] = []
        self._closed = False

    def _enter(self) -> None:
        """The driver's calls act on the calling thread's context."""
        if self._closed:
            raise BackendError("the device was closed")
        if not hasattr(self._threads, "entered"):
            self._core.Device(self._device.device_id).set_current()
            self._threads.entered = True

    def _check(self, result: tuple[Any, ...]) -> Any:
        status, *values = result
        if int(status):
            raise BackendError(f"{self.name}: {_name(self._driver, status)}")
        return values[0] if values else None

    # -- memory -----------------------------------------------------------------------------

    def memory(self) -> Memory:
        self._enter()
        status, free, total = self._driver.cuMemGetInfo()
        self._check((status,))
        return Memory(total=int(total), free=int(free))

    def alloc(self, nbytes: int) -> int:
        self._enter()
        status, address = self._driver.cuMemAlloc(nbytes)
        if status == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free = self.memory().free
            raise OutOfMemoryError(
                f"{self.name} has no {size_text(nbytes)} left, only {size_text(free)}: close "
                "other programs that use it, lower n_ctx, or choose a smaller model"
            )
        self._check((status,))
        self._allocated.add(int(address))
        return int(address)

    def free(self, address: int) -> None:
        self._enter()
        self.sync()
        self._allocated.discard(address)
        self._check(self._driver.cuMemFree(address))

    def pinned(self, nbytes: int) -> Bytes:
        self._enter()
        status, address = self._driver.cuMemAllocHost(nbytes)
        if int(status):
            raise OutOfMemoryError(f"no {size_text(nbytes)} of memory for copies to {self.name}")
        self._pinned[int(address)] = nbytes
        return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(int(address)))

    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        self._enter()
        if not data.nbytes:
            return
        source = data.ctypes.data
        self._check(self._driver.cuMemcpyHtoDAsync(address, source, data.nbytes, self._handle))
        if not any(at <= source < at + n for at, n in self._pinned.items()):
            self.sync()  # where the GPU reads pageable memory itself, it may do so later

    def download(self, data: npt.NDArray[Any], address: int) -> None:
        self.fetch(data, address)
        self.sync()

    def fetch(self, data: npt.NDArray[Any], address: int) -> None:
        self._enter()
        if data.nbytes:
            self._check(
                self._driver.cuMemcpyDtoHAsync(data.ctypes.data, address, data.nbytes, self._handle)
            )

    def copy(self, dst: int, src: int, nbytes: int) -> None:
        self._enter()
        self._check(self._driver.cuMemcpyDtoDAsync(dst, src, nbytes, self._handle))

    def zero(self, address: int, nbytes: int) -> None:
        self._enter()
        self._check(self._driver.cuMemsetD8Async(address, 0, nbytes, self._handle))

    # -- kernels ----------------------------------------------------------------------------

    def kernel(self, name: str) -> Any:
        found = self._kernels.get(name)
        if found is None:
            self._enter()
            cubin, symbol = cuda_kernels.cubin(name, self.capability)
            module = self._modules.get(cubin)
            if module is None:
                module = self._modules[cubin] = self._core.ObjectCode.from_cubin(cubin)
            try:
                found = self._kernels[name] = module.get_kernel(symbol)
            except Exception as e:
                raise BackendError(f"kernel {name} does not load: {_line(e)}") from None
        return found

    def load(self, names: Iterable[str]) -> None:
        wanted = list(dict.fromkeys(names))
        started = time.perf_counter()
        cuda_kernels.prepare(wanted, self.capability)
        seconds = time.perf_counter() - started
        if seconds > 1:
            log.info("%d kernels were compiled for %s in %.1f s", len(wanted), self.name, seconds)
        super().load(wanted)

    def _config(self, launch: Launch) -> Any:
        key = (launch.grid, launch.block, launch.smem)
        found = self._configs.get(key)
        if found is None:
            found = self._configs[key] = self._core.LaunchConfig(
                grid=launch.grid, block=launch.block, shmem_size=launch.smem
            )
        return found

    def launch(self, launch: Launch) -> None:
        self._enter()
        self._launch_on(self._stream, launch)

    def _launch_on(self, stream: Any, launch: Launch) -> None:
        if launch.name not in self._checked:
            _check_arguments(launch)
            self._checked.add(launch.name)
        try:
            self._core.launch(stream, self._config(launch), launch.kernel, *launch.args)
        except Exception as e:
            raise BackendError(f"kernel {launch.name} cannot be launched: {_line(e)}") from None

    def capture(self, launches: Sequence[Launch]) -> Graph:
        self._enter()
        builder = self._device.create_graph_builder().begin_building("thread_local")
        try:
            for launch in launches:
                self._launch_on(builder, launch)
            graph = builder.end_building().complete()
        finally:
            builder.close()
        self._graphs.append(graph)
        return _CudaGraph(self, graph, self._stream)

    def mark(self) -> Mark:
        self._enter()
        return _CudaMark(self)

    def sync(self) -> None:
        self._enter()
        self._check(self._driver.cuStreamSynchronize(self._handle))

    # -- ends -------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        _, number = self._driver.cuDriverGetVersion()
        memory = self.memory()
        return {
            **super().describe(),
            "driver": f"CUDA {number // 1000}.{number % 1000 // 10}",
            "nvrtc": _dots(cuda_kernels.nvrtc_version()),
            "free_gb": round(memory.free / 1e9, 1),
            "total_gb": round(memory.total / 1e9, 1),
        }

    def close(self) -> None:
        if self._closed:
            return
        self._enter()
        self._driver.cuStreamSynchronize(self._handle)
        for graph in self._graphs:
            graph.close()
        self._kernels.clear()
        self._modules.clear()
        for address in self._allocated:
            self._driver.cuMemFree(address)
        for address in self._pinned:
            self._driver.cuMemFreeHost(address)
        self._stream.close()
        self._closed = True


def _check_arguments(launch: Launch) -> None:
    """The driver reads as many bytes as the kernel takes, whatever was given."""
    wanted = [int(x.size) for x in launch.kernel.arguments_info]
    given = [a.nbytes for a in launch.args]
    if given != wanted:
        raise BackendError(
            f"kernel {launch.name} takes arguments of {wanted} bytes, and was given {given}"
        )


class _CudaGraph(Graph):
    def __init__(self, device: CudaDevice, graph: Any, stream: Any) -> None:
        self._device = device
        self._graph = graph
        self._stream = stream

    def replay(self) -> None:
        self._device._enter()
        self._graph.launch(self._stream)


class _CudaMark(Mark):
    """An event, which goes with the object; the driver keeps it as long as it needs it."""

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        driver = device._driver
        flags = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        self._event = device._check(driver.cuEventCreate(flags))
        self._destroy = weakref.finalize(self, _destroy, device, self._event)
        device._check(driver.cuEventRecord(self._event, device._handle))

    def wait(self) -> None:
        self._device._enter()
        self._device._check(self._device._driver.cuEventSynchronize(self._event))


def _destroy(device: CudaDevice, event: Any) -> None:
    if not device._closed:
        device._driver.cuEventDestroy(event)
