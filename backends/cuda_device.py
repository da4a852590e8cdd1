"""The seam between the cuda backend and the machine: memory, copies, launches, graphs.

Everything above it is one code for a GPU (:class:`~edgerun.backends.cuda_driver.CudaDevice`) and
for the harness of the tests, which runs the same kernels on the CPU.

A kernel's arguments are numpy scalars of exactly the kernel's types; addresses are ``uint64``.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import Memory

__all__ = [
    "ALIGN", "Arena", "Args", "Bytes", "Device", "Dims", "Graph", "Launch", "Mark", "aligned",
    "ptr",
]  # fmt: skip

Bytes: TypeAlias = npt.NDArray[np.uint8]
Args: TypeAlias = tuple[np.generic, ...]
Dims: TypeAlias = tuple[int, int, int]
#: Addresses that kernels read with vector loads.
ALIGN = 256


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel launch, ready to go: ``kernel`` is what :meth:`Device.kernel` returned."""

    name: str
    kernel: Any
    grid: Dims
    block: Dims
    args: Args
    smem: int = 0


def ptr(address: int) -> np.uint64:
    """An address as an argument."""
    value: np.uint64 = np.uint64(address)
    return value


class Graph(abc.ABC):
    """Launches recorded once."""

    @abc.abstractmethod
    def replay(self) -> None:
        """Do them again, in order, behind whatever was launched before."""


class Mark(abc.ABC):
    """A place in the order of what was launched."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait until all before it is done, and no longer.

        Raises:
            BackendError: a kernel failed.
        """


class Device(abc.ABC):
    """A place with memory of its own that runs kernels, one after another, in the order launched.

    Copies keep to that order, too. Launches, uploads and fetches may return before they are
    done; :meth:`download` and :meth:`sync` wait. Addresses are plain ints.
    """

    name: str
    #: Compute capability, e.g. (8, 9).
    capability: tuple[int, int]

    @abc.abstractmethod
    def memory(self) -> Memory:
        """Bytes of the device's memory, and those still free."""

    @abc.abstractmethod
    def alloc(self, nbytes: int) -> int:
        """The address of new memory, aligned to 256 bytes; its content is arbitrary.

        Raises:
            OutOfMemoryError: it does not fit.
        """

    @abc.abstractmethod
    def free(self, address: int) -> None:
        """Give back what :meth:`alloc` returned, once all that was launched is done."""

    @abc.abstractmethod
    def pinned(self, nbytes: int) -> Bytes:
        """Host memory that copies reach at full speed; it is freed with the device."""

    @abc.abstractmethod
    def upload(self, address: int, data: npt.NDArray[Any]) -> None:
        """Copy a C-contiguous array there. Pinned memory must not change until a wait; other
        memory has been read when this returns."""

    @abc.abstractmethod
    def download(self, data: npt.NDArray[Any], address: int) -> None:
        """Fill a C-contiguous array from there, and wait until it is done."""

    @abc.abstractmethod
    def fetch(self, data: npt.NDArray[Any], address: int) -> None:
        """:meth:`download` to pinned memory that may return before it is done: only later copies,
        or who waits, find it there."""

    @abc.abstractmethod
    def copy(self, dst: int, src: int, nbytes: int) -> None: ...

    @abc.abstractmethod
    def zero(self, address: int, nbytes: int) -> None: ...

    @abc.abstractmethod
    def kernel(self, name: str) -> Any:
        """The kernel called so in the table of ``cuda_kernels``, compiled and loaded.

        Raises:
            BackendError: it cannot be compiled for this device.
        """

    def load(self, names: Iterable[str]) -> None:
        """Make :meth:`kernel` quick for all of ``names``: what is not on disk is compiled, several
        at once.

        Raises:
            BackendError: as :meth:`kernel`.
        """
        for name in names:
            self.kernel(name)

    @abc.abstractmethod
    def launch(self, launch: Launch) -> None: ...

    @abc.abstractmethod
    def capture(self, launches: Sequence[Launch]) -> Graph:
        """Record ``launches`` without doing them."""

    @abc.abstractmethod
    def mark(self) -> Mark:
        """Behind all that was launched so far."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Wait until all that was launched is done.

        Raises:
            BackendError: a kernel failed.
        """

    def describe(self) -> dict[str, Any]:
        """Facts for ``edgerun doctor``."""
        major, minor = self.capability
        return {"device": self.name, "compute": f"{major}.{minor}"}

    @abc.abstractmethod
    def close(self) -> None:
        """Free everything; the device is unusable afterwards."""


class Arena:
    """Device memory cut into pieces, aligned to 256 bytes, that are freed together."""

    def __init__(self, device: Device, sizes: Sequence[int]) -> None:
        """Room for pieces of ``sizes`` bytes.

        Raises:
            OutOfMemoryError: it does not fit.
        """
        self._device = device
        self.nbytes = sum(aligned(n) for n in sizes)
        self._base = device.alloc(max(self.nbytes, ALIGN))
        at = self._base
        self.addresses: list[int] = []
        for n in sizes:
            self.addresses.append(at)
            at += aligned(n)

    def close(self) -> None:
        if self._base:
            self._device.free(self._base)
            self._base = 0


def aligned(n: int) -> int:
    """``n`` rounded up to what alignment takes."""
    return -(-n // ALIGN) * ALIGN
