"""Which pages of the KV pool are whose. Plain ints: the pages' bytes are the backend's."""

from __future__ import annotations

from collections.abc import Sequence

from edgerun.errors import OutOfMemoryError

__all__ = ["PagePool"]


class PagePool:
    """Hands out page ids ``0 .. n_pages - 1``; each is free or has one owner."""

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.n_pages = n_pages
        self.page_size = page_size
        # Last in, first out: a page just released is the likeliest to be in the cache.
        self._free = list(range(n_pages - 1, -1, -1))
        self._owned = bytearray(n_pages)

    @property
    def n_free(self) -> int:
        return len(self._free)

    def pages_for(self, n_tokens: int) -> int:
        """Pages that hold ``n_tokens`` tokens."""
        return -(-n_tokens // self.page_size)

    def allocate(self, n: int) -> list[int]:
        """``n`` pages, all or none.

        Raises:
            OutOfMemoryError: fewer are free; the scheduler checks ``n_free`` first.
        """
        if n > len(self._free):
            raise OutOfMemoryError(f"{n} KV pages wanted, {len(self._free)} free")
        taken = [self._free.pop() for _ in range(n)]
        for page in taken:
            self._owned[page] = 1
        return taken

    def release(self, pages: Sequence[int]) -> None:
        for page in pages:
            if not self._owned[page]:
                raise ValueError(f"page {page} released twice")
            self._owned[page] = 0
            self._free.append(page)

    def check(self, owners: Sequence[Sequence[int]]) -> None:
        """Prove that ``owners`` and the free list hold every page exactly once."""
        held = [p for pages in owners for p in pages]
        everything = sorted(held + self._free)
        if everything != list(range(self.n_pages)):
            raise AssertionError(f"pages held {sorted(held)} and free {sorted(self._free)}")
        if any(not self._owned[p] for p in held) or any(self._owned[p] for p in self._free):
            raise AssertionError("the ownership marks disagree with the lists")
