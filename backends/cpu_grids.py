"""Hands the IQ formats' codebooks to the native library, which holds no copy of its own.

Until that is done the library has no kernel for those formats, so that an upload is refused.
"""

from __future__ import annotations

import functools
from ctypes import c_int, c_size_t, c_void_p

import numpy as np

from edgerun.errors import BackendUnavailableError
from edgerun.gguf.blocks import grid
from edgerun.native import lib

__all__ = ["ensure_grids"]

# In the order of enum Grid, kernels_cpu/src/grids.h.
_NAMES = ("iq2xxs", "iq2xs", "iq2s", "iq3xxs", "iq3s", "iq1s")


@functools.cache
def ensure_grids() -> None:
    """Set every codebook; from any thread, any number of times.

    Raises:
        BackendUnavailableError: there is no native library, or it belongs to another version.
    """
    so = lib()
    try:
        set_grid = so.er_set_grid
    except AttributeError:
        raise BackendUnavailableError(
            "the native library does not take codebooks: reinstall edgerun"
        ) from None
    set_grid.restype, set_grid.argtypes = c_int, [c_int, c_void_p, c_size_t]
    for which, name in enumerate(_NAMES):
        table = np.ascontiguousarray(grid(name), dtype=np.int8)
        if rc := set_grid(which, table.ctypes.data, table.nbytes):
            raise BackendUnavailableError(
                f"the native library refuses the codebook {name} (code {rc}): reinstall edgerun"
            )
