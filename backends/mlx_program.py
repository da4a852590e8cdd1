"""Runs a forward pass as one lazy graph a step.

Nothing waits for the device but the fetch of what the host reads: the best ids where those are all
that is wanted, else logits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx
import numpy as np

from edgerun.backends import base
from edgerun.backends.checking import check
from edgerun.backends.fetched import FetchedRows
from edgerun.backends.mlx_kv import MLXKVPool
from edgerun.backends.mlx_ops import MLXOps, Mode
from edgerun.backends.mlx_step import Step
from edgerun.backends.recorder import Recorder
from edgerun.backends.rope_table import RopeTable
from edgerun.errors import BackendError, EdgerunError, OutOfMemoryError

__all__ = ["MLXProgram", "failure"]

#: Steps of more tokens than this are measured against free memory first.
_MEASURED = 64


class MLXProgram(base.Program):
    """A forward pass over a pool."""

    def __init__(
        self,
        forward: base.Forward,
        kv: MLXKVPool,
        n_ctx: int,
        mode: Mode,
        free: Callable[[], int],
        device: mx.Device,
    ) -> None:
        """``free`` tells the bytes of memory that are left."""
        self._forward = forward
        self._kv = kv
        self._n_ctx = n_ctx
        self._mode = mode
        self._free = free
        self._device = device
        recorder = Recorder()
        result = forward(recorder)
        self.n_vocab = result.width
        self._widest = max(n.width for n in recorder.nodes)
        self._n_tokens = next(n.data["weight"].n_out for n in recorder.nodes if n.kind == "embed")
        ropes = dict.fromkeys(n.data["rope"] for n in recorder.nodes if n.kind == "rope")
        self._ropes = {rope: i for i, rope in enumerate(ropes)}
        self._tables = [RopeTable(rope, n_ctx) for rope in ropes]

    def run(self, batch: base.Batch) -> base.F32:
        """One step.

        Raises:
            RequestError: a token id outside the vocabulary.
            BackendError: the batch does not suit context and pool; nothing was written then. Or
                the device failed.
            OutOfMemoryError: no memory is left for so large a step; nothing was written.
        """
        check(batch, self._n_tokens, self._n_ctx, self._kv.n_pages)
        if self._kv.lost is not None:
            raise BackendError(f"the KV cache was lost: {self._kv.lost}; load the model again")
        self.best = None
        n = len(batch.outputs)
        if batch.n_tokens == 0:
            return np.zeros((0, self.n_vocab), np.float32)
        self._reserve(batch)
        with mx.stream(self._device):
            try:
                return self._run(batch, n)
            except EdgerunError:
                raise
            except (RuntimeError, ValueError, MemoryError) as e:
                self._kv.lost = e  # which pages were written nobody knows
                raise failure(e, f"a step of {batch.n_tokens} tokens") from e

    def _run(self, batch: base.Batch, n: int) -> base.F32:
        step = Step(batch, self._tables)
        ops = MLXOps(step, self._kv, self._mode, self._ropes)
        logits = self._forward(cast(base.Ops, ops))
        if n == 0:
            # Waited for all the same: the engine learns from it what steps cost.
            mx.eval(self._kv.arrays())
            _settle()
            return np.zeros((0, self.n_vocab), np.float32)
        if not batch.want_best:
            _begin(logits, *self._kv.arrays())
            found = _host(logits)
            _settle()
            return found
        best = self._mode.fused.best(logits)
        _begin(best, logits, *self._kv.arrays())
        self.best = np.array(best)
        _settle()
        return cast(base.F32, FetchedRows(functools.cache(lambda: _host(logits)), range(n)))

    def _reserve(self, batch: base.Batch) -> None:
        """Refuse what the device would run out of memory with: by then it ends the process."""
        n, outputs = batch.n_tokens, len(batch.outputs)
        if n <= _MEASURED:
            return
        longest = int((np.diff(batch.row_start) + batch.n_past).max())
        need = 4 * (4 * n * self._widest + 2 * outputs * self.n_vocab + n * longest)
        free = self._free()
        if need > free:
            raise OutOfMemoryError(
                f"a step of {n} tokens needs {need / 2**20:.0f} MiB, but {free / 2**20:.0f} MiB "
                "are free: close other programs or lower n_ctx"
            )


def _begin(*arrays: mx.array) -> None:
    """Start computing; ``async_eval`` has no types."""
    cast(Any, mx).async_eval(*arrays)


def _settle() -> None:
    """Wait until nothing in flight holds the pages: the next step would copy all of them to write.
    That is why no step begins before the last one has ended."""
    mx.synchronize()


def failure(error: BaseException, what: str) -> EdgerunError:
    """What MLX raised, as one of ours."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if isinstance(error, MemoryError) or "alloc" in text.lower() or "memory" in text.lower():
        return OutOfMemoryError(f"no memory for {what}: {text}; close other programs")
    return BackendError(f"MLX failed at {what}: {text}")


def _host(x: mx.array) -> base.F32:
    found: base.F32 = np.array(x)
    return found
