"""Pages that outlive the process: written when a text ends, read back before one begins.

All files are touched on one thread of this module's own. The engine's thread only notes which
pages a finished sequence leaves, and copies into the pool what was read.

- **Writing copies from pages that may be given away meanwhile.** Pages with known content are
  never written to, and a page's node is dead before the page gets anything new; so a copy is good
  if the node is still alive behind it. Nothing is pinned, and no step waits. While sequences run,
  writing rests most of the time; what is evicted before its turn comes is not written.
- **Reading goes ahead of the engine's thread** by a bounded number of bytes. A sequence waits,
  without pages, as long as its pages arrive faster than they could be computed, and then enters
  like any other, since they are cached now.
- **An error of the file system ends it all** with one warning. Requests go on without.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from weakref import WeakSet

from edgerun.engine.disk_files import PageFolder
from edgerun.engine.metrics import DiskCount
from edgerun.engine.pages import Match, PagePool
from edgerun.engine.prefix import Node
from edgerun.engine.sequence import Sequence
from edgerun.errors import why

__all__ = ["MIN_PAGES", "DiskTier"]

log = logging.getLogger(__name__)

#: Full pages that a text must have to be written, and a prompt to be looked for.
MIN_PAGES = 8

_AHEAD = 64 << 20  # bytes read and not yet in the pool
_PER_STEP = 16 << 20  # bytes copied into the pool in a step that others wait for: about 5 ms
_WAKE = 8 << 20  # bytes read that are worth waking the engine's thread for
_QUEUE = 16384  # pages waiting to be written
_REST = 20  # times as long as it took to write a page, while sequences run
_GRACE = 0.1  # seconds that the first page may take
_UNKNOWN = 0.05  # seconds to compute a page, before the first step is measured
_OPEN = 0.5  # seconds that a prompt waits for the folder to be opened
_FLUSH = 2.0  # seconds for what is left to be written at the end
_POLL = 0.02  # seconds after which a waiting engine looks for new requests


class _Restore:
    """Pages of one prompt being read. ``at``: the next page for the pool, ``end``: the last one's
    number, plus one; ``next``: to be read. ``ready``: pages from ``at`` on."""

    def __init__(self, s: Sequence, at: int, end: int, size: int) -> None:
        self.sequence = s
        self.digests = [b"", *s.digests[:end]]  # of the page before each
        self.tokens = [tuple(s.ids[i * size : (i + 1) * size]) for i in range(end)]
        self.first = self.at = self.next = at
        self.end = end
        self.ready: deque[bytes] = deque()
        self.done = False  # nothing more will be read
        self.began = time.perf_counter()


class DiskTier:
    """Keeps pages of finished sequences in a folder and finds them again.

    Methods are for the engine's thread.

    Args:
        open_folder: opens it, on this tier's thread: that may take a while.
        export: a page's bytes, from any thread; see
            :meth:`edgerun.backends.base.KVPool.export_page`.
        restore: puts them back.
        page_bytes: how many they are.
        min_pages: see :data:`MIN_PAGES`.
    """

    def __init__(
        self,
        open_folder: Callable[[], PageFolder],
        export: Callable[[int], bytes],
        restore: Callable[[int, bytes], None],
        page_bytes: int,
        min_pages: int = MIN_PAGES,
    ) -> None:
        self._open = open_folder
        self._export = export
        self._import = restore
        self._page_bytes = page_bytes
        self._min_pages = min_pages
        self._folder: PageFolder | None = None
        self._opened = threading.Event()
        self._patience = _OPEN
        self._lock = threading.Condition()
        self._arrived = threading.Event()
        self._restores: dict[Sequence, _Restore] = {}
        self._asked: WeakSet[Sequence] = WeakSet()
        self._writes: deque[tuple[Node, int, int]] = deque()
        self._drops: deque[set[bytes]] = deque()
        self._busy = False
        self._rest_until = 0.0
        self._deadline: float | None = None  # of the end; None: not yet
        self._off = False
        self._era = 0
        self._copying = threading.Lock()  # held while a page is copied out of the pool
        self.n_restored = self.n_written = self.n_read = 0  # pages
        self._restored_tokens = self._errors = 0
        self._thread = threading.Thread(target=self._run, name="edgerun-disk", daemon=True)
        self._thread.start()

    # -- the engine's side --------------------------------------------------------------------

    def awaits(self, s: Sequence, match: Match, pool: PagePool) -> bool:
        """Whether ``s``, without pages, should wait: more of its start is being read."""
        if s in self._restores:
            return True
        at, end = len(match.nodes), (len(s.ids) - 1) // pool.page_size
        more = at + len(match.kept)  # what lies in host memory is not worth reading for itself
        if self._off or end < self._min_pages or more >= end or s in self._asked:
            return False
        if end - at > pool.n_free:
            return False
        self._asked.add(s)
        if not self._opened.wait(self._patience):
            self._patience = 0.0  # one was kept waiting: enough
        if self._folder is None or self._off:
            return False
        if s.digests[at] not in self._folder or s.digests[more] not in self._folder:
            return False
        with self._lock:
            self._restores[s] = _Restore(s, at, end, pool.page_size)
            self._lock.notify()
        return True

    def turn(
        self, pool: PagePool, n_sequences: int, seconds: Callable[[int], float | None]
    ) -> None:
        """Before a step: copy what was read into the pool.

        Args:
            n_sequences: how many the engine has.
            seconds: what a step of so many tokens takes, None if unknown.
        """
        self._busy = n_sequences > 0
        alone = n_sequences == len(self._restores)
        most = _AHEAD if alone else _PER_STEP
        for r in list(self._restores.values()):
            done = r.done  # before looking at what is ready
            pages = self._take(r, max(1, most // self._page_bytes))
            most -= len(pages) * self._page_bytes
            if (pages and not self._restore(pool, r, pages)) or (
                not r.ready and (done or (not pages and self._too_slow(r, pool, seconds)))
            ):
                self._end(r)

    def wait(self) -> None:
        """With nothing to compute: until more is read, or a moment."""
        if self._restores:
            self._arrived.wait(_POLL)
            self._arrived.clear()

    def ended(self, s: Sequence, keep: bool, n_left: int) -> None:
        """``s`` is about to give up its pages; ``n_left`` others go on.

        Args:
            keep: False if nobody may use what it has computed or found.
        """
        self._busy = n_left > 0
        if (r := self._restores.get(s)) is not None:
            self._end(r)
        if not keep:
            for r in list(self._restores.values()):  # what was read may be among it
                self._end(r)
        if self._off:
            return
        chain = []
        node = s.node if keep else None
        while node is not None and node.parent is not None:
            chain.append(node)
            node = node.parent
        with self._lock:
            if not keep:
                gone = set(s.digests[: len(s.pages)])
                self._drops.append(gone)
                self._writes = deque(w for w in self._writes if w[0].digest not in gone)
            elif len(chain) >= self._min_pages:
                # The start of a text counts as used last: it goes last, since all needs it.
                now = time.time_ns()
                room = _QUEUE - len(self._writes)
                jobs = [(n, now - 1000 * i, self._era) for i, n in enumerate(reversed(chain))]
                self._writes += jobs[: max(0, room)]
            self._lock.notify()

    def reset(self) -> None:
        """The pool's pages hold nobody knows what: leave them."""
        with self._lock:
            self._era += 1
            self._writes.clear()
            for r in list(self._restores.values()):
                r.done = True
            self._restores.clear()

    def count(self) -> DiskCount:
        """What was done so far; from any thread."""
        refused = self._folder.n_refused if self._folder is not None else 0
        return DiskCount(
            pages_written=self.n_written,
            bytes_written=self.n_written * self._page_bytes,
            pages_read=self.n_read,
            bytes_read=self.n_read * self._page_bytes,
            hit_tokens=self._restored_tokens,
            errors=self._errors + refused,
        )

    def close(self) -> None:
        """Write what is left, for a bounded time; afterwards the pool may go. Idempotent."""
        with self._lock:
            self._restores.clear()
            self._deadline = self._deadline or time.perf_counter() + _FLUSH
            self._lock.notify()
        self._thread.join(_FLUSH + 0.5)
        with self._copying:  # a thread that still hangs in a write copies nothing any more
            self._era += 1
            self._off = True

    def _take(self, r: _Restore, most: int) -> list[bytes]:
        with self._lock:
            pages = [r.ready.popleft() for _ in range(min(most, len(r.ready)))]
            if pages:
                self._lock.notify()  # there is room to read on
        return pages

    def _too_slow(
        self, r: _Restore, pool: PagePool, seconds: Callable[[int], float | None]
    ) -> bool:
        """Whether the next page could have been computed by now."""
        size = pool.page_size
        step = seconds(8 * size)
        page = _UNKNOWN if step is None else step / 8
        return time.perf_counter() - r.began > _GRACE + page * (r.at - r.first + 1)

    def _end(self, r: _Restore) -> None:
        with self._lock:
            r.done = True
            r.ready.clear()
            self._restores.pop(r.sequence, None)

    def _restore(self, pool: PagePool, r: _Restore, pages: list[bytes]) -> bool:
        """Make ``pages`` cached ones; False if the rest is of no use."""
        s, size = r.sequence, pool.page_size
        nodes = list(pool.index.match(s.ids, s.digests[: r.at]))
        if len(nodes) < r.at:
            return False  # the start was needed for something else
        node: Node | None = nodes[-1] if nodes else pool.index.root
        held = [n.page for n in nodes]
        pool.retain(held)
        n = min(len(pages), pool.n_free)
        fresh = pool.allocate(n)
        try:
            for i, (page, data) in enumerate(zip(fresh, pages[:n], strict=True)):
                self._import(page, data)
                ids = tuple(s.ids[r.at * size : (r.at + 1) * size])
                node, fresh[i] = pool.commit(node, s.digests[r.at], ids, page)
                if node is None:
                    return False
                r.at += 1
                self.n_restored += 1
                self._restored_tokens += size
        except Exception as e:
            self._fail(e)
            return False
        finally:
            pool.release(held + fresh)
        return n == len(pages)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._folder = self._open()
        except Exception as e:
            self._fail(e)
        self._opened.set()
        while not self._off and (job := self._next()) is not None:
            try:
                job()
            except Exception as e:
                self._fail(e)

    def _fail(self, e: Exception) -> None:
        """No more of this."""
        if not self._off:
            self._errors += 1
            known = isinstance(e, OSError)
            log.warning("KV pages are no longer kept on disk: %s", why(e), exc_info=not known)
        with self._lock:
            self._off = True
            self._writes.clear()
            self._drops.clear()
            for r in self._restores.values():
                r.done = True
            self._lock.notify()
        self._arrived.set()

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to do; None at the end. Doubtful pages go before anyone
        can read them; who waits for a page comes before what is to be written."""
        with self._lock:
            while True:
                now = time.perf_counter()
                if self._off or (self._deadline is not None and now > self._deadline):
                    return None
                if self._drops:
                    return partial(self._drop, self._drops.popleft())
                for r in self._restores.values():
                    if not r.done and len(r.ready) * self._page_bytes < _AHEAD:
                        return partial(self._read, r)
                rest = self._rest_until - now if self._busy and self._deadline is None else 0.0
                if self._writes and rest <= 0:
                    return partial(self._write, *self._writes.popleft())
                if not self._writes and self._deadline is not None:
                    return None
                self._lock.wait(rest if self._writes else None)

    def _read(self, r: _Restore) -> None:
        folder = self._folder
        assert folder is not None
        i = r.next
        page = folder.read(r.digests[i], r.digests[i + 1], r.tokens[i])
        self.n_read += page is not None
        with self._lock:
            if r.done:
                return
            r.next += 1
            if page is not None:
                r.ready.append(page)
            r.done = page is None or i + 1 == r.end
            wake = r.done or len(r.ready) * self._page_bytes >= _WAKE
        if wake:
            self._arrived.set()

    def _drop(self, digests: set[bytes]) -> None:
        assert self._folder is not None
        self._folder.drop_behind(digests)

    def _write(self, node: Node, stamp: int, era: int) -> None:
        folder, parent = self._folder, node.parent
        assert folder is not None
        assert parent is not None
        began = time.perf_counter()
        if node.digest in folder:
            folder.touch(node.digest, stamp)
        elif not parent.digest or parent.digest in folder:  # else nobody could get to it
            page = self._copy(node, era)
            if page is not None:
                self.n_written += folder.write(parent.digest, node.digest, node.tokens, page, stamp)
        now = time.perf_counter()
        self._rest_until = now + _REST * (now - began)

    def _copy(self, node: Node, era: int) -> bytes | None:
        """The content of a node's page; None if it is gone."""
        with self._copying:
            if self._off or not node.alive or era != self._era:
                return None
            page = self._export(node.page)
            return page if node.alive and era == self._era else None
