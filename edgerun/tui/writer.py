"""The thread that owns the database: writes in order, reads between them, trouble outlived."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgerun.errors import printable
from edgerun.tui import tables
from edgerun.tui.database import (
    Database,
    StoreError,
    is_damage,
    open_database,
    salvage,
    set_aside,
    writing,
)

__all__ = ["Writer"]

log = logging.getLogger(__name__)

#: Seconds between tries to write what could not be written.
_RETRY = 5.0
#: Seconds that a reader waits for its turn, and that closing may take.
_PATIENCE, _CLOSING = 10.0, 1.8

Work = Callable[[Database], Any]


@dataclass(eq=False)
class _Write:
    """A change. Of a streaming message: its id and pieces, which grow while they wait."""

    work: Work | None
    message: str = ""
    texts: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    done: list[Future[Any]] = field(default_factory=list)

    def apply(self, db: Database) -> None:
        if self.work is not None:
            self.work(db)
        else:
            tables.append(db, self.message, "".join(self.texts), "".join(self.reasonings))


@dataclass(eq=False)
class _Read:
    work: Work
    done: Future[Any]


class Writer:
    """See :class:`~edgerun.tui.store.Store`. The thread starts at once, and opens the database
    there: sqlite3 is not imported by whoever asks. ``where`` says which, None = one in memory."""

    def __init__(
        self, where: Callable[[], Path | None], notify: Callable[[str], None] | None = None
    ) -> None:
        self._where_to, self._notify = where, notify
        self._path: Path | None = None
        self._queue: queue.SimpleQueue[_Write | _Read | None] = queue.SimpleQueue()
        self._pending: deque[_Write] = deque()
        self._db: Database | None = None
        self._troubled = self._lost = False
        self._said: set[str] = set()
        self._retry_at = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="edgerun-chats", daemon=True)
        self._thread.start()

    # -- any thread ---------------------------------------------------------------------------

    def write(self, work: Work) -> None:
        """Do ``work`` in its turn, in a transaction."""
        self._queue.put(_Write(work))

    def append(self, message: str, text: str, reasoning: str) -> Future[Any]:
        """Add to a streaming message; done when that is on disk, or was not possible."""
        done: Future[Any] = Future()
        if self._closed:
            done.set_result(None)
        else:
            self._queue.put(_Write(None, message, [text], [reasoning], [done]))
        return done

    def read(self, work: Work) -> Any:
        """What ``work`` returns, after all writes before it.

        Raises:
            StoreError: the database cannot be read, or is closed.
        """
        if self._closed:
            raise StoreError("the database of chats is closed")
        done: Future[Any] = Future()
        self._queue.put(_Read(work, done))
        try:
            return done.result(_PATIENCE)
        except TimeoutError:
            raise StoreError("the database of chats does not answer: is its disk busy?") from None

    @property
    def saving(self) -> bool:
        """False while writes fail, or where they go to memory instead."""
        return not (self._troubled or self._lost)

    def close(self) -> None:
        """Write what waits, then end the thread. Idempotent."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join(_CLOSING)

    # -- its own thread -----------------------------------------------------------------------

    def _run(self) -> None:
        self._open()
        going = True
        while going:
            going = self._round()
        self._commit(last=True)
        if self._db is not None:
            with contextlib.suppress(Exception):
                self._db.close()

    def _round(self) -> bool:
        """Take what waits in the queue, and do it; False once the end was among it."""
        items: list[_Write | _Read | None] = []
        with contextlib.suppress(queue.Empty):
            items.append(self._queue.get(timeout=_RETRY if self._pending else None))
            while len(items) < 1000:
                items.append(self._queue.get_nowait())
        for item in items:
            if item is None:
                return False
            if isinstance(item, _Write):
                self._enqueue(item)
            else:
                self._commit()
                self._answer(item)
        self._commit()
        return True

    def _enqueue(self, item: _Write) -> None:
        last = self._pending[-1] if self._pending else None
        if item.work is None and last is not None and last.message == item.message:
            last.texts += item.texts
            last.reasonings += item.reasonings
            last.done += item.done
        else:
            self._pending.append(item)

    def _commit(self, last: bool = False) -> None:
        """Write what is pending, all or nothing; what fails stays, unless it is at fault."""
        import sqlite3

        if not self._pending or (self._troubled and not last and time.monotonic() < self._retry_at):
            self._settle()
            return
        try:
            if self._db is None:
                raise StoreError("the database of chats is not open")
            with writing(self._db):
                for item in self._pending:
                    item.apply(self._db)
        except sqlite3.OperationalError as e:
            self._trouble(e)
        except sqlite3.DatabaseError as e:
            if is_damage(e):
                self._replace(e)
            else:
                self._one_by_one()
        except StoreError as e:
            self._trouble(e)
        except Exception:
            log.exception("a write of a chat failed")
            self._one_by_one()
        else:
            self._settle()
            self._pending.clear()
            if self._troubled:
                self._troubled = False
                self._said.clear()
                self._say("chats are saved again")

    def _one_by_one(self) -> None:
        """Write each change on its own, so that one that cannot be does not take others along."""
        pending, self._pending = self._pending, deque()
        for item in pending:
            try:
                assert self._db is not None
                with writing(self._db):
                    item.apply(self._db)
            except Exception as e:
                log.warning("a write of a chat was given up: %s", printable(e))
            _settle(item.done)

    def _settle(self) -> None:
        for item in self._pending:
            _settle(item.done)

    def _answer(self, item: _Read) -> None:
        import sqlite3

        try:
            item.done.set_result(self._look(item.work))
        except sqlite3.Error as e:
            error = StoreError(f"{self._where()} cannot be read: {printable(e)}")
            self._say(str(error))
            item.done.set_exception(error)
        except StoreError as e:
            item.done.set_exception(e)
        except Exception as e:
            log.exception("a read of chats failed")
            item.done.set_exception(StoreError(f"unexpected {type(e).__name__}: {printable(e)}"))

    def _look(self, work: Work) -> Any:
        """What ``work`` reads; of a damaged database, what is left of it."""
        import sqlite3

        if self._db is None:
            raise StoreError("the database of chats is not open")
        try:
            return work(self._db)
        except sqlite3.DatabaseError as e:
            if not is_damage(e):
                raise
            self._replace(e)
        return work(self._db)

    # -- trouble ------------------------------------------------------------------------------

    def _open(self) -> None:
        import sqlite3

        try:
            self._path = self._where_to()
            self._db = open_database(self._path)
        except sqlite3.DatabaseError as e:
            self._replace(e)
        except StoreError as e:
            self._say(f"chats are not saved: {e}")
            self._path, self._db, self._lost = None, open_database(None), True
        if self._db is not None:
            with contextlib.suppress(Exception), writing(self._db):
                tables.fold_orphans(self._db)

    def _replace(self, error: Exception) -> None:
        """Begin a new database in place of a damaged one, which is kept."""
        if self._db is not None:
            with contextlib.suppress(Exception):
                self._db.close()
            self._db = None
        path = self._path
        try:
            if path is None:
                raise StoreError(f"the chats in memory are lost: {printable(error)}")
            moved = set_aside(path)
            self._db = open_database(path)
            saved = 0
            with contextlib.suppress(Exception):
                saved = salvage(moved, self._db)
            self._say(
                f"{path} was damaged ({printable(error)}): it is now {moved.name}, and a new one "
                f"begins with the {saved} chats that could be read"
            )
        except Exception as e:
            self._say(f"chats are not saved: {printable(e)}")
            self._path, self._db, self._lost = None, open_database(None), True
        self._one_by_one()

    def _trouble(self, error: Exception) -> None:
        self._retry_at = time.monotonic() + _RETRY
        self._settle()
        if not self._troubled:
            self._troubled = True
            self._say(
                f"chats are not saved: {self._where()}: {printable(error)}; it is tried again"
            )

    def _where(self) -> str:
        return "memory" if self._path is None else str(self._path)

    def _say(self, text: str) -> None:
        if text in self._said:
            return
        self._said.add(text)
        log.warning("%s", text)
        if self._notify is not None:
            # Whoever is told may wait for something that waits for this thread.
            threading.Thread(
                target=self._notify, args=(text,), name="edgerun-notify", daemon=True
            ).start()


def _settle(waiting: list[Future[Any]]) -> None:
    """Tell whoever waits, each once."""
    for done in waiting:
        with contextlib.suppress(Exception):  # cancelled meanwhile
            done.set_result(None)
    waiting.clear()
