"""Many models: loaded once, on demand; dropped when idle, or in the way of another."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from helpers.gguf_build import random_model
from hypothesis import given
from hypothesis import strategies as st

from edgerun.errors import GGUFError, ModelFileError, OutOfMemoryError
from edgerun.server.registry import Registry, UnknownModelError, to_evict
from edgerun.server.sources import Sources


class FakeLLM:
    def __init__(self, path: Path, host: Host) -> None:
        self.path, self.host, self.closed = path, host, False

    def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.host.events.append(f"-{self.path.stem}")
        self.host.used -= self.path.stat().st_size


class Host:
    """A machine with so much memory, on which models take what their files take."""

    def __init__(self, memory: int = 10**9) -> None:
        self.memory, self.used, self.events = memory, 0, []
        self.loads = 0
        self._lock = threading.Lock()

    def free(self) -> int:
        return self.memory - self.used

    def load(self, path: Path) -> Any:
        assert self._lock.acquire(blocking=False), "two loads at once"
        try:
            time.sleep(0.01)
            if path.stem.startswith("bad"):
                raise GGUFError(f"{path.name} is bad")
            if path.stat().st_size > self.free():
                raise OutOfMemoryError("it does not fit")
            self.used += path.stat().st_size
            self.loads += 1
            self.events.append(f"+{path.stem}")
            return FakeLLM(path, self)
        finally:
            self._lock.release()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, size in (("a", 100), ("b", 100), ("c", 100), ("bad", 10), ("huge", 10**6)):
        (tmp_path / f"{name}.gguf").write_bytes(bytes(size))
    return tmp_path


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


def registry(folder: Path, host: Host, **options: Any) -> Registry:
    return Registry(Sources(folders=[folder]), host.load, free=host.free, **options)


def test_loaded_once_for_all_who_ask_at_once(folder: Path) -> None:
    async def work() -> None:
        host = Host()
        shelf = registry(folder, host)
        leases = await asyncio.gather(*(shelf.acquire("b") for _ in range(20)))
        assert host.loads == 1
        assert len({id(x.llm) for x in leases}) == 1
        for x in leases:
            x.release()
            x.release()
        assert (await shelf.acquire("b")).llm is leases[0].llm
        await shelf.close()
        assert host.events == ["+b", "-b"]

    run(work())


def test_names(folder: Path) -> None:
    async def work() -> None:
        shelf = registry(folder, Host())
        for asked, got in ((None, "a"), ("", "a"), ("b", "b"), ("B", "b"), ("c.gguf", "c")):
            with await shelf.acquire(asked) as lease:
                assert lease.name == got
        with pytest.raises(UnknownModelError, match="'gpt-4' is not served here; these are: a, b"):
            await shelf.acquire("gpt-4")
        await shelf.close()

    run(work())


def test_a_bad_file_hurts_nobody(folder: Path) -> None:
    async def work() -> None:
        host = Host()
        shelf = registry(folder, host)
        good = await shelf.acquire("a")
        for _ in range(2):
            with pytest.raises(GGUFError, match="bad"):
                await shelf.acquire("bad")
        assert (await shelf.acquire("a")).llm is good.llm
        await shelf.close()

    run(work())


def test_idle_models_make_room_longest_unused_first(folder: Path) -> None:
    async def work() -> None:
        host = Host(memory=225)
        shelf = registry(folder, host)
        for name in ("a", "b", "a", "c"):
            (await shelf.acquire(name)).release()
        assert host.events == ["+a", "+b", "-b", "+c"]
        assert sorted(shelf.loaded()) == ["a", "c"]
        await shelf.close()

    run(work())


def test_a_model_in_use_is_waited_for_not_dropped(folder: Path) -> None:
    async def work() -> None:
        host = Host(memory=130)
        shelf = registry(folder, host)
        held = await shelf.acquire("a")
        waiting = asyncio.create_task(shelf.acquire("b"))
        await asyncio.sleep(0.1)
        assert host.events == ["+a"]
        assert not waiting.done()
        held.release()
        assert (await waiting).name == "b"
        assert host.events == ["+a", "-a", "+b"]
        await shelf.close()

    run(work())


def test_what_never_fits_is_refused_and_patience_ends(folder: Path) -> None:
    async def work() -> None:
        host = Host(memory=130)
        shelf = registry(folder, host, patience=0.1)
        held = await shelf.acquire("a")
        with pytest.raises(OutOfMemoryError):
            await shelf.acquire("b")
        held.release()
        with pytest.raises(OutOfMemoryError):
            await shelf.acquire("huge")
        (await shelf.acquire("b")).release()
        await shelf.close()

    run(work())


def test_a_limit_on_loaded_models(folder: Path) -> None:
    async def work() -> None:
        host = Host()
        shelf = registry(folder, host, most=1)
        for name in ("a", "b", "a"):
            (await shelf.acquire(name)).release()
        assert host.events == ["+a", "-a", "+b", "-b", "+a"]
        await shelf.close()

    run(work())


def test_idle_models_are_dropped_after_a_while(folder: Path) -> None:
    async def work() -> None:
        host = Host()
        shelf = registry(folder, host, ttl=0.1)
        held = await shelf.acquire("a")
        (await shelf.acquire("b")).release()
        await asyncio.sleep(0.5)
        assert host.events == ["+a", "+b", "-b"]
        held.release()
        await asyncio.sleep(0.5)
        assert not shelf.loaded()
        (await shelf.acquire("a")).release()  # and come back
        await shelf.close()

    run(work())


def test_a_request_given_up_while_its_model_loads(folder: Path) -> None:
    async def work() -> None:
        host = Host()
        shelf = registry(folder, host)
        task = asyncio.create_task(shelf.acquire("a"))
        await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with await shelf.acquire("a"):
            assert host.loads == 1
        assert shelf._places[folder / "a.gguf"].users == 0
        await shelf.close()

    run(work())


def test_random_users_never_meet_a_closed_model(folder: Path) -> None:
    async def work() -> None:
        host = Host(memory=240)
        shelf = registry(folder, host, ttl=0.02)

        async def user(i: int) -> None:
            for turn in range(6):
                with await shelf.acquire("abc"[(i + turn * i) % 3]) as lease:
                    assert not lease.llm.closed
                    await asyncio.sleep(0.003 * (i % 4))
                    assert not lease.llm.closed
                assert host.free() >= 0

        await asyncio.gather(*(user(i) for i in range(12)))
        await shelf.close()
        assert host.used == 0

    run(work())


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 100))),
    st.integers(0, 500),
    st.integers(0, 500),
)
def test_no_more_goes_than_needed(idle: list[tuple[float, int]], free: int, need: int) -> None:
    n = to_evict(idle, free, need)
    sizes = [size for _, size in sorted(idle)]
    assert n == len(idle) or free + sum(sizes[:n]) >= need
    assert n == 0 or free + sum(sizes[: n - 1]) < need


def test_a_folder_is_looked_through(tmp_path: Path) -> None:
    random_model(tmp_path / "good.gguf")
    (tmp_path / "page.gguf").write_text("<html>no</html>")
    (tmp_path / "set-00001-of-00002.gguf").write_bytes(b"GGUF")
    (tmp_path / "mmproj-x.gguf").write_bytes(b"GGUF")
    (tmp_path / "notes.txt").write_text("")
    sources = Sources(folders=[tmp_path])
    cards = {c.id: c for c in sources.cards()}
    assert list(cards) == ["good", "page"]
    assert cards["good"].architecture == "llama"
    assert cards["good"].size == (tmp_path / "good.gguf").stat().st_size
    assert cards["page"].error is not None
    assert "page.gguf" in str(cards["page"].error)
    random_model(tmp_path / "page.gguf")  # mended: seen without a restart
    assert all(c.error is None for c in sources.cards())
    with pytest.raises(ModelFileError, match="not a folder"):
        Sources(folders=[tmp_path / "nowhere"])


def test_two_files_of_one_name(tmp_path: Path) -> None:
    for sub in ("x", "y"):
        (tmp_path / sub).mkdir()
        random_model(tmp_path / sub / "m.gguf")
    sources = Sources(folders=[tmp_path / "x", tmp_path / "y", tmp_path / "x"])
    assert list(sources.files()) == ["m", "y/m"]
