"""llama.cpp through llama-cpp-python: runs whole model files, of architectures edgerun lacks.

It is a fallback. A page of its pool is a slot that holds one whole sequence, so sequences share no
pages; a start that another slot holds is copied, which costs nothing, as both then refer to the
same cells. A row's logits depend on what else is in the batch, in their last bits.
"""

from __future__ import annotations

import ctypes
import struct
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import F32, I32, Batch, CoarseBackend, CoarseModel, KVPool, Memory
from edgerun.backends.base import Program as BaseProgram
from edgerun.backends.cpu_threads import default_threads
from edgerun.backends.host import host_memory
from edgerun.backends.llama_cpp_library import (
    complaint,
    forget_complaints,
    library,
    plan_slots,
    token_bytes,
)
from edgerun.errors import (
    BackendError,
    ModelFileError,
    OutOfMemoryError,
    RequestError,
    UnsupportedModelError,
    printable,
)

__all__ = ["LlamaCppBackend", "LlamaCppKV", "LlamaCppProgram"]

Progress = Callable[[int, int], None]

_GGML_TYPES = {"f16": 1, "q8_0": 8, "f32": 0}
_N_BATCH = 2048  # tokens in one call, at most


class LlamaCppBackend(CoarseBackend):
    """llama.cpp on the CPU.

    Args:
        threads: ``None`` = physical cores.

    Raises:
        BackendUnavailableError: llama-cpp-python is not there, broken or too old.
    """

    name = "llama_cpp"
    kv_types = ("f16", "q8_0", "f32")

    def __init__(self, threads: int | None = None) -> None:
        self._lib = library()
        self.threads = max(1, threads or default_threads())
        self._owned: list[Callable[[], None]] = []
        self._finalizer = weakref.finalize(self, _run_all, self._owned)
        self._finalizer.atexit = False  # the process's end frees more, and faster

    def memory(self) -> Memory:
        return host_memory()

    def describe(self) -> Mapping[str, Any]:
        return {
            "version": self._lib.__version__,
            "threads": self.threads,
            "role": "fallback for architectures edgerun does not run itself",
        }

    def open_model(
        self,
        paths: Sequence[Path],
        metadata: Mapping[str, Any],
        n_ctx: int | None = None,
        kv_type: str | None = None,
        progress: Progress | None = None,
    ) -> CoarseModel:
        """As :meth:`CoarseBackend.open_model` says. ``n_ctx`` None: as trained, up to 8192."""
        kind = kv_type or self.kv_types[0]
        if kind not in self.kv_types:
            raise BackendError(
                f"kv_type '{kind}' is not one of llama_cpp's: {', '.join(self.kv_types)}"
            )
        per_token = token_bytes(metadata, kind)
        trained = metadata.get(f"{metadata.get('general.architecture')}.context_length")
        trained = trained if isinstance(trained, int) and trained > 0 else 2048
        size = sum(p.stat().st_size for p in paths)
        slots = plan_slots(n_ctx, trained, per_token, self.memory().free, size)
        model = self._load(paths, size, progress)
        self._check_kind(model, paths[0])
        context = self._context(model, slots.n, slots.n_ctx, kind)
        cells = _Cells(self._lib, context, slots.n, slots.n_ctx)
        self._owned.append(cells.close)
        kv = LlamaCppKV(cells, per_token * slots.n_ctx)
        n_vocab = int(self._lib.llama_vocab_n_tokens(self._lib.llama_model_get_vocab(model)))
        return CoarseModel(LlamaCppProgram(cells, n_vocab), kv, slots.n_ctx)

    def close(self) -> None:
        self._finalizer()

    def _load(self, paths: Sequence[Path], size: int, progress: Progress | None) -> Any:
        lib = self._lib
        failure: list[BaseException] = []

        def report(done: float, _: Any) -> bool:
            try:
                if progress is not None:
                    progress(min(size, int(done * size)), size)
            except BaseException as e:  # it cannot cross the library: end the load, raise it after
                failure.append(e)
                return False
            return True

        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        callback = lib.llama_progress_callback(report)
        params.progress_callback = callback
        forget_complaints()
        names = [str(p).encode("utf-8", "surrogateescape") for p in paths]
        if len(names) == 1:
            model = lib.llama_model_load_from_file(names[0], params)
        else:
            array = (ctypes.c_char_p * len(names))(*names)
            model = lib.llama_model_load_from_splits(array, len(names), params)
        if failure:
            if model:
                lib.llama_model_free(model)
            raise failure[0]
        if not model:
            raise _load_error(paths[0], complaint())
        self._owned.append(lambda: lib.llama_model_free(model))
        return model

    def _check_kind(self, model: Any, path: Path) -> None:
        lib = self._lib
        if (
            lib.llama_model_has_encoder(model)
            or not lib.llama_model_has_decoder(model)
            or lib.llama_model_is_diffusion(model)
        ):
            raise UnsupportedModelError(
                f"{printable(path.name)} is not a model that goes on token by token: choose one "
                "that generates text"
            )

    def _context(self, model: Any, n_slots: int, n_ctx: int, kv_type: str) -> Any:
        lib = self._lib
        params = lib.llama_context_default_params()
        params.n_ctx = n_slots * n_ctx
        params.n_seq_max = n_slots
        params.n_batch = _N_BATCH
        params.n_threads = params.n_threads_batch = self.threads
        params.type_k = params.type_v = _GGML_TYPES[kv_type]
        params.kv_unified = True  # slots may refer to the same cells
        params.swa_full = True  # else a sequence could not be cut back
        params.no_perf = True
        forget_complaints()
        context = lib.llama_init_from_model(model, params)
        if not context:
            why = complaint()
            if "alloc" in why:
                raise OutOfMemoryError(
                    f"{n_slots} contexts of {n_ctx} tokens do not fit ({why}): lower n_ctx"
                )
            raise BackendError(f"llama.cpp cannot use this model with kv_type {kv_type}: {why}")
        return context


def _load_error(path: Path, why: str) -> Exception:
    text = f"llama.cpp cannot load {printable(path)}: {why}"
    if "unknown model architecture" in why or "unsupported" in why:
        return UnsupportedModelError(text)
    return OutOfMemoryError(text) if "alloc" in why else ModelFileError(text)


def _run_all(owned: list[Callable[[], None]]) -> None:
    while owned:
        owned.pop()()


class _Cells:
    """A context and what its slots hold. Slot i is the library's sequence i."""

    def __init__(self, lib: Any, context: Any, n_slots: int, n_ctx: int) -> None:
        self.lib = lib
        self.n_slots = n_slots
        self.n_ctx = n_ctx
        self.ids: list[list[int]] = [[] for _ in range(n_slots)]
        self._context: Any = context
        self._memory = lib.llama_get_memory(context)
        n = self.n_batch = int(lib.llama_n_batch(context))
        self._tokens, self._positions, self._slots = (np.zeros(n, np.int32) for _ in range(3))
        self._wanted = np.zeros(n, np.int8)
        self._ones = np.ones(n, np.int32)
        self._lists = self._slots.ctypes.data + 4 * np.arange(n, dtype=np.uintp)
        self._batch = self._make_batch()

    @property
    def context(self) -> Any:
        if self._context is None:
            raise BackendError("the llama_cpp backend is closed")
        return self._context

    def close(self) -> None:
        context, self._context = self._context, None
        if context is not None:
            self.lib.llama_free(context)

    def _make_batch(self) -> Any:
        """The library's view of our arrays."""
        batch = self.lib.llama_batch()
        arrays: dict[str, npt.NDArray[Any]] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._ones,
            "seq_id": self._lists,
            "logits": self._wanted,
        }
        kinds = dict(f[:2] for f in batch._fields_)
        for name, array in arrays.items():
            setattr(batch, name, ctypes.cast(array.ctypes.data, kinds[name]))
        return batch

    def decode(self, tokens: I32, positions: I32, slots: I32, wanted: Any) -> None:
        """Compute up to ``n_batch`` tokens.

        Raises:
            BackendError: it failed; the slots are empty then.
        """
        n = len(tokens)
        self._tokens[:n], self._positions[:n], self._slots[:n] = tokens, positions, slots
        self._wanted[:n] = wanted
        self._batch.n_tokens = n
        forget_complaints()
        status = self.lib.llama_decode(self.context, self._batch)
        if status:
            for slot in np.unique(slots):
                self.clear(int(slot))
            raise BackendError(f"llama.cpp failed with status {status}: {complaint()}")
        for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True):
            self.ids[slot].append(token)

    def logits_into(self, row: F32, i: int) -> None:
        """The logits of the last call's token ``i``, copied to ``row``."""
        found = self.lib.llama_get_logits_ith(self.context, i)
        if not found:
            raise BackendError(f"llama.cpp has no logits of token {i}: {complaint()}")
        ctypes.memmove(row.ctypes.data, found, row.nbytes)

    def clear(self, slot: int) -> None:
        if self._context is not None:
            self.lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
        self.ids[slot] = []

    def cut(self, slot: int, n: int) -> None:
        """Leave the first ``n`` tokens of a slot."""
        held = self.ids[slot]
        if n > len(held):
            raise BackendError(f"slot {slot} holds {len(held)} tokens, not {n}")
        if n == len(held):
            return
        if n == 0:
            self.clear(slot)
        elif self.lib.llama_memory_seq_rm(self._memory, slot, n, -1):
            del held[n:]
        else:  # a recurrent state has no way back: compute it again
            self.clear(slot)
            for at in range(0, n, self.n_batch):
                part = np.array(held[at : min(n, at + self.n_batch)], np.int32)
                positions = np.arange(at, at + len(part), dtype=np.int32)
                self.decode(part, positions, np.full(len(part), slot, np.int32), 0)

    def copy(self, src: int, dst: int) -> None:
        self.clear(dst)
        self.lib.llama_memory_seq_cp(self._memory, src, dst, -1, -1)
        self.ids[dst] = list(self.ids[src])

    def export(self, slot: int) -> bytes:
        size = int(self.lib.llama_state_seq_get_size(self.context, slot))
        data = (ctypes.c_uint8 * size)()
        got = int(self.lib.llama_state_seq_get_data(self.context, data, size, slot))
        ids = np.array(self.ids[slot], "<i4").tobytes()
        return struct.pack("<Q", len(self.ids[slot])) + ids + bytes(data)[:got]

    def restore(self, slot: int, data: bytes) -> None:
        self.clear(slot)
        n = struct.unpack_from("<Q", data)[0] if len(data) >= 8 else 0
        state = data[8 + 4 * n :]
        raw = (ctypes.c_uint8 * len(state)).from_buffer_copy(state)
        if not n and len(data) == 8 + len(state):
            return  # an empty slot
        if not self.lib.llama_state_seq_set_data(self.context, raw, len(state), slot):
            self.clear(slot)
            raise BackendError(f"slot {slot} cannot be restored from these {len(data)} bytes")
        self.ids[slot] = np.frombuffer(data, "<i4", n, 8).tolist()


class LlamaCppKV(KVPool):
    """Slots as pages: page i holds the whole of one sequence."""

    def __init__(self, cells: _Cells, page_bytes: int) -> None:
        self._cells = cells
        self.n_pages = cells.n_slots
        self.page_size = cells.n_ctx
        self.page_bytes = page_bytes

    def copy_page(self, src: int, dst: int) -> None:
        self._cells.copy(src, dst)

    def export_page(self, page: int) -> bytes:
        return self._cells.export(page)

    def import_page(self, page: int, data: bytes) -> None:
        self._cells.restore(page, data)


class LlamaCppProgram(BaseProgram):
    def __init__(self, cells: _Cells, n_vocab: int) -> None:
        self._cells = cells
        self.n_vocab = n_vocab

    def run(self, batch: Batch) -> F32:
        """One step. A row's slot is its first page; what the slot holds past ``n_past`` goes.

        Raises:
            RequestError: a token id outside the vocabulary. Nothing was computed then.
            BackendError: a position at or past ``n_ctx``, a slot that does not exist or holds
                fewer than ``n_past`` tokens, or llama.cpp failed.
        """
        cells = self._cells
        slots = self._check(batch)
        for slot, n_past in zip(slots.tolist(), batch.n_past.tolist(), strict=True):
            cells.cut(slot, n_past)
        owner = np.repeat(slots, np.diff(batch.row_start))
        wanted = np.zeros(batch.n_tokens, np.int8)
        wanted[batch.outputs] = 1
        logits = np.empty((len(batch.outputs), self.n_vocab), np.float32)
        row = 0
        for a in range(0, batch.n_tokens, cells.n_batch):
            s = slice(a, a + cells.n_batch)
            cells.decode(batch.tokens[s], batch.positions[s], owner[s], wanted[s])
            for i in np.flatnonzero(wanted[s]).tolist():
                cells.logits_into(logits[row], i)
                row += 1
        return logits

    def _check(self, batch: Batch) -> I32:
        """The rows' slots."""
        cells = self._cells
        if not batch.n_tokens:
            return np.zeros(0, np.int32)
        low, high = int(batch.tokens.min()), int(batch.tokens.max())
        if low < 0 or high >= self.n_vocab:
            bad = low if low < 0 else high
            raise RequestError(f"token id {bad} is outside the vocabulary of {self.n_vocab}")
        if (top := int(batch.positions.max())) >= cells.n_ctx:
            raise BackendError(f"position {top} is past the context of {cells.n_ctx} tokens")
        slots = batch.pages[:, 0]
        if slots.min() < 0 or slots.max() >= cells.n_slots or len(set(slots.tolist())) < len(slots):
            raise BackendError(f"rows need slots of their own below {cells.n_slots}: {slots}")
        return slots
