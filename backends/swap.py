"""Room in host memory for KV pages of a pool that lies on a device."""

from __future__ import annotations

import abc

__all__ = ["SwapSpace"]


class SwapSpace(abc.ABC):
    """Slots ``0 .. n_slots - 1`` of one page each.

    Copies take place in the order asked for, between the steps before and behind them. So they may
    return before they are done, and nobody has to wait for one.

    Attributes:
        n_slots: how many there are; none at first.
        copy_seconds: what a page takes one way, measured when the first slots are made.
    """

    n_slots: int = 0
    copy_seconds: float = 0.0

    @abc.abstractmethod
    def grow(self, most: int) -> None:
        """Make some more slots, but not more than ``most`` in all.

        Raises:
            OutOfMemoryError: there is no memory for them.
        """

    @abc.abstractmethod
    def save(self, page: int, slot: int) -> None:
        """Copy a page of the pool to a slot."""

    @abc.abstractmethod
    def restore(self, slot: int, page: int) -> None:
        """Copy a slot, which was saved to, to a page of the pool."""
