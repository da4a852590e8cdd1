"""One model on two backends: its first layers on one, the others and the output head on the other.

For a device whose memory does not hold all weights. A step goes over once: the hidden states that
the first part computes are what the second begins with. Logits, and so the best ids, come from the
device. Pages have one number in both parts, each of which holds its own layers' K and V.

Each part computes as its backend does: whatever holds for both, e.g. that a row's bits do not
depend on the rest of its batch, holds for the whole.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np

from edgerun.backends import base
from edgerun.backends.specs import layer_of
from edgerun.backends.swap import SwapSpace
from edgerun.errors import BackendError, UnsupportedModelError

__all__ = ["SplitBackend", "SplitKVPool", "SplitProgram"]

#: Ops that choose what is computed for the batch's outputs alone: they belong to the second part.
_LAST = ("outputs", "logits", "hidden")


@dataclass(frozen=True, eq=False)
class _Placed:
    """A weight, and whether the second part has it."""

    handle: Any
    back: bool


@dataclass(eq=False)
class _Value:
    back: bool


@dataclass(frozen=True, eq=False)
class _Call:
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[_Value, ...]
    back: bool


class _Trace:
    """Implements :class:`~edgerun.backends.base.Ops` by writing down who is to do what."""

    def __init__(self, n_front: int) -> None:
        self.calls: list[_Call] = []
        self._n_front = n_front

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        parts = {x.back for x in _leaves([args, kwargs]) if isinstance(x, _Placed | _Value)}
        back = name in _LAST or True in parts
        if name == "attention":
            back = args[3] >= self._n_front
        misplaced = [x for x in _leaves([args, kwargs]) if isinstance(x, _Placed)]
        if any(x.back is not back for x in misplaced) or (not back and True in parts):
            raise UnsupportedModelError(
                "this model's layers depend on one another in a way that cannot be split: use "
                "--gpu-layers 0, or a device with more memory"
            )
        n = len(args) - 1 if name == "linear" else 1
        results = tuple(_Value(back) for _ in range(n))
        self.calls.append(_Call(name, args, kwargs, results, back))
        return results if name == "linear" else results[0]


def _leaves(x: Any) -> Iterator[Any]:
    """What a call's arguments hold: weights may stand in lists and in objects of several."""
    if isinstance(x, dict):
        x = list(x.values())
    elif dataclasses.is_dataclass(x) and not isinstance(x, _Placed | _Value):
        x = list(vars(x).values())
    if isinstance(x, list | tuple):
        for part in x:
            yield from _leaves(part)
    else:
        yield x


class _Part:
    """The calls of one part, to be made again on a backend's own ops."""

    def __init__(self, calls: Sequence[_Call], first_layer: int) -> None:
        self._calls = calls
        self._first_layer = first_layer

    def run(self, ops: base.Ops, values: dict[int, Any]) -> Any:
        """Make the calls; ``values`` by the id of what stands for them. Returns the last result."""

        def real(x: Any) -> Any:
            if isinstance(x, _Placed):
                return x.handle
            if isinstance(x, _Value):
                return values[id(x)]
            if type(x) in (list, tuple):
                return type(x)(map(real, x))
            if any(isinstance(v, _Placed) for v in _leaves(x)):
                return dataclasses.replace(x, **{k: real(v) for k, v in vars(x).items()})
            return x

        last: Any = None
        for call in self._calls:
            args = [real(x) for x in call.args]
            if call.name == "attention":
                args[3] -= self._first_layer
            last = getattr(ops, call.name)(*args, **{k: real(x) for k, x in call.kwargs.items()})
            found = last if call.name == "linear" else (last,)
            values.update({id(v): x for v, x in zip(call.results, found, strict=True)})
        return last


def _crossing(calls: Sequence[_Call]) -> _Value:
    """What the first part computes and the second reads."""
    made = {id(v): v for c in calls if not c.back for v in c.results}
    read = [x for c in calls if c.back for x in _leaves([c.args, c.kwargs])]
    found = {id(x): made[id(x)] for x in read if id(x) in made}
    if len(found) != 1:
        raise UnsupportedModelError(
            f"{len(found)} values go from one layer of this model to the next: it cannot be split; "
            "use --gpu-layers 0, or a device with more memory"
        )
    return next(iter(found.values()))


class SplitBackend(base.Backend):
    """See the module's docstring.

    Args:
        front: computes the first ``n_front`` of ``n_layers`` layers; it is closed with this.
        back: the rest; it knows :meth:`~edgerun.backends.base.Ops.given`. Its name is this one's.
    """

    def __init__(
        self, front: base.Backend, back: base.Backend, n_front: int, n_layers: int
    ) -> None:
        if not 0 < n_front < n_layers:
            raise BackendError(f"{n_front} of {n_layers} layers are no part of them")
        self.front, self.back = front, back
        self.n_front, self.n_layers = n_front, n_layers
        self.name = back.name
        self.kv_types = tuple(t for t in back.kv_types if t in front.kv_types)
        self.batch_invariant = front.batch_invariant and back.batch_invariant
        self.features = front.features & back.features

    @property
    def layers(self) -> str:
        """E.g. ``20 of 28 layers on the GPU``."""
        return f"{self.n_layers - self.n_front} of {self.n_layers} layers on the GPU"

    def memory(self) -> base.Memory:
        return self.back.memory()

    def describe(self) -> Mapping[str, Any]:
        rest = ", ".join(str(v) for v in self.front.describe().values())
        return {
            **self.back.describe(),
            "layers": self.layers,
            "others": f"{self.front.name} {rest}",
        }

    def numerics(self) -> str:
        return f"{self.front.numerics()} {self.n_front} {self.back.numerics()}"

    def _is_back(self, name: str, role: base.Role) -> bool:
        layer = layer_of(name)
        return role != "embedding" if layer is None else layer >= self.n_front

    def upload(self, tensor: base.RawTensor, role: base.Role) -> base.Weight:
        raise BackendError("a split model is uploaded whole: where a tensor goes is in its name")

    def upload_all(
        self,
        tensors: Mapping[str, tuple[base.RawTensor, base.Role]],
        taken: base.Taken | None = None,
    ) -> dict[str, base.Weight]:
        parts: dict[bool, dict[str, tuple[base.RawTensor, base.Role]]] = {False: {}, True: {}}
        for name, (tensor, role) in tensors.items():
            parts[self._is_back(name, role)][name] = tensor, role
        twice = {t.key for t, _ in parts[False].values()} & {t.key for t, _ in parts[True].values()}

        def taken_in_front(tensor: base.RawTensor, start: int, stop: int) -> None:
            if taken is not None and tensor.key not in twice:  # else it is read once more
                taken(tensor, start, stop)

        found: dict[str, base.Weight] = {}
        for back, backend, told in (
            (True, self.back, taken),  # the scarce memory first
            (False, self.front, taken_in_front),
        ):
            weights = backend.upload_all(parts[back], told)
            found |= {name: _Placed(w, back) for name, w in weights.items()}
        return found

    def new_kv(
        self, layers: Sequence[base.KVLayer], n_pages: int, kv_type: str | None = None
    ) -> SplitKVPool:
        kv_type = kv_type or self.kv_types[0]
        back = self.back.new_kv(layers[self.n_front :], n_pages, kv_type)
        try:
            front = self.front.new_kv(layers[: self.n_front], n_pages, kv_type)
        except BaseException:
            getattr(back, "close", lambda: None)()
            raise
        return SplitKVPool(front, back)

    def prepare(self, forward: base.Forward, kv: base.KVPool, n_ctx: int) -> SplitProgram:
        """See the base class.

        Raises:
            UnsupportedModelError: more than one value goes from one part to the other.
        """
        assert isinstance(kv, SplitKVPool)
        trace = _Trace(self.n_front)
        forward(cast(base.Ops, trace))
        passed = _crossing(trace.calls)
        first = _Part([c for c in trace.calls if not c.back], 0)
        rest = _Part([c for c in trace.calls if c.back], self.n_front)

        def begin(ops: base.Ops) -> base.Tensor:
            values: dict[int, Any] = {}
            first.run(ops, values)
            return ops.hidden(ops.outputs(values[id(passed)]))

        front = self.front.prepare(begin, kv.front, n_ctx)

        def go_on(ops: base.Ops) -> base.Tensor:
            return rest.run(ops, {id(passed): ops.given(front.n_vocab)})

        return SplitProgram(front, self.back.prepare(go_on, kv.back, n_ctx))

    def close_front(self) -> None:
        """Free what computes the first part, and nothing else."""
        self.front.close()

    def close(self) -> None:
        self.front.close()
        self.back.close()


class SplitProgram(base.Program):
    """Two forward passes, one behind the other. No step starts before the ids of the one before it
    are known: the first part runs where the host waits for it."""

    def __init__(self, front: base.Program, back: base.Program) -> None:
        self._front = front
        self._back = back
        self.n_vocab = back.n_vocab
        self.n_top = back.n_top

    def width(self, most: int) -> int:
        return self._front.width(self._back.width(most))

    def run(self, batch: base.Batch) -> base.F32:
        everything = np.arange(batch.n_tokens, dtype=np.int32)
        asked = dataclasses.replace(batch, outputs=everything, want_best=False, want_top=0)
        states = self._front.run(asked)
        logits = self._back.run(dataclasses.replace(batch, given=states))
        self.best, self.top = self._back.best, self._back.top
        return logits


class SplitKVPool(base.KVPool):
    """Two pools of as many pages; a page is the one of that number in each."""

    def __init__(self, front: base.KVPool, back: base.KVPool) -> None:
        self.front, self.back = front, back
        self.n_pages = back.n_pages
        self.page_bytes = front.page_bytes + back.page_bytes

    def copy_page(self, src: int, dst: int) -> None:
        self.front.copy_page(src, dst)
        self.back.copy_page(src, dst)

    def export_page(self, page: int) -> bytes:
        return self.front.export_page(page) + self.back.export_page(page)

    def import_page(self, page: int, data: bytes) -> None:
        if len(data) != self.page_bytes:
            raise ValueError(f"a page has {self.page_bytes} bytes, not {len(data)}")
        at = self.front.page_bytes
        self.front.import_page(page, data[:at])
        self.back.import_page(page, data[at:])

    def swap_space(self) -> SwapSpace | None:
        back = self.back.swap_space()
        return None if back is None else _SplitSwap(self.front, back)


class _SplitSwap(SwapSpace):
    """A device's swap space, with the pages of the other part beside it: they lie in host memory
    already, but make room for others as well."""

    def __init__(self, front: base.KVPool, back: SwapSpace) -> None:
        self._front = front
        self._back = back
        self._slots: list[bytes] = []

    def grow(self, most: int) -> None:
        self._back.grow(most)
        self.n_slots = self._back.n_slots
        if not self._slots and self.n_slots:
            began = time.perf_counter()
            self._front.export_page(0)
            self.copy_seconds = self._back.copy_seconds + time.perf_counter() - began
        self._slots += [b""] * (self.n_slots - len(self._slots))

    def save(self, page: int, slot: int) -> None:
        self._slots[slot] = self._front.export_page(page)
        self._back.save(page, slot)

    def restore(self, slot: int, page: int) -> None:
        self._front.import_page(page, self._slots[slot])
        self._back.restore(slot, page)
