"""How much context fits: from bytes of memory to tokens and pages. Plain ints, no model needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from edgerun.amounts import size_text
from edgerun.errors import OutOfMemoryError, RequestError

__all__ = ["Fit", "Plan", "Room", "choose_kv_type", "fits", "plan", "suits", "swap_pages"]

MIB = 1 << 20
#: Tokens without which a model is of no use.
_LEAST = 512
#: Full contexts the pool holds, if memory allows: several requests, and what earlier ones left.
_SEQUENCES = 4


class Room(NamedTuple):
    """Memory, in bytes.

    Attributes:
        total, free: of the machine or the device, before the model is loaded.
        weights: of the model.
    """

    total: int
    free: int
    weights: int

    @property
    def margin(self) -> int:
        """What is left alone: a step's activations, the tokenizer, other programs' growth."""
        return min(max(self.total // 16, 256 * MIB), self.total // 4)

    @property
    def for_kv(self) -> int:
        """What keys and values may take at most; not below 0."""
        return max(0, self.free - self.weights - self.margin)


#: Parameters below which a KV type costs a model more than it saves.
_LEAST_PARAMS = {"q4r": 2_000_000_000}
#: What to append to a KV type to have it all the same.
_FORCE = ":force"


def suits(kv_type: str, n_params: int) -> bool:
    """Whether a model of ``n_params`` parameters bears the rounding of ``kv_type``."""
    return n_params >= _LEAST_PARAMS.get(kv_type, 0)


def choose_kv_type(asked: str | None, known: Sequence[str], n_params: int) -> str:
    """The KV type for a model of ``n_params`` parameters; ``known`` are its backend's, of which the
    first is taken for None. ``q4r:force`` is ``q4r`` for small models, too.

    Raises:
        RequestError: the type is not among them, or the model is too small for it.
    """
    if asked is None:
        return known[0]
    forced = [k for k in known if k in _LEAST_PARAMS and asked == k + _FORCE]
    if forced:
        return forced[0]
    if asked not in known:
        raise RequestError(
            f"KV type {asked!r} is not one of this backend's: {', '.join(known)}", param="kv_type"
        )
    if not suits(asked, n_params):
        raise RequestError(
            f"KV type '{asked}' rounds too much for models below {_LEAST_PARAMS[asked] / 1e9:g} "
            f"billion parameters, and this one has {_count(n_params)}: use --kv q8_0, or "
            f"{asked}{_FORCE} to have it all the same",
            param="kv_type",
        )
    return asked


def _count(n: int) -> str:
    return f"{n / 1e9:.2f} billion" if n >= 1e9 else f"{n / 1e6:.3g} million"


class Plan(NamedTuple):
    """``n_pages`` pages for sequences of up to ``n_ctx`` tokens; they take ``kv_bytes``."""

    n_ctx: int
    n_pages: int
    kv_bytes: int


def plan(room: Room, token_bytes: int, n_ctx_train: int, n_ctx: int | None, page_size: int) -> Plan:
    """The context, and the pages for as many of it as memory allows, one at least.

    A context that was asked for may take all that is left after weights and margin; one that was
    not takes half of it at most, and so do the pages beyond the first context: others use this
    machine, too.

    Args:
        room: the memory.
        token_bytes: of K and V of one token, over all layers.
        n_ctx_train: the longest context the model knows.
        n_ctx: the context asked for; None = as trained, as far as memory reaches.
        page_size: tokens in a page.

    Raises:
        OutOfMemoryError: it does not fit; of a context that was not asked for, 512 tokens do not.
        RequestError: ``n_ctx`` is below 1.
    """
    if n_ctx is not None and n_ctx < 1:
        raise RequestError(f"n_ctx must be at least 1, not {n_ctx}", param="n_ctx")
    all_pages = room.for_kv // (token_bytes * page_size)
    half_pages = all_pages // 2
    least = n_ctx if n_ctx is not None else min(_LEAST, n_ctx_train)
    if -(-least // page_size) > all_pages:
        raise OutOfMemoryError(
            f"the weights take {size_text(room.weights)} and {least} tokens of context "
            f"{size_text(least * token_bytes)}, but only {size_text(room.free)} are free, of which "
            f"{size_text(room.margin)} must stay so: close other programs, lower n_ctx, "
            "or choose a smaller model"
        )
    if n_ctx is None:
        n_ctx = min(n_ctx_train, max(least, half_pages * page_size))
    one = -(-n_ctx // page_size)
    n_pages = max(one, min(_SEQUENCES * one, half_pages))
    return Plan(n_ctx, n_pages, n_pages * page_size * token_bytes)


def swap_pages(room: Room, page_bytes: int, n_pages: int, n_slots: int) -> int:
    """Pages that host memory takes from a device's pool of ``n_pages``: as many, so that all of it
    may change hands, and no more than half of what is free beside a margin.

    Args:
        room: the host's memory; those ``n_slots`` pages that there are already are not free in it.
    """
    free = room.for_kv + n_slots * page_bytes
    return min(n_pages, free // 2 // page_bytes)


@dataclass(frozen=True)
class Fit:
    """What fits with one KV type.

    Attributes:
        kv_type: its name.
        token_bytes: of K and V of one token.
        n_ctx: the context a model is loaded with unless one is asked for; 0 = it does not fit.
        kv_bytes: of the pages it is then loaded with.
        n_ctx_most: the longest that may be asked for; beyond the trained one answers get worse.
    """

    kv_type: str
    token_bytes: int
    n_ctx: int
    kv_bytes: int
    n_ctx_most: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fits(room: Room, token_bytes: Mapping[str, int], n_ctx_train: int, page_size: int) -> list[Fit]:
    """What fits, for each KV type in ``token_bytes``."""
    found = []
    for kv_type, each in token_bytes.items():
        try:
            p = plan(room, each, n_ctx_train, None, page_size)
        except OutOfMemoryError:
            p = Plan(0, 0, 0)
        most = room.for_kv // (each * page_size) * page_size
        found.append(Fit(kv_type, each, p.n_ctx, p.kv_bytes, most))
    return found
