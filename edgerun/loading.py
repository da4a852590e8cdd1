"""From a model file to something that generates: file, architecture, backend, KV pool, program."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from edgerun import arch, catalog, native
from edgerun.arch import Architecture, ModelConfig
from edgerun.backends.base import (
    PAGE_SIZE,
    Backend,
    CoarseBackend,
    Feature,
    Forward,
    KVLayer,
    KVPool,
    Program,
    RawTensor,
)
from edgerun.backends.host import apple_silicon, nvidia_driver
from edgerun.errors import (
    BackendError,
    BackendUnavailableError,
    NotPulledError,
    OutOfMemoryError,
    RequestError,
    UnsupportedModelError,
    printable,
)
from edgerun.gguf import GGUFFile
from edgerun.notices import first_time
from edgerun.placing import Placed, check_layers, place
from edgerun.planning import Plan, choose_kv_type
from edgerun.text.tokenizer import Tokenizer, load_tokenizer

__all__ = [
    "BACKENDS",
    "LoadedModel",
    "find",
    "load",
    "open_backend",
    "open_model",
    "runs_on",
    "why_fallback",
]

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Names that ``backend=`` takes, best first; "auto" picks the first that works.
BACKENDS = ("cuda", "mlx", "cpu", "reference", "llama_cpp")

#: Progress of a load: bytes taken over by the backend, bytes in all.
Progress = Callable[[int, int], None]


@dataclass(eq=False)
class LoadedModel:
    """A model bound to a backend, with a KV pool. ``facts`` are the file's metadata, arrays left
    out; ``config`` and ``forward`` are None where a :class:`CoarseBackend` runs the file."""

    path: Path
    facts: Mapping[str, Any]
    config: ModelConfig | None
    tokenizer: Tokenizer
    backend: Backend
    kv: KVPool
    program: Program
    n_ctx: int
    size: int  # bytes of the file(s)
    n_params: int
    kv_type: str
    forward: Forward | None = None


class _Aside(Generic[T]):
    """A call on a thread of its own, beside native work that needs no interpreter. Leaving the
    ``with`` block waits for it, however that ends: it may read what is closed next."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: T | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="edgerun-load", daemon=True)
        self._thread.start()

    def __enter__(self) -> _Aside[T]:
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            self._value = self._call()
        except BaseException as e:  # the caller's to handle
            self._error = e

    def check(self) -> None:
        """Raise what the call has raised, if it has."""
        if self._error is not None:
            raise self._error

    def result(self) -> T:
        """Wait for the call; return or raise what it did."""
        self._thread.join()
        self.check()
        return cast(T, self._value)


def find(
    model: str | os.PathLike[str] | None, progress: catalog.Progress | None = None
) -> catalog.Resolved:
    """:func:`edgerun.catalog.resolve`, but a model that could not run is not fetched first.

    Raises:
        UnsupportedModelError: the catalogue knows its architecture, and this version lacks it.
        ModelNotFoundError, ModelFileError, DownloadError, ChecksumError: as there.
    """
    try:
        return catalog.resolve(model, pull=False)
    except NotPulledError:
        spec = catalog.load_catalog().get(str(model))
        if spec is not None and spec.arch:
            _check_runs(spec.arch)
        return catalog.resolve(model, progress=progress)


def _check_runs(architecture: str) -> None:
    try:
        arch.get(architecture)
    except UnsupportedModelError as e:
        from edgerun.backends.llama_cpp_library import installed

        if not installed():
            raise _with_way_out(e) from None


def runs_on(architecture: str) -> str | None:
    """What runs models of an architecture here: "edgerun", "llama_cpp", or None for want of it."""
    from edgerun.backends.llama_cpp_library import installed

    if architecture in arch.supported():
        return "edgerun"
    return "llama_cpp" if installed() else None


def _with_way_out(error: UnsupportedModelError) -> UnsupportedModelError:
    from edgerun.backends.llama_cpp_library import INSTALL

    return UnsupportedModelError(f"{error}; {INSTALL} adds llama.cpp, which may run it")


def open_backend(name: str, threads: int | None = None, exact: bool = False) -> Backend:
    """The backend called ``name``; ``auto`` takes the first of :data:`BACKENDS` that works,
    and says once why a GPU is left out; ``edgerun doctor`` says it every time.

    ``exact`` keeps to kernels whose results do not depend on the rest of a batch, where a backend
    has others as well.

    Raises:
        BackendUnavailableError: it cannot be used on this machine; says why.
        RequestError: there is no such backend.
    """
    if name == "auto":
        return _first_that_works(threads, exact)
    if name == "cuda":
        from edgerun.backends.cuda import CudaBackend

        return CudaBackend()
    if name == "mlx":
        from edgerun.backends.mlx import MLXBackend

        return MLXBackend(exact)
    if name == "cpu":
        from edgerun.backends.cpu import CPUBackend

        return CPUBackend(threads)
    if name == "reference":
        from edgerun.backends.reference import ReferenceBackend

        return ReferenceBackend()
    if name == "llama_cpp":
        from edgerun.backends.llama_cpp import LlamaCppBackend

        return LlamaCppBackend(threads)
    known = ", ".join(("auto", *BACKENDS))
    raise RequestError(f"unknown backend {name!r}; choose one of: {known}", param="backend")


def _first_that_works(threads: int | None, exact: bool) -> Backend:
    isa = os.environ.get("EDGERUN_ISA")  # someone chose an instruction set, so the CPU
    for candidate in BACKENDS:
        if candidate == "cuda" and (isa or not nvidia_driver()):
            continue
        if candidate == "mlx" and (isa or not apple_silicon()):
            continue
        try:
            found = open_backend(candidate, threads, exact)
            if candidate != "mlx" or found.describe()["metal"]:
                return found
            found.close()  # a virtual machine: MLX would compute on the CPU, slowly
        except BackendUnavailableError as e:
            if candidate == "cpu" and (isa or native.missing()):
                raise  # do not run without it in silence, nor at all without the library
            if candidate not in ("cuda", "mlx") or first_time(f"{candidate}: {e}"):
                log.warning("backend %s is not available: %s", candidate, e)
    raise BackendUnavailableError("no backend works here: see 'edgerun doctor'")


class _NotNativeError(UnsupportedModelError):
    """edgerun's own architectures do not cover the file."""


def open_model(
    path: Path,
    backend: str,
    threads: int | None = None,
    n_ctx: int | None = None,
    kv_type: str | None = None,
    progress: Progress | None = None,
    exact: bool = False,
    gpu_layers: int | None = None,
) -> LoadedModel:
    """:func:`load` on a backend opened for it; the caller closes the model's. No ``gpu_layers``
    at all are the CPU's matter.

    ``auto`` goes from a GPU to the CPU where the model does not fit or suit it, and to llama.cpp
    for architectures edgerun does not run itself, and says so.

    Raises:
        BackendUnavailableError, RequestError: as :func:`open_backend`.
        ModelFileError, OutOfMemoryError: as :func:`load`.
    """
    check_layers(gpu_layers)
    if gpu_layers == 0 and backend in ("auto", "cuda"):
        backend, gpu_layers = "cpu", None
    opened = open_backend(backend, threads, exact)
    try:
        return load(path, opened, n_ctx, kv_type, progress, gpu_layers, threads)
    except BaseException as e:
        opened.close()
        wanted = gpu_layers is None and backend == "auto"
        if wanted and opened.name in ("cuda", "mlx") and _cpu_may_do(e):
            log.warning("%s runs on the CPU: %s", printable(path.name), e)
            return open_model(path, "cpu", threads, n_ctx, kv_type, progress)
        if backend != "auto" or not isinstance(e, _NotNativeError):
            raise
        reason = e
    return _fall_back(reason, path, threads, n_ctx, kv_type, progress)


def _cpu_may_do(error: BaseException) -> bool:
    """Whether a model that a device refused, or has no room for, may run on the CPU."""
    if isinstance(error, _NotNativeError):
        return False
    return isinstance(error, BackendError | UnsupportedModelError)


def _fall_back(
    reason: UnsupportedModelError,
    path: Path,
    threads: int | None,
    n_ctx: int | None,
    kv_type: str | None,
    progress: Progress | None,
) -> LoadedModel:
    from edgerun.backends.llama_cpp_library import installed

    if not installed():
        raise _with_way_out(reason) from None
    try:
        opened = open_backend("llama_cpp", threads)
    except BackendUnavailableError as e:
        raise UnsupportedModelError(f"{reason}; the fallback is no help: {e}") from None
    try:
        model = load(path, opened, n_ctx, kv_type, progress)
    except UnsupportedModelError as e:
        opened.close()
        raise UnsupportedModelError(f"{reason}; the fallback is no help: {e}") from None
    except BaseException:
        opened.close()
        raise
    family = model.facts.get("general.architecture")
    log.warning(
        "%s (%s) runs on a fallback, llama.cpp through llama-cpp-python %s: %s",
        printable(path.name), printable(family), opened.describe()["version"], reason,
    )  # fmt: skip
    return model


def load(
    path: Path,
    backend: Backend,
    n_ctx: int | None = None,
    kv_type: str | None = None,
    progress: Progress | None = None,
    gpu_layers: int | None = None,
    threads: int | None = None,
) -> LoadedModel:
    """Open a GGUF file on ``backend``; on a device, as many of its layers as fit or as
    ``gpu_layers`` says, and the others on ``threads`` threads of the CPU. The model's backend is
    then a :class:`~edgerun.backends.split.SplitBackend`.

    Raises:
        GGUFError, UnsupportedModelError: the file cannot be used; names key or tensor.
        OutOfMemoryError: weights or KV cache do not fit.
        RequestError: ``n_ctx`` is out of range, ``kv_type`` is not the backend's or not for so
            small a model, or ``gpu_layers`` are asked of a backend that takes no part of a model.
    """
    with GGUFFile.open(path) as file:
        kv_type = choose_kv_type(kv_type, backend.kv_types, file.n_params)
        if isinstance(backend, CoarseBackend):
            if gpu_layers is not None:
                raise RequestError(
                    f"backend {backend.name} takes whole models: leave out gpu_layers",
                    param="gpu_layers",
                )
            return _load_whole(path, file, backend, n_ctx, kv_type, progress)
        try:
            family = arch.get(file.metadata.get_str("general.architecture"))
            trained = arch.configure(family, file)
        except UnsupportedModelError as e:
            raise _NotNativeError(str(e)) from e
        _check_features(family, trained, backend)
        placed = place(backend, file, family, trained, kv_type, n_ctx, gpu_layers, threads)
        try:
            return _load_placed(path, file, family, placed, kv_type, progress)
        except BaseException:
            placed.give_up()
            raise


def _load_placed(
    path: Path,
    file: GGUFFile,
    family: Architecture,
    placed: Placed,
    kv_type: str,
    progress: Progress | None,
) -> LoadedModel:
    backend, n_ctx = placed.backend, placed.plan.n_ctx
    config = arch.configure(family, file, n_ctx)
    with _Aside(partial(load_tokenizer, file.metadata, config.n_vocab)) as tokenizer:
        weights = _upload(family, config, file, backend, progress, tokenizer.check)
        kv = _new_kv(backend, family.kv_layers(config), placed.plan, kv_type)
        forward = family.bind(weights, config)
        program = backend.prepare(forward, kv, n_ctx)
        return LoadedModel(
            path, _facts(file), config, tokenizer.result(), backend, kv, program, n_ctx,
            file.size, file.n_params, kv_type, forward,
        )  # fmt: skip


_FEATURES: dict[Feature, str] = {"moe": "mixtures of experts", "sinks": "attention sinks"}


def _check_features(family: Architecture, config: ModelConfig, backend: Backend) -> None:
    lacking = [_FEATURES[f] for f in family.features(config) if f not in backend.features]
    if lacking:
        raise UnsupportedModelError(
            f"the {backend.name} backend has no kernels for {' and '.join(lacking)}, which "
            f"{family.name} needs: choose the backend cpu"
        )


def _new_kv(backend: Backend, layers: list[KVLayer], planned: Plan, kv_type: str) -> KVPool:
    """A pool of as many pages as planned, or of half as many while that still holds one context:
    others may have taken memory since."""
    least = -(-planned.n_ctx // PAGE_SIZE)
    n_pages = planned.n_pages
    while True:
        try:
            return backend.new_kv(layers, n_pages, kv_type)
        except OutOfMemoryError as e:
            if n_pages <= least:
                raise
            n_pages = max(least, n_pages // 2)
            log.warning("a KV cache of %d pages is tried: %s", n_pages, e)


def _facts(file: GGUFFile) -> dict[str, Any]:
    return {k: file.metadata[k] for k, t in file.metadata_types.items() if t.element is None}


def _load_whole(
    path: Path,
    file: GGUFFile,
    backend: CoarseBackend,
    n_ctx: int | None,
    kv_type: str,
    progress: Progress | None,
) -> LoadedModel:
    if n_ctx is not None and n_ctx < 1:
        raise RequestError(f"n_ctx must be at least 1, not {n_ctx}", param="n_ctx")
    embedding = file.tensors.get("token_embd.weight")
    tokenizer = load_tokenizer(file.metadata, embedding.shape[0] if embedding else None)
    opened = backend.open_model(file.paths, file.metadata, n_ctx, kv_type, progress)
    return LoadedModel(
        path, _facts(file), None, tokenizer, backend, opened.kv, opened.program, opened.n_ctx,
        file.size, file.n_params, kv_type,
    )  # fmt: skip


def _upload(
    family: Architecture,
    config: ModelConfig,
    file: GGUFFile,
    backend: Backend,
    progress: Progress | None,
    check: Callable[[], None],
) -> dict[str, Any]:
    """``check`` is called once in a while; what it raises ends the upload."""
    specs = family.tensors(config)
    raw = arch.raw_tensors(family.name, specs, file)
    total = sum({t.key: t.data.nbytes for t in raw.values()}.values())
    done = 0

    def taken(tensor: RawTensor, start: int, stop: int) -> None:
        nonlocal done
        check()
        rows = tensor.data[start:stop]
        file.forget(rows)
        done += rows.nbytes
        if progress is not None:
            progress(done, total)

    return backend.upload_all({n: (t, specs[n].role) for n, t in raw.items()}, taken)


def why_fallback(file: GGUFFile) -> str | None:
    """Why only the fallback, llama.cpp, may run ``file``; None if edgerun does.

    Raises:
        GGUFError: it is badly described.
    """
    try:
        arch.configure(arch.get(file.metadata.get_str("general.architecture")), file)
    except UnsupportedModelError as e:
        return str(e)
    return None
