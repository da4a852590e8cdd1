"""What is done to the tables: each function one change or one question, on the writer's thread."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from edgerun.tui.conversation import Conversation, Message
from edgerun.tui.database import Database, mark_stale
from edgerun.tui.rows import COLUMNS, from_row

__all__ = [
    "Hit",
    "SessionInfo",
    "append",
    "asked",
    "find",
    "fold_orphans",
    "list_sessions",
    "mark_deleted",
    "open_session",
    "purge",
    "put",
    "rename",
    "save",
    "search",
    "set_value",
]

log = logging.getLogger(__name__)

#: Seconds after which a deletion that its process did not live to finish is finished.
_FORGOTTEN = 3600.0
#: Characters of a hit's text shown before the match and from it on.
_BEFORE, _AFTER = 30, 120

_KEYS = {"drafts": ("session", "text"), "settings": ("key", "value"), "presets": ("name", "text")}


@dataclass(frozen=True)
class SessionInfo:
    """A line of the list of sessions. ``updated`` is unix seconds; ``model`` answered last."""

    id: str
    title: str
    updated: float
    n_messages: int
    model: str


@dataclass(frozen=True)
class Hit:
    """A place that a search found. ``marks`` are the ranges of ``snippet`` that match;
    ``message_id`` is None where the title does. ``at`` is unix seconds."""

    session: str
    title: str
    message_id: str | None
    snippet: str
    marks: tuple[tuple[int, int], ...]
    at: float


# -- writing ----------------------------------------------------------------------------------


def save(db: Database, values: tuple[Any, ...]) -> None:
    """id, title, named, system, head, visited, created. A title given by name stays."""
    db.run(
        "INSERT INTO sessions (id, title, named, system, head, visited, created, updated) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET "
        "title = CASE WHEN excluded.named >= named THEN excluded.title ELSE title END, "
        "named = max(named, excluded.named), system = excluded.system, head = excluded.head, "
        "visited = excluded.visited, created = min(created, excluded.created)",
        (*values, time.time()),
    )


def put(db: Database, session: str, row: tuple[Any, ...]) -> None:
    """A message as a whole; what was appended to it is part of it, or no longer meant."""
    data = dict(zip(COLUMNS, row, strict=True))
    now = time.time()
    sql = "INSERT OR IGNORE INTO sessions (id, created, updated) VALUES (?, ?, ?)"
    db.run(sql, (session, now, now))
    writer = _this_process() if data["state"] == "streaming" else None
    old = db.run("SELECT number, text FROM messages WHERE id = ?", (data["id"],)).fetchone()
    if old is None:
        names = ", ".join((*COLUMNS, "session", "writer"))
        marks = ", ".join("?" * (len(COLUMNS) + 2))
        cursor = db.run(f"INSERT INTO messages ({names}) VALUES ({marks})", (*row, session, writer))
        _reindex(db, int(cursor.lastrowid or 0), None, data["text"])
    else:
        sets = ", ".join(f"{name} = ?" for name in (*COLUMNS, "writer"))
        sql = f"UPDATE messages SET {sets} WHERE number = ?"
        db.run(sql, (*row, writer, old[0]))
        _reindex(db, old[0], old[1], data["text"])
        db.run("DELETE FROM tails WHERE message = ?", (data["id"],))
    sql = "UPDATE sessions SET updated = ?, model = coalesce(nullif(?, ''), model) WHERE id = ?"
    db.run(sql, (now, data["model"], session))


def append(db: Database, message: str, text: str, reasoning: str) -> None:
    """More of a streaming message."""
    sql = "INSERT INTO tails (message, text, reasoning) VALUES (?, ?, ?)"
    db.run(sql, (message, text, reasoning))


def rename(db: Database, session: str, title: str) -> None:
    """A title of the user's own, or the first question's again."""
    from edgerun.tui.conversation import title_of

    named = bool(title)
    if not named:
        sql = "SELECT text FROM messages WHERE session = ? AND role = 'user' ORDER BY id LIMIT 1"
        first = db.run(sql, (session,)).fetchone()
        title = title_of(first[0]) if first else ""
    db.run("UPDATE sessions SET title = ?, named = ? WHERE id = ?", (title, named, session))


def mark_deleted(db: Database, session: str, at: float | None) -> None:
    """Hide a session, or show it again."""
    db.run("UPDATE sessions SET deleted = ? WHERE id = ?", (at, session))


def purge(db: Database, sessions: Iterable[str]) -> None:
    """Remove sessions that are marked as deleted, with all that was said in them."""
    for session in sessions:
        sql = "SELECT 1 FROM sessions WHERE id = ? AND deleted IS NOT NULL"
        if db.run(sql, (session,)).fetchone() is None:
            continue  # another process brought it back
        messages = db.run("SELECT number, id, text FROM messages WHERE session = ?", (session,))
        for number, message, text in messages.fetchall():
            _reindex(db, number, text, None)
            db.run("DELETE FROM tails WHERE message = ?", (message,))
        db.run("DELETE FROM messages WHERE session = ?", (session,))
        db.run("DELETE FROM drafts WHERE session = ?", (session,))
        db.run("DELETE FROM sessions WHERE id = ?", (session,))


def asked(db: Database, limit: int) -> list[str]:
    """The last questions, each once, oldest first, but for long ones, which nobody types again."""
    sql = (
        "SELECT text FROM messages WHERE role = 'user' AND length(text) BETWEEN 1 AND 4000 "
        "GROUP BY text ORDER BY max(number) DESC LIMIT ?"
    )
    return [text for (text,) in db.run(sql, (limit,)).fetchall()][::-1]


def set_value(db: Database, table: str, key: str, value: str | None) -> None:
    """A draft, setting or preset; None removes it."""
    name, column = _KEYS[table]
    if value is None:
        db.run(f"DELETE FROM {table} WHERE {name} = ?", (key,))
    else:
        db.run(f"INSERT OR REPLACE INTO {table} ({name}, {column}) VALUES (?, ?)", (key, value))


def set_part(db: Database, key: str, part: str, value: str) -> None:
    """One entry of a setting that is a JSON object; whatever else it is, it becomes one."""
    found = db.run("SELECT value FROM settings WHERE key = ?", (key,)).fetchone()
    known: Any = None
    with contextlib.suppress(ValueError):
        known = json.loads(found[0]) if found else None
    whole = {**(known if isinstance(known, dict) else {}), part: json.loads(value)}
    set_value(db, "settings", key, json.dumps(whole))


def fold_orphans(db: Database) -> None:
    """Finish what processes that are gone left unfinished: answers and deletions."""
    sql = "SELECT DISTINCT writer FROM messages WHERE state = 'streaming'"
    for (writer,) in db.run(sql).fetchall():
        if _alive(writer):
            continue
        sql = "SELECT session, number FROM messages WHERE state = 'streaming' AND writer IS ?"
        for session, number in db.run(sql, (writer,)).fetchall():
            _fold(db, session, number)
    sql = "SELECT id FROM sessions WHERE deleted < ?"
    purge(db, [row[0] for row in db.run(sql, (time.time() - _FORGOTTEN,)).fetchall()])


def _fold(db: Database, session: str, number: int) -> None:
    sql = "SELECT id, text, reasoning FROM messages WHERE number = ?"
    message, old, reasoning = db.run(sql, (number,)).fetchone()
    text, reasoning = _whole(db, message, old, reasoning)
    db.run(
        "UPDATE messages SET text = ?, reasoning = ?, state = 'stopped', writer = NULL "
        "WHERE number = ?",
        (text, reasoning, number),
    )
    _reindex(db, number, old, text)
    db.run("DELETE FROM tails WHERE message = ?", (message,))


def _whole(db: Database, message: str, text: str, reasoning: str) -> tuple[str, str]:
    """Text and reasoning with what was appended."""
    sql = "SELECT text, reasoning FROM tails WHERE message = ? ORDER BY number"
    tails = db.run(sql, (message,)).fetchall()
    return text + "".join(t[0] for t in tails), reasoning + "".join(t[1] for t in tails)


def _reindex(db: Database, number: int, old: str | None, new: str | None) -> None:
    """Tell the index of texts that one has changed; None = there was none, there is none."""
    if old == new:
        return
    if db.words is None:
        mark_stale(db)
        return
    if old is not None:
        sql = "INSERT INTO words (words, rowid, text) VALUES ('delete', ?, ?)"
        db.run(sql, (number, old))
    if new is not None:
        db.run("INSERT INTO words (rowid, text) VALUES (?, ?)", (number, new))


@functools.cache
def _this_process() -> str:
    import platform

    import psutil

    started = psutil.Process().create_time()
    return json.dumps([platform.node(), os.getpid(), started])


def _alive(writer: str | None) -> bool:
    """Whether the process may still run; one of another machine may."""
    import platform

    import psutil

    try:
        node, pid, started = json.loads(writer or "")
        mine = node == platform.node()
        return not mine or bool(abs(psutil.Process(pid).create_time() - started) < 1.0)
    except (ValueError, TypeError, psutil.Error):
        return False


# -- reading ----------------------------------------------------------------------------------


def open_session(session: str, db: Database) -> Conversation | None:
    """A session; None if there is none. What still streams, or did when its process ended, is
    "stopped"; messages that a damaged database has lost are stepped over."""
    sql = "SELECT id, title, named, system, head, visited, created FROM sessions WHERE id = ?"
    row = db.run(sql, (session,)).fetchone()
    if row is None:
        return None
    names = ", ".join(COLUMNS)
    sql = f"SELECT {names} FROM messages WHERE session = ? ORDER BY id"
    messages: dict[str, Message] = {}
    for values in db.run(sql, (session,)).fetchall():
        try:
            message = from_row(values)
        except ValueError as e:
            log.warning("a message of chat %s is not whole: %s", session, e)
            continue
        if message.state == "streaming":
            message.text, message.reasoning = _whole(
                db, message.id, message.text, message.reasoning
            )
            message.state = "stopped"
        if message.parent not in messages:
            message.parent = None
        messages[message.id] = message
    head = row[4] if row[4] in messages else None
    if head is None and row[4] is not None and messages:
        head = next(reversed(messages))
    visited: dict[str, str] = {}
    with contextlib.suppress(ValueError, AttributeError):
        visited = {k: v for k, v in json.loads(row[5]).items() if v in messages}
    return Conversation(row[0], row[1], bool(row[2]), row[3], head, messages, visited, row[6])


def list_sessions(db: Database, limit: int, before: float | None) -> list[SessionInfo]:
    """Those with messages, newest first."""
    rows = db.run(
        "SELECT id, title, updated, (SELECT count(*) FROM messages WHERE session = s.id) AS n, "
        "model FROM sessions s WHERE deleted IS NULL AND updated < ? AND n > 0 "
        "ORDER BY updated DESC LIMIT ?",
        (1e300 if before is None else before, limit),
    )
    return [SessionInfo(*row) for row in rows.fetchall()]


def find(db: Database, text: str) -> str | None:
    """The session that someone means, of several the newest."""
    sql = (
        "SELECT id FROM sessions WHERE deleted IS NULL AND substr(id, 1, length(?1)) = ?1 "
        "ORDER BY updated DESC LIMIT 1"
    )
    if re.fullmatch(r"[0-9a-f]{6,}", text):
        row = db.run(sql, (text,)).fetchone()
        if row is not None:
            return str(row[0])
    titled = _titles(db, _words(text), 1, named=False)
    hits = [] if titled else search(db, text, 1)
    return str(titled[0][0]) if titled else hits[0].session if hits else None


def search(db: Database, query: str, limit: int) -> list[Hit]:
    """Names of sessions, then messages, that hold all words of a query; newest first."""
    words = _words(query)
    if not words:
        return []
    clauses, values = ["s.deleted IS NULL"], []
    indexed = [w for w in words if _in_index(db, w)]
    source, order = "messages m", "m.number"
    if indexed:
        source, order = "words JOIN messages m ON m.number = words.rowid", "words.rowid"
        star = "" if db.words == "trigram" else "*"
        clauses.append("words MATCH ?")
        values.append(" ".join('"' + w.replace('"', '""') + '"' + star for w in indexed))
    for word in words:
        if word not in indexed:
            clauses.append("has(m.text, ?)")
            values.append(word.casefold())
    rows = db.run(
        f"SELECT m.session, s.title, m.id, m.text, m.created FROM {source} "
        f"JOIN sessions s ON s.id = m.session WHERE {' AND '.join(clauses)} "
        # In the order of the table and the index, so that the newest need no look at all others.
        f"ORDER BY {order} DESC LIMIT ?",
        (*values, limit),
    )
    named = _titles(db, words, limit, named=True)
    pattern = re.compile("|".join(re.escape(w) for w in words), re.IGNORECASE)
    return [_hit(row, pattern) for row in (*named, *rows.fetchall())][:limit]


def _titles(db: Database, words: list[str], limit: int, *, named: bool) -> list[tuple[Any, ...]]:
    """Sessions by title, newest first; ``named``: only those that someone named, for other titles
    are the beginning of a message."""
    if not words:
        return []
    clauses = ["deleted IS NULL", "named >= ?", *["has(title, ?)"] * len(words)]
    return db.run(
        f"SELECT id, title, NULL, title, updated FROM sessions WHERE {' AND '.join(clauses)} "
        "ORDER BY updated DESC LIMIT ?",
        (named, *[w.casefold() for w in words], limit),
    ).fetchall()


def _words(query: str) -> list[str]:
    return query.replace("\0", " ").split()[:16]


def _in_index(db: Database, word: str) -> bool:
    """Whether the index finds a word as people mean it; else texts are looked through."""
    if db.words == "trigram":
        return len(word) >= 3
    # The other tokenizer knows words by spaces, which not every script has.
    return db.words is not None and word.isascii() and word.isalnum()


def _hit(row: Sequence[Any], pattern: re.Pattern[str]) -> Hit:
    session, title, message, text, at = row
    found = pattern.search(text)
    begin = max(0, found.start() - _BEFORE) if found else 0
    end = (found.start() if found else 0) + _AFTER
    snippet = " ".join(text[begin:end].split())
    if begin:
        snippet = "…" + snippet
    if end < len(text):
        snippet += "…"
    marks = tuple(m.span() for m in pattern.finditer(snippet))
    return Hit(session, title, message, snippet, marks, at)
