"""Many models behind one address: loaded when asked for, dropped when idle or in the way."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from edgerun.catalog.split import parts
from edgerun.errors import ModelNotFoundError, OutOfMemoryError, printable
from edgerun.llm import LLM
from edgerun.server.sources import ModelCard, Sources

__all__ = ["Lease", "Registry", "UnknownModelError", "free_memory", "to_evict"]

log = logging.getLogger(__name__)

#: Seconds a request waits for a model in use to make room for its own.
PATIENCE = 60.0


class UnknownModelError(ModelNotFoundError):
    """A request names a model that is not served; ``served`` are."""

    def __init__(self, name: str, served: list[str]) -> None:
        listed = ", ".join(printable(s, 80) for s in served[:20]) or "none"
        more = f" and {len(served) - 20} more" if len(served) > 20 else ""
        super().__init__(
            f"the model {printable(name, 80)!r} is not served here; these are: {listed}{more}"
        )
        self.served = served


@dataclass(eq=False)
class _Place:
    """A model that is loaded, being loaded, or being closed."""

    name: str
    path: Path
    loading: asyncio.Future[LLM]
    llm: LLM | None = None
    size: int = 0
    users: int = 0
    closing: bool = False
    last_used: float = field(default_factory=time.monotonic)


class Lease:
    """A model in use: it stays loaded until :meth:`release`, or the end of the ``with`` block."""

    def __init__(self, llm: LLM, name: str, release: Callable[[], None]) -> None:
        self.llm, self.name = llm, name
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Let go of the model; idempotent. On the event loop's thread."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def to_evict(idle: list[tuple[float, int]], free: int, need: int) -> int:
    """How many of the idle models, longest unused first, have to go.

    Args:
        idle: of each when it was last used and its size in bytes; any order.
        free, need: bytes of memory.

    Returns 0 if ``need`` fits as it is, and all of them if even that is not enough.
    """
    gone = 0
    for _, size in sorted(idle):
        if free >= need:
            break
        free += size
        gone += 1
    return gone


def free_memory() -> int:
    """Bytes that can be taken without swapping."""
    import psutil

    return int(psutil.virtual_memory().available)


class Registry:
    """Models by name, each loaded at most once. Lives on one event loop.

    Args:
        sources: what can be served.
        load: opens a file; on a thread of its own, one at a time.
        ttl: seconds after which an unused model is dropped; None = never.
        most: models loaded at once at most; None = as many as fit in memory.
        free: bytes of memory that can be had.
    """

    def __init__(
        self,
        sources: Sources,
        load: Callable[[Path], LLM],
        *,
        ttl: float | None = None,
        most: int | None = None,
        free: Callable[[], int] = free_memory,
        patience: float = PATIENCE,
    ) -> None:
        self.sources = sources
        self._load, self._ttl, self._most, self._free = load, ttl, most, free
        self._patience = patience
        self._places: dict[Path, _Place] = {}
        self._one_load = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._sweeper: asyncio.Task[None] | None = None

    # -- looking ------------------------------------------------------------------------------

    def cards(self) -> list[ModelCard]:
        """What can be served; reads heads of files, so call it off the loop. Loads nothing."""
        return [card for card in self.sources.cards() if card.error is None]

    def loaded(self) -> dict[str, LLM]:
        """The models in memory, by name."""
        return {p.name: p.llm for p in self._places.values() if p.llm is not None and not p.closing}

    def loading(self) -> list[str]:
        """Names of models that are being loaded."""
        return [p.name for p in self._places.values() if p.llm is None and not p.closing]

    # -- using --------------------------------------------------------------------------------

    async def acquire(self, name: str | None = None) -> Lease:
        """The model called ``name``, loaded if it is not; None or "" = the first.

        A file's name with ``.gguf`` serves as well, and case does not matter where that is
        unambiguous.

        Raises:
            UnknownModelError: no such model.
            ModelFileError: its file cannot be used.
            OutOfMemoryError: it does not fit, even with all idle models dropped.
        """
        files = await asyncio.to_thread(self.sources.files)
        found = _lookup(name, files)
        path = files[found]
        while True:
            place = self._places.get(path)
            if place is None:
                place = self._place(found, path)
            place.users += 1
            try:
                llm = await asyncio.shield(place.loading)
            except BaseException:
                self._leave(place)
                raise
            if not place.closing:
                return Lease(llm, found, partial(self._leave, place))
            self._leave(place)  # dropped meanwhile: once more
            while self._places.get(path) is place:
                async with self._changed:
                    await self._changed.wait()

    def _place(self, name: str, path: Path) -> _Place:
        if self._closed:
            raise OutOfMemoryError("the server is shutting down")
        place = _Place(name, path, asyncio.get_running_loop().create_future())
        self._places[path] = place
        self._spawn(self._open(place))
        if self._ttl is not None and self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        return place

    def _leave(self, place: _Place) -> None:
        place.users -= 1
        place.last_used = time.monotonic()
        self._spawn(self._tell())

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- loading and dropping -----------------------------------------------------------------

    async def _open(self, place: _Place) -> None:
        try:
            async with self._one_load:
                place.size = await asyncio.to_thread(_size, place.path)
                await self._make_room(place.size)
                try:
                    llm = await asyncio.to_thread(self._load, place.path)
                except OutOfMemoryError:
                    if not await self._drop(self._idle()):
                        raise
                    llm = await asyncio.to_thread(self._load, place.path)
        except BaseException as e:
            self._places.pop(place.path, None)
            if not place.loading.cancelled():
                place.loading.set_exception(
                    e if isinstance(e, Exception) else OutOfMemoryError("the load was given up")
                )
                place.loading.exception()  # whoever waited may be gone: no warning
            await self._tell()
            if not isinstance(e, Exception):
                raise
            return
        place.llm = llm
        place.loading.set_result(llm)
        log.info("%s is loaded", printable(place.name))
        await self._tell()

    def _idle(self) -> list[_Place]:
        """Loaded and unused, the longest unused first."""
        idle = [p for p in self._places.values() if p.llm and not p.users and not p.closing]
        return sorted(idle, key=lambda p: p.last_used)

    def _in_the_way(self, size: int) -> tuple[list[_Place], bool]:
        """Which idle models have to go for a new one, and whether that will do."""
        idle, loaded = self._idle(), [p for p in self._places.values() if p.llm]
        # Weights, and as much again as a small cache and the step's buffers take.
        need, free = size + size // 4, self._free()
        gone = to_evict([(p.last_used, p.size) for p in idle], free, need)
        if self._most is not None:
            gone = max(gone, len(loaded) + 1 - self._most)
        enough = self._most is None or gone <= len(idle)
        return idle[:gone], enough and (free + sum(p.size for p in idle[:gone]) >= need)

    async def _make_room(self, size: int) -> None:
        """Drop idle models, or wait for ones in use, until a model of ``size`` bytes has room."""
        ends = time.monotonic() + self._patience
        while True:
            gone, enough = self._in_the_way(size)
            await self._drop(gone)
            others = any(p.llm and p.users for p in self._places.values())
            if enough or not others or (left := ends - time.monotonic()) <= 0:
                return  # if it is too large after all, the load says so in numbers
            async with self._changed:
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except asyncio.TimeoutError:
                    return

    async def _drop(self, places: list[_Place]) -> bool:
        """Close models; whether there were any."""
        for place in places:  # before the first await: nobody may take one of them now
            place.closing = True
        for place in places:
            log.info("%s is unloaded", printable(place.name))
            assert place.llm is not None
            await asyncio.to_thread(place.llm.close)
            self._places.pop(place.path, None)
            await self._tell()
        return bool(places)

    async def _sweep(self) -> None:
        assert self._ttl is not None
        while True:
            await asyncio.sleep(min(1.0, self._ttl / 4))
            old = time.monotonic() - self._ttl
            await self._drop([p for p in self._idle() if p.last_used < old])

    async def close(self) -> None:
        """Close every model; running requests end with ClosedError. Idempotent."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while any(p.llm is None for p in self._places.values()):  # a load cannot be stopped
            async with self._changed:
                await self._changed.wait()
        await self._drop([p for p in self._places.values() if not p.closing])


def _size(path: Path) -> int:
    return sum(path.with_name(n).stat().st_size for n in parts(path.name))


def _lookup(name: str | None, files: dict[str, Path]) -> str:
    if not name:
        if not files:
            raise UnknownModelError("", [])
        return next(iter(files))
    if name in files:
        return name
    plain = name.lower().removesuffix(".gguf")
    alike = [n for n in files if n.lower() == plain]
    if len(alike) == 1:
        return alike[0]
    raise UnknownModelError(name, list(files))
