"""Facts of the machine a benchmark ran on, and its limits: what memory reads and int8 products a
number of threads reach. ``limits.c`` is compiled on the fly; without a compiler numpy measures the
read rate alone.
"""

from __future__ import annotations

import ctypes
import datetime
import functools
import hashlib
import mmap
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_BYTES = 512 << 20
_SOURCE = Path(__file__).with_name("limits.c")


def read_rate(threads: int) -> float:
    """GB/s that ``threads`` threads read from a block larger than most caches, once through."""
    data = _block()
    native = _native()
    if native is None:
        parts = [data[i * len(data) // threads :][: len(data) // threads] for i in range(threads)]
        seconds = _together([part.max for part in parts])  # numpy lets go of the lock
    else:
        at = ctypes.c_size_t(0)
        args = (ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes), ctypes.byref(at))
        seconds = _together([functools.partial(native.limit_read, *args)] * threads)
    return data.nbytes / seconds / 1e9


def dot_rate(threads: int) -> float | None:
    """1e9 int8 multiplications a second that ``threads`` threads reach on registers, with the
    widest dot product instruction here; ``None`` without a compiler or such an instruction."""
    native = _native()
    if native is None or not native.limit_dot_name():
        return None
    done: list[int] = []

    def job() -> None:
        done.append(native.limit_dot(ctypes.c_uint64(2_000_000), ctypes.byref(ctypes.c_uint64())))

    seconds = _together([job] * threads)
    return sum(done) / seconds / 1e9


def _together(jobs: list[Callable[[], Any]]) -> float:
    """Seconds until all of ``jobs`` are done, each on a thread of its own."""
    threads = [threading.Thread(target=job) for job in jobs]
    start = time.perf_counter()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return time.perf_counter() - start


@functools.cache
def _block() -> Any:
    if hasattr(mmap, "MADV_HUGEPAGE"):  # as the engine's weights lie
        memory = mmap.mmap(-1, _BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
    else:
        memory = mmap.mmap(-1, _BYTES)
    data = np.frombuffer(memory, np.int64)
    data.fill(1)
    return data


@functools.cache
def _native() -> ctypes.CDLL | None:
    """limits.c as a library, kept in the folder for temporary files."""
    text = _SOURCE.read_bytes() + " ".join(platform.uname()).encode()
    name = f"edgerun-limits-{hashlib.sha256(text).hexdigest()[:16]}.so"
    path = Path(tempfile.gettempdir()) / name
    for compiler in _compilers():
        if path.exists():
            break
        part = path.with_suffix(f".{os.getpid()}")
        options = ["-O3", "-march=native", "-shared", "-fPIC", str(_SOURCE), "-o", str(part)]
        if subprocess.run([*compiler, *options], capture_output=True).returncode == 0:
            part.rename(path)
    if not path.exists():
        print("no C compiler: numpy measures the read rate, int8 unmeasured", file=sys.stderr)
        return None
    so = ctypes.CDLL(str(path))
    so.limit_dot_name.restype = ctypes.c_char_p
    so.limit_read.restype = so.limit_dot.restype = ctypes.c_uint64
    return so


def _compilers() -> list[list[str]]:
    found = [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]
    try:
        import ziglang
    except ImportError:
        return found
    return [*found, [str(Path(ziglang.__file__).with_name("zig")), "cc"]]


def machine_facts() -> dict[str, Any]:
    """CPU, load, date and commit: what a figure means little without."""
    facts: dict[str, Any] = {"cpu": _cpu(), "date": datetime.date.today().isoformat()}
    if hasattr(os, "getloadavg"):
        facts["load"] = round(os.getloadavg()[0], 2)
    commit = _git("rev-parse", "--short", "HEAD")
    if commit:
        facts["commit"] = commit + ("+" if _git("status", "--porcelain", "-uno") else "")
    native = _native()
    if native is not None and native.limit_dot_name():
        facts["int8"] = native.limit_dot_name().decode()
    return facts


def _git(*args: str) -> str:
    try:
        done = subprocess.run(
            ["git", *args], capture_output=True, text=True, cwd=Path(__file__).parent
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
