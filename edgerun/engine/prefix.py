"""What the pages of the KV pool hold: an index from token ids to pages, for reuse across requests.

A page that is full of computed tokens gets a digest: a hash over its parent's digest and its own
token ids, so one digest stands for the whole text up to the page's end. Looking up a prompt walks
the chain. On a hit the parent and the ids are compared, too, so that two texts with one digest
cost a cache hit and nothing else.

A leaf may hold a page that is only partly filled, as the last one of a finished sequence is. It
is never shared, only copied from: see :meth:`PrefixIndex.best_start`.

The design leaves room for two more kinds of state. Layers with a sliding window need only the
pages that reach into it: a node would hold a page per group of layers with one window, and a match
would ask for the last few pages of such a group alone. Recurrent layers need their state at the
match's end: a node would hold a checkpoint, and a match would end at the last node that has one.
Neither changes how nodes are found.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np

__all__ = ["Node", "PrefixIndex", "digest"]

Tokens = tuple[int, ...]


def digest(parent: bytes, tokens: Sequence[int]) -> bytes:
    """16 bytes that stand for ``tokens`` behind what ``parent`` stands for. Does not depend on the
    process or the machine, so it may be stored."""
    return hashlib.blake2b(
        parent + np.asarray(tokens, "<i4").tobytes(), digest_size=16, person=b"edgerun kv page"
    ).digest()


class Node:
    """One page's content: ``tokens`` behind ``parent``. The root has no page."""

    __slots__ = ("alive", "children", "digest", "page", "parent", "tokens")

    def __init__(self, parent: Node | None, digest: bytes, tokens: Tokens, page: int) -> None:
        self.parent = parent
        self.digest = digest
        self.tokens = tokens
        self.page = page
        self.children: dict[Node, None] = {}  # in order of insertion
        self.alive = True


class PrefixIndex:
    """A tree of pages by content. It knows nothing of who uses them: see :mod:`.pages`."""

    def __init__(
        self, page_size: int, digest: Callable[[bytes, Sequence[int]], bytes] = digest
    ) -> None:
        self.page_size = page_size
        self._digest = digest
        self.root = Node(None, b"", (), -1)
        self._full: dict[bytes, Node] = {}
        self._by_page: dict[int, Node] = {}

    def __len__(self) -> int:
        """Pages with known content."""
        return len(self._by_page)

    def __contains__(self, page: int) -> bool:
        return page in self._by_page

    def knows(self, digest: bytes) -> bool:
        """Whether a full page has this digest."""
        return digest in self._full

    def extend(self, digests: list[bytes], ids: Sequence[int]) -> None:
        """Add the digests of the full pages of ``ids`` that ``digests`` lacks."""
        size = self.page_size
        for i in range(len(digests), len(ids) // size):
            parent = digests[i - 1] if i else b""
            digests.append(self._digest(parent, ids[i * size : (i + 1) * size]))

    def match(self, ids: Sequence[int], digests: Sequence[bytes]) -> Iterator[Node]:
        """The nodes of the leading full pages of ``ids``, as far as they are known."""
        node, size = self.root, self.page_size
        for i, key in enumerate(digests):
            found = self._full.get(key)
            if found is None or not _is(found, node, ids, i * size, size):
                return
            yield found
            node = found

    def best_start(self, parent: Node, rest: Sequence[int]) -> tuple[Node | None, int]:
        """The page behind ``parent`` that begins most like ``rest``, and how many tokens alike."""
        best, most = None, 0
        for child in parent.children:
            n = _common(child.tokens, rest)
            if n > most:
                best, most = child, n
        return best, most

    def find(self, parent: Node, key: bytes, tokens: Tokens) -> Node | None:
        """The node of a full page, if it is known.

        Raises:
            KeyError: another text has this digest.
        """
        found = self._full.get(key)
        if found is None:
            return None
        if found.parent is not parent or found.tokens != tokens:
            raise KeyError(key)
        return found

    def insert(self, parent: Node, key: bytes, tokens: Tokens, page: int) -> Node:
        """Note that ``page`` holds ``tokens`` behind ``parent``; fewer than a page make a leaf."""
        node = Node(parent, key, tokens, page)
        parent.children[node] = None
        self._by_page[page] = node
        if len(tokens) == self.page_size:
            self._full[key] = node
        return node

    def node(self, page: int) -> Node:
        """What a known page holds."""
        return self._by_page[page]

    def remove(self, page: int) -> list[Node]:
        """Forget a page, and those behind it, which could not be found any more.

        Returns what is forgotten: ``page`` first, and nothing if it is not known.
        """
        node = self._by_page.get(page)
        if node is None:
            return []
        if node.parent is not None:
            node.parent.children.pop(node, None)
        gone: list[Node] = []
        stack = [node]
        while stack:
            n = stack.pop()
            n.alive = False
            gone.append(n)
            del self._by_page[n.page]
            if self._full.get(n.digest) is n:
                del self._full[n.digest]
            stack += n.children
            n.children = {}
        return gone

    def check(self) -> None:
        """Prove that the tree and its indexes agree; for tests."""
        seen: dict[int, Node] = {}
        stack = [self.root]
        while stack:
            n = stack.pop()
            for c in n.children:
                if c.parent is not n or not c.alive or c.page in seen:
                    raise AssertionError(f"page {c.page} hangs wrong in the tree")
                if len(c.tokens) < self.page_size and c.children:
                    raise AssertionError(f"page {c.page} is partly filled and has children")
                seen[c.page] = c
                stack.append(c)
        full = {n.digest: n for n in seen.values() if len(n.tokens) == self.page_size}
        if seen != self._by_page or full != self._full:
            raise AssertionError("the indexes of the prefix tree disagree")


def _is(node: Node, parent: Node, ids: Sequence[int], at: int, size: int) -> bool:
    return node.parent is parent and node.tokens == tuple(ids[at : at + size])


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n
