"""Drafts from the text itself: ``kernels_cpu/src/draft.cpp``, bound with ctypes."""

from __future__ import annotations

import ctypes
import functools
from array import array
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from edgerun import native
from edgerun.engine.draft_source import Account, Draft
from edgerun.engine.drafting.costs import StepCosts

__all__ = ["MOST", "NgramDrafter"]

#: The longest draft; longer ones gain nothing on any step cost seen.
MOST = 31

#: Tokens, chains and their tables: 12 to 16 bytes a token, so this is room for four million.
MAX_BYTES = 64 << 20

#: Tokens that take longer to enter than other threads should wait.
_LONG = 1000

_P, _I64, _I32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "new": (_P, [_I64]),
    "free": (None, [_P]),
    "extend": (_I32, [_P, _P, _I64]),
    "propose": (_I32, [_P, _P, _I32, _I32, _P, _I32, ctypes.c_double, _P, _P]),
    "bytes": (_I64, [_P]),
}
_NOTHING = Draft((), ())


@functools.cache
def _functions() -> dict[str, Callable[..., Any]]:
    """The library's functions; ``feed`` is an ``extend`` that lets other threads run meanwhile.

    The others keep the interpreter's lock: they take less time than getting it back would.
    """
    cdll = native.lib()
    quick = ctypes.PyDLL(cdll._name, handle=cdll._handle)
    out = {}
    for name, (result, arguments) in _SIGNATURES.items():
        f = getattr(quick, f"er_draft_{name}")
        f.restype, f.argtypes = result, arguments
        out[name] = f
    feed = cdll.er_draft_extend
    feed.restype, feed.argtypes = _SIGNATURES["extend"]
    return {**out, "feed": feed}


class NgramDrafter:
    """Continues what the text did before: matches of its end, and copies followed through edits.

    It learns how often it is right from every token emitted, drafted or not, and starts over with
    each request, so no request sees anything of another's text. About a microsecond a step. When
    memory runs out it proposes nothing more; nothing fails.

    Args:
        costs: what steps cost. It then drafts no further than would pay if its sequence were alone.
        account: and no further than this allows.
        max_bytes: the most memory it may hold.

    Raises:
        BackendUnavailableError: the native library is missing.
    """

    name = "ngram"
    quick = True

    def __init__(
        self,
        costs: StepCosts | None = None,
        account: Account | None = None,
        *,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        f = _functions()
        self._costs, self._account = costs, account
        self._free, self._propose = f["free"], f["propose"]
        self._extend, self._feed = f["extend"], f["feed"]
        self._tokens = (ctypes.c_int32 * MOST)()
        self._odds = (ctypes.c_double * MOST)()
        self._one = (ctypes.c_int32 * 1)()
        self._at_one = ctypes.addressof(self._one)
        self._at = ctypes.addressof(self._tokens), ctypes.addressof(self._odds)
        self._handle: int | None = f["new"](max_bytes)

    def __del__(self) -> None:
        handle, self._handle = getattr(self, "_handle", None), None
        if handle:
            self._free(handle)

    def extend(self, ids: Sequence[int]) -> None:
        """Take committed tokens, in order; those of the first call are the prompt."""
        if not self._handle:
            return
        if len(ids) == 1:  # as after most steps
            self._one[0] = ids[0]
            self._extend(self._handle, self._at_one, 1)
        else:
            a = array("i", ids)
            extend = self._extend if len(a) <= _LONG else self._feed
            extend(self._handle, a.buffer_info()[0], len(a))

    def draft(self, most: int, after: Sequence[int] = ()) -> Draft:
        """Up to ``most`` tokens, at most :data:`MOST`, that may follow the text and ``after``."""
        if not self._handle or most < 1:
            return _NOTHING
        if after:
            given = array("i", after)
            at, n_given = given.buffer_info()
            n = self._propose(self._handle, at, n_given, most, None, 0, 0.0, *self._at)
        elif self._costs is not None:
            allowance = inf if self._account is None else self._account.allowance
            at, widest = self._costs.table.buffer_info()
            n = self._propose(self._handle, None, 0, most, at, widest - 1, allowance, *self._at)
        else:
            n = self._propose(self._handle, None, 0, most, None, 0, 0.0, *self._at)
        if not n:
            return _NOTHING
        priced = self._costs is not None and not after
        return Draft(tuple(self._tokens[:n]), tuple(self._odds[:n]), priced=priced)

    @property
    def n_bytes(self) -> int:
        """Bytes held by the native part."""
        return int(_functions()["bytes"](self._handle)) if self._handle else 0
