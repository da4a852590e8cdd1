"""Downloads that go on while the chat does: started in the model picker, seen wherever asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from edgerun.errors import EdgerunError

__all__ = ["Pull", "Pulls"]

_Progress: TypeAlias = Callable[[str, int, "int | None"], None]


@dataclass
class Pull:
    """One download. ``state`` is ``running``, ``done``, ``cancelled`` or ``failed``; ``error`` is
    then what went wrong, one line. Bytes, and seconds of a clock that only runs forward."""

    target: str
    name: str
    done: int = 0
    total: int | None = None
    state: str = "running"
    error: str = ""
    _seen: list[tuple[float, int]] = field(default_factory=list)

    @property
    def share(self) -> float | None:
        """0 to 1; None as long as the size is not known."""
        return min(1.0, self.done / self.total) if self.total else None

    @property
    def per_second(self) -> float | None:
        """Bytes, of the last seconds; None as long as that cannot be told."""
        if len(self._seen) < 2:
            return None
        (t0, n0), (t1, n1) = self._seen[0], self._seen[-1]
        return max(0.0, (n1 - n0) / (t1 - t0)) if t1 - t0 > 0.2 else None

    @property
    def left(self) -> float | None:
        """Seconds until it is done, at the present speed."""
        speed = self.per_second
        return (self.total - self.done) / speed if speed and self.total else None

    def note(self, done: int, total: int | None, now: float) -> None:
        """What is there now."""
        self.done, self.total = done, total if total else self.total
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > 8:
            self._seen.pop(0)


class Pulls:
    """The downloads of a program; each model once at a time. Belongs to one event loop.

    Args:
        fetch: :meth:`Partner.pull`; cancelling its task ends it.
        changed: called when one began, went on, or ended.
        clock: seconds.
    """

    def __init__(
        self,
        fetch: Callable[[str, _Progress], Awaitable[None]],
        changed: Callable[[Pull], None] = lambda pull: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch, self._clock = fetch, clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._all: dict[str, Pull] = {}
        self._watchers: list[Callable[[Pull], None]] = [changed]

    def get(self, target: str) -> Pull | None:
        """The last download of ``target``, if there was one."""
        return self._all.get(target)

    @property
    def running(self) -> list[Pull]:
        return [p for p in self._all.values() if p.state == "running"]

    def watch(self, changed: Callable[[Pull], None]) -> Callable[[], None]:
        """Call ``changed``, too; what comes back ends that."""
        self._watchers.append(changed)
        return lambda: self._watchers.remove(changed)

    def start(self, target: str, name: str, total: int | None = None) -> Pull:
        """Fetch ``target``, or go on with what is running."""
        old = self._all.get(target)
        if old is not None and old.state == "running":
            return old
        pull = self._all[target] = Pull(target, name, total=total)
        self._tasks[target] = asyncio.get_running_loop().create_task(self._run(pull))
        self._tell(pull)
        return pull

    def cancel(self, target: str) -> None:
        """End it; what is here already stays for another try."""
        task = self._tasks.get(target)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """End all of them, and wait until they have."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, pull: Pull) -> None:
        def progress(stage: str, done: int, total: int | None) -> None:
            if pull.state == "running":
                pull.note(done, total, self._clock())
                self._tell(pull)

        try:
            await self._fetch(pull.target, progress)
            pull.state = "done"
        except asyncio.CancelledError:
            pull.state = "cancelled"
        except EdgerunError as e:
            pull.state, pull.error = "failed", str(e)
        except Exception as e:  # a bug, or a disk that is full: the chat goes on
            pull.state, pull.error = "failed", f"{type(e).__name__}: {e}"
        finally:
            self._tasks.pop(pull.target, None)
            self._tell(pull)

    def _tell(self, pull: Pull) -> None:
        for watcher in list(self._watchers):
            watcher(pull)
