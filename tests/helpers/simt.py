"""GPU kernels on the CPU: builds a CUDA file with the fiber engine of tests/simt, and launches its
kernels from numpy with a GPU's meaning of blocks, barriers and warps. helpers/metal.py: Metal's.

Libraries are kept in ``build/simt`` (or ``EDGERUN_SIMT_CACHE``), by what they were built from.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parents[2]
ENGINE = ROOT / "tests" / "simt"
KERNELS = ROOT / "kernels_cuda"
CACHE = Path(os.environ.get("EDGERUN_SIMT_CACHE", ROOT / "build" / "simt"))

SANITIZERS = {
    "": [],
    "asan": [
        "-fsanitize=address,undefined",
        "-fno-sanitize=vptr",
        "-fsanitize-recover=all",
        "-fno-omit-frame-pointer",
        "-g1",
    ],
    "tsan": ["-fsanitize=thread", "-g1"],
}
#: (order, seed): threads rise, fall, or come at random.
ORDERS = ((0, 1), (1, 1), (2, 1), (2, 2))


def _skip(reason: str) -> NoReturn:
    import pytest  # not before it is needed: under a sanitizer it takes a second

    pytest.skip(reason)


class SimtError(RuntimeError):
    """A kernel did what a GPU forbids; the text says which thread waits where."""


@functools.cache
def compiler() -> tuple[str, ...]:
    """The command of a C++20 compiler; skips the calling test where there is none."""
    wanted = os.environ.get("EDGERUN_SIMT_CXX")
    if wanted:
        return tuple(wanted.split())
    if sys.platform == "win32":
        _skip("the SIMT engine needs mmap and ELF or Mach-O sections")
    for name in ("g++", "clang++"):
        if shutil.which(name):
            return (name,)
    try:
        import ziglang  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        _skip("no C++ compiler: g++, clang++ or the ziglang wheel")
    return (sys.executable, "-m", "ziglang", "c++")


@functools.cache
def _machine_flags() -> tuple[str, ...]:
    """Without AVX2 and fused multiply-add the emulation is right too, but several times slower."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return ()
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    return ("-march=x86-64-v3",) if " avx2 " in flags and " fma " in flags else ()


def _base() -> list[str]:
    return [
        *compiler(),
        *("-x", "c++", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"),
        *("-fno-strict-aliasing", "-fno-exceptions", "-Wall", "-Wno-unknown-pragmas"),
        *_machine_flags(),
        f"-I{ENGINE}",
    ]


def digest(*parts: object) -> str:
    """A name for what is made of ``parts``."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:20]


@functools.cache
def _text(folder: Path, suffixes: tuple[str, ...]) -> str:
    return "".join(p.read_text() for p in sorted(folder.iterdir()) if p.suffix in suffixes)


def _run(command: Sequence[str], out: Path) -> None:
    """Run a compiler whose output comes to ``out`` whole or not at all."""
    part = out.with_name(f"{out.name}.{os.getpid()}.{threading.get_ident()}")
    done = subprocess.run([*command, "-o", str(part)], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:6000]}")
    os.replace(part, out)


_engine = threading.Lock()  # compiled once, however many libraries wait for it


def _object(source: Path, sanitizer: str) -> Path:
    """A part of the engine; threads are never checked within it, kernels' accesses only."""
    flags = ["-O2", "-g1", *([f"-DSIMT_KERNELS_{sanitizer.upper()}"] if sanitizer else [])]
    key = digest(_base(), flags, _text(ENGINE, (".h", ".cpp")))
    out = CACHE / f"{source.stem}-{sanitizer or 'plain'}-{key}.o"
    with _engine:
        if not out.exists():
            _run([*_base(), *flags, "-c", str(source)], out)
    return out


def entry_points(source: str) -> list[str]:
    """Names of the ``extern "C" __global__`` functions; templates must be named by the caller."""
    source = re.sub(r"^KERNEL\b", 'extern "C" __global__ void', source, flags=re.MULTILINE)
    bounds = r"(?:__launch_bounds__\([^)]*\)\s*)?"
    return re.findall(rf'extern\s+"C"\s+__global__\s+void\s+{bounds}(\w+)\s*\(', source)


class Module:
    """The kernels of one library. ``arrays`` are passed by address and must stay contiguous."""

    def __init__(self, library: Path) -> None:
        self._lib = ctypes.CDLL(str(library))
        self._lib.simt_launch.restype = ctypes.c_char_p
        self._lib.simt_switches.restype = ctypes.c_uint64
        self.order(0)

    def order(self, order: int, seed: int = 1, poison: bool = True) -> None:
        """How threads and blocks take turns from now on; shared memory starts as NaN or not."""
        self._lib.simt_options(order, ctypes.c_uint64(seed), int(poison))

    def has(self, name: str) -> bool:
        return bool(self._lib.simt_find(name.encode()) >= 0)

    def launch(
        self,
        name: str,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: NDArray[Any] | np.generic | int | ctypes.c_void_p,
        shared: int = 0,
    ) -> None:
        """Run a kernel to its end. Scalars are numpy scalars; a plain int is an address.

        Raises:
            KeyError, TypeError: no such kernel, or arguments of other sizes than it takes.
            SimtError: a deadlock, a divergent barrier, a misaligned access.
        """
        kernel, sizes = self.signature(name)
        if len(sizes) != len(args):
            raise TypeError(f"{name} takes {len(sizes)} arguments, not {len(args)}")
        values = [_value(name, i, a) for i, a in enumerate(args)]
        for i, (v, size) in enumerate(zip(values, sizes, strict=True)):
            if ctypes.sizeof(v) != size:
                raise TypeError(f"argument {i} of {name}: {ctypes.sizeof(v)} bytes, not {size}")
        pointers = (ctypes.c_void_p * max(len(values), 1))(*[ctypes.addressof(v) for v in values])
        error = self.run(kernel, grid, block, shared, pointers)
        if error:
            raise SimtError(f"{name}: {error}")

    def signature(self, name: str) -> tuple[int, list[int]]:
        """A kernel's number, and the bytes of each of its arguments.

        Raises:
            KeyError: there is no such kernel.
        """
        kernel = self._lib.simt_find(name.encode())
        if kernel < 0:
            raise KeyError(name)
        n = self._lib.simt_n_args(kernel)
        return kernel, [self._lib.simt_arg_size(kernel, i) for i in range(n)]

    def run(
        self, kernel: int, grid: int | Sequence[int], block: int | Sequence[int], shared: int,
        pointers: Any,
    ) -> str:  # fmt: skip
        """Launch kernel number ``kernel`` with the addresses of its arguments; what went wrong."""
        error = self._lib.simt_launch(
            kernel, _dims(grid), _dims(block), ctypes.c_uint64(shared), pointers
        )
        return error.decode() if error else ""


def _value(name: str, i: int, a: object) -> Any:
    if a is None:
        return ctypes.c_void_p(0)
    if isinstance(a, np.ndarray):
        if not a.flags.c_contiguous:
            raise TypeError(f"argument {i} of {name} is not contiguous")
        return ctypes.c_void_p(a.ctypes.data)
    if isinstance(a, np.generic):
        return np.ctypeslib.as_ctypes_type(a.dtype)(a.item())
    if isinstance(a, int):
        return ctypes.c_void_p(a)
    if isinstance(a, ctypes.c_void_p):
        return a
    raise TypeError(f"argument {i} of {name}: numpy scalars and arrays, not {type(a).__name__}")


def _dims(d: int | Sequence[int]) -> Any:
    xyz = (d,) if isinstance(d, int) else tuple(d)
    return (ctypes.c_uint * 3)(*xyz, *([1] * (3 - len(xyz))))


@functools.cache
def build(path: Path, names: tuple[str, ...] = (), **options: Any) -> Module:
    """:func:`library`, loaded."""
    return Module(library(path, names, **options))


def library(
    path: Path,
    names: tuple[str, ...] = (),
    *,
    arch: int = 890,
    sanitizer: str = "",
    defines: tuple[str, ...] = (),
    source: str | None = None,
    optimize: str = "-O1",
) -> Path:
    """Compile a kernel file, its ``extern "C"`` kernels or the template instances ``names``, unless
    its library lies in the cache.

    Args:
        path: the .cu file; includes are found beside it.
        arch: ``__CUDA_ARCH__``: 750 takes the ways of cards without the newer instructions.
        sanitizer: ``asan`` (with undefined behaviour) or ``tsan``; the process must have it loaded.
        source: text in place of the file's, e.g. with a bug planted.
    """
    text = path.read_text() if source is None else source
    entries = names or tuple(entry_points(text))
    unit = f'#include "cuda_shim.h"\n#line 1 "{path}"\n{text}\n'
    unit += "".join(f'SIMT_KERNEL("{n}", {n})\n' for n in entries)
    flags = [
        *(optimize, f"-DSIMT_CUDA_ARCH={arch}", f"-I{path.parent}", f"-I{KERNELS}"),
        "-Wno-attributes",
        *(f"-D{d}" for d in defines),
        *SANITIZERS[sanitizer],
    ]
    heads = "".join(_text(d, (".cuh", ".h", ".cpp")) for d in {path.parent, KERNELS, ENGINE})
    return shared_object(path.stem, unit, flags, heads, sanitizer)


def shared_object(
    stem: str, unit: str, flags: Sequence[str], heads: str = "", sanitizer: str = ""
) -> Path:
    """Compile the text of a C++ file, and link it with the engine, unless it lies in the cache."""
    name = digest(_base(), flags, unit, heads, _text(ENGINE, (".h", ".cpp")))
    out = CACHE / f"{stem}-{sanitizer or 'plain'}-{name}.so"
    if not out.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        cpp = out.with_suffix(f".{os.getpid()}.{threading.get_ident()}.cpp")
        cpp.write_text(unit)
        objects = [str(_object(ENGINE / s, sanitizer)) for s in ("simt.cpp", "mma.cpp")]
        command = [*_base(), *flags, "-shared", str(cpp), "-x", "none", *objects]
        _run(command, out)
        cpp.unlink()
    return out


def build_all(jobs: Sequence[tuple[Path, tuple[str, ...]]], arch: int = 890) -> None:
    """Compile several libraries at once, two at a time, for later calls of :func:`build`."""
    compiler()
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(library, path, names, arch=arch) for path, names in jobs]:
            done.result()


@contextmanager
def ordered(module: Module, order: tuple[int, int]) -> Iterator[None]:
    """Threads take turns in ``order``, one of :data:`ORDERS`, within the block."""
    module.order(*order)
    try:
        yield
    finally:
        module.order(0)


class Guarded:
    """An array between canaries, aligned to 256 bytes as device memory is."""

    GUARD = 256

    def __init__(self, shape: int | tuple[int, ...], dtype: Any, fill: int = 0xFF) -> None:
        n = int(np.prod(shape)) * np.dtype(dtype).itemsize
        exact = "EDGERUN_SIMT_EXACT" in os.environ  # a sanitizer's own guard comes right behind
        raw = np.full(n if exact else n + 3 * self.GUARD, 0xC5, np.uint8)
        start = 0 if exact else self.GUARD + (-raw.ctypes.data) % self.GUARD
        self._before, self._after = raw[:start], raw[start + n :]
        self._raw = raw
        raw[start : start + n] = fill
        #: The array; its bytes start as ``fill``, which is NaN by default.
        self.array: NDArray[Any] = raw[start : start + n].view(dtype).reshape(shape)

    def check(self) -> None:
        """Raise AssertionError if something wrote beside the array."""
        assert (self._before == 0xC5).all(), "written before the array"
        assert (self._after == 0xC5).all(), "written past the array"


def sanitized(sanitizer: str, code: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python ``code`` in a process with the sanitizer loaded, which goes on after reports."""
    name = {"asan": "libasan.so", "tsan": "libtsan.so"}[sanitizer]
    found = subprocess.run(
        [*compiler(), f"-print-file-name={name}"], capture_output=True, text=True
    ).stdout.strip()
    if not os.path.isabs(found):
        _skip(f"the compiler has no {name}")
    env = dict(
        os.environ,
        LD_PRELOAD=found,
        PYTHONPATH=os.pathsep.join([str(ROOT / "tests"), str(ROOT)]),
        OPENBLAS_NUM_THREADS="1",
        EDGERUN_SIMT_EXACT="1",
        ASAN_OPTIONS="detect_leaks=0:halt_on_error=0",
        TSAN_OPTIONS="exitcode=66",
        UBSAN_OPTIONS="print_stacktrace=0",
    )
    return subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=timeout
    )
