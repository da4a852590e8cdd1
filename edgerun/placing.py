"""On which backend the layers of a model file run: all on the one opened for it, or, where a device
does not hold them all, the first ones on the CPU."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from edgerun import arch
from edgerun.arch import Architecture, ModelConfig
from edgerun.backends.base import PAGE_SIZE, Backend
from edgerun.backends.host import host_memory
from edgerun.backends.specs import layer_of
from edgerun.errors import RequestError, printable
from edgerun.gguf import GGUFFile
from edgerun.planning import Fit, Plan, Room, fits, plan, suits
from edgerun.planning_layers import (
    Parts,
    Sizes,
    asked_layers,
    device_layers,
    fits_parts,
    plan_parts,
)

if TYPE_CHECKING:
    from edgerun.backends.split import SplitBackend

__all__ = ["Fitting", "Placed", "check_layers", "place", "what_fits"]

log = logging.getLogger(__name__)


class Placed(NamedTuple):
    """What computes a model, and the room for its context. ``split``: the backend, if the one that
    was opened got help."""

    backend: Backend
    plan: Plan
    split: SplitBackend | None = None

    def give_up(self) -> None:
        """Free what was made here."""
        if self.split is not None:
            self.split.close_front()


def check_layers(gpu_layers: int | None) -> None:
    """Refuse what cannot be meant, before anything is loaded.

    Raises:
        RequestError: it is no whole number from 0 on.
    """
    if gpu_layers is None:
        return
    if isinstance(gpu_layers, bool) or not isinstance(gpu_layers, int):
        raise RequestError(
            f"gpu_layers must be a whole number, not {gpu_layers!r}", param="gpu_layers"
        )
    asked_layers(gpu_layers, 0)


def place(
    backend: Backend,
    file: GGUFFile,
    family: Architecture,
    config: ModelConfig,
    kv_type: str,
    n_ctx: int | None,
    gpu_layers: int | None = None,
    threads: int | None = None,
) -> Placed:
    """Decide where the layers of a model go, and how much context there is.

    Args:
        config: as trained.
        gpu_layers: how many of the last layers a device gets; None = as many as fit.
        threads: of the CPU, for the others.

    Raises:
        OutOfMemoryError, RequestError: as :func:`~edgerun.planning.plan`; or ``gpu_layers`` were
            asked for where there is no device, or none.
        BackendUnavailableError: layers must run on the CPU, which cannot be used.
    """
    sizes = _sizes(file, family, config, kv_type)
    n_layers = config.n_layers
    n = _n_device(backend, file, sizes, config, n_ctx, gpu_layers)
    if n == n_layers:
        token_bytes = sum(sizes.kv)
        whole = plan(_room(backend, file), token_bytes, config.n_ctx_train, n_ctx, PAGE_SIZE)
        return Placed(backend, whole)
    parts = Parts.of(sizes, n, _room(backend, file), _host())
    both = plan_parts(parts, config.n_ctx_train, n_ctx, PAGE_SIZE)
    from edgerun.backends.cpu import CPUBackend
    from edgerun.backends.split import SplitBackend

    split = SplitBackend(CPUBackend(threads), backend, n_layers - n, n_layers)
    if gpu_layers is None:
        log.warning(
            "%s does not fit on the GPU: %s, the others on the CPU",
            printable(file.path.name), split.layers,
        )  # fmt: skip
    return Placed(split, both, split)


def _n_device(
    backend: Backend,
    file: GGUFFile,
    sizes: Sizes,
    config: ModelConfig,
    n_ctx: int | None,
    gpu_layers: int | None,
) -> int:
    """Layers on ``backend``; all of them where no others can help."""
    n_layers = config.n_layers
    if gpu_layers is not None:
        n = asked_layers(gpu_layers, n_layers)
        if not backend.partial or n == 0:
            raise RequestError(
                f"gpu_layers={gpu_layers}, but backend {backend.name} "
                + ("computes no part of a model: leave it out" if not backend.partial else
                   "is the GPU: choose backend cpu to have no layer there"),
                param="gpu_layers",
            )  # fmt: skip
        return n
    if not backend.partial or n_layers < 2:
        return n_layers
    room = _room(backend, file)
    # 0: then the whole model is tried, and refused with what is missing.
    return device_layers(sizes, room, config.n_ctx_train, n_ctx, PAGE_SIZE) or n_layers


def _sizes(file: GGUFFile, family: Architecture, config: ModelConfig, kv_type: str) -> Sizes:
    specs = family.tensors(config)
    raw = arch.raw_tensors(family.name, specs, file)
    layers = [0] * config.n_layers
    first = last = 0
    for name, tensor in raw.items():
        layer = layer_of(name)
        if layer is not None:
            layers[layer] += tensor.data.nbytes
        elif specs[name].role == "embedding":
            first += tensor.data.nbytes
        else:
            last += tensor.data.nbytes
    kv = tuple(layer.token_bytes(kv_type) for layer in family.kv_layers(config))
    return Sizes(tuple(layers), kv, first, last)


def _room(backend: Backend, file: GGUFFile) -> Room:
    memory = backend.memory()
    return Room(memory.total, memory.free, file.size)


def _host() -> Room:
    memory = host_memory()
    return Room(memory.total, memory.free, 0)


class Fitting(NamedTuple):
    """What of a model fits: contexts by KV type, beside its weights in ``room``; and how many of
    its ``n_layers`` layers run on a device, None if there is none."""

    room: Room
    fits: list[Fit]
    gpu_layers: int | None
    n_layers: int


def what_fits(file: GGUFFile, backend: Backend) -> Fitting:
    """The memory of ``backend`` beside this model's weights, and the contexts that fit there.

    Raises:
        UnsupportedModelError, GGUFError: the architecture is unknown or badly described.
    """
    family = arch.get(file.metadata.get_str("general.architecture"))
    config = arch.configure(family, file)
    kinds = [t for t in backend.kv_types if suits(t, file.n_params)]
    sizes: Mapping[str, Sizes] = {t: _sizes(file, family, config, t) for t in kinds}
    room, n_layers = _room(backend, file), config.n_layers
    n = _n_device(backend, file, sizes[kinds[0]], config, None, None)
    if n == n_layers:
        token_bytes = {t: sum(s.kv) for t, s in sizes.items()}
        found = fits(room, token_bytes, config.n_ctx_train, PAGE_SIZE)
    else:
        host = _host()
        parts = {t: Parts.of(s, n, room, host) for t, s in sizes.items()}
        found = fits_parts(parts, config.n_ctx_train, PAGE_SIZE)
    return Fitting(room, found, n if backend.partial else None, n_layers)
