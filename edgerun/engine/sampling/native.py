"""The vocabulary-wide scans of ``kernels_cpu/src/sample.cpp``, bound with ctypes.

A :class:`Scans` owns the scratch memory of one thread for one vocabulary size: samplers used by
one thread share it, so a waiting request costs no vocabulary-sized buffer.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun import native

__all__ = ["F32", "F64", "I32", "TOP_K_MAX", "Scans", "address", "scans"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]

#: The largest k that :meth:`Scans.top_k` serves; its heap is slower than numpy beyond.
TOP_K_MAX = 4096

_P, _I64, _I32, _F, _D = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.c_float,
    ctypes.c_double,
)
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "scan": (_I32, [_P, _I64, _P, _P]),
    "argmax": (_I64, [_P, _I64]),
    "sumexp": (_D, [_P, _I64, _F, _F, _P]),
    "pick": (_I64, [_P, _I64, _F, _F, _D, _P]),
    "topk": (_I64, [_P, _I64, _P, _F, _I64, _P, _P, _P]),
    "usual": (_I64, [_P, _I64, _I64, _D, _D, _D, _D, _P, _P, _P, _P]),
    "collect": (_I64, [_P, _I64, _P, _D, _D, _P, _P]),
    "moments": (_I64, [_P, _I64, _P, _P]),
    "dry": (_I64, [_P, _I64, _I32, _I32, _P, _P, _P, _P]),
}


@functools.cache
def _functions() -> dict[str, Any]:
    """The library's functions; ``usual`` keeps the interpreter's lock: its 20 microseconds are less
    than getting it back may take."""
    cdll = native.lib()
    quick = ctypes.PyDLL(cdll._name, handle=cdll._handle)
    out = {}
    for name, (result, arguments) in _SIGNATURES.items():
        f = getattr(quick if name == "usual" else cdll, f"er_sample_{name}")
        f.restype, f.argtypes = result, arguments
        out[name] = f
    return out


def address(a: npt.NDArray[Any]) -> int:
    """The address of an array's first element."""
    return int(a.__array_interface__["data"][0])


class Scans:
    """Scans of a row of logits, float32 [n] at address ``x``, with the scratch they need.

    ``best`` is the row's maximum and ``scale`` > 0 multiplies distances from it. ``top_k`` and
    ``collect`` want :meth:`scan` of the same row to be the last one done.
    """

    def __init__(self, n: int) -> None:
        f = _functions()
        self.n = n
        blocks = (n + 63) // 64
        self._bmax = np.empty(blocks, np.float32)
        self._bsum = np.empty(blocks, np.float32)
        self._heap = np.empty(min(n, TOP_K_MAX), np.uint64)
        self._ids = np.empty(n, np.int32)
        self._vals = np.empty(n, np.float32)
        self._max = np.empty(1, np.float32)
        self._out = np.empty(2, np.float64)
        self._copy: F32 | None = None
        self._best: I32 | None = None
        self._p_bmax, self._p_bsum, self._p_heap, self._p_ids, self._p_vals, self._p_max = (
            address(a)
            for a in (self._bmax, self._bsum, self._heap, self._ids, self._vals, self._max)
        )
        self._p_out = address(self._out)
        self._scan, self._argmax, self._sumexp, self._pick = (
            f["scan"],
            f["argmax"],
            f["sumexp"],
            f["pick"],
        )
        self._usual = f["usual"]
        self._topk, self._collect, self._moments, self._dry = (
            f["topk"],
            f["collect"],
            f["moments"],
            f["dry"],
        )

    def copy_of(self, x: F32) -> F32:
        """A private copy of a row, valid until the next call."""
        if self._copy is None:
            self._copy = np.empty(self.n, np.float32)
        np.copyto(self._copy, x)
        return self._copy

    def scan(self, x: int) -> float:
        """The maximum, NaN if any value is."""
        if self._scan(x, self.n, self._p_bmax, self._p_max):
            return float("nan")
        return float(self._max[0])

    def argmax(self, x: int) -> int:
        """The first index of the maximum; -1 if any value is NaN."""
        return int(self._argmax(x, self.n))

    def mass(self, x: int, best: float, scale: float) -> float:
        """Sum of exp((x - best) * scale): at least 1."""
        return float(self._sumexp(x, self.n, best, scale, None))

    def entropy(self, x: int, best: float, scale: float) -> tuple[float, float]:
        """The mass as above, and the distribution's entropy in nats."""
        mass = float(self._sumexp(x, self.n, best, scale, self._p_out))
        return mass, float(np.log(mass)) - float(self._out[0]) / mass

    def pick(self, x: int, best: float, scale: float, u: float) -> int:
        """The index where the running mass, in index order, passes the fraction ``u``."""
        return int(self._pick(x, self.n, best, scale, u, self._p_bsum))

    def top_k(self, x: int, best: float, k: int) -> tuple[I32, F32]:
        """Ids and values of the k <= TOP_K_MAX largest above -inf: descending, then by id."""
        k = min(k, self.n)
        m = self._topk(x, self.n, self._p_bmax, best, k, self._p_heap, self._p_ids, self._p_vals)
        return self._ids[:m].copy(), self._vals[:m].copy()

    def usual(
        self, x: int, k: int, p: float, min_p: float, t: float, u: float, n: int | None = None
    ) -> int:
        """Top-k (k <= TOP_K_MAX and below n), top-p (1: off), min-p (0: off), temperature and the
        draw for ``u`` in one call. The token; -1 where :meth:`scan` or what follows would fail.

        With ``n``, at most the vocabulary's, of a row that is so long: where the token stands."""
        return int(
            self._usual(
                x, self.n if n is None else n, k, p, min_p, t, u,
                self._p_bmax, self._p_heap, self._p_ids, self._p_vals,
            )
        )  # fmt: skip

    def collect(self, x: int, low: float, high: float = float("inf")) -> tuple[I32, F32]:
        """Ids and values of every low <= value <= high above -inf, by id."""
        m = self._collect(x, self.n, self._p_bmax, low, high, self._p_ids, self._p_vals)
        return self._ids[:m].copy(), self._vals[:m].copy()

    def moments(self, x: int) -> tuple[int, float, float]:
        """How many values are above -inf, their mean and population variance."""
        count = self._moments(x, self.n, self._p_out, self._p_out + 8)
        return int(count), float(self._out[0]), float(self._out[1])

    def dry(self, history: I32, allowed: int, limit: int) -> tuple[I32, I32]:
        """Tokens that would prolong a repetition, with the repeated length before them.

        Args:
            history: int32 [m], every id in [0, n).
            allowed: report lengths from this on.
            limit: lengths are cut to this.
        """
        if self._best is None:
            self._best = np.full(self.n, -1, np.int32)
        m = len(history)
        z, ids, lengths = (np.empty(m, np.int32) for _ in range(3))
        count = self._dry(
            address(history),
            m,
            allowed,
            limit,
            address(z),
            address(self._best),
            address(ids),
            address(lengths),
        )
        return ids[:count], lengths[:count]


_local = threading.local()


def scans(n: int) -> Scans:
    """The calling thread's :class:`Scans` for a vocabulary of ``n``.

    Raises:
        BackendUnavailableError: the native library is missing.
    """
    known: dict[int, Scans] = _local.__dict__.setdefault("scans", {})
    if n not in known:
        known[n] = Scans(n)
    return known[n]
