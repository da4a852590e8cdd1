"""Runs a forward pass as one lazy graph a step.

Nothing waits for the device but the fetch of what the host reads: the best ids where those are all
that is wanted, else logits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import cast

import mlx.core as mx
import numpy as np

from edgerun.amounts import size_text
from edgerun.backends import base
from edgerun.backends.checking import check
from edgerun.backends.fetched import FetchedRows
from edgerun.backends.mlx_kv import MLXKVPool
from edgerun.backends.mlx_memory import StepMemory
from edgerun.backends.mlx_mode import Mode
from edgerun.backends.mlx_ops import MLXOps
from edgerun.backends.mlx_started import StartedStep, begin, guarded, host
from edgerun.backends.mlx_step import Step
from edgerun.backends.recorder import Recorder
from edgerun.backends.rope_table import RopeTable
from edgerun.errors import OutOfMemoryError

__all__ = ["MLXProgram"]

#: Steps of more tokens than this are measured against free memory first.
_MEASURED = 64


class MLXProgram(base.Program):
    """A forward pass over a pool."""

    ahead = _MEASURED

    def __init__(
        self,
        forward: base.Forward,
        kv: MLXKVPool,
        n_ctx: int,
        mode: Mode,
        free: Callable[[], int],
    ) -> None:
        """``free`` tells the bytes of memory that are left."""
        self._forward = forward
        self._kv = kv
        self._n_ctx = n_ctx
        self._mode = mode
        self._free = free
        recorder = Recorder()
        result = forward(recorder)
        self.n_vocab = result.width
        self._memory = StepMemory.of(recorder.nodes, mode)
        self._n_tokens = next(n.data["weight"].n_out for n in recorder.nodes if n.kind == "embed")
        ropes = dict.fromkeys(n.data["rope"] for n in recorder.nodes if n.kind == "rope")
        self._ropes = {rope: i for i, rope in enumerate(ropes)}
        self._tables = [RopeTable(rope, n_ctx) for rope in ropes]
        self._factors: dict[int, mx.array] = {}

    def run(self, batch: base.Batch) -> base.F32:
        """One step.

        Raises:
            RequestError: a token id outside the vocabulary.
            BackendError: the batch does not suit context and pool; nothing was written then. Or
                the device failed.
            OutOfMemoryError: no memory is left for so large a step; nothing was written.
        """
        check(batch, self._n_tokens, self._n_ctx, self._kv.n_pages)
        self.best = None
        if batch.n_tokens == 0:
            return np.zeros((0, self.n_vocab), np.float32)
        self._kv.settle()
        self._reserve(batch)
        with guarded(self._kv, f"a step of {batch.n_tokens} tokens"):
            logits, _ = self._graph(Step(batch, self._tables))
            found = self._results(logits, batch)
            mx.synchronize()  # the next step writes to pages that nothing in flight may hold
        return found

    def _results(self, logits: mx.array, batch: base.Batch) -> base.F32:
        n = len(batch.outputs)
        if n == 0:
            # Computed at once all the same: the engine learns what steps cost.
            mx.eval(self._kv.arrays())
            return np.zeros((0, self.n_vocab), np.float32)
        if not batch.want_best:
            begin(logits, *self._kv.arrays())
            return host(logits)
        best = self._mode.fused.best(logits)
        begin(best, logits, *self._kv.arrays())
        self.best = np.array(best)
        return cast(base.F32, FetchedRows(functools.cache(lambda: host(logits)), range(n)))

    def start(self, batch: base.Batch, after: base.Started | None = None) -> StartedStep:
        filled = dataclasses.replace(batch, tokens=np.maximum(batch.tokens, 0))
        check(filled, self._n_tokens, self._n_ctx, self._kv.n_pages)
        self._reserve(batch)
        assert after is None or isinstance(after, StartedStep)
        if after is None or self._kv.started is not after:
            self._kv.settle()
        with guarded(self._kv, f"a step of {batch.n_tokens} tokens"):
            before = self._kv.started
            if before is not None:
                before.give()
            known = None if after is None else mx.clip(after.lazy_best, 0, self._n_tokens - 1)
            logits, attended = self._graph(Step(batch, self._tables, known))
            best = self._mode.fused.best(logits)
            self._kv.started = StartedStep(attended, best, logits, before, self._kv)
            self._kv.started.give_half()
        return self._kv.started

    def _graph(self, step: Step) -> tuple[mx.array, list[mx.array]]:
        """The result, and what each layer's attention gives; nothing is computed yet."""
        ops = MLXOps(step, self._kv, self._mode, self._ropes, self._factors)
        result: mx.array = self._forward(cast(base.Ops, ops))
        return result, ops.attended

    def _reserve(self, batch: base.Batch) -> None:
        """Refuse what the device would run out of memory with: by then it ends the process."""
        n = batch.n_tokens
        if n <= _MEASURED:
            return
        new = np.diff(batch.row_start).tolist()
        rows = list(zip(batch.n_past.tolist(), new, strict=True))
        need = self._memory.of_step(rows, len(batch.outputs))
        free = self._free()
        if need > free:
            raise OutOfMemoryError(
                f"a step of {n} tokens needs {size_text(need)}, but {size_text(free)} "
                "are free: close other programs or lower n_ctx"
            )
