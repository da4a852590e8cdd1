"""The NVIDIA backend: matrices repacked on the device for tensor cores, a forward pass recorded
once, steps replayed as graphs.

A row's logits have the same bits whatever else is in the batch: kernels add in one fixed order for
any number of tokens.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.backends import base, cuda_attention, cuda_experts, cuda_kernels, cuda_weights
from edgerun.backends.cuda_device import Arena, Device
from edgerun.backends.cuda_driver import open_device
from edgerun.backends.cuda_kv import CudaKVPool
from edgerun.backends.cuda_launch import repack
from edgerun.backends.cuda_lowered import (
    TILE,
    Attend,
    Embed,
    Lowered,
    Matrix,
    Mixture,
    Prologue,
    Vector,
)
from edgerun.backends.cuda_program import CudaProgram
from edgerun.backends.cuda_recorder import lower
from edgerun.backends.recorder import Recorder
from edgerun.errors import BackendError, UnsupportedModelError
from edgerun.gguf import GGMLType, dequantize

__all__ = ["CudaBackend"]

_F32 = 0
_ANY = 2**31 - 1
_SLICE = 64 << 20  # bytes of the file that lie on the device beside what they are repacked to


class CudaBackend(base.Backend):
    """See the module's docstring.

    Args:
        device: where to compute; ``None`` = the first GPU.

    Raises:
        BackendUnavailableError: no driver, GPU or compiler, or too old ones; says which.
    """

    name = "cuda"
    kv_types = ("f16", "q8_0", "q4r")
    batch_invariant = True
    partial = True
    features: frozenset[base.Feature] = frozenset(("moe", "sinks"))

    def __init__(self, device: Device | None = None) -> None:
        self.device = device or open_device()
        self._close = weakref.finalize(self, self.device.close)

    def memory(self) -> base.Memory:
        return self.device.memory()

    def describe(self) -> Mapping[str, Any]:
        return self.device.describe()

    def numerics(self) -> str:
        major, minor = self.device.capability
        return f"cuda {major}.{minor} {cuda_kernels.digest()}"

    # -- weights ----------------------------------------------------------------------------

    def upload(self, tensor: base.RawTensor, role: base.Role) -> Matrix | Vector:
        return self.upload_all({"": (tensor, role)})[""]

    def upload_all(
        self,
        tensors: Mapping[str, tuple[base.RawTensor, base.Role]],
        taken: base.Taken | None = None,
    ) -> dict[str, Matrix | Vector]:
        """Matrices lie in the order given with nothing between them, so that neighbours of one type
        share a launch. What ``taken`` raises ends it, and nothing of this call stays."""
        keys, fresh = base.distinct(tensors)
        packs = _packs([(k, t, role) for k, (t, role) in fresh.items() if role != "vector"])
        vectors = {k: t for k, (t, role) in fresh.items() if role == "vector"}
        total = sum(p.nbytes for p in packs)
        room = Arena(self.device, [total, *(4 * math.prod(v.shape) for v in vectors.values())])
        handles: dict[str, Matrix | Vector] = {}
        try:
            at = room.addresses[0]
            for pack in packs:
                handles.update(pack.place(at))
                at += pack.nbytes
            for (key, tensor), address in zip(vectors.items(), room.addresses[1:], strict=True):
                handles[key] = self._vector(tensor, address, taken)
            self._repack(packs, taken)
        except BaseException:
            room.close()
            raise
        return {name: handles[key] for name, key in keys.items()}

    def _vector(self, tensor: base.RawTensor, address: int, taken: base.Taken | None) -> Vector:
        values = _widened(tensor, tensor.data).reshape(-1)
        self.device.upload(address, values)
        if taken is not None:
            taken(tensor, 0, len(tensor.data))
        return Vector(address, len(values))

    def _repack(self, packs: Sequence[_Pack], taken: base.Taken | None) -> None:
        """Bring the file's rows over slice by slice, in the file's order."""
        if not packs:
            return
        self.device.load(cuda_weights.repack(p.type, p.n_out, p.n_in).name for p in packs)
        staging = self.device.alloc(max(p.slice_rows * p.row_bytes * len(p.tensors) for p in packs))
        try:
            for p in sorted(packs, key=lambda p: p.tensors[0].data.ctypes.data):
                for start, stop in p.slices():
                    addresses = [staging + i * p.slice_rows * p.row_bytes for i in (0, 1)]
                    for tensor, address in zip(p.tensors, addresses, strict=False):
                        self.device.upload(address, p.rows(tensor, start, stop))
                    launch = repack(self.device, p.type, p.n_in, addresses[: len(p.tensors)],
                                    p.address(start), stop - start)  # fmt: skip
                    self.device.launch(launch)
                    if taken is not None:
                        for tensor in p.tensors:
                            taken(tensor, start, stop)
        finally:
            self.device.free(staging)

    # -- models -----------------------------------------------------------------------------

    def new_kv(
        self, layers: Sequence[base.KVLayer], n_pages: int, kv_type: str | None = None
    ) -> CudaKVPool:
        kv_type = kv_type or self.kv_types[0]
        if kv_type not in self.kv_types:
            raise BackendError(f"KV type {kv_type!r} is not one of: {', '.join(self.kv_types)}")
        return CudaKVPool(self.device, layers, n_pages, kv_type)

    def prepare(self, forward: base.Forward, kv: base.KVPool, n_ctx: int) -> CudaProgram:
        """See the base class.

        Raises:
            UnsupportedModelError: heads are longer, experts more, or rows of another width than
                the kernels take.
        """
        assert isinstance(kv, CudaKVPool)
        recorder = Recorder()
        forward(recorder)
        lowered = lower(recorder)
        _check_experts(lowered)
        _check_rows(lowered)
        longest = max((x.spec.head_dim for x in lowered.ops if isinstance(x, Attend)), default=0)
        if longest > cuda_attention.MAX_HEAD_DIM:
            raise UnsupportedModelError(
                f"heads of {longest} dimensions: the cuda backend takes up to "
                f"{cuda_attention.MAX_HEAD_DIM}; use --backend cpu"
            )
        embedding = next((x for x in lowered.ops if isinstance(x, Embed)), None)
        n_vocab = embedding.weight.n_out if embedding else _ANY  # else who computes the given ones
        return CudaProgram(self.device, lowered, kv, n_ctx, n_vocab)

    def close(self) -> None:
        self._close()


def _check_rows(lowered: Lowered) -> None:
    """Rows between products are read and written eight values at a time."""
    for op in lowered.ops:
        if isinstance(op, Prologue):
            norms = [n.weight.size for n in (op.norm, op.norm_y) if n]
            odd = next((n for n in (op.width, *norms) if n % 8), None)
            if odd is not None:
                raise UnsupportedModelError(
                    f"rows of {odd} values: the cuda backend takes multiples of 8; "
                    "use --backend cpu"
                )


def _check_experts(lowered: Lowered) -> None:
    for op in lowered.ops:
        if not isinstance(op, Mixture):
            continue
        spec, most = op.spec, (cuda_experts.MOST_USED, cuda_experts.MOST_EXPERTS)
        if spec.n_used > most[0] or spec.n_experts > most[1]:
            raise UnsupportedModelError(
                f"{spec.n_used} of {spec.n_experts} experts: the cuda backend takes up to "
                f"{most[0]} of {most[1]}; use --backend cpu"
            )


class _Pack:
    """A matrix, or a gate with its twin, on its way to the device."""

    def __init__(self, keys: Sequence[str], tensors: Sequence[base.RawTensor]) -> None:
        self.tensors = list(tensors)
        self._keys = keys
        first = tensors[0]
        self.n_out, self.n_in = first.shape[-2:]
        self.n_experts = math.prod(first.shape[:-2])
        native = first.type in cuda_weights.LINEAR_TYPES
        self.type = first.type if native else _F32  # what has no kernel is widened
        paired = len(tensors) == 2
        self._tile_rows = TILE // 2 if paired else TILE
        try:
            self._tile_bytes = cuda_weights.tile_bytes(self.type, self.n_in)
        except ValueError as e:
            raise UnsupportedModelError(f"tensor {first.key}: {e}") from None
        self._each = cuda_weights.packed_bytes(self.type, self.n_out, self.n_in, paired)
        self.nbytes = self.n_experts * self._each
        self.row_bytes = first.data.shape[-1] if native else 4 * self.n_in
        #: Rows that come over at once, whole tiles.
        self.slice_rows = max(1, _SLICE // (self.row_bytes * TILE)) * TILE
        # Experts that fill their last tile are as one matrix.
        whole = self.n_out % self._tile_rows == 0
        self._run = self.n_out * self.n_experts if whole else self.n_out
        self.slice_rows = min(self.slice_rows, -(-self._run // TILE) * TILE)
        self._ptr = 0

    def place(self, ptr: int) -> dict[str, Matrix]:
        """Handles by key, for tiles that will lie at ``ptr``."""
        self._ptr = ptr
        takes = cuda_weights.takes(self.type)
        size = (ptr, self.n_out, self.n_in, self.type, self.nbytes, takes)
        found = [Matrix(*size, n_experts=self.n_experts) for _ in self._keys]
        if len(found) == 2:
            found[0].twin, found[1].twin = found[1], found[0]
        return dict(zip(self._keys, found, strict=True))

    def slices(self) -> Iterator[tuple[int, int]]:
        """Rows of the file to bring over at once, within an expert that ends in half a tile."""
        for run in range(0, self.n_out * self.n_experts, self._run):
            for start in range(run, run + self._run, self.slice_rows):
                yield start, min(start + self.slice_rows, run + self._run)

    def address(self, row: int) -> int:
        """Where the tile that begins with ``row`` of the file goes."""
        expert, row = divmod(row, self.n_out)
        return self._ptr + expert * self._each + row // self._tile_rows * self._tile_bytes

    def rows(self, tensor: base.RawTensor, start: int, stop: int) -> npt.NDArray[Any]:
        data = tensor.data[start:stop]
        if self.type != tensor.type:
            return _widened(tensor, data)
        return np.ascontiguousarray(data)


def _packs(matrices: Sequence[tuple[str, base.RawTensor, base.Role]]) -> list[_Pack]:
    """Matrices in order; a gate and the twin behind it together, if they are of one kind."""
    packs: list[_Pack] = []
    i = 0
    while i < len(matrices):
        key, tensor, role = matrices[i]
        after = matrices[i + 1] if i + 1 < len(matrices) else None
        if role == "gate" and after and after[2] == "up":
            twin = after[1]
            if (twin.type, twin.shape) == (tensor.type, tensor.shape):
                packs.append(_Pack((key, after[0]), (tensor, twin)))
                i += 2
                continue
        packs.append(_Pack((key,), (tensor,)))
        i += 1
    return packs


def _widened(tensor: base.RawTensor, rows: npt.NDArray[np.uint8]) -> base.F32:
    try:
        return np.ascontiguousarray(dequantize(rows, GGMLType(tensor.type)), np.float32)
    except UnsupportedModelError as e:
        raise UnsupportedModelError(f"tensor {tensor.key}: {e}") from None
