"""Logits that lie on a device until a row of them is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import F32

__all__ = ["FetchedRows"]


class FetchedRows:
    """Implements :class:`~edgerun.backends.base.Rows`: greedy texts need ids alone, and a row of
    logits is half a megabyte.

    Args:
        fetch: gives all logits of the step, float32 [n_outputs, n_vocab]; asked at each access, so
            it keeps what it has brought over.
        rows: which of them these are.
        one: gives one row of all, where that is less work.
    """

    def __init__(
        self, fetch: Callable[[], F32], rows: range, one: Callable[[int], F32] | None = None
    ) -> None:
        self._fetch = fetch
        self._rows = rows
        self._one = one

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, at: int | slice) -> F32 | FetchedRows:
        if isinstance(at, slice):
            return FetchedRows(self._fetch, self._rows[at], self._one)
        row: F32 = (self._one or self._fetch().__getitem__)(self._rows[at])
        return row

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self._fetch()[self._rows.start : self._rows.stop], dtype)
