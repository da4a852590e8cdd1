"""Pages of sequences: entering with what is cached, sharing, giving back."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from edgerun.engine.pages import Match, PagePool
from edgerun.engine.scheduler import Demand
from edgerun.engine.sequence import Sequence
from edgerun.engine.swap import SwapTier

__all__ = ["Pager"]


class Pager:
    """Moves pages between a :class:`PagePool` and sequences, and their content with them.

    Args:
        pool: the pages.
        copy_page: copies a page's content, ``(source, destination)``.
        swap: keeps in host memory what the pool gives up.
    """

    def __init__(
        self,
        pool: PagePool,
        copy_page: Callable[[int, int], None],
        swap: SwapTier | None = None,
    ) -> None:
        self.pool = pool
        self._copy_page = copy_page
        self._swap = swap

    # -- asking -------------------------------------------------------------------------------

    def match(self, s: Sequence) -> Match:
        """What of a sequence without pages is cached."""
        self.pool.index.extend(s.digests, s.ids)
        match = self.pool.match(s.ids, s.digests)
        if self._swap is None:
            return match
        at = len(match.nodes)
        kept = self._swap.match(s.ids, s.digests, at)
        if not kept:
            return match
        n_tokens = (at + len(kept)) * self.pool.page_size
        return match._replace(n_tokens=n_tokens, source=None, kept=kept)

    def demand(self, s: Sequence, match: Match | None, patient: bool, scarce: bool) -> Demand:
        """What ``s`` asks of the next step.

        Args:
            match: if it has not entered.
            patient: it has not waited long.
            scarce: pages may have to be taken from somebody, so it matters which are shared.
        """
        users, size = self.pool.users, self.pool.page_size
        if match is None:
            at, n_pages = s.n_past // size, len(s.pages)
            shared = sum([users(p) > 1 for p in s.pages]) if scarce else 0
            writes_shared = at < n_pages and users(s.pages[at]) > 1
            return Demand(len(s.ids) - s.n_past, s.n_past, n_pages, shared, writes_shared)
        hot = sum(users(n.page) > 0 for n in match.nodes)
        return Demand(
            len(s.ids) - match.n_tokens,
            match.n_tokens,
            hot,
            shared=hot,
            entered=False,
            patient=patient,
        )

    # -- doing --------------------------------------------------------------------------------

    def enter(self, entering: Iterable[tuple[Sequence, Match]]) -> None:
        """Give sequences their cached starts. All at once: none may lose its own to another. What
        lies in host memory is left to :meth:`restore`."""
        found = [(s, m) for s, m in entering]
        for s, m in found:
            s.pages = [n.page for n in m.nodes]
            self.pool.retain(s.pages)
        sources = [m.source.page for _, m in found if m.source is not None]
        self.pool.retain(sources)
        for s, m in found:
            if m.source is not None:
                self._copy_start(s, m.source.page)
            s.n_past = m.n_tokens - len(m.kept) * self.pool.page_size
            s.n_known = len(m.nodes)
            s.node = m.nodes[-1] if m.nodes else self.pool.index.root
            s.kept = m.kept

    def restore(self, s: Sequence, most: int) -> int:
        """At most ``most`` of the pages that ``s`` waits for, from host memory; how many came.

        It waits no more where one of them is gone, or there is no room for it.
        """
        pool, size, swap = self.pool, self.pool.page_size, self._swap
        if swap is None or not s.kept:
            return 0
        swap.touch(s.kept)
        for i, key in enumerate(s.kept[:most]):
            page = pool.allocate(1)[0] if pool.n_free else None
            # What that evicts may take the place of a kept one.
            if page is None or not swap.restore(key, page):
                pool.release([] if page is None else [page])
                s.kept = ()
                return i
            tokens = tuple(s.ids[s.n_past : s.n_past + size])
            s.node, page = pool.commit(s.node, key, tokens, page)
            s.pages.append(page)
            s.n_past += size
            s.n_known += 1
        came = len(s.kept[:most])
        s.kept = s.kept[most:]
        return came

    def _copy_start(self, s: Sequence, source: int) -> None:
        """A page of ``s``'s own that begins as ``source``, which is then given up."""
        if self.pool.n_free:
            page = self.pool.allocate(1)[0]
            self._copy_page(source, page)
            self.pool.release([source])
        else:  # it is the last page to be had: take it over
            self.pool.release([source])
            page = self.pool.allocate(1)[0]
            if page != source:
                raise AssertionError(f"page {page} was to be had beside {source}")
        s.pages.append(page)

    def grow(self, s: Sequence, n: int) -> bool:
        """Pages for ``n`` more tokens, the first of them writable; False if they cannot be had."""
        pool = self.pool
        at = s.n_past // pool.page_size
        copies = at < len(s.pages) and pool.users(s.pages[at]) > 1
        need = pool.pages_for(s.n_past + n) - len(s.pages)
        if copies + max(need, 0) > pool.n_free:
            return False
        if copies:
            page = pool.allocate(1)[0]
            self._copy_page(s.pages[at], page)
            pool.release([s.pages[at]])
            s.pages[at] = page
        if need > 0:
            s.pages += pool.allocate(need)
        return True

    def reserve(self, s: Sequence, n: int) -> int:
        """Pages for a draft of ``n`` tokens behind the pending one, or as many as can be had."""
        size = self.pool.page_size
        held = (len(s.pages) + self.pool.n_free) * size - s.n_past - 1
        n = min(n, held)
        return n if self.grow(s, 1 + n) else 0

    def note(self, s: Sequence) -> None:
        """Let the prefix index know the pages that are full of computed tokens."""
        size = self.pool.page_size
        full = s.n_past // size
        if s.n_known >= full:
            return
        self.pool.index.extend(s.digests, s.ids)
        for i in range(s.n_known, full):
            tokens = tuple(s.ids[i * size : (i + 1) * size])
            s.node, s.pages[i] = self.pool.commit(s.node, s.digests[i], tokens, s.pages[i])
        s.n_known = full

    def share(self, leader: Sequence, follower: Sequence) -> None:
        """Let ``follower`` go on where the prompt of ``leader``, just computed, ends."""
        follower.pages = leader.pages[: self.pool.pages_for(leader.n_past)]
        self.pool.retain(follower.pages)
        follower.n_past = leader.n_past
        follower.n_known, follower.node = leader.n_known, leader.node
        follower.digests = list(leader.digests)
        follower.started = leader.started

    def release(self, s: Sequence, keep: bool = True) -> None:
        """Take the pages back. What they hold stays cached, unless ``keep`` is False."""
        size = self.pool.page_size
        at, rest = divmod(s.n_past, size)
        if not keep:
            self._forget(s)
        elif rest and s.n_known == at and at < len(s.pages):
            self.pool.keep_rest(s.node, tuple(s.ids[at * size : s.n_past]), s.pages[at])
        self.pool.release(s.pages)
        s.pages = []
        s.n_past = s.n_known = 0
        s.kept = ()
        s.node = None

    def _forget(self, s: Sequence) -> None:
        """What ``s`` stood on is in doubt, here and in host memory, and all behind it."""
        gone = self.pool.forget(s.pages)
        if self._swap is not None:
            self._swap.forget([*gone, *s.digests[: len(s.pages)]])
