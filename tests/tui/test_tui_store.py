"""Conversations on disk: what was written is there, found, and private."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.paths import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.chat import ToolCall
from edgerun.core import Timings, Usage
from edgerun.tui import database
from edgerun.tui.conversation import Attachment, Conversation
from edgerun.tui.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    store = Store(path)
    yield store
    store.close()


def keep(store: Store, c: Conversation) -> None:
    for m in c.messages.values():
        store.put(c.id, m)
    store.save(c)


def talk(store: Store, *texts: str) -> Conversation:
    c = Conversation()
    for i, text in enumerate(texts):
        c.add("assistant" if i % 2 else "user", text, **({"model": "m1"} if i % 2 else {}))
    keep(store, c)
    return c


def rich() -> Conversation:
    c = Conversation(system="Be \x00brief.")
    first = c.add("user", "what?", attachments=(Attachment("a.py", "x = 1\n", 5),))
    c.add(
        "assistant",
        "an\nanswer ✓",
        reasoning="hm",
        model="m",
        state="length",
        usage=Usage(10, 5, 3, 1),
        timings=Timings(0.1, 0.2, 0.3, 7, 4),
    )
    c.add("user", "call it")
    c.add("assistant", "", calls=(ToolCall("1", "f", '{"a": 1}'),))
    c.add("tool", "42", call_id="1")
    c.add("assistant", "", state="error", note="it broke", code="closed")
    c.edit(first.id, "other?")
    c.switch(c.head or "", -1)
    return c


def test_what_is_written_is_read_again(store: Store, path: Path) -> None:
    c = rich()
    keep(store, c)
    store.close()
    again = Store(path).open(c.id)
    c.system = c.system.replace("\0", "\ufffd")
    assert again == c
    assert [m.id for m in again.path()] == [m.id for m in c.path()]


def test_branches_come_back_as_they_were_last_shown(store: Store) -> None:
    c = Conversation()
    for n in "ab":
        c.add("user", f"q{n}")
        c.add("assistant", f"a{n}")
    last = c.head or ""
    c.retry(last)
    newer = c.add("assistant", "again")
    c.switch(newer.id, -1)  # not the newest
    c.edit(c.path()[0].id, "elsewhere")
    keep(store, c)
    again = store.open(c.id)
    again.switch(again.head or "", -1)
    assert again.head == last


def test_the_file_is_for_its_owner_alone(store: Store, path: Path) -> None:
    talk(store, "secret")
    store.list()
    if os.name != "nt":
        for file in path.parent.iterdir():
            assert file.stat().st_mode & 0o077 == 0, file
        store.close()
        path.chmod(0o644)
        other = Store(path)
        other.list()
        assert path.stat().st_mode & 0o077 == 0
        other.close()


def test_a_streaming_message_grows_by_pieces(store: Store, path: Path) -> None:
    c = talk(store, "q")
    m = c.add("assistant", state="streaming")
    store.put(c.id, m)
    for i in range(50):
        store.append(m.id, f"{i} ", "r" if i < 3 else "")
    found = store.open(c.id).messages[m.id]
    assert (found.text, found.reasoning, found.state) == (
        "".join(f"{i} " for i in range(50)), "rrr", "stopped",
    )  # fmt: skip
    m.text, m.state = "whole", "done"
    store.put(c.id, m)
    assert store.open(c.id).messages[m.id].text == "whole"
    store.close()
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM tails").fetchone() == (0,)


def test_an_append_is_on_disk_when_its_future_is_done(store: Store, path: Path) -> None:
    c = talk(store, "q")
    m = c.add("assistant", state="streaming")
    store.put(c.id, m)
    other = sqlite3.connect(path)
    for i in range(20):
        store.append(m.id, f"{i},").result(5)
        text = "".join(r[0] for r in other.execute("SELECT text FROM tails ORDER BY number"))
        assert text.endswith(f"{i},")
    other.close()


def test_the_cost_of_an_append_does_not_grow(store: Store) -> None:
    c = talk(store, "q")
    m = c.add("assistant", state="streaming")
    store.put(c.id, m)

    def cost() -> float:
        times = []
        for _ in range(60):
            began = time.perf_counter()
            store.append(m.id, "twenty characters...").result(5)
            times.append(time.perf_counter() - began)
        return sorted(times)[15]

    early = cost()
    for _ in range(40):
        store.append(m.id, "x" * 50_000)
    assert cost() < early * 2 + 0.0005


# -- finding ----------------------------------------------------------------------------------


def test_sessions_are_listed_newest_first_in_pages(store: Store) -> None:
    made = [talk(store, f"question {i}", "answer").id for i in range(5)]
    store.save(Conversation())  # nothing was said there
    first = store.list(2)
    rest = store.list(10, before=first[-1].updated)
    assert [s.id for s in first + rest] == made[::-1]
    assert (first[0].title, first[0].n_messages, first[0].model) == ("question 4", 2, "m1")
    assert store.latest() == made[-1]


SEARCHED = [
    'a "quoted" word', "print(f(x)) -- done", "猫が好きです。とても", "Ärger im Büro", "100% sure",
    "snake_case_name", "日本", "C:\\dir\\file", "emoji 🎉 here", "tab\tand\nlines",
]  # fmt: skip


@pytest.mark.parametrize("words", ["trigram", "unicode61", "none"])
def test_texts_are_found_whatever_index_there_is(
    words: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words != "trigram":
        kinds = ("unicode61",) if words == "unicode61" else ()
        monkeypatch.setattr(database, "TOKENIZERS", kinds)
    store = Store(path)
    ids = {text: talk(store, f"q {i}", text).id for i, text in enumerate(SEARCHED)}

    def found(query: str) -> set[str]:
        return {h.session for h in store.search(query)}

    assert found('"quoted') == {ids[SEARCHED[0]]}
    assert found("f(x)) done") == {ids[SEARCHED[1]]}
    assert found("好きです") == {ids[SEARCHED[2]]}
    assert found("猫") == {ids[SEARCHED[2]]}
    assert found("日本") == {ids["日本"]}
    assert found("ÄRGER büro") == {ids[SEARCHED[3]]}
    assert found("100%") == {ids[SEARCHED[4]]}
    assert found("snake") == {ids["snake_case_name"]}
    assert found("\\dir") == {ids[SEARCHED[7]]}
    assert found("🎉") == {ids[SEARCHED[8]]}
    assert found("lines tab") == {ids[SEARCHED[9]]}
    assert found("and lines nowhere") == set()
    assert found("   ") == set()
    store.close()


def test_an_index_that_was_not_kept_is_made_anew(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(path)
    c = talk(store, "first question", "first answer")
    store.close()
    with monkeypatch.context() as patch:
        patch.setattr(database, "can_search", lambda db: False)
        without = Store(path)
        m = next(iter(c.messages.values()))
        m.text = "changed question"
        without.put(c.id, m)
        talk(without, "second question")
        assert len(without.search("question")) == 2
        without.close()
    again = Store(path)
    assert [h.snippet for h in again.search("changed")] == ["changed question"]
    assert [h.snippet for h in again.search("first")] == ["first answer"]
    again.put(c.id, m)
    again.close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO words (words) VALUES ('integrity-check')")


def test_hits_show_where_the_words_are(store: Store) -> None:
    c = talk(store, "hello", "x " * 300 + "the Needle in\nthe hay " + "y " * 300)
    (hit,) = store.search("needle HAY")
    assert hit.session == c.id
    assert hit.message_id == c.head
    assert hit.title == "hello"
    assert hit.snippet.startswith("…")
    assert hit.snippet.endswith("…")
    assert [hit.snippet[a:b] for a, b in hit.marks] == ["Needle", "hay"]
    assert "\n" not in hit.snippet


def test_a_finished_answer_is_found_and_its_old_text_is_not(store: Store) -> None:
    c = talk(store, "q")
    m = c.add("assistant", state="streaming")
    store.put(c.id, m)
    store.append(m.id, "alpha")
    m.text, m.state = "alpha", "stopped"
    store.put(c.id, m)
    assert [h.message_id for h in store.search("alpha")] == [m.id]
    m.text = "omega"
    store.put(c.id, m)
    assert store.search("alpha") == []
    assert [h.message_id for h in store.search("omega")] == [m.id]


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=40), query=st.text(max_size=20))
def test_no_query_is_an_error(text: str, query: str) -> None:
    complaints: list[str] = []
    store = Store(memory=True, notify=complaints.append)
    c = talk(store, "q", text)
    hits = store.search(query)
    words = query.replace("\0", " ").split()
    kept = next(reversed(store.open(c.id).messages.values())).text
    if words and all(w.casefold() in kept.casefold() for w in words) and query.isascii():
        assert c.head in {h.message_id for h in hits}
    store.close()
    assert complaints == []


@pytest.mark.parametrize("query", ['"', "'", "a OR", "NEAR(", "*", "a* ^b", "(((", "-x", "col:y"])
def test_operators_are_plain_text(store: Store, query: str) -> None:
    c = talk(store, f"before {query} after")
    assert c.id in {h.session for h in store.search(query)}
    assert store.search(query + " zebra") == []


def test_sessions_are_found_by_id_title_and_words(store: Store) -> None:
    a = talk(store, "about cats", "they purr")
    b = talk(store, "about dogs", "cats they chase")
    assert store.find(a.id) == a.id
    assert store.find(b.id[:20]) == b.id
    assert store.find("cats") == a.id  # a title comes before what was said
    assert store.find("chase") == b.id
    assert store.find("nothing like it") is None


# -- names, deletion, small things ---------------------------------------------------------------


def test_a_name_stays_until_it_is_taken_back(store: Store) -> None:
    c = talk(store, "first line\nsecond", "a")
    store.rename(c.id, "  My   name ")
    store.save(c)  # which does not know it
    assert store.open(c.id).title == "My name"
    assert store.open(c.id).named
    assert [h.message_id for h in store.search("my name")] == [None]
    store.rename(c.id, "")
    store.save(c)
    assert store.list()[0].title == "first line"


def test_what_is_deleted_can_be_restored_until_the_end(store: Store, path: Path) -> None:
    a, b = talk(store, "precious"), talk(store, "worthless unique")
    store.set_draft(b.id, "draft")
    store.delete(a.id)
    store.delete(b.id)
    assert store.list() == []
    assert store.search("precious") == []
    store.restore(a.id)
    assert [s.id for s in store.list()] == [a.id]
    store.close()
    again = Store(path)
    assert again.open(a.id).path()[0].text == "precious"
    with pytest.raises(KeyError):
        again.open(b.id)
    again.close()
    assert b"worthless" not in path.read_bytes()


def test_a_deletion_that_was_not_finished_is_finished_later(path: Path) -> None:
    store = Store(path)
    c = talk(store, "q")
    store.delete(c.id)
    store.list()
    store._deleted.clear()  # as if the process had died here
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE sessions SET deleted = deleted - 7200")
    db.close()
    again = Store(path)
    with pytest.raises(KeyError):
        again.open(c.id)
    again.close()


def test_drafts_settings_and_presets_are_kept(store: Store, path: Path) -> None:
    store.set_draft("s1", "half a thou\nght")
    store.set("theme", {"name": "dark", "n": [1, None]})
    store.put_preset("Pirate", "Arr.")
    store.put_preset("brief", "Be brief.")
    store.close()
    store = Store(path)
    assert store.get_draft("s1") == "half a thou\nght"
    assert store.get("theme") == {"name": "dark", "n": [1, None]}
    assert store.get("none", 3) == 3
    assert store.presets() == {"brief": "Be brief.", "Pirate": "Arr."}
    store.set_draft("s1", "")
    store.set("theme", None)
    store.delete_preset("Pirate")
    assert store.get_draft("s1") == ""
    assert store.get("theme", "x") == "x"
    assert list(store.presets()) == ["brief"]
    store.close()


def test_parts_of_a_setting_that_two_chats_set_both_stay(store: Store, path: Path) -> None:
    other = Store(path)
    store.set_part("models", "", "mine")
    other.set_part("models", "http://box:1", "theirs")
    store.set_part("models", "", "mine too")
    assert store.get("models")[""] == "mine too"
    assert other.get("models") == {"": "mine too", "http://box:1": "theirs"}
    store.set("models", "not a mapping")
    store.set_part("models", "", [1])
    assert store.get("models") == {"": [1]}
    other.close()
    store.close()


def test_half_characters_are_no_obstacle(store: Store) -> None:
    c = talk(store, "half \ud83d of one", "and \ude00\0 the other")
    assert [m.text for m in store.open(c.id).path()] == [
        "half \ufffd of one",
        "and \ufffd\ufffd the other",
    ]


# -- several at once ------------------------------------------------------------------------------


def test_threads_write_side_by_side(store: Store) -> None:
    def work(n: int) -> None:
        for i in range(10):
            talk(store, f"thread {n} number {i}", "ok")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(store.list(1000)) == 40


_OTHER = """
import sys
from edgerun.tui.store import Store
from edgerun.tui.conversation import Conversation
store = Store(__import__("pathlib").Path(sys.argv[1]), notify=lambda s: print(s, flush=True))
for i in range(40):
    c = Conversation()
    store.put(c.id, c.add("user", f"of process {sys.argv[2]}, {i}"))
    store.save(c)
    m = c.add("assistant", state="streaming")
    store.put(c.id, m)
    for k in range(5):
        store.append(m.id, f"piece {k} ").result(10)
    m.text, m.state = "".join(f"piece {k} " for k in range(5)), "done"
    store.put(c.id, m)
    store.save(c)
store.close()
"""


def test_two_processes_use_one_database(path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", _OTHER, str(path)]
    both = [
        subprocess.Popen([*run, name], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for name in "ab"
    ]
    said = [p.communicate(timeout=60)[0] for p in both]
    assert said == [b"", b""]
    store = Store(path)
    found = store.list(1000)
    assert len(found) == 80
    assert all(s.n_messages == 2 for s in found)
    assert len(store.search("process a", 1000)) == 40
    whole = "".join(f"piece {k} " for k in range(5))
    assert all(store.open(s.id).path()[1].text == whole for s in found)
    store.close()
