"""The computer's own memory, and whether it has a GPU that a backend is made for."""

from __future__ import annotations

import ctypes
import os
import re
import sys

from edgerun.backends.base import Memory

__all__ = ["apple_silicon", "host_memory", "nvidia_driver"]


def host_memory() -> Memory:
    """Bytes of RAM in all, and those to be had without swapping."""
    if sys.platform == "linux":  # importing psutil takes 20 ms of a short command's start
        try:
            with open("/proc/meminfo", encoding="ascii") as f:
                found = dict(re.findall(r"^(MemTotal|MemAvailable): +(\d+) kB$", f.read(), re.M))
            return Memory(int(found["MemTotal"]) << 10, int(found["MemAvailable"]) << 10)
        except (OSError, ValueError, KeyError):
            pass
    import psutil

    vm = psutil.virtual_memory()
    return Memory(total=vm.total, free=vm.available)


def nvidia_driver() -> bool:
    """Whether the NVIDIA driver's library is here: asking cuda.core takes much longer."""
    if sys.platform == "darwin":
        return False
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def apple_silicon() -> bool:
    """Whether this is a Mac with a GPU that MLX knows."""
    return sys.platform == "darwin" and os.uname().machine == "arm64"
