"""Runs a lowered forward pass: inputs in one copy, launches in order, logits back.

Steps of up to 64 tokens are padded to a bucket. Their launches depend on the bucket alone, so they
are recorded as a graph the second time a bucket is met, and replayed from then on. A step may be
started behind one whose ids are still on their way to the host: it finds them on the device.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from edgerun.backends import base, cuda_kernels
from edgerun.backends.cuda_device import Arena, Bytes, Device, Graph, Launch, Mark
from edgerun.backends.cuda_kv import CudaKVPool
from edgerun.backends.cuda_launch import Addresses, Builder, row_bytes
from edgerun.backends.cuda_recorder import Given, Lowered
from edgerun.backends.cuda_step import (
    MOST_PADDED,
    Block,
    Inputs,
    Shape,
    Wanted,
    bucket,
    check,
    padded_shape,
)
from edgerun.backends.fetched import FetchedRows
from edgerun.backends.program import filled
from edgerun.backends.rope_table import RopeTable
from edgerun.errors import BackendError

__all__ = ["CudaProgram"]

I32 = npt.NDArray[np.int32]

_MOST_PLANS = 128
#: Most tokens that one reading of the weights serves.
_DIRECT = 16


@dataclass(eq=False)
class _Plan:
    """What a step of one shape does, and where. Of ``inputs`` every other step takes the other:
    the device may still be reading what the step before wrote there."""

    launches: list[Launch]
    inputs: tuple[Inputs, Inputs]
    shape: Shape
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

    ahead = MOST_PADDED
    n_top = cuda_kernels.TOP

    def __init__(
        self, device: Device, lowered: Lowered, kv: CudaKVPool, n_ctx: int, n_vocab: int
    ) -> None:
        """``n_vocab`` counts the tokens that the embedding knows."""
        given = [op.out.buffer for op in lowered.ops if isinstance(op, Given)]
        self._given = given[0] if given else None
        self._device = device
        self._kv = kv
        self._n_ctx = n_ctx
        self._n_tokens = n_vocab
        self._lowered = lowered
        self.n_vocab = lowered.buffers[lowered.result.buffer].width
        self._ropes = [RopeTable(r, n_ctx) for r in lowered.ropes]
        self._builder = Builder(device, lowered, kv)
        device.load(self._builder.names())
        self._plans: OrderedDict[tuple[Shape, Wanted], _Plan] = OrderedDict()
        self._small = _Room(device, self._moved)
        self._large = _Room(device, lambda: None)
        self._padded: dict[Shape, tuple[Inputs, Inputs]] = {}
        self._staging: Bytes = np.zeros(0, np.uint8)
        self._tilings = [self._builder.tilings(n) for n in (1, MOST_PADDED + 1)]
        self._logits = device.pinned(4 * self.n_vocab).view(np.float32)
        self._best = device.pinned(4 * MOST_PADDED).view(np.int32)
        self._top = device.pinned(8 * self.n_top).view(np.int32)
        # Padded steps leave their ids here, for the next step and on their way to the host.
        self._named = device.alloc(4 * MOST_PADDED)
        self._fetched = device.pinned(8 * MOST_PADDED).view(np.int32).reshape(2, MOST_PADDED)
        self._states = [device.pinned(4)] * 2  # given ones, of every other step
        self._n_started = 0
        self._under_way: deque[Mark] = deque()  # of steps that nobody waited for
        self._carried: _Started | None = None  # whose ids lie in _named
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
        self.best, self.top = None, None
        n = len(batch.outputs)
        if batch.n_tokens == 0:
            return np.zeros((0, self.n_vocab), np.float32)
        wanted = _wanted(batch)
        plan = self._plan(batch, wanted)
        self._upload(plan, batch)
        if wanted == "best":
            self._carried = None
        self._go(plan)
        addresses = plan.addresses
        if n == 0:
            self._device.sync()  # the next step's inputs take the place of these
            return np.zeros((0, self.n_vocab), np.float32)
        if wanted == "logits":
            return self._fetch(n, addresses)
        if wanted == "top":
            self.top = self._fetch_top(n, plan)
            self.best = self.top.ids[:, 0].copy() if batch.want_best else None
        else:
            self._best = self._host(self._best, n).view(np.int32)
            self._device.download(self._best[:n], addresses.best)
            self.best = self._best[:n].copy()
        return cast(base.F32, _Logits(self, None, addresses, n).lazily())

    def start(self, batch: base.Batch, after: base.Started | None = None) -> base.Started:
        """See the base class. At most :data:`MOST_PADDED` rows."""
        n_named = 0
        if after is not None:
            assert isinstance(after, _Started)
            if after is not self._carried:  # another step's ids have taken their place
                batch = filled(batch, after.ids())
            n_named = after.n
        check(batch, self._n_tokens, self._n_ctx, self._kv.n_pages, n_named)
        assert batch.want_best
        assert 0 < batch.n_tokens == len(batch.outputs) <= MOST_PADDED
        plan = self._plan(batch, "best")
        self._upload(plan, batch)
        self._go(plan)
        self._n_started += 1
        slot = self._fetched[self._n_started % 2, : batch.n_tokens]
        self._device.fetch(slot, plan.addresses.best)
        mark = self._device.mark()
        self._under_way.append(mark)
        logits = _Logits(self, batch, plan.addresses, batch.n_tokens)
        step = _Started(self, after, slot, mark, logits)
        self._carried = step
        return step

    def _done(self, mark: Mark) -> None:
        """What lies before ``mark`` has been waited for."""
        while mark in self._under_way and self._under_way.popleft() is not mark:
            pass

    def _fetch(self, n: int, addresses: Addresses) -> base.F32:
        """Bring the logits of ``n`` outputs over, and wait for them."""
        self._logits = self._host(self._logits, n * self.n_vocab).view(np.float32)
        logits: base.F32 = self._logits[: n * self.n_vocab].reshape(n, self.n_vocab)
        self._device.download(logits, addresses.buffers[self._lowered.result.buffer])
        return logits

    def _fetch_row(self, i: int, n: int, addresses: Addresses) -> base.F32:
        """The same of one of them, to its own place."""
        v = self.n_vocab
        self._logits = self._host(self._logits, n * v).view(np.float32)
        row: base.F32 = self._logits[i * v : i * v + v]
        self._device.download(row, addresses.buffers[self._lowered.result.buffer] + 4 * i * v)
        return row

    def _fetch_top(self, n: int, plan: _Plan) -> base.Top:
        size = plan.shape.n_outputs * self.n_top
        self._top = self._host(self._top, 2 * size).view(np.int32)
        both = self._top[: 2 * size]
        self._device.download(both, plan.addresses.top)
        ids, logits = both[:size], both[size:].view(np.float32)
        return base.Top(ids.reshape(-1, self.n_top)[:n], logits.reshape(-1, self.n_top)[:n])

    def launches(self, batch: base.Batch) -> list[Launch]:
        """What :meth:`run` would launch for ``batch``, whose inputs are on the device now: good
        until the next call of either. For measurements."""
        check(batch, self._n_tokens, self._n_ctx, self._kv.n_pages)
        plan = self._plan(batch, _wanted(batch))
        self._upload(plan, batch)
        return plan.launches

    def _host(self, array: npt.NDArray[np.generic], n: int) -> npt.NDArray[np.generic]:
        """``array``, or a larger one for ``n`` words."""
        if len(array) >= n:
            return array
        return self._device.pinned(4 * max(n, 2 * len(array))).view(array.dtype)

    def _plan(self, batch: base.Batch, wanted: Wanted) -> _Plan:
        tilings = self._tilings[batch.n_tokens > MOST_PADDED]
        shape = padded_shape(batch, tilings)
        key = (shape, wanted)
        plan = self._plans.get(key)
        if plan is not None:
            self._plans.move_to_end(key)
        else:
            block = Block(shape, tilings, [r.width for r in self._ropes])
            addresses = self._addresses(shape, block, wanted)
            launches = self._builder.build(shape, block, addresses, wanted)
            plan = _Plan(launches, self._inputs(block), shape, addresses)
            if shape.padded:
                self._plans[key] = plan
                if len(self._plans) > _MOST_PLANS:
                    self._plans.popitem(last=False)
        self.n_launches = len(plan.launches)
        return plan

    def _inputs(self, block: Block) -> tuple[Inputs, Inputs]:
        """Host memory for the inputs of two steps: each padded shape's own, one for all others,
        which nobody starts anything behind."""
        shape, nbytes = block.shape, block.nbytes
        if shape.padded:
            if shape not in self._padded:
                both = self._device.pinned(2 * nbytes)
                self._padded[shape] = block.inputs(both[:nbytes]), block.inputs(both[nbytes:])
            return self._padded[shape]
        if len(self._staging) < nbytes:
            self._staging = self._device.pinned(2 * nbytes)
        inputs = block.inputs(self._staging[:nbytes])
        return inputs, inputs

    def _moved(self) -> None:
        """Whatever steps left on the device is gone."""
        self._plans.clear()
        self._steps += 2

    def _addresses(self, shape: Shape, block: Block, wanted: Wanted) -> Addresses:
        room = self._small if shape.padded else self._large
        tokens = MOST_PADDED if shape.padded else shape.n_tokens
        outputs = shape.n_outputs
        counts = [bucket(outputs) if b.gathered else bucket(tokens) for b in self._lowered.buffers]
        sizes = [row_bytes(b, n) for b, n in zip(self._lowered.buffers, counts, strict=True)]
        parts, chunks = self._builder.scratch_bytes(shape, wanted)
        best = 0 if shape.padded else 4 * shape.n_outputs
        top = 8 * self.n_top * shape.n_outputs if wanted == "top" else 0
        found = room.fit([block.nbytes, parts, best, top, chunks, *sizes])
        best = self._named if shape.padded else found[2]
        return Addresses(found[0], found[1], best, found[3], found[4], found[5:])

    def _upload(self, plan: _Plan, batch: base.Batch) -> None:
        """Inputs to where the step's launches read them. Of the two halves of host memory the one
        is free that the step before did not use, if all before that one are done."""
        while len(self._under_way) > 1:
            self._under_way.popleft().wait()
        self._steps += 1
        inputs = plan.inputs[self._steps % 2]
        n_pos = int(batch.positions.max()) + 1
        inputs.fill(batch, [r.upto(n_pos) for r in self._ropes])
        self._device.upload(plan.addresses.step, inputs.memory)
        if self._given is not None:
            width = self._lowered.buffers[self._given].width
            if batch.given is None or batch.given.shape != (batch.n_tokens, width):
                raise BackendError(f"this program begins with states of {width} values a token")
            half, n = self._steps % 2, 4 * batch.given.size
            if len(self._states[half]) < n:
                self._states[half] = self._device.pinned(2 * n)
            states = self._states[half][:n].view(np.float32)
            states[:] = batch.given.reshape(-1)
            self._device.upload(plan.addresses.buffers[self._given], states)

    def _go(self, plan: _Plan) -> None:
        plan.uses += 1
        if plan.graph is None and plan.uses == 2 and plan.shape.padded:
            # Not the first time: kernels that were never launched are still being loaded then.
            plan.graph = self._device.capture(plan.launches)
        if plan.graph is not None:
            plan.graph.replay()
            return
        for launch in plan.launches:
            self._device.launch(launch)


def _wanted(batch: base.Batch) -> Wanted:
    if not len(batch.outputs):
        return "logits"
    return "top" if batch.want_top else "best" if batch.want_best else "logits"


class _Logits:
    """What a step left on the device, until the next one. Those of a step with a ``batch`` are
    computed again if another was started since."""

    def __init__(self, program: CudaProgram, batch: base.Batch | None, addresses: Addresses,
                 n: int) -> None:  # fmt: skip
        self._program = program
        self._step = program._steps
        self._where = n, addresses
        self.batch = batch
        self._rows: base.F32 | None = None
        self._some: dict[int, base.F32] = {}

    def lazily(self) -> FetchedRows:
        """What asks for them when somebody looks."""
        return FetchedRows(self.rows, range(self._where[0]), self._row)

    def _row(self, i: int) -> base.F32:
        if self._rows is not None or self._step != self._program._steps:
            whole = self.rows()
            row: base.F32 = whole[i]
            return row
        if i not in self._some:
            self._some[i] = self._program._fetch_row(i, *self._where)
        return self._some[i]

    def rows(self) -> base.F32:
        if self._rows is None:
            if self._step == self._program._steps:
                self._rows = self._program._fetch(*self._where)
            else:
                assert self.batch is not None, "these logits were another step's"
                self._rows = self._program.run(dataclasses.replace(self.batch, want_best=False))
        return self._rows


class _Started(base.Started):
    """A step under way: ``slot`` is where its ids arrive."""

    def __init__(
        self, program: CudaProgram, after: base.Started | None, slot: I32, mark: Mark,
        logits: _Logits,
    ) -> None:  # fmt: skip
        self.n = len(slot)
        self._program = program
        self._after = after
        self._slot = slot
        self._mark: Mark | None = mark
        self._logits = logits

    def ids(self) -> I32:
        """Its best ids, waited for."""
        if self._mark is not None:
            self._mark.wait()
            self._program._done(self._mark)
            self._mark = None
            self.best = self._slot.copy()
        return self.best

    def wait(self) -> base.Rows:
        self.ids()
        if self._after is not None:  # what its tokens stood for is known by now
            assert isinstance(self._after, _Started)
            assert self._logits.batch is not None
            self._logits.batch = filled(self._logits.batch, self._after.ids())
            self._after = None
        return cast(base.Rows, self._logits.lazily())
