"""The NVIDIA backend: matrices repacked on the device for tensor cores, a forward pass recorded
once, steps replayed as graphs.

A row's logits have the same bits whatever else is in the batch: kernels add in one fixed order for
any number of tokens.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.backends import base, cuda_kernels, cuda_weights
from edgerun.backends.cuda_device import Arena, Device
from edgerun.backends.cuda_driver import open_device
from edgerun.backends.cuda_kv import CudaKVPool
from edgerun.backends.cuda_launch import repack
from edgerun.backends.cuda_program import CudaProgram
from edgerun.backends.cuda_recorder import TILE, Attend, Embed, Matrix, Vector, lower
from edgerun.backends.recorder import Recorder
from edgerun.errors import BackendError, UnsupportedModelError
from edgerun.gguf import GGMLType, dequantize

__all__ = ["CudaBackend"]

_F32 = 0
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
        keys = {name: f"{role == 'vector'}:{t.key}" for name, (t, role) in tensors.items()}
        fresh = {keys[name]: found for name, found in tensors.items()}
        matrices = {k: t for k, (t, role) in fresh.items() if role != "vector"}
        vectors = {k: t for k, (t, role) in fresh.items() if role == "vector"}
        found = {k: self._matrix(t) for k, t in matrices.items()}
        total = sum(m.nbytes for m in found.values())
        room = Arena(self.device, [total, *(4 * v.shape[0] for v in vectors.values())])
        handles: dict[str, Matrix | Vector] = {**found}
        try:
            at = room.addresses[0]
            for matrix in found.values():
                matrix.ptr = at
                at += matrix.nbytes
            for (key, tensor), address in zip(vectors.items(), room.addresses[1:], strict=True):
                handles[key] = self._vector(tensor, address, taken)
            self._pack([(found[k], t) for k, t in matrices.items()], taken)
        except BaseException:
            room.close()
            raise
        return {name: handles[key] for name, key in keys.items()}

    def _matrix(self, tensor: base.RawTensor) -> Matrix:
        """A handle whose address is still open. A type without a kernel is widened to float32."""
        n_out, n_in = tensor.shape
        kind = tensor.type if tensor.type in cuda_weights.LINEAR_TYPES else _F32
        nbytes = -(-n_out // TILE) * cuda_weights.tile_bytes(kind, n_in)
        return Matrix(0, n_out, n_in, kind, nbytes, cuda_weights.takes(kind))

    def _vector(self, tensor: base.RawTensor, address: int, taken: base.Taken | None) -> Vector:
        values = _widened(tensor, tensor.data).reshape(-1)
        self.device.upload(address, values)
        if taken is not None:
            taken(tensor, 0, len(tensor.data))
        return Vector(address, len(values))

    def _pack(
        self, matrices: Sequence[tuple[Matrix, base.RawTensor]], taken: base.Taken | None
    ) -> None:
        """Bring the file's rows over slice by slice, in the file's order."""
        if not matrices:
            return
        ordered = sorted(matrices, key=lambda m: m[1].data.ctypes.data)
        rows = [_slice_rows(*m) for m in ordered]
        staging = self.device.alloc(
            max(n * _row_bytes(*m) for n, m in zip(rows, ordered, strict=True))
        )
        try:
            for n, (matrix, tensor) in zip(rows, ordered, strict=True):
                for start in range(0, matrix.n_out, n):
                    stop = min(start + n, matrix.n_out)
                    data = tensor.data[start:stop]
                    if matrix.type != tensor.type:
                        data = _widened(tensor, data)
                    self.device.upload(staging, np.ascontiguousarray(data))
                    self.device.launch(repack(self.device, matrix, staging, start, stop))
                    if taken is not None:
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
            UnsupportedModelError: heads are longer than attention's kernels take.
        """
        assert isinstance(kv, CudaKVPool)
        recorder = Recorder()
        forward(recorder)
        lowered = lower(recorder)
        longest = max((x.spec.head_dim for x in lowered.ops if isinstance(x, Attend)), default=0)
        if longest > cuda_kernels.MAX_HEAD_DIM:
            raise UnsupportedModelError(
                f"heads of {longest} dimensions: the cuda backend takes up to "
                f"{cuda_kernels.MAX_HEAD_DIM}; use --backend cpu"
            )
        n_vocab = next(x.weight.n_out for x in lowered.ops if isinstance(x, Embed))
        return CudaProgram(self.device, lowered, kv, n_ctx, n_vocab)

    def close(self) -> None:
        self._close()


def _row_bytes(matrix: Matrix, tensor: base.RawTensor) -> int:
    """Bytes of a row as it comes to the device."""
    return tensor.data.shape[-1] if matrix.type == tensor.type else 4 * matrix.n_in


def _slice_rows(matrix: Matrix, tensor: base.RawTensor) -> int:
    """Rows of a slice, whole tiles."""
    tiles = max(1, _SLICE // (_row_bytes(matrix, tensor) * TILE))
    return min(tiles * TILE, -(-matrix.n_out // TILE) * TILE)


def _widened(tensor: base.RawTensor, rows: npt.NDArray[np.uint8]) -> base.F32:
    try:
        return np.ascontiguousarray(dequantize(rows, GGMLType(tensor.type)), np.float32)
    except UnsupportedModelError as e:
        raise UnsupportedModelError(f"tensor {tensor.key}: {e}") from None
