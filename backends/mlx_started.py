"""A step that the device computes while the host goes on.

The device shall never lack work, so the next step's graph is handed over while this step is
computed: the ids that it begins with are an array of this one. But MLX writes into an array's
memory only while nobody else holds it, else it makes a copy, and what reads an array holds it until
it is computed. So that no pool is copied, a step is handed over in parts of some layers each, a
part only when the step before is past those layers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import mlx.core as mx
import numpy as np

from edgerun.backends import base
from edgerun.backends.fetched import FetchedRows
from edgerun.backends.mlx_kv import MLXKVPool
from edgerun.errors import BackendError, EdgerunError, OutOfMemoryError

__all__ = ["StartedStep", "begin", "failure", "guarded", "host"]

#: Parts of a step: half of them are queued behind the step before, enough for a device to go on
#: with while the host reads that step's ids.
_PARTS = 4


class StartedStep(base.Started):
    """See the module's docstring.

    Args:
        attended: what each layer's attention gave, in order.
        best: int32 [n_outputs].
        logits: float32 [n_outputs, n_vocab].
        before: the step whose end nobody has waited for yet.
        pool: where its layers' pages lie.
    """

    def __init__(
        self,
        attended: Sequence[mx.array],
        best: mx.array,
        logits: mx.array,
        before: StartedStep | None,
        pool: MLXKVPool,
    ) -> None:
        n = len(attended)
        ends = sorted({n * i // _PARTS for i in range(1, _PARTS)} - {0})
        self._parts = [[attended[i - 1]] for i in ends] + [[best, logits]]
        self._given = 0
        self._before = before
        self._pool = pool
        self._logits = logits
        self.lazy_best = best

    def give(self, most: int | None = None) -> None:
        """Hand parts over to the device, those before ``most`` (default: all)."""
        most = len(self._parts) if most is None else most
        while self._given < most:
            if self._before is not None:
                self._before._reach(self._given + 1)
            begin(*self._parts[self._given])
            self._given += 1
        if self._given == len(self._parts):
            self._before = None

    def give_half(self) -> None:
        """What may be handed over while the step before is computed; all if there is none."""
        self.give(None if self._before is None else len(self._parts) // 2)

    def _reach(self, part: int) -> None:
        """Wait until the device has done a part; one further than those whose pages are wanted,
        as the device tells a moment later that it no longer holds them."""
        mx.eval(self._parts[min(part, len(self._parts) - 1)])

    def wait(self) -> base.Rows:
        with guarded(self._pool, "a step"):
            self.give()
            self.best = np.array(self.lazy_best)
        logits = self._logits
        rows = FetchedRows(functools.cache(lambda: host(logits)), range(len(self.best)))
        return cast(base.Rows, rows)

    def finish(self) -> None:
        """Have it computed, and nothing left in flight."""
        with guarded(self._pool, "a step"):
            self.give()
            mx.synchronize()


def begin(*arrays: mx.array) -> None:
    """Start computing; ``async_eval`` has no types."""
    cast(Any, mx).async_eval(*arrays)


def host(x: mx.array) -> base.F32:
    found: base.F32 = np.array(x)
    return found


@contextmanager
def guarded(pool: MLXKVPool, what: str) -> Iterator[None]:
    """Around whatever may write to pages: if the device fails, nobody knows which it wrote.

    Raises:
        BackendError: it failed, now or before.
        OutOfMemoryError: no memory was left.
    """
    pool.require()
    with mx.stream(pool.device):
        try:
            yield
        except EdgerunError:
            raise
        except (RuntimeError, ValueError, MemoryError) as e:
            pool.lost = e
            raise failure(e, what) from e


def failure(error: BaseException, what: str) -> EdgerunError:
    """What MLX raised, as one of ours."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, MemoryError) or "alloc" in text.lower() or "memory" in text.lower():
        return OutOfMemoryError(f"no memory for {what}: {text}; close other programs")
    return BackendError(f"MLX failed at {what}: {text}")
