"""The page pool and its prefix index: counts, reuse, eviction."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edgerun.engine.pages import MIN_COPY, Match, PagePool
from edgerun.engine.prefix import Node, PrefixIndex, digest
from edgerun.errors import OutOfMemoryError

SIZE = 4


class Text:
    """Tokens and the pages they lie in, as a sequence of the engine holds them."""

    def __init__(self, pool: PagePool, ids: list[int], match: Match | None = None) -> None:
        self.ids = ids
        self.digests: list[bytes] = []
        pool.index.extend(self.digests, ids)
        match = match or pool.match([*ids, 0], self.digests)
        self.hit = match
        self.pages = [n.page for n in match.nodes]
        pool.retain(self.pages)
        self.node: Node | None = match.nodes[-1] if match.nodes else pool.index.root
        try:
            self.pages += pool.allocate(pool.pages_for(len(ids)) - len(match.nodes))
        except OutOfMemoryError:
            pool.release(self.pages)
            raise
        for i in range(len(match.nodes), len(ids) // SIZE):
            part = tuple(ids[i * SIZE : (i + 1) * SIZE])
            self.node, self.pages[i] = pool.commit(self.node, self.digests[i], part, self.pages[i])

    def end(self, pool: PagePool, keep_rest: bool = True) -> None:
        at = len(self.ids) // SIZE
        if keep_rest and at < len(self.pages):
            pool.keep_rest(self.node, tuple(self.ids[at * SIZE :]), self.pages[at])
        pool.release(self.pages)


class PoolMachine(RuleBasedStateMachine):
    """Texts come and go; every page is used as often as is counted, or cached, or free. A page
    that the index knows holds what it held when that was noted."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = PagePool(12, SIZE)
        self.texts: list[Text] = []
        self.content: dict[int, tuple[int, ...]] = {}

    @rule(ids=st.lists(st.integers(1, 2), min_size=1, max_size=18))
    def begin(self, ids: list[int]) -> None:
        free = self.pool.n_free
        try:
            text = Text(self.pool, ids)
        except OutOfMemoryError:
            assert self.pool.n_free == free
            assert self.pool.pages_for(len(ids)) > free
            return
        for i, n in enumerate(text.hit.nodes):
            assert self.content[n.page] == tuple(ids[: (i + 1) * SIZE])
        if (source := text.hit.source) is not None:
            alike = text.hit.n_tokens - len(text.hit.nodes) * SIZE
            assert alike >= MIN_COPY
            assert self.content[source.page][: text.hit.n_tokens] == tuple(ids[: text.hit.n_tokens])
        for i, page in enumerate(text.pages):
            self.content[page] = tuple(ids[: (i + 1) * SIZE])
        self.texts.append(text)

    @rule(i=st.integers(0, 100), keep_rest=st.booleans())
    def end(self, i: int, keep_rest: bool) -> None:
        if self.texts:
            self.texts.pop(i % len(self.texts)).end(self.pool, keep_rest)

    @rule(i=st.integers(0, 100))
    def distrust(self, i: int) -> None:
        if self.texts:
            pages = self.texts[i % len(self.texts)].pages
            self.pool.forget(pages)
            assert not any(p in self.pool.index for p in pages)

    @invariant()
    def sound(self) -> None:
        self.pool.check([t.pages for t in self.texts])
        used = {p for t in self.texts for p in t.pages}
        assert self.pool.n_free == 12 - len(used)


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestPagePool = PoolMachine.TestCase


def test_pages_for() -> None:
    pool = PagePool(4, 32)
    assert [pool.pages_for(n) for n in (0, 1, 31, 32, 33, 64, 65)] == [0, 1, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("owners", [[], [[0]], [[0, 1], [1]], [[0, 1, 2]], [[0, 0, 1]]])
def test_check_finds_wrong_accounts(owners: list[list[int]]) -> None:
    pool = PagePool(3, 4)
    assert sorted(pool.allocate(2)) == [0, 1]
    pool.check([[1], [0]])
    with pytest.raises(AssertionError):
        pool.check(owners)


def test_a_page_is_not_released_twice() -> None:
    pool = PagePool(3, 4)
    pages = pool.allocate(2)
    pool.release(pages)
    with pytest.raises(ValueError, match="released twice"):
        pool.release(pages)


def test_all_pages_or_none() -> None:
    pool = PagePool(3, 4)
    with pytest.raises(OutOfMemoryError):
        pool.allocate(4)
    assert pool.n_free == 3


def test_the_longest_unused_goes_first_and_never_before_what_stands_behind_it() -> None:
    pool = PagePool(6, SIZE)
    old, new = [1] * 8, [2] * 8
    for ids in (old, new, old):
        Text(pool, ids).end(pool)
    assert (pool.n_cached, pool.n_evicted) == (4, 0)
    pool.allocate(3)  # two are free; the second page of `new` goes
    assert pool.n_evicted == 1
    digests: list[bytes] = []
    pool.index.extend(digests, new)
    assert len(pool.match([*new, 0], digests).nodes) == 1
    pool.allocate(1)
    assert pool.match([*new, 0], digests).nodes == ()
    digests.clear()
    pool.index.extend(digests, old)
    assert len(pool.match([*old, 0], digests).nodes) == 2
    pool.allocate(2)
    assert pool.n_free == 0


def test_pages_in_use_are_never_given_away() -> None:
    pool = PagePool(3, SIZE)
    Text(pool, [1] * 8).end(pool)
    again = Text(pool, [1] * 8)
    with pytest.raises(OutOfMemoryError):
        pool.allocate(2)
    again.end(pool)
    assert len(pool.allocate(3)) == 3


def test_the_last_token_is_never_found() -> None:
    pool = PagePool(8, SIZE)
    Text(pool, [1, 2, 3, 4, 5, 6, 7, 8]).end(pool)
    digests: list[bytes] = []
    pool.index.extend(digests, [1, 2, 3, 4, 5, 6, 7, 8])
    found = pool.match([1, 2, 3, 4, 5, 6, 7, 8], digests)
    assert (len(found.nodes), found.n_tokens) == (1, 7)
    assert found.source is not None  # its first three tokens, to be copied
    found = pool.match([1, 2, 3, 4], digests[:1])
    assert (len(found.nodes), found.n_tokens) == (0, 3)
    assert pool.match([1, 2, 3], []) == Match()  # two tokens alike are not worth a copy


def test_the_same_text_computed_twice_is_kept_once() -> None:
    pool = PagePool(8, SIZE)
    a, b = Text(pool, [1] * 8, Match()), Text(pool, [1] * 8, Match())
    assert a.pages == b.pages
    assert pool.n_free == 6
    pool.check([a.pages, b.pages])


def test_two_texts_with_one_digest_do_not_mix() -> None:
    index = PrefixIndex(2, digest=lambda parent, tokens: b"the same for all")
    node = index.insert(index.root, b"the same for all", (1, 2), 0)
    assert list(index.match([1, 2], [b"the same for all"])) == [node]
    assert list(index.match([3, 4], [b"the same for all"])) == []
    assert list(index.match([1, 2, 1, 2], [b"the same for all"] * 2)) == [node]
    with pytest.raises(KeyError):
        index.find(index.root, b"the same for all", (3, 4))
    with pytest.raises(KeyError):
        index.find(node, b"the same for all", (1, 2))


def test_such_a_text_is_not_cached_and_nothing_behind_it() -> None:
    pool = PagePool(8, 2)
    pool.index = PrefixIndex(2, digest=lambda parent, tokens: b"x")
    a, b, c = pool.allocate(3)
    assert pool.commit(pool.index.root, b"x", (1, 2), a)[0] is not None
    assert pool.commit(pool.index.root, b"x", (3, 4), b) == (None, b)
    assert pool.commit(None, b"x", (5, 6), c) == (None, c)
    pool.check([[a], [b], [c]])


def test_forgetting_a_page_forgets_what_stands_behind_it() -> None:
    pool = PagePool(8, SIZE)
    Text(pool, [1] * 12).end(pool)
    first = Text(pool, [1] * 4)
    pool.forget(first.pages)
    assert (len(pool.index), pool.n_cached, pool.n_free) == (0, 0, 7)
    later = tuple([1] * 4)
    assert pool.commit(first.node, digest(first.digests[0], later), later, 5)[0] is None


def test_digests_stand_for_the_whole_text_and_for_good() -> None:
    index = PrefixIndex(2)
    a: list[bytes] = []
    b: list[bytes] = []
    index.extend(a, [1, 2, 3, 4, 5])
    index.extend(b, [9, 2, 3, 4])
    assert len(a) == len(b) == 2
    assert a[1] != b[1]
    assert a[1] == digest(digest(b"", [1, 2]), [3, 4])
    assert a[0].hex() == "fabd0aee29ff24b8521e178c4890005c"  # it may lie in files
