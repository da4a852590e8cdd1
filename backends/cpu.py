"""The native CPU backend: matrices interleaved for the instruction set at load, a forward pass
recorded once, one native call a step on a persistent thread pool.

``EDGERUN_ISA`` forces an instruction set (``edgerun doctor`` lists them); a row's logits do not
depend on it beyond the last bit, and never on the other rows of a batch.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import weakref
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from edgerun.amounts import size_text
from edgerun.backends import base
from edgerun.backends import cpu_abi as abi
from edgerun.backends.cpu_grids import ensure_grids
from edgerun.backends.cpu_recorder import MatrixHandle, VectorHandle, lower
from edgerun.backends.cpu_threads import default_threads
from edgerun.backends.host import host_memory
from edgerun.backends.recorder import Recorder
from edgerun.backends.rope_table import RopeTable
from edgerun.errors import (
    BackendError,
    BackendUnavailableError,
    OutOfMemoryError,
    UnsupportedModelError,
)
from edgerun.native import lib_path

__all__ = ["CPUBackend", "default_threads"]

_F32, _F16 = 0, 1
_SLICE = 16 << 20  # bytes of the file packed in one native call: some 10 ms
#: Most columns that a matrix product computes from one reading of the weights.
_DIRECT = 12
_MAX_CPU_THREADS = 256


class CPUBackend(base.Backend):
    """See the module's docstring.

    Args:
        threads: workers including the calling thread; ``None`` = :func:`default_threads`.
        isa: instruction set; ``None`` = ``EDGERUN_ISA``, else the best this machine runs.

    Raises:
        BackendUnavailableError: no native library, or the instruction set is not to be had.
    """

    name = "cpu"
    kv_types = ("f16", "f32", "q8_0", "q4r")
    batch_invariant = True
    features: frozenset[base.Feature] = frozenset(("moe", "sinks"))

    def __init__(self, threads: int | None = None, isa: str | None = None) -> None:
        self._so = abi.native()
        ensure_grids()
        wanted = isa or os.environ.get("EDGERUN_ISA") or ""
        self._isa = self._so.er_isa(wanted.encode())
        if not self._isa:
            raise BackendUnavailableError(
                f"instruction set {wanted!r} is not available here; "
                f"EDGERUN_ISA may be one of: {', '.join(abi.isa_names())}"
            )
        self.isa: str = self._so.er_isa_name(self._isa).decode()
        self.threads = min(max(1, threads or default_threads()), _MAX_CPU_THREADS)
        self._pool = self._so.er_pool_new(self.threads)
        if not self._pool:
            raise OutOfMemoryError(f"cannot start {self.threads} threads; pass a smaller --threads")
        self._vectors: list[VectorHandle] = []
        self._owned: list[tuple[str, int]] = []
        self._close = weakref.finalize(self, _free_all, self._so, self._pool, self._owned)

    def memory(self) -> base.Memory:
        return host_memory()

    def describe(self) -> Mapping[str, Any]:
        return {"isa": self.isa, "threads": self.threads}

    def numerics(self) -> str:
        built = lib_path().stat()  # a library built anew may round otherwise
        return f"cpu {self.isa} {abi.ABI_VERSION} {built.st_size} {built.st_mtime_ns}"

    def upload(self, tensor: base.RawTensor, role: base.Role) -> MatrixHandle | VectorHandle:
        return self.upload_all({"": (tensor, role)})[""]

    def upload_all(
        self,
        tensors: Mapping[str, tuple[base.RawTensor, base.Role]],
        taken: base.Taken | None = None,
    ) -> dict[str, MatrixHandle | VectorHandle]:
        """All matrices go into one block of memory, interleaved on all threads in slices that are
        small beside a model. What ``taken`` raises ends it, and nothing of this call stays."""
        keys, wanted = base.distinct(tensors)
        fresh: dict[str, MatrixHandle | VectorHandle] = {}
        matrices: dict[str, tuple[MatrixHandle, base.RawTensor]] = {}
        owned: list[tuple[str, int]] = []
        try:
            for key, (tensor, role) in wanted.items():
                if role == "vector":
                    fresh[key] = self._vector(tensor)
                    if taken is not None:
                        taken(tensor, 0, len(tensor.data))
                else:
                    matrix = self._matrix(tensor, owned)
                    fresh[key], matrices[key] = matrix, (matrix, tensor)
            if matrices:
                self._place([m for m, _ in matrices.values()], owned)
                self._pack(list(matrices.values()), taken)
        except BaseException:
            _free(self._so, owned)
            raise
        self._vectors.extend(h for h in fresh.values() if isinstance(h, VectorHandle))
        self._owned.extend(owned)
        return {name: fresh[key] for name, key in keys.items()}

    def _vector(self, tensor: base.RawTensor) -> VectorHandle:
        if tensor.type == _F32:
            values = tensor.data.reshape(-1).view(np.float32).copy()
        else:
            from edgerun.gguf import GGMLType, dequantize

            values = dequantize(tensor.data, GGMLType(tensor.type)).reshape(-1)
        # Kernels read whole vectors of sixteen past the end of short weights.
        padded = np.zeros(len(values) + 16, np.float32)
        padded[: len(values)] = values
        return VectorHandle(padded.ctypes.data, len(values), padded)

    def _matrix(self, tensor: base.RawTensor, owned: list[tuple[str, int]]) -> MatrixHandle:
        n_rows, n_cols = tensor.shape[-2:]
        n_experts = tensor.shape[0] if len(tensor.shape) == 3 else 1
        if not self._so.er_isa_has_type(self._isa, int(tensor.type)):
            raise UnsupportedModelError(
                f"tensor {tensor.key}: the cpu backend has no kernel for type {tensor.type}; "
                "convert the model to a supported quantization, e.g. Q4_K_M or Q8_0"
            )
        no_memory = ctypes.c_int(0)
        all_rows = n_rows
        if n_experts > 1:  # each begins with a tile of its own
            tile = self._so.er_type_tile_rows(self._isa, int(tensor.type))
            all_rows = n_experts * (-(-n_rows // tile) * tile)
        ptr = self._so.er_weight_new(
            self._isa, int(tensor.type), all_rows, n_cols, ctypes.byref(no_memory)
        )
        if no_memory.value:
            raise OutOfMemoryError(f"no memory for tensor {tensor.key}: close other programs")
        if not ptr:
            raise UnsupportedModelError(
                f"tensor {tensor.key}: {n_cols} columns do not suit type {tensor.type}"
            )
        owned.append(("er_weight_free", ptr))
        return MatrixHandle(ptr, n_rows, n_cols, n_experts)

    def _place(self, matrices: Sequence[MatrixHandle], owned: list[tuple[str, int]]) -> None:
        ptrs = (ctypes.c_void_p * len(matrices))(*(m.ptr for m in matrices))
        block = self._so.er_weights_place(ptrs, len(matrices))
        if not block:
            size = sum(self._so.er_weight_bytes(m.ptr) for m in matrices)
            raise OutOfMemoryError(
                f"no memory for {size_text(size)} of weights: close other programs or choose a "
                "smaller model"
            )
        owned.append(("er_block_free", block))

    def _pack(
        self,
        matrices: Sequence[tuple[MatrixHandle, base.RawTensor]],
        taken: base.Taken | None,
    ) -> None:
        """In the file's order; one native call packs many small tensors or a part of a big one."""
        slices = [s for m in matrices for s in self._slices(*m)]
        slices.sort(key=lambda s: s[0].src)
        group: list[tuple[abi.PackPart, base.RawTensor, int]] = []
        size = 0
        for i, (part, tensor, row) in enumerate(slices):
            group.append((part, tensor, row))
            size += part.row_bytes * part.n_rows
            if size < _SLICE and i + 1 < len(slices):
                continue
            parts = (abi.PackPart * len(group))(*(p for p, _, _ in group))
            if self._so.er_weights_pack(self._pool, parts, len(group)):
                raise OutOfMemoryError("no memory to load the weights: close other programs")
            if taken is not None:
                for p, t, row in group:
                    taken(t, row, row + p.n_rows)
            group.clear()
            size = 0

    def _slices(
        self, matrix: MatrixHandle, tensor: base.RawTensor
    ) -> Iterator[tuple[abi.PackPart, base.RawTensor, int]]:
        """Parts to pack, with the tensor and the row in it where each begins."""
        data = tensor.data if tensor.data.flags.c_contiguous else np.ascontiguousarray(tensor.data)
        tensor = dataclasses.replace(tensor, data=data)  # held until it is packed
        row_bytes = data.shape[-1]
        tile = self._so.er_weight_tile_rows(matrix.ptr)
        step = max(1, _SLICE // (row_bytes * tile)) * tile
        # Experts without a gap between them are packed as one matrix.
        each = matrix.n_out if matrix.n_out % tile else len(data)
        for first in range(0, len(data), each):
            place = first // each * (-(-each // tile) * tile)
            for row in range(0, each, step):
                src = data.ctypes.data + (first + row) * row_bytes
                n = min(step, each - row)
                part = abi.PackPart(matrix.ptr, src, row_bytes, place + row, n)
                yield part, tensor, first + row

    def new_kv(
        self, layers: Sequence[base.KVLayer], n_pages: int, kv_type: str | None = None
    ) -> CPUKVPool:
        kv_type = kv_type or self.kv_types[0]
        if kv_type not in abi.KV_TYPES:
            raise BackendError(f"KV type {kv_type!r} is not one of: {', '.join(abi.KV_TYPES)}")
        longest = max((x.head_dim for x in layers), default=0)
        if kv_type == "q4r" and longest > abi.MAX_ROTATED:
            raise BackendError(
                f"KV type 'q4r' takes heads of up to {abi.MAX_ROTATED} dimensions, not {longest}: "
                "use q8_0"
            )
        n_kv = (ctypes.c_int32 * len(layers))(*(x.n_kv_heads for x in layers))
        dims = (ctypes.c_int32 * len(layers))(*(x.head_dim for x in layers))
        ptr = self._so.er_kv_new(abi.KV_TYPES[kv_type], len(layers), n_kv, dims, n_pages)
        if not ptr:
            raise OutOfMemoryError(f"no memory for a KV cache of {n_pages} pages: lower n_ctx")
        self._owned.append(("er_kv_free", ptr))
        return CPUKVPool(self, ptr, n_pages, kv_type)

    def prepare(self, forward: base.Forward, kv: base.KVPool, n_ctx: int) -> CPUProgram:
        assert isinstance(kv, CPUKVPool)
        recorder = Recorder()
        forward(recorder)
        program = lower(recorder)
        code = (abi.Instr * len(program.code))(*program.code)
        widths = (ctypes.c_int32 * len(program.widths))(*program.widths)
        ptr = self._so.er_program_new(
            self._isa, self._pool, code, len(program.code), widths, len(program.widths), kv.ptr,
            program.logits,
        )  # fmt: skip
        if not ptr:
            raise OutOfMemoryError("no memory for the recorded program")
        self._owned.append(("er_program_free", ptr))
        n_vocab = program.widths[program.logits]
        ropes = [RopeTable(r, n_ctx) for r in program.ropes]
        return CPUProgram(self, ptr, n_vocab, ropes, len(program.code))

    def close(self) -> None:
        self._close()  # first: a late thread may still be reading vectors
        self._vectors.clear()


def _free_all(so: ctypes.CDLL, pool: int, owned: list[tuple[str, int]]) -> None:
    """Programs go before the pool and pages they use: last in, first out."""
    _free(so, owned)
    so.er_pool_free(pool)


def _free(so: ctypes.CDLL, owned: list[tuple[str, int]]) -> None:
    for free, ptr in reversed(owned):
        getattr(so, free)(ptr)
    owned.clear()


class CPUKVPool(base.KVPool):
    """Pages in one block of memory; a page holds its tokens for all layers."""

    def __init__(self, backend: CPUBackend, ptr: int, n_pages: int, kv_type: str) -> None:
        self._backend = backend  # that frees the pages when it goes
        self._so = so = backend._so
        self.ptr = ptr
        self.n_pages = n_pages
        self.kv_type = kv_type
        self.page_bytes = so.er_kv_page_bytes(ptr)

    def _page(self, page: int) -> int:
        if not 0 <= page < self.n_pages:
            raise IndexError(f"page {page} of a pool of {self.n_pages}")
        return int(self._so.er_kv_page(self.ptr, page))

    def copy_page(self, src: int, dst: int) -> None:
        ctypes.memmove(self._page(dst), self._page(src), self.page_bytes)

    def export_page(self, page: int) -> bytes:
        return ctypes.string_at(self._page(page), self.page_bytes)

    def import_page(self, page: int, data: bytes) -> None:
        if len(data) != self.page_bytes:
            raise ValueError(f"a page has {self.page_bytes} bytes, not {len(data)}")
        ctypes.memmove(self._page(page), data, self.page_bytes)


class CPUProgram(base.Program):
    """A recorded forward pass."""

    n_top = 128

    def __init__(
        self, backend: CPUBackend, ptr: int, n_vocab: int, ropes: list[RopeTable], n_phases: int
    ) -> None:
        self._backend = backend  # whose threads and weights it works with
        self._so = backend._so
        self._ptr = ptr
        self.n_vocab = n_vocab
        self.n_phases = n_phases
        self._ropes = ropes
        self._n_pos = 0  # positions that the tables reach
        self._keep: list[base.F32] = []
        self._tables = (abi.RopeTable * max(1, len(ropes)))()
        self._ints = array("i")
        self._view = abi.BatchView()
        self._seen: dict[tuple[int, int], Any] = {}

    def width(self, most: int) -> int:
        # Up to 12 columns ride one pass over a weight's codes (direct.h), further ones a second:
        # SmolLM2 takes 14.6 ms for 12 tokens on one thread, 21 for 13 to 16 and 27.5 for 24.
        return _DIRECT if _DIRECT < most < 2 * _DIRECT else most

    def run(self, batch: base.Batch) -> base.F32:
        self._read(batch)
        so, ptr = self._so, self._ptr
        error = so.er_program_run(ptr, self._view, self._tables, len(self._ropes))
        if error:
            text = error.decode()
            raise OutOfMemoryError(text) if text == "out of memory" else BackendError(text)
        n = self._view.n_outputs
        best = so.er_program_best(ptr)
        self.best = self._at(best, n, 0).copy() if best else None
        self.top = (
            self._top(so.er_program_top(ptr), n, batch.want_top) if batch.want_top and n else None
        )
        if n == 0:
            return np.zeros((0, self.n_vocab), np.float32)
        logits: base.F32 = self._at(so.er_program_logits(ptr), n, so.er_program_logits_stride(ptr))
        return logits

    def _read(self, batch: base.Batch) -> None:
        """Show the native code the batch's numbers, which lie side by side, or are put so: that
        costs less than asking six arrays for their addresses."""
        ints, n_tokens, n_rows, n_outputs, max_pages, end = batch.packed or self._packed(batch)
        self._reach(end)
        at, view = ints.buffer_info()[0], self._view
        view.tokens, view.positions = at, at + 4 * n_tokens
        view.row_start = at = at + 8 * n_tokens
        view.n_past = at = at + 4 * n_rows + 4
        view.outputs = at = at + 4 * n_rows
        view.pages = at + 4 * n_outputs
        view.n_tokens, view.n_rows, view.n_outputs = n_tokens, n_rows, n_outputs
        view.max_pages, view.want_best = max_pages, batch.want_best
        view.want_top = batch.want_top

    def _packed(self, b: base.Batch) -> base.Packed:
        parts = (b.tokens, b.positions, b.row_start, b.n_past, b.outputs, b.pages.reshape(-1))
        if len(parts[1]) != len(parts[0]) or len(parts[2]) != len(parts[3]) + 1:
            raise BackendError("the batch's arrays disagree in length")
        # Held until the next step: the native code copies it when that begins.
        ints = np.concatenate(parts, dtype=np.int32, casting="same_kind")
        self._ints = array("i", ints.tobytes())
        end = int(b.positions.max(initial=0)) + 1
        counts = len(b.tokens), len(b.n_past), len(b.outputs), b.pages.shape[1]
        return base.Packed(self._ints, *counts, end)

    def _reach(self, n_pos: int) -> None:
        """Have the rope tables hold ``n_pos`` positions."""
        if n_pos <= self._n_pos:
            return
        self._keep = [r.upto(n_pos) for r in self._ropes]
        for i, t in enumerate(self._keep):
            self._tables[i] = abi.RopeTable(t.ctypes.data, *t.shape)
        self._n_pos = min([len(t) for t in self._keep], default=n_pos)

    def _top(self, address: int, n: int, k: int) -> base.Top:
        both = self._at(address, 2 * n * k, 0).reshape(2, n, k)
        return base.Top(both[0], both[1].view(np.float32))

    def _at(self, address: int, n: int, stride: int) -> Any:
        """The native code's result: ``n`` rows of logits ``stride`` apart, or numbers if 0."""
        found = self._seen.get((address, n))
        if found is None:
            if len(self._seen) > 64:  # the buffers have moved
                self._seen.clear()
            if stride:
                found = np.ctypeslib.as_array((ctypes.c_float * (n * stride)).from_address(address))
                found = found.reshape(n, stride)[:, : self.n_vocab]
            else:
                found = np.ctypeslib.as_array((ctypes.c_int32 * n).from_address(address))
            self._seen[address, n] = found
        return found
