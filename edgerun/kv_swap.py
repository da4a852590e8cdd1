"""Host memory for the KV pages of a model that computes on a device: whether, and how much."""

from __future__ import annotations

from functools import partial

from edgerun.backends.host import host_memory
from edgerun.engine.swap import SwapTier
from edgerun.loading import LoadedModel
from edgerun.planning import Room, swap_pages

__all__ = ["open_swap"]


def open_swap(model: LoadedModel) -> SwapTier | None:
    """The swap tier of ``model``, or None where its pages lie in host memory anyway. It takes
    memory when the pool gives up its first page."""
    space = model.kv.swap_space()
    if space is None:
        return None
    kv = model.kv
    return SwapTier(space, partial(_most, kv.page_bytes, kv.n_pages), kv.page_bytes)


def _most(page_bytes: int, n_pages: int, n_slots: int) -> int:
    memory = host_memory()
    return swap_pages(Room(memory.total, memory.free, 0), page_bytes, n_pages, n_slots)
