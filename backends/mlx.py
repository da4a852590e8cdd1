"""The Apple backend: MLX arrays, a lazy graph a step, our own Metal kernels where MLX has none.

On an MLX without Metal all of it runs on MLX's CPU device, in float32: for tests, as the ``cpu``
backend is many times faster.

MLX picks its kernels by how many rows a product has, so the last bits of a row's logits depend on
the batch. ``exact`` keeps to kernels that do not.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from edgerun.amounts import size_text
from edgerun.backends import base
from edgerun.backends.host import host_memory
from edgerun.errors import BackendError, BackendUnavailableError, OutOfMemoryError
from edgerun.gguf import GGMLType, dequantize

try:
    import mlx.core as mx
except ImportError as e:  # not installed, or for another system
    raise BackendUnavailableError(
        f"MLX cannot be loaded ({str(e).splitlines()[0]}): pip install 'edgerun[mlx]', on a Mac "
        "with Apple Silicon"
    ) from None

from edgerun.backends.mlx_elementwise import Elementwise
from edgerun.backends.mlx_experts import Stack
from edgerun.backends.mlx_kernels import QUANTIZED
from edgerun.backends.mlx_kv import KV_TYPES, MLXKVPool, pool_bytes
from edgerun.backends.mlx_mode import Mode
from edgerun.backends.mlx_program import MLXProgram
from edgerun.backends.mlx_started import failure
from edgerun.backends.mlx_unpack import UNPACKED
from edgerun.backends.mlx_weights import Matrix, Vector, load, matrix_bytes

__all__ = ["MLXBackend"]

Handle: TypeAlias = Matrix | Stack | Vector

_CACHE = 512 << 20  # bytes of freed buffers that MLX may keep for reuse


class MLXBackend(base.Backend):
    """See the module's docstring.

    Args:
        exact: a row's logits have the same bits whatever else is in the batch; slower.
        narrow: multiply by matrices of groups in float16 with float16 scales, instead of float32;
            ``None`` = on a GPU.
        kernels: use our own Metal kernels; ``None`` = on a GPU.

    Raises:
        BackendUnavailableError: MLX finds no device.
    """

    name = "mlx"
    kv_types = KV_TYPES
    features: frozenset[base.Feature] = frozenset(("moe", "sinks"))

    def __init__(
        self, exact: bool = False, narrow: bool | None = None, kernels: bool | None = None
    ) -> None:
        self.metal = bool(mx.metal.is_available())
        self._device = mx.Device(mx.gpu if self.metal else mx.cpu)
        narrow = (self.metal and not exact) if narrow is None else narrow
        self.batch_invariant = exact
        kernels = self.metal if kernels is None else kernels
        self._mode = Mode(self.metal, kernels, narrow, exact, Elementwise(self.metal))
        #: Types that stay as the file has them; if exact, all that our kernels read.
        self._raw = QUANTIZED if kernels and exact else UNPACKED
        self._scale_type = np.float16 if narrow else np.float32
        self._total = _working_set() if self.metal else host_memory().total
        self._wired = self.metal
        if self.metal:
            mx.set_cache_limit(_CACHE)
            _WIRED.take(self._total)

    def memory(self) -> base.Memory:
        """Of the GPU's share of the computer's memory, or of all of it."""
        host = host_memory()
        if not self.metal:
            return host
        return base.Memory(
            self._total, max(0, min(self._total - mx.get_active_memory(), host.free))
        )

    def describe(self) -> Mapping[str, Any]:
        info = _device_info()
        if self._mode.exact:
            bits = "do not depend on the batch (exact)"
        else:
            bits = "depend on the batch: MLX picks kernels by row count (--exact: ours alone)"
        return {
            "device": info.get("device_name", "?") if self.metal else "CPU, MLX without Metal",
            "metal": self.metal,
            "mlx": importlib.metadata.version("mlx"),
            "matrices": "float16" if self._mode.narrow else "float32",
            "last bits": bits,
        }

    def numerics(self) -> str:
        device = _device_info().get("architecture", "?") if self.metal else "cpu"
        version = importlib.metadata.version("mlx")
        return f"mlx {version} {device} exact={self._mode.exact} narrow={self._mode.narrow}"

    # -- weights ----------------------------------------------------------------------------

    def upload(self, tensor: base.RawTensor, role: base.Role) -> Handle:
        return self.upload_all({"": (tensor, role)})[""]

    def upload_all(
        self,
        tensors: Mapping[str, tuple[base.RawTensor, base.Role]],
        taken: base.Taken | None = None,
    ) -> dict[str, Handle]:
        """What ``taken`` raises ends it, and nothing of this call stays."""
        keys, wanted = base.distinct(tensors)
        sizes = [
            4 * math.prod(t.shape)
            if role == "vector"
            else matrix_bytes(_rows_of(t), self._scale_type, self._raw)
            for t, role in wanted.values()
        ]
        self._reserve(sum(sizes), f"{size_text(sum(sizes))} of weights")
        handles: dict[str, Handle] = {}
        try:
            with mx.stream(self._device):
                for key, (tensor, role) in wanted.items():
                    handles[key] = self._take(tensor, role, taken)
        except (RuntimeError, MemoryError) as e:
            raise failure(e, f"{size_text(sum(sizes))} of weights") from e
        return {name: handles[key] for name, key in keys.items()}

    def _take(self, tensor: base.RawTensor, role: base.Role, taken: base.Taken | None) -> Handle:
        if role == "vector":
            values = dequantize(tensor.data, GGMLType(tensor.type)).reshape(-1)
            vector = Vector(mx.array(values))
            mx.eval(vector.values)
            if taken is not None:
                taken(tensor, 0, len(tensor.data))
            return vector
        matrix = load(_rows_of(tensor), self._scale_type, self._raw, taken)
        mx.eval(matrix.arrays())  # here: another thread could not
        return matrix if len(tensor.shape) == 2 else Stack(matrix, tensor.shape[0])

    # -- models -----------------------------------------------------------------------------

    def new_kv(
        self, layers: Sequence[base.KVLayer], n_pages: int, kv_type: str | None = None
    ) -> MLXKVPool:
        kv_type = kv_type or self.kv_types[0]
        if kv_type not in self.kv_types:
            raise BackendError(f"KV type {kv_type!r} is not one of: {', '.join(self.kv_types)}")
        what = f"a KV cache of {n_pages} pages"
        self._reserve(pool_bytes(layers, kv_type) * n_pages, what)
        try:
            return MLXKVPool(layers, n_pages, kv_type, self._mode.fused, self._device)
        except (RuntimeError, MemoryError) as e:
            raise failure(e, what) from e

    def prepare(self, forward: base.Forward, kv: base.KVPool, n_ctx: int) -> MLXProgram:
        assert isinstance(kv, MLXKVPool)
        return MLXProgram(forward, kv, n_ctx, self._mode, lambda: self.memory().free)

    def _reserve(self, size: int, what: str) -> None:
        """A GPU out of memory ends the process, so nothing may come near it."""
        free = self.memory().free
        if size > free:
            raise OutOfMemoryError(
                f"{what} need {size_text(size)}, but {size_text(free)} are free: close "
                "other programs, choose a smaller model or a smaller n_ctx"
            )

    def close(self) -> None:
        if self._wired:
            _WIRED.give_back()
        self._wired = False
        mx.clear_cache()


def _rows_of(tensor: base.RawTensor) -> base.RawTensor:
    """The matrices of experts as one."""
    *n, n_in = tensor.shape
    return dataclasses.replace(tensor, shape=(math.prod(n), n_in))


def _working_set() -> int:
    """Bytes that the GPU can hold without the system taking some away."""
    return int(_device_info()["max_recommended_working_set_size"])


def _device_info() -> dict[str, Any]:
    info = getattr(mx, "device_info", None) or mx.metal.device_info  # older versions' place
    found: dict[str, Any] = info()
    return found


class _Wired:
    """Keeps what the GPU uses in memory as long as some model is open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0

    def take(self, limit: int) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = self._set(limit)

    def give_back(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._set(self._before)

    def _set(self, limit: int) -> int:
        """Returns the limit of before. macOS before 15 cannot."""
        try:
            return int(mx.set_wired_limit(limit))
        except (RuntimeError, ValueError):
            return 0


_WIRED = _Wired()
