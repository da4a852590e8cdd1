"""Pages that a device's pool gives up, kept in host memory: a second level of its cache.

Whatever is evicted from the pool with known content, be it a preempted sequence's or left by an
ended one, goes to a slot in host memory, and comes back when a sequence that begins so enters. Only
what was needed for something else is ever moved: a preempted sequence's pages stay cached until
then.

A page is known by its digest, as in :mod:`.prefix`; parent and token ids are compared as well. What
lies before a kept page is kept, too, or in the pool: so doubt in a page reaches all behind it.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from edgerun.backends.swap import SwapSpace
from edgerun.engine.budget import median
from edgerun.engine.metrics import SwapCount
from edgerun.engine.pages import PagePool
from edgerun.engine.prefix import Node

__all__ = ["SwapTier", "worth_moving"]

log = logging.getLogger(__name__)

#: Tokens of a step that tells what one costs: few take a GPU no longer than one alone.
_WIDE = 64
_KEPT = 5  # such steps
#: Pages given up before memory that could not be had is asked for again.
_PAUSE = 256


def worth_moving(copies: int, copy: float, compute: float | None) -> bool:
    """Whether a page is had sooner by copying than by computing it again.

    Args:
        copies: of a page, still to be made.
        copy: what one takes, in seconds.
        compute: what computing a page takes; None if unknown: then it is, as nearly always.
    """
    return compute is None or copies * copy < compute


class _Saved(NamedTuple):
    """A full page's content in a slot: ``tokens`` behind the page with digest ``parent``."""

    parent: bytes
    tokens: tuple[int, ...]
    slot: int


class SwapTier:
    """Which slots hold what. For the engine's thread.

    Args:
        space: the slots.
        most: how many there may be, given how many there are; asked when there are too few.
        page_bytes: of a page.
    """

    def __init__(self, space: SwapSpace, most: Callable[[int], int], page_bytes: int) -> None:
        self._space = space
        self._most = most
        self._page_bytes = page_bytes
        self._saved: OrderedDict[bytes, _Saved] = OrderedDict()  # the longest unused first
        self._behind: dict[bytes, dict[bytes, None]] = {}  # digests of pages by their parent's
        self._free: list[int] = []
        self._pause = 0
        self._off = False
        self._pool: PagePool
        self._lately: deque[float] = deque(maxlen=_KEPT)  # seconds a token of wide steps
        self._out = self._in = 0

    def serve(self, pool: PagePool) -> None:
        """Keep from now on what ``pool`` gives up, and nothing of what was kept so far."""
        self._pool = pool
        self._saved.clear()
        self._behind.clear()
        self._free = list(range(self._space.n_slots))
        pool.on_evict = self.save

    @property
    def copy_seconds(self) -> float:
        """What one page takes to come back."""
        return self._space.copy_seconds

    def timed(self, tokens: int, seconds: float) -> None:
        """Learn from a step what computing costs."""
        if tokens >= _WIDE:
            self._lately.append(seconds / tokens)

    def save(self, node: Node) -> None:
        """Keep a page that the pool is about to give up."""
        parent = node.parent
        if parent is None or len(node.tokens) < self._pool.page_size:
            return
        if node.digest in self._saved:
            self._saved.move_to_end(node.digest)
            return
        slot = self._slot() if self._worth(2) else None
        try:
            if slot is not None:
                self._space.save(node.page, slot)
        except Exception as e:
            self._free += [slot] if slot is not None else []
            self._fail(e)
            slot = None
        if slot is None:
            self._drop_behind([node.digest])
            return
        self._saved[node.digest] = _Saved(parent.digest, node.tokens, slot)
        self._behind.setdefault(parent.digest, {})[node.digest] = None
        self._out += 1

    def match(self, ids: Sequence[int], digests: Sequence[bytes], at: int) -> tuple[bytes, ...]:
        """Digests of the kept pages of ``ids`` from page ``at`` on, if they are worth restoring;
        the last token is left to compute."""
        size = self._pool.page_size
        found = []
        for i in range(at, (len(ids) - 1) // size):
            saved = self._saved.get(digests[i])
            if saved is None or saved.tokens != tuple(ids[i * size : (i + 1) * size]):
                break
            if saved.parent != (digests[i - 1] if i else b""):
                break
            found.append(digests[i])
        return tuple(found) if found and self._worth(1) else ()

    def touch(self, digests: Sequence[bytes]) -> None:
        """These pages, which stand in order, are about to be restored: others go before them."""
        for key in digests:  # what was restored may go while the rest is
            if key in self._saved:
                self._saved.move_to_end(key)

    def restore(self, digest: bytes, page: int) -> bool:
        """Copy a kept page to one of the pool; False if it is not kept any more."""
        saved = self._saved.get(digest)
        if saved is None:
            return False
        try:
            self._space.restore(saved.slot, page)
        except Exception as e:
            self._fail(e)
            return False
        self._in += 1
        return True

    def forget(self, digests: Iterable[bytes]) -> None:
        """Nobody may have these pages, which the pool has forgotten, nor those behind them: they
        may hold rubbish."""
        gone = [d for d in digests if d]
        for digest in gone:
            self._drop(digest)
        self._drop_behind(gone)

    def count(self) -> SwapCount:
        """What was done so far; from any thread."""
        return SwapCount(
            pages_out=self._out,
            bytes_out=self._out * self._page_bytes,
            pages_in=self._in,
            bytes_in=self._in * self._page_bytes,
            pages_kept=len(self._saved),
            pages_total=self._space.n_slots,
        )

    def check(self) -> None:
        """Prove that each slot is free or one page's, and that each page kept can be doubted by
        what lies before it; for tests."""
        slots = sorted([*self._free, *(s.slot for s in self._saved.values())])
        if slots != list(range(self._space.n_slots)):
            raise AssertionError(f"slots {slots} of {self._space.n_slots}")
        behind = {(s.parent, key) for key, s in self._saved.items()}
        if behind != {(p, key) for p, keys in self._behind.items() for key in keys}:
            raise AssertionError("kept pages and those behind them disagree")
        for saved in self._saved.values():
            known = saved.parent in self._saved or self._pool.index.knows(saved.parent)
            if saved.parent and not known:
                raise AssertionError("a page is kept, and the one before it is nowhere")

    # -- inside -------------------------------------------------------------------------------

    def _worth(self, copies: int) -> bool:
        compute = median(self._lately) * self._pool.page_size if self._lately else None
        return worth_moving(copies, self._space.copy_seconds, compute)

    def _slot(self) -> int | None:
        """A free slot: a new one, or that of what was unused the longest."""
        if self._off:
            return None
        if not self._free:
            self._grow()
        if not self._free and self._saved:
            self._drop(next(iter(self._saved)))
        return self._free.pop() if self._free else None

    def _grow(self) -> None:
        if self._pause:
            self._pause -= 1
            return
        before = self._space.n_slots
        try:
            self._space.grow(self._most(before))
        except Exception as e:
            log.info("no more host memory for KV pages: %s", e)
        self._free += range(before, self._space.n_slots)
        if not self._free:
            self._pause = _PAUSE

    def _drop(self, digest: bytes) -> None:
        """Forget a page, if it is kept, and what is kept behind it unless the pool has it, too."""
        stack = [digest]
        while stack:
            key = stack.pop()
            saved = self._saved.pop(key, None)
            if saved is None:
                continue
            self._free.append(saved.slot)
            siblings = self._behind[saved.parent]
            del siblings[key]
            if not siblings:
                del self._behind[saved.parent]
            if not self._pool.index.knows(key):
                stack += self._behind.get(key, ())

    def _drop_behind(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            for key in list(self._behind.get(digest, ())):
                self._drop(key)

    def _fail(self, e: Exception) -> None:
        """No more of this."""
        log.warning("KV pages are no longer kept in host memory: %s", e)
        self._off = True
        for key in list(self._saved):
            self._drop(key)
