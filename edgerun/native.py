"""Where the package's own files lie: the native CPU library, kernel sources, the catalogue."""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from pathlib import Path

import edgerun
from edgerun.errors import BackendUnavailableError

__all__ = ["data", "lib", "lib_path", "missing"]

_SUFFIX = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
_WAY_OUT = "reinstall with: pip install --force-reinstall --no-deps edgerun"


def data(*parts: str) -> Path:
    """The path of a package data file or folder, e.g. ``data("kernels_cuda", "linear.cu")``.

    Raises:
        FileNotFoundError: the installation lacks it.
    """
    for root in edgerun.__path__:
        path = Path(root, *parts)
        if path.exists():
            return path
    raise FileNotFoundError(f"edgerun/{'/'.join(parts)} is not part of this installation")


def lib_path() -> Path:
    """The native library's file: ``$EDGERUN_CPU_LIB`` if set, else the installed one.

    Raises:
        BackendUnavailableError: there is none.
    """
    given = os.environ.get("EDGERUN_CPU_LIB")
    if given:
        if not Path(given).is_file():
            raise BackendUnavailableError(
                f"EDGERUN_CPU_LIB names {given}, which is not a file: correct or unset it"
            )
        return Path(given)
    try:
        return data("_lib", f"libedgerun_cpu{_SUFFIX}")
    except FileNotFoundError:
        raise BackendUnavailableError(
            f"the native library libedgerun_cpu{_SUFFIX} is missing from this installation: "
            + _WAY_OUT
        ) from None


@functools.cache
def lib() -> ctypes.CDLL:
    """The native library, loaded once per process.

    Raises:
        BackendUnavailableError: it is missing, or was built for another platform.
    """
    path = lib_path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as e:
        if os.environ.get("EDGERUN_CPU_LIB"):
            named, way = "EDGERUN_CPU_LIB names a file that", "correct or unset it"
        else:
            named, way = str(path), _WAY_OUT
        raise BackendUnavailableError(f"{named} does not load ({e}): {way}") from e


def missing() -> bool:
    """Whether there is no native library to load; without it nothing draws a token."""
    try:
        lib()
    except BackendUnavailableError:
        return True
    return False
