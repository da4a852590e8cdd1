"""How many layers of a model a device holds, where it does not hold all of it; the computer's own
memory and processor take the others. Plain ints, no model needed.

The last layers go to the device, and the output head with them: it is a large matrix that every
token of an answer needs, and the logits stay where they are sampled from. Beside that, a byte of
weights is worth the same wherever it lies: each is read once a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edgerun.errors import RequestError
from edgerun.planning import Fit, Plan, Room, fits, plan

__all__ = ["Parts", "Sizes", "asked_layers", "device_layers", "fits_parts", "plan_parts"]

#: The context that a device has room for before it takes another layer, unless one is asked for.
_USUAL = 4096


class Sizes(NamedTuple):
    """Bytes of a model.

    Attributes:
        layers: weights of each layer.
        kv: K and V of one token in each layer.
        first: weights before the first layer (the embedding).
        last: weights behind the last one (the output head, also if it is the embedding).
    """

    layers: tuple[int, ...]
    kv: tuple[int, ...]
    first: int
    last: int


class Parts(NamedTuple):
    """What ``n`` of a model's layers on a device leave where.

    Attributes:
        device, host: memory beside the weights of either part.
        device_kv, host_kv: bytes of K and V of one token there.
    """

    device: Room
    host: Room
    device_kv: int
    host_kv: int

    @classmethod
    def of(cls, sizes: Sizes, n: int, device: Room, host: Room) -> Parts:
        """``device`` and ``host`` are what there is; the weights in them do not count."""
        at = len(sizes.layers) - n
        back, front = sum(sizes.layers[at:]) + sizes.last, sum(sizes.layers[:at]) + sizes.first
        return cls(
            Room(device.total, device.free, back), Room(host.total, host.free, front),
            sum(sizes.kv[at:]), sum(sizes.kv[:at]),
        )  # fmt: skip


def asked_layers(asked: int, n_layers: int) -> int:
    """Layers on the device where someone has said how many; more than there are mean all.

    Raises:
        RequestError: it is below 0.
    """
    if asked < 0:
        raise RequestError(f"gpu_layers must be at least 0, not {asked}", param="gpu_layers")
    return min(asked, n_layers)


def device_layers(
    sizes: Sizes, device: Room, n_ctx_train: int, n_ctx: int | None, page_size: int
) -> int:
    """The most layers for which a device has memory, with the context asked for, or with that of
    4096 tokens in half of what is left. All of them if the whole model fits, the embedding, too;
    0 if there is no use.

    Args:
        device: what there is, with the weights of the whole model.
    """
    n_layers = len(sizes.layers)
    wanted = n_ctx if n_ctx is not None else min(n_ctx_train, _USUAL)
    tokens = -(-wanted // page_size) * page_size
    share = 1 if n_ctx is not None else 2
    if share * tokens * sum(sizes.kv) <= device.for_kv:
        return n_layers
    for n in range(n_layers - 1, 0, -1):
        parts = Parts.of(sizes, n, device, Room(0, 0, 0))
        if share * tokens * parts.device_kv <= parts.device.for_kv:
            return n
    return 0


def plan_parts(parts: Parts, n_ctx_train: int, n_ctx: int | None, page_size: int) -> Plan:
    """The context and its pages, which both parts hold.

    Raises:
        OutOfMemoryError, RequestError: as :func:`~edgerun.planning.plan`, for either part.
    """
    plans = [
        plan(room, kv, n_ctx_train, n_ctx, page_size)
        for room, kv in ((parts.device, parts.device_kv), (parts.host, parts.host_kv))
    ]
    chosen = min(p.n_ctx for p in plans)
    n_pages = max(-(-chosen // page_size), min(p.n_pages for p in plans))
    return Plan(chosen, n_pages, n_pages * page_size * (parts.device_kv + parts.host_kv))


def fits_parts(parts: Mapping[str, Parts], n_ctx_train: int, page_size: int) -> list[Fit]:
    """What fits, for each KV type: as :func:`~edgerun.planning.fits`."""
    found = []
    for kv_type, p in parts.items():
        sides: Sequence[Fit] = [
            fits(room, {kv_type: kv}, n_ctx_train, page_size)[0]
            for room, kv in ((p.device, p.device_kv), (p.host, p.host_kv))
        ]
        each = p.device_kv + p.host_kv
        n_ctx = min(f.n_ctx for f in sides)
        pages = min(f.kv_bytes // (f.token_bytes * page_size) for f in sides) if n_ctx else 0
        pages = max(pages, -(-n_ctx // page_size))
        most = min(f.n_ctx_most for f in sides)
        found.append(Fit(kv_type, each, n_ctx, pages * page_size * each, most))
    return found
