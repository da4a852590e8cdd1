"""The database of conversations: its file, its tables, and what to do when it is damaged."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgerun.errors import EdgerunError, printable, why

if TYPE_CHECKING:
    import sqlite3

__all__ = [
    "VERSION",
    "Database",
    "StoreError",
    "is_damage",
    "mark_stale",
    "open_database",
    "salvage",
    "set_aside",
    "writing",
]

log = logging.getLogger(__name__)

#: One step a version; a database of version n has had the first n.
_STEPS = (
    (
        """CREATE TABLE sessions (
            id TEXT PRIMARY KEY, title TEXT NOT NULL DEFAULT '', named INTEGER NOT NULL DEFAULT 0,
            system TEXT NOT NULL DEFAULT '', head TEXT, visited TEXT NOT NULL DEFAULT '{}',
            model TEXT NOT NULL DEFAULT '', created REAL NOT NULL, updated REAL NOT NULL,
            deleted REAL)""",
        "CREATE INDEX sessions_updated ON sessions (updated)",
        """CREATE TABLE messages (
            number INTEGER PRIMARY KEY, session TEXT NOT NULL, id TEXT NOT NULL UNIQUE,
            parent TEXT, role TEXT NOT NULL, text TEXT NOT NULL, reasoning TEXT NOT NULL,
            calls TEXT, attachments TEXT, call_id TEXT NOT NULL, model TEXT NOT NULL,
            state TEXT NOT NULL, note TEXT NOT NULL, code TEXT NOT NULL, usage TEXT, timings TEXT,
            created REAL NOT NULL, writer TEXT)""",
        "CREATE INDEX messages_session ON messages (session)",
        "CREATE INDEX messages_open ON messages (writer) WHERE state = 'streaming'",
        # What a streaming message has grown by since its row was written: a piece costs the same
        # however long the message is.
        """CREATE TABLE tails (
            number INTEGER PRIMARY KEY, message TEXT NOT NULL, text TEXT NOT NULL,
            reasoning TEXT NOT NULL)""",
        "CREATE INDEX tails_message ON tails (message)",
        "CREATE TABLE drafts (session TEXT PRIMARY KEY, text TEXT NOT NULL)",
        "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
        "CREATE TABLE presets (name TEXT PRIMARY KEY, text TEXT NOT NULL)",
    ),
)
VERSION = len(_STEPS)
_TABLES = ("sessions", "messages", "tails", "drafts", "settings", "presets")
#: Of a damaged table: rows looked for at most, rows in a row that cannot be read after which the
#: rest is given up, and seconds for it all.
_MOST, _GAP, _SALVAGE = 1_000_000, 2000, 5.0

#: Ways to index texts, best first.
TOKENIZERS: tuple[str, ...] = ("trigram", "unicode61")
#: The setting that says that texts changed while the index could not be kept.
_STALE = "index stale"

#: Seconds to wait for another process's write.
_BUSY = 2.0


class StoreError(EdgerunError):
    """The database of conversations cannot be read or written."""

    code = "store_error"


class Database:
    """An open connection, for one thread. ``words`` is the tokenizer of the index of texts:
    "trigram" finds any three characters in a row, "unicode61" beginnings of words; None = the
    library has no FTS5."""

    def __init__(self, connection: sqlite3.Connection, path: Path | None) -> None:
        self.connection, self.path = connection, path
        self.words: str | None = None

    def run(self, sql: str, values: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        return self.connection.execute(sql, values)

    def close(self) -> None:
        self.connection.close()


@contextlib.contextmanager
def writing(database: Database) -> Iterator[None]:
    """A transaction that writes: all of it, or nothing."""
    database.run("BEGIN IMMEDIATE")
    try:
        yield
        database.run("COMMIT")
    except BaseException:
        with contextlib.suppress(Exception):  # some errors have rolled back already
            database.run("ROLLBACK")
        raise


def open_database(path: Path | None) -> Database:
    """The database at ``path``, made and brought up to date if need be; None = in memory.

    Only its owner may read the file: what people say to a model is private.

    Raises:
        StoreError: it cannot be opened, or a newer edgerun made it.
        sqlite3.DatabaseError: it is damaged; see :func:`is_damage`.
    """
    import sqlite3

    if path is not None:
        _make_private(path)
    try:
        connection = sqlite3.connect(
            ":memory:" if path is None else path, timeout=_BUSY, isolation_level=None
        )
    except sqlite3.Error as e:
        raise StoreError(f"{path} cannot be opened: {printable(e)}") from e
    database = Database(connection, path)
    try:
        _patiently(database)
    except BaseException as e:
        connection.close()
        if isinstance(e, sqlite3.Error) and not is_damage(e):
            raise StoreError(f"{path} cannot be used: {printable(e)}") from e
        raise
    return database


def is_damage(error: Exception) -> bool:
    """Whether an error of sqlite3 says that the file's content is no good."""
    said = str(error)
    return "malformed" in said or "not a database" in said or "corrupt" in said


def set_aside(path: Path) -> Path:
    """Move a damaged database, and what belongs to it, out of the way; returns where it is now.

    Raises:
        StoreError: it cannot be moved.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target, n = path.with_name(f"{path.name}.damaged-{stamp}"), 1
    while target.exists():
        n += 1
        target = path.with_name(f"{path.name}.damaged-{stamp}-{n}")
    try:
        os.replace(path, target)
        for tail in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.replace(path.with_name(path.name + tail), target.with_name(target.name + tail))
    except OSError as e:
        raise StoreError(f"{path} is damaged and cannot be moved aside: {why(e)}") from e
    return target


def salvage(old: Path, database: Database) -> int:
    """Bring what can still be read of a damaged database into a new one; how many sessions."""
    import sqlite3

    ends = time.monotonic() + _SALVAGE
    with contextlib.closing(sqlite3.connect(old)) as source, writing(database):
        source.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for table in _TABLES:
            columns = [row[1] for row in database.run(f"PRAGMA table_info({table})")]
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"
            # Row by row: each that has its page can be had, whatever lies around it.
            one = f"SELECT {names} FROM {table} WHERE rowid = ?"
            failed = 0
            for number in range(1, _last_row(source, table) + 1):
                try:
                    row = source.execute(one, (number,)).fetchone()
                    if row is not None:
                        database.run(insert, row)
                    failed = 0
                except sqlite3.Error:
                    failed += 1
                if failed > _GAP or time.monotonic() > ends:
                    break
        if database.words:
            database.run("INSERT INTO words (words) VALUES ('rebuild')")
        return int(database.run("SELECT count(*) FROM sessions").fetchone()[0])


def _last_row(source: sqlite3.Connection, table: str) -> int:
    import sqlite3

    with contextlib.suppress(sqlite3.Error):
        return min(source.execute(f"SELECT max(rowid) FROM {table}").fetchone()[0] or 0, _MOST)
    return _MOST


def _make_private(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        if os.name != "nt" and path.stat().st_mode & 0o077:
            path.chmod(0o600)
    except OSError as e:
        raise StoreError(f"{path} cannot be written: {why(e)}") from e


def _patiently(database: Database) -> None:
    """Prepare a database; the switch to WAL does not wait for others who do so, so this does."""
    import sqlite3

    ends = time.monotonic() + _BUSY
    while True:
        try:
            _prepare(database)
            return
        except sqlite3.OperationalError as e:
            if "locked" not in str(e) or time.monotonic() > ends:
                raise
        time.sleep(0.02)


def _prepare(database: Database) -> None:
    run = database.run
    run("PRAGMA synchronous = NORMAL")
    run("PRAGMA secure_delete = ON")  # what is deleted is gone
    database.connection.create_function(
        "has", 2, lambda text, folded: folded in text.casefold(), deterministic=True
    )
    if run("PRAGMA user_version").fetchone()[0] < VERSION:
        # A switch to WAL asks for the file alone, so only whoever makes it does that.
        run("PRAGMA journal_mode = WAL")
        with writing(database):
            have = run("PRAGMA user_version").fetchone()[0]  # another process may have been faster
            for step in _STEPS[have:]:
                for statement in step:
                    run(statement)
            if have < VERSION:
                run(f"PRAGMA user_version = {VERSION}")
    elif (have := run("PRAGMA user_version").fetchone()[0]) > VERSION:
        raise StoreError(
            f"{database.path} is of a newer edgerun (version {have}, this one knows {VERSION}): "
            "update edgerun"
        )
    database.words = _open_index(database)


def _open_index(database: Database) -> str | None:
    """The tokenizer of the index of texts, which is made if it is missing; None = there is none."""
    import sqlite3

    run = database.run
    made, stale = _index(database), _is_stale(database)
    if made is not None and not can_search(database):
        return None
    if made is not None and not stale:
        return made
    with writing(database):
        made = made or _index(database)
        for words in () if made else TOKENIZERS:
            try:
                run(
                    "CREATE VIRTUAL TABLE words USING fts5 "
                    f"(text, content='messages', content_rowid='number', tokenize='{words}')"
                )
            except sqlite3.OperationalError as e:
                log.info("no index of texts with %s: %s", words, e)
                continue
            made = words
            break
        if made:
            run("INSERT INTO words (words) VALUES ('rebuild')")
            run("DELETE FROM settings WHERE key = ?", (_STALE,))
    return made


def can_search(database: Database) -> bool:
    """Whether this library knows the index that there is; another one may have made it."""
    import sqlite3

    try:
        database.run("SELECT 1 FROM words LIMIT 0")
    except sqlite3.OperationalError:
        return False
    return True


def mark_stale(database: Database) -> None:
    """Note down that the index does not know what was just written."""
    database.run("INSERT OR REPLACE INTO settings VALUES (?, '1')", (_STALE,))


def _index(database: Database) -> str | None:
    row = database.run("SELECT sql FROM sqlite_master WHERE name = 'words'").fetchone()
    return None if row is None else "trigram" if "trigram" in row[0] else "unicode61"


def _is_stale(database: Database) -> bool:
    sql = "SELECT 1 FROM settings WHERE key = ?"
    return database.run(sql, (_STALE,)).fetchone() is not None
