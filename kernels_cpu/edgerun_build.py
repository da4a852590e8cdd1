"""PEP 517 backend: scikit-build-core, plus PyPI's zig as the C++ compiler where there is none.

The kernels are GNU C++ (inline assembly, vector extensions), so on Windows zig builds them even
when MSVC is there. cmake and ninja need no help: scikit-build-core requires their wheels when PATH
holds neither.

Environment:
    CXX: this compiler and no other.
    EDGERUN_BUILD_WITH_ZIG=1: zig, although a compiler was found.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scikit_build_core import build as _skb

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

# 0.14 is the first whose wheels cover every platform below and whose C++ takes all our flags.
ZIG_REQUIREMENT = "ziglang>=0.14,<0.17"

_PROBE = "#include <stdint.h>\n#include <math.h>\nextern double f(double x) { return sin(x); }\n"

_Config = Mapping[str, Any] | None


def have_compiler() -> bool:
    """Whether this machine's own C++ compiler builds a shared library."""
    if os.environ.get("EDGERUN_BUILD_WITH_ZIG") == "1":
        return False
    if os.environ.get("CXX"):
        return True
    if sys.platform == "win32":
        return False
    if sys.platform == "darwin" and not _succeeds(["xcode-select", "-p"]):
        return False  # /usr/bin/c++ is a stub that opens an installer dialog
    return any(_compiles(name) for name in ("c++", "g++", "clang++"))


def _compiles(name: str) -> bool:
    # Being on PATH says little: the headers or the linker may be missing.
    if shutil.which(name) is None:
        return False
    with tempfile.TemporaryDirectory(prefix="edgerun-probe-") as tmp:
        source = Path(tmp, "probe.cpp")
        source.write_text(_PROBE, encoding="ascii")
        out = str(Path(tmp, "probe.so"))
        return _succeeds([name, "-std=c++17", "-shared", "-fPIC", str(source), "-o", out, "-lm"])


def _succeeds(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=120).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def zig_target(system: str | None = None, machine: str | None = None) -> str:
    """zig's target triple. Without one zig compiles for the very CPU of the build machine."""
    system = system or sys.platform
    machine = (machine or platform.machine()).lower()
    arch = {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if system == "win32":
        return f"{arch}-windows-gnu"
    if system == "darwin":
        return f"{arch}-macos.13.0-none"
    musl = "musl" in (platform.libc_ver()[0] or "") or bool(list(Path("/lib").glob("ld-musl-*")))
    # glibc 2.28 is the manylinux_2_28 baseline: the library then also runs on older systems.
    return f"{arch}-linux-musl" if musl else f"{arch}-linux-gnu.2.28"


def toolchain_text(zig: str, target: str) -> str:
    """A CMake toolchain file that compiles and links with ``zig cc`` and ``zig c++``."""
    zig = Path(zig).as_posix()
    # zig builds the runtimes a link asks for: libc++ takes minutes, UBSan's (zig's default at -O0)
    # half of one. CMake's probes would ask for both, the kernels need neither. -nostdlib++ also
    # hides <cstdint> and the like, so CMakeLists.txt takes it back after the probes.
    options = f"-target {target} -fno-sanitize=undefined -g0"  # zig adds -g by default
    lines = [
        f'set(CMAKE_C_COMPILER "{zig}" cc {options})',
        f'set(CMAKE_CXX_COMPILER "{zig}" c++ {options})',
        "set(CMAKE_CXX_FLAGS -nostdlib++)",
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def _compiler() -> Iterator[None]:
    """Point CMake at zig while the wheel is built, if the machine has no compiler."""
    if have_compiler():
        yield
        return
    import ziglang

    zig = Path(ziglang.__file__).with_name("zig.exe" if sys.platform == "win32" else "zig")
    saved = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="edgerun-zig-") as tmp:
        toolchain = Path(tmp, "zig.cmake")
        toolchain.write_text(toolchain_text(str(zig), zig_target()), encoding="utf-8")
        os.environ["CMAKE_TOOLCHAIN_FILE"] = str(toolchain)
        os.environ["CMAKE_GENERATOR"] = "Ninja"
        # A build must not leave zig's compiled C library in the user's home.
        os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(Path(tmp, "cache")))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(saved)


def _requires(base: Sequence[str]) -> list[str]:
    if have_compiler():
        return list(base)
    # zig needs Ninja: the other generators look for their own compiler.
    ninja = [] if any(r.startswith("ninja") for r in base) or shutil.which("ninja") else ["ninja"]
    return [*base, *ninja, ZIG_REQUIREMENT]


def get_requires_for_build_sdist(config_settings: _Config = None) -> list[str]:
    return list(_skb.get_requires_for_build_sdist(config_settings))


def get_requires_for_build_wheel(config_settings: _Config = None) -> list[str]:
    return _requires(_skb.get_requires_for_build_wheel(config_settings))


def get_requires_for_build_editable(config_settings: _Config = None) -> list[str]:
    return _requires(_skb.get_requires_for_build_editable(config_settings))


def prepare_metadata_for_build_wheel(
    metadata_directory: str, config_settings: _Config = None
) -> str:
    return str(_skb.prepare_metadata_for_build_wheel(metadata_directory, config_settings))


def prepare_metadata_for_build_editable(
    metadata_directory: str, config_settings: _Config = None
) -> str:
    return str(_skb.prepare_metadata_for_build_editable(metadata_directory, config_settings))


def build_sdist(sdist_directory: str, config_settings: _Config = None) -> str:
    return str(_skb.build_sdist(sdist_directory, config_settings))


def build_wheel(
    wheel_directory: str, config_settings: _Config = None, metadata_directory: str | None = None
) -> str:
    with _compiler():
        return str(_skb.build_wheel(wheel_directory, config_settings, metadata_directory))


def build_editable(
    wheel_directory: str, config_settings: _Config = None, metadata_directory: str | None = None
) -> str:
    with _compiler():
        return str(_skb.build_editable(wheel_directory, config_settings, metadata_directory))
