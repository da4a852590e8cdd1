"""NVRTC, the compiler of CUDA C++ that needs neither a GPU nor a driver, over ``cuda.bindings``."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgerun.errors import BackendError, BackendUnavailableError

__all__ = ["OPTIONS", "Compiled", "Resources", "architecture", "compile_kernel", "version"]

#: Two instances of one kernel must give the same bits, so no product is fused with a sum unless
#: the source says so. ptxas says what registers it needed.
OPTIONS = ("--std=c++17", "--fmad=false", "--minimal", "--ptxas-options=-v")


@dataclass(frozen=True)
class Compiled:
    """Machine code for one architecture, the kernel's symbol in it, and what ptxas said."""

    cubin: bytes
    symbol: str
    log: str


@dataclass(frozen=True)
class Resources:
    """What one kernel takes of a multiprocessor: per thread, except shared memory's bytes."""

    registers: int
    stack: int
    spilled: int
    shared: int

    @classmethod
    def of(cls, compiled: Compiled) -> Resources:
        """From the compiler's log; ValueError if it does not speak of the kernel."""
        found = re.search(
            rf"entry function '{re.escape(compiled.symbol)}'.*?(\d+) bytes stack frame, "
            r"(\d+) bytes spill stores, (\d+) bytes spill loads.*?Used (\d+) registers([^\n]*)",
            compiled.log,
            re.DOTALL,
        )
        if found is None:
            raise ValueError(f"ptxas says nothing of {compiled.symbol}")
        shared = re.search(r"(\d+) bytes smem", found[5])
        return cls(
            registers=int(found[4]),
            stack=int(found[1]),
            spilled=int(found[2]) + int(found[3]),
            shared=int(shared[1]) if shared else 0,
        )


@functools.cache
def _nvrtc() -> Any:
    try:
        from cuda.bindings import nvrtc

        status, _, _ = nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as e:
        raise BackendUnavailableError(
            f"the CUDA compiler NVRTC is missing ({_line(e)}): pip install 'edgerun[cuda]'"
        ) from None
    if int(status):
        raise BackendUnavailableError(f"the CUDA compiler NVRTC does not start: error {status}")
    return nvrtc


def _line(e: object) -> str:
    return " ".join(str(e).split())[:200]


def version() -> tuple[int, int]:
    """NVRTC's version.

    Raises:
        BackendUnavailableError: it is not installed.
    """
    _, major, minor = _nvrtc().nvrtcVersion()
    return int(major), int(minor)


@functools.cache
def architecture(capability: tuple[int, int]) -> int:
    """The newest architecture NVRTC knows whose code runs on a GPU of this compute capability, as
    in ``sm_89``.

    Raises:
        BackendError: there is none; NVRTC is too old for the GPU, or the GPU for NVRTC.
    """
    _, known = _nvrtc().nvrtcGetSupportedArchs()
    wanted = capability[0] * 10 + capability[1]
    # Code runs on the same and later minor versions of its major one.
    fits = [a for a in known if a // 10 == capability[0] and a <= wanted]
    if not fits:
        raise BackendError(
            f"NVRTC {'.'.join(map(str, version()))} cannot compile for compute capability "
            f"{capability[0]}.{capability[1]}: install another version of nvidia-cuda-nvrtc"
        )
    return int(max(fits))


def compile_kernel(
    file: str, source: bytes, headers: Mapping[str, bytes], expression: str, arch: int
) -> Compiled:
    """Compile the kernel that ``expression`` names, e.g. ``rope_kv<1>``.

    Raises:
        BackendError: it does not compile; the message has the first error.
        BackendUnavailableError: NVRTC is not installed.
    """
    nvrtc = _nvrtc()
    names = [h.encode() for h in headers]
    status, program = nvrtc.nvrtcCreateProgram(
        source, file.encode(), len(names), list(headers.values()), names
    )
    _check(nvrtc, status, expression)
    try:
        (status,) = nvrtc.nvrtcAddNameExpression(program, expression.encode())
        _check(nvrtc, status, expression)
        options = [o.encode() for o in (*OPTIONS, f"--gpu-architecture=sm_{arch}")]
        (failed,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode()
        log = log.strip("\0 \n")
        if int(failed):
            errors = [line for line in log.splitlines() if "error" in line] or [log]
            raise BackendError(f"{expression} does not compile for sm_{arch}: {_line(errors[0])}")
        # A template that no name expression instantiates would compile to nothing.
        status, symbol = nvrtc.nvrtcGetLoweredName(program, expression.encode())
        _check(nvrtc, status, expression)
        cubin = _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
        return Compiled(cubin, bytes(symbol).decode(), log)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(size_of: Any, get: Any, program: Any) -> bytes:
    _, size = size_of(program)
    out: bytes = b" " * int(size)  # filled in place
    get(program, out)
    return out


def _check(nvrtc: Any, status: Any, what: str) -> None:
    if int(status):
        _, text = nvrtc.nvrtcGetErrorString(status)
        raise BackendError(f"NVRTC on {what}: {text.decode()}")
