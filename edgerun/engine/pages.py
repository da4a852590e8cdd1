"""Which pages of the KV pool are whose. Plain ints: the pages' bytes are the backend's."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from edgerun.engine.prefix import Node, PrefixIndex
from edgerun.errors import OutOfMemoryError

__all__ = ["MIN_COPY", "Match", "PagePool"]

#: Tokens that must be alike for a page to be copied rather than computed. A copy moves one page's
#: bytes, which takes about as long as computing a token or two: 0.1 ms against 0.2 ms a token on a
#: model of 0.1 B, and the larger the model, the more a token costs beside its K and V.
MIN_COPY = 3


class Match(NamedTuple):
    """The cached start of a prompt.

    Attributes:
        nodes: its full pages, to be shared.
        n_tokens: tokens in these pages, and in the part of ``source`` that is alike.
        source: a page to copy, None if no further page begins alike.
        kept: digests of full pages behind ``nodes`` that lie in host memory; ``n_tokens`` counts
            theirs, too.
    """

    nodes: tuple[Node, ...] = ()
    n_tokens: int = 0
    source: Node | None = None
    kept: tuple[bytes, ...] = ()


class PagePool:
    """Hands out page ids ``0 .. n_pages - 1`` and counts who uses each.

    A page is used by at least one sequence, or cached (nobody uses it, but its content is known and
    may be asked for again), or free. Cached pages are given away when the free ones run out, those
    first that nobody asked for the longest. A sequence that uses a page uses all pages before it,
    and gives the last one back first, so a page never goes before the pages behind it.
    """

    def __init__(self, n_pages: int, page_size: int) -> None:
        self.n_pages = n_pages
        self.page_size = page_size
        self.index = PrefixIndex(page_size)
        # Last in, first out: a page just released is the likeliest to be in the cache.
        self._free = list(range(n_pages - 1, -1, -1))
        self._refs = [0] * n_pages
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached, the longest unused first
        self.n_evicted = 0
        #: Told of a cached page before it is given away.
        self.on_evict: Callable[[Node], None] | None = None

    @property
    def n_free(self) -> int:
        """Pages that can be had: free or cached."""
        return len(self._free) + len(self._idle)

    @property
    def n_cached(self) -> int:
        """Pages that nobody uses and whose content is known."""
        return len(self._idle)

    def pages_for(self, n_tokens: int) -> int:
        """Pages that hold ``n_tokens`` tokens."""
        return -(-n_tokens // self.page_size)

    def users(self, page: int) -> int:
        """How many sequences use ``page``."""
        return self._refs[page]

    def allocate(self, n: int) -> list[int]:
        """``n`` pages of unknown content, all or none.

        Raises:
            OutOfMemoryError: fewer can be had; the scheduler checks ``n_free`` first.
        """
        if n > self.n_free:
            raise OutOfMemoryError(f"{n} KV pages wanted, {self.n_free} free")
        taken = []
        for _ in range(n):
            if not self._free:
                self._evict()
            taken.append(self._free.pop())
            self._refs[taken[-1]] = 1
        return taken

    def retain(self, pages: Sequence[int]) -> None:
        """Use pages that others use or that are cached."""
        for page in pages:
            if not self._refs[page]:
                del self._idle[page]
            self._refs[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Give up a sequence's pages, which stand in order; the last one is forgotten first.

        Raises:
            ValueError: nobody uses one of them.
        """
        for page in reversed(pages):
            if not self._refs[page]:
                raise ValueError(f"page {page} released twice")
            self._refs[page] -= 1
            if not self._refs[page]:
                if page in self.index:
                    self._idle[page] = None
                else:
                    self._free.append(page)

    # -- content ------------------------------------------------------------------------------

    def match(self, ids: Sequence[int], digests: Sequence[bytes]) -> Match:
        """The longest cached start of ``ids`` that leaves the last token to compute.

        Args:
            ids: tokens, at least one.
            digests: of their full pages, see :meth:`PrefixIndex.extend`.
        """
        most = len(ids) - 1
        nodes = tuple(self.index.match(ids, digests[: most // self.page_size]))
        n = len(nodes) * self.page_size
        behind = nodes[-1] if nodes else self.index.root
        source, alike = self.index.best_start(behind, ids[n : min(n + self.page_size, most)])
        if alike < MIN_COPY:
            return Match(nodes, n)
        return Match(nodes, n + alike, source)

    def commit(
        self, parent: Node | None, key: bytes, tokens: tuple[int, ...], page: int
    ) -> tuple[Node | None, int]:
        """Make the content of a used page known, all of whose tokens are computed.

        Returns its node, None if it cannot be cached, and the page to use from now on: if
        another page holds the same, ``page`` is given up for it.
        """
        if parent is None or not parent.alive:
            return None, page
        try:
            found = self.index.find(parent, key, tokens)
        except KeyError:
            return None, page
        if found is None:
            self._supersede(parent, tokens)
            return self.index.insert(parent, key, tokens, page), page
        if found.page != page:
            self.retain([found.page])
            self.release([page])
        return found, found.page

    def keep_rest(self, parent: Node | None, tokens: tuple[int, ...], page: int) -> None:
        """Make the content of a partly filled page known, which its only user will release next."""
        if parent is None or not parent.alive or self._refs[page] != 1 or page in self.index:
            return
        if self.index.best_start(parent, tokens)[1] < len(tokens):  # else it is known already
            self._supersede(parent, tokens)
            self.index.insert(parent, b"", tokens, page)

    def _supersede(self, parent: Node, tokens: tuple[int, ...]) -> None:
        """Forget partly filled pages that hold no more than the beginning of ``tokens``."""
        size = self.page_size
        self.forget(
            [
                c.page
                for c in parent.children
                if len(c.tokens) < size and tokens[: len(c.tokens)] == c.tokens
            ]
        )

    def forget(self, pages: Sequence[int]) -> list[bytes]:
        """Nobody new may use these pages, nor those behind them: they may hold rubbish.

        Returns the digests of those whose content was known; partly filled ones have none.
        """
        digests = []
        for page in pages:
            for gone in self.index.remove(page):
                if gone.digest:
                    digests.append(gone.digest)
                if gone.page in self._idle:
                    del self._idle[gone.page]
                    self._free.append(gone.page)
        return digests

    def _evict(self) -> None:
        page = next(iter(self._idle))
        if self.on_evict is not None:
            self.on_evict(self.index.node(page))
        self.forget([page])
        self.n_evicted += 1

    def check(self, owners: Sequence[Sequence[int]]) -> None:
        """Prove that ``owners`` hold the pages that are used, as often as is counted, and that
        every other page is free or cached; for tests."""
        held = Counter(p for pages in owners for p in pages)
        if any(len(set(pages)) < len(pages) for pages in owners):
            raise AssertionError("a sequence holds a page twice")
        if any(held[p] != n for p, n in enumerate(self._refs)):
            raise AssertionError(f"pages held {dict(held)}, counted {self._refs}")
        rest = sorted([*held, *self._free, *self._idle])
        if rest != list(range(self.n_pages)):
            raise AssertionError(
                f"pages held {sorted(held)}, free {sorted(self._free)}, cached {sorted(self._idle)}"
            )
        if any(p not in self.index for p in self._idle) or any(p in self.index for p in self._free):
            raise AssertionError("cached pages and known content disagree")
        self.index.check()
