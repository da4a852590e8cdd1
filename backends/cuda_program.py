"""Runs a lowered forward pass: inputs in one copy, launches in order, logits back.

Steps of up to 64 tokens are padded to a bucket. Their launches depend on the bucket alone, so they
are recorded as a graph the second time a bucket is met, and replayed from then on.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from edgerun.backends import base
from edgerun.backends.cuda_device import Arena, Bytes, Device, Graph, Launch
from edgerun.backends.cuda_kv import CudaKVPool
from edgerun.backends.cuda_launch import Addresses, Builder, row_bytes
from edgerun.backends.cuda_recorder import Lowered
from edgerun.backends.cuda_step import (
    MOST_PADDED,
    Block,
    Inputs,
    Shape,
    bucket,
    check,
    padded_shape,
)
from edgerun.backends.fetched import FetchedRows
from edgerun.backends.rope_table import RopeTable

__all__ = ["CudaProgram"]

_MOST_PLANS = 128
#: Most tokens that one reading of the weights serves.
_DIRECT = 16


@dataclass(eq=False)
class _Plan:
    """What a step of one shape does, and where."""

    launches: list[Launch]
    inputs: Inputs
    addresses: Addresses
    uses: int = 0
    graph: Graph | None = None


class _Room:
    """Device memory for steps: pieces that grow on demand, so that addresses change."""

    def __init__(self, device: Device, on_change: Callable[[], None]) -> None:
        self._device = device
        self._on_change = on_change
        self._sizes: list[int] = []
        self._arena: Arena | None = None

    def fit(self, sizes: Sequence[int]) -> list[int]:
        """Addresses of pieces of at least ``sizes`` bytes."""
        grown = not self._sizes or any(a > b for a, b in zip(sizes, self._sizes, strict=True))
        if self._arena is None or grown:
            have = self._sizes or [0] * len(sizes)
            self.close()
            self._on_change()
            wanted = [max(a, b) for a, b in zip(sizes, have, strict=True)]
            self._arena = Arena(self._device, wanted)
            self._sizes = wanted
        return self._arena.addresses

    def close(self) -> None:
        if self._arena is not None:
            self._arena.close()
        self._arena, self._sizes = None, []


class CudaProgram(base.Program):
    """A recorded forward pass over a pool."""

    def __init__(
        self, device: Device, lowered: Lowered, kv: CudaKVPool, n_ctx: int, n_vocab: int
    ) -> None:
        """``n_vocab`` counts the tokens that the embedding knows."""
        self._device = device
        self._kv = kv
        self._n_ctx = n_ctx
        self._n_tokens = n_vocab
        self._lowered = lowered
        self.n_vocab = lowered.buffers[lowered.result.buffer].width
        self._ropes = [RopeTable(r, n_ctx) for r in lowered.ropes]
        self._builder = Builder(device, lowered, kv)
        device.load(self._builder.names())
        self._plans: OrderedDict[tuple[Shape, bool], _Plan] = OrderedDict()
        self._small = _Room(device, self._plans.clear)
        self._large = _Room(device, lambda: None)
        self._stagings: dict[Shape | None, Bytes] = {}
        self._tilings = [self._builder.tilings(n) for n in (1, MOST_PADDED + 1)]
        self._logits = device.pinned(4 * self.n_vocab).view(np.float32)
        self._best = device.pinned(4 * MOST_PADDED).view(np.int32)
        self._steps = 0
        self.n_launches = 0  # of the last step, a graph's counted one by one

    def width(self, most: int) -> int:
        # One pass over the weights serves 16 tokens; more go to the kernel for prompts.
        return _DIRECT if _DIRECT < most < 2 * _DIRECT else most

    def run(self, batch: base.Batch) -> base.F32:
        """One step.

        Raises:
            RequestError: a token id outside the vocabulary.
            BackendError: the batch does not suit context and pool; nothing was written then. Or
                the device failed.
            OutOfMemoryError: no memory is left for so large a step.
        """
        check(batch, self._n_tokens, self._n_ctx, self._kv.n_pages)
        self.best = None
        n = len(batch.outputs)
        if batch.n_tokens == 0:
            return np.zeros((0, self.n_vocab), np.float32)
        want_best = batch.want_best and n > 0
        plan = self._plan(batch, want_best)
        self._upload(plan, batch)
        self._go(plan)
        addresses = plan.addresses
        self._steps += 1
        if n == 0:
            self._device.sync()  # the next step's inputs take the place of these
            return np.zeros((0, self.n_vocab), np.float32)
        if not want_best:
            return self._fetch(n, addresses)
        self._best = self._host(self._best, n).view(np.int32)
        self._device.download(self._best[:n], addresses.best)
        self.best = self._best[:n].copy()
        return cast(base.F32, FetchedRows(_Logits(self, n, addresses).rows, range(n)))

    def _fetch(self, n: int, addresses: Addresses) -> base.F32:
        """Bring the logits of ``n`` outputs over, and wait for them."""
        self._logits = self._host(self._logits, n * self.n_vocab).view(np.float32)
        logits: base.F32 = self._logits[: n * self.n_vocab].reshape(n, self.n_vocab)
        self._device.download(logits, addresses.buffers[self._lowered.result.buffer])
        return logits

    def launches(self, batch: base.Batch) -> list[Launch]:
        """What :meth:`run` would launch for ``batch``, whose inputs are on the device now: good
        until the next call of either. For measurements."""
        check(batch, self._n_tokens, self._n_ctx, self._kv.n_pages)
        plan = self._plan(batch, batch.want_best)
        self._upload(plan, batch)
        return plan.launches

    def _host(self, array: npt.NDArray[np.generic], n: int) -> npt.NDArray[np.generic]:
        """``array``, or a larger one for ``n`` words."""
        if len(array) >= n:
            return array
        return self._device.pinned(4 * max(n, 2 * len(array))).view(array.dtype)

    def _plan(self, batch: base.Batch, want_best: bool) -> _Plan:
        tilings = self._tilings[batch.n_tokens > MOST_PADDED]
        shape = padded_shape(batch, tilings)
        key = (shape, want_best)
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        else:
            block = Block(shape, tilings, [r.width for r in self._ropes])
            addresses = self._addresses(shape, block)
            launches = self._builder.build(shape, block, addresses, want_best)
            plan = _Plan(launches, block.inputs(self._staging(shape, block.nbytes)), addresses)
            if shape.padded:
                self._plans[key] = plan
                if len(self._plans) > _MOST_PLANS:
                    self._plans.popitem(last=False)
        self.n_launches = len(plan.launches)
        return plan

    def _staging(self, shape: Shape, nbytes: int) -> Bytes:
        """Host memory for a step's inputs: each padded shape's own, one for all others."""
        key = shape if shape.padded else None
        found = self._stagings.get(key)
        if found is None or len(found) < nbytes:
            found = self._device.pinned(nbytes if shape.padded else 2 * nbytes)
            self._stagings[key] = found
        return found

    def _addresses(self, shape: Shape, block: Block) -> Addresses:
        room = self._small if shape.padded else self._large
        tokens = MOST_PADDED if shape.padded else shape.n_tokens
        outputs = shape.n_outputs
        counts = [bucket(outputs) if b.gathered else bucket(tokens) for b in self._lowered.buffers]
        sizes = [row_bytes(b, n) for b, n in zip(self._lowered.buffers, counts, strict=True)]
        parts, best = self._builder.scratch_bytes(shape)
        found = room.fit([block.nbytes, parts, best, *sizes])
        return Addresses(found[0], found[1], found[2], found[3:])

    def _upload(self, plan: _Plan, batch: base.Batch) -> None:
        n_pos = int(batch.positions.max()) + 1
        plan.inputs.fill(batch, [r.upto(n_pos) for r in self._ropes])
        self._device.upload(plan.addresses.step, plan.inputs.memory)

    def _go(self, plan: _Plan) -> None:
        plan.uses += 1
        if plan.graph is None and plan.uses == 2 and plan.inputs.shape.padded:
            # Not the first time: kernels that were never launched are still being loaded then.
            plan.graph = self._device.capture(plan.launches)
        if plan.graph is not None:
            plan.graph.replay()
            return
        for launch in plan.launches:
            self._device.launch(launch)


class _Logits:
    """What a step left on the device, until the next one."""

    def __init__(self, program: CudaProgram, n: int, addresses: Addresses) -> None:
        self._program = program
        self._step = program._steps
        self._where = n, addresses
        self._rows: base.F32 | None = None

    def rows(self) -> base.F32:
        assert self._step == self._program._steps, "these logits were another step's"
        if self._rows is None:
            self._rows = self._program._fetch(*self._where)
        return self._rows
