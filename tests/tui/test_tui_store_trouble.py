"""A database that is damaged, full, read-only or another's: the chat goes on, and says so once."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from helpers.paths import ROOT

from edgerun.tui import writer
from edgerun.tui.conversation import Conversation, Message
from edgerun.tui.store import Store, StoreError

ENV = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
#: root may write anything anywhere.
MAY_WRITE_ALL = os.name != "nt" and os.geteuid() == 0


def heard(said: list[str], text: str = "") -> list[str]:
    """What the store has said, once that has ``text``."""
    ends = time.monotonic() + 30
    while not any(text in s for s in said):
        assert time.monotonic() < ends, said
        time.sleep(0.01)
    return said


def talk(store: Store, text: str) -> Conversation:
    c = Conversation()
    store.put(c.id, c.add("user", text))
    store.save(c)
    return c


@pytest.mark.parametrize("content", [b"no database " * 500, b"SQLite format 3\0" + b"\xff" * 9000])
def test_a_damaged_file_is_moved_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "chats.db"
    path.write_bytes(content)
    said: list[str] = []
    store = Store(path, notify=said.append)
    c = talk(store, "hello")
    assert store.open(c.id).path()[0].text == "hello"
    assert [s.id for s in store.list()] == [c.id]
    store.close()
    (aside,) = tmp_path.glob("chats.db.damaged-*")
    assert aside.read_bytes() == content
    assert len(heard(said)) == 1
    assert aside.name in said[0]
    again = Store(path, notify=said.append)
    assert [s.id for s in again.list()] == [c.id]
    again.close()
    assert len(said) == 1


def test_what_can_be_read_of_a_damaged_file_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store = Store(path)
    made = [talk(store, f"question {i} " + "x" * 1500) for i in range(60)]
    store.set("theme", "dark")
    store.set_draft(made[3].id, "draft")
    store.close()
    # Three pages of the messages' table, leaves, are gone.
    damaged = bytearray(path.read_bytes())
    pages = [damaged[i : i + 4096] for i in range(0, len(damaged), 4096)]
    leaves = [i for i, p in enumerate(pages) if p[0] == 0x0D and b"x" * 1000 in p]
    for i in leaves[10:16:2]:
        damaged[i * 4096 : (i + 1) * 4096] = b"\xa5" * 4096
    path.write_bytes(damaged)
    said: list[str] = []
    store = Store(path, notify=said.append)
    kept = []
    for c in made:  # one that has something on those pages finds it out
        with suppress(KeyError):
            kept += [c] if store.open(c.id).path() else []
    assert len([s for s in heard(said) if "damaged" in s]) == 1
    assert 50 < len(kept) < 60
    assert {s.id for s in store.list(100)} >= {c.id for c in kept}
    assert store.get("theme") == "dark"
    assert {h.session for h in store.search("question xxxx", 100)} == {c.id for c in kept}
    assert store.get_draft(made[3].id) == "draft"
    store.close()
    (aside,) = tmp_path.glob("chats.db.damaged-????????-??????")
    assert len(aside.read_bytes()) == len(damaged)


def test_damage_that_shows_late_loses_nothing_that_is_written_then(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store = Store(path)
    for i in range(200):
        talk(store, f"filler {i} " + "x" * 300)
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as f:
        f.seek(8192)
        f.write(os.urandom(size - 8192))
    said: list[str] = []
    store = Store(path, notify=said.append)
    c = talk(store, "after")
    m = c.add("assistant", state="streaming")
    store.put(c.id, m)
    store.append(m.id, "an answer").result(5)
    found = store.open(c.id)
    assert [x.text for x in found.messages.values()] == ["after", "an answer"]
    store.close()
    heard(said, "damaged")
    assert list(tmp_path.glob("chats.db.damaged-*"))


@pytest.mark.skipif(MAY_WRITE_ALL, reason="root may write in read-only folders")
def test_a_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        check_goes_on(tmp_path / "chats.db")
    finally:
        tmp_path.chmod(0o700)


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check_goes_on(tmp_path / "file" / "chats.db")


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "chats.db").mkdir()
    check_goes_on(tmp_path / "chats.db")


def check_goes_on(path: Path) -> None:
    said: list[str] = []
    store = Store(path, notify=said.append)
    c = talk(store, "hello")
    talk(store, "again")
    assert store.open(c.id).path()[0].text == "hello"
    assert len(store.search("hello")) == 1
    store.close()
    assert len(heard(said)) == 1
    assert said[0].startswith("chats are not saved: ")
    assert "\n" not in said[0]


def test_one_of_a_newer_edgerun_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 999")
    db.close()
    before = path.read_bytes()
    said: list[str] = []
    store = Store(path, notify=said.append)
    talk(store, "hello")
    assert len(store.list()) == 1
    store.close()
    assert path.read_bytes() == before
    heard(said, "newer edgerun")


def test_a_full_disk_delays_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_RETRY", 0.1)
    path = tmp_path / "chats.db"
    said: list[str] = []
    store = Store(path, notify=said.append)
    c = talk(store, "before")
    # SQLite's own way to a full disk: no page more than there are.
    pages = store._writer.read(lambda db: db.run("PRAGMA page_count").fetchone()[0])
    store._writer.read(lambda db: db.run(f"PRAGMA max_page_count = {pages}").fetchone())
    m = c.add("assistant", state="streaming")
    store.put(c.id, m)
    began = time.perf_counter()
    for i in range(30):
        store.append(m.id, f"{i} " + "x" * 5000 + "\n").result(5)
    assert time.perf_counter() - began < 10
    assert len(heard(said, "full")) == 1
    assert not store.saving
    assert len(store.list()) == 1
    store._writer.read(lambda db: db.run("PRAGMA max_page_count = 1000000").fetchone())
    heard(said, "chats are saved again")
    assert store.saving
    text = store.open(c.id).messages[m.id].text
    assert [line.split()[0] for line in text.splitlines()] == [str(i) for i in range(30)]
    store.close()
    assert len(said) == 2


def test_another_that_holds_the_database_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    said: list[str] = []
    store = Store(path, notify=said.append)
    c = talk(store, "first")
    store.list()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.perf_counter()
    m = c.add("assistant", "answer", state="done")
    store.put(c.id, m)
    assert time.perf_counter() - began < 1  # the caller does not wait
    time.sleep(0.2)
    other.execute("COMMIT")
    other.close()
    assert store.open(c.id).messages[m.id].text == "answer"
    store.close()
    assert said == []


def test_a_change_that_cannot_be_made_takes_no_other_along(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    a = talk(store, "a")
    bad = Message("x" * 24, None, "user", "bad")
    bad.created = object()  # type: ignore[assignment]
    store.put(a.id, bad)
    b = talk(store, "b")
    assert store.open(a.id).path()[0].text == "a"
    assert store.open(b.id).path()[0].text == "b"
    store.close()


def test_rows_that_are_not_whole_are_stepped_over(tmp_path: Path) -> None:
    path = tmp_path / "chats.db"
    store = Store(path)
    c = talk(store, "first")
    store.put(c.id, c.add("assistant", "answer"))
    store.put(c.id, c.add("user", "second"))
    store.save(c)
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE messages SET usage = '{nonsense' WHERE text = 'answer'")
        db.execute("UPDATE sessions SET visited = '[1'")
    db.close()
    store = Store(path)
    found = store.open(c.id)
    assert [m.text for m in found.messages.values()] == ["first", "second"]
    assert [m.text for m in found.path()] == ["second"]
    assert len(store.search("first")) == 1
    store.close()


def test_after_its_end_it_says_so(tmp_path: Path) -> None:
    store = Store(tmp_path / "chats.db")
    c = talk(store, "a")
    store.close()
    store.close()
    assert store.append(c.head or "", "x").done()
    assert store.list() == []
    with pytest.raises(StoreError, match="closed"):
        store.open(c.id)


_CHAT = """
import asyncio, sys, pathlib
from edgerun.tui.conversation import Conversation
from edgerun.tui.store import Store
from edgerun.tui import turn as turn_module
from edgerun.tui.turn import Turn
from helpers.tui import FakePartner, Pause

async def main():
    store = Store(pathlib.Path(sys.argv[1]))
    turn_module._DISK = 60  # the machine may be busy: this is about what was shown
    c = Conversation()
    c.add("user", "count")
    script = [x for i in range(10**6) for x in (f"{i} ", Pause(0.0003))]
    turn = Turn(c, FakePartner(script, loaded=True), store)
    store.list()
    print(c.id, flush=True)
    async for chunk in turn:
        print(chunk.text, end="", flush=True)  # shown

asyncio.run(main())
"""


@pytest.mark.skipif(os.name == "nt", reason="no SIGKILL")
@pytest.mark.parametrize("n", [30, 3000])
def test_what_was_shown_survives_kill_9(tmp_path: Path, n: int) -> None:
    path = tmp_path / "chats.db"
    process = subprocess.Popen(
        [sys.executable, "-c", _CHAT, str(path)], env=ENV, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    session = process.stdout.readline().strip()
    shown = process.stdout.read(n)
    # Another process that opens the database does not finish what this one is still at.
    other = Store(path)
    early = other.open(session).path()[-1].text
    assert early.startswith(shown)
    shown += process.stdout.read(100)
    late = other.open(session).path()[-1].text
    assert late.startswith(early)
    assert len(late) > len(early)
    other.close()

    time.sleep(random.random() / 50)
    process.send_signal(signal.SIGKILL)
    shown += process.stdout.read()
    process.wait(20)
    process.stdout.close()
    store = Store(path)
    question, answer = store.open(session).path()
    assert question.text == "count"
    assert answer.state == "stopped"
    assert answer.text.startswith(shown)
    numbers = answer.text.split()
    assert numbers == [str(i) for i in range(len(numbers))]
    # The new process has finished what the dead one left: it is found.
    assert [h.message_id for h in store.search("1 2 3")] == [answer.id]
    assert store.list()[0].id == session
    store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM tails").fetchone() == (0,)
    db.close()
