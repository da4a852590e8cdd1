"""The tree of a conversation: whatever is done to it, nothing is lost and a model can be told."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgerun.chat import ToolCall
from edgerun.tui.conversation import Attachment, Conversation, Message, new_id, title_of
from edgerun.tui.store import Store

TEXTS = st.sampled_from(["a", "two words", "", " ", "```\nx\n```", "あいう", "3\n\nlines"])
STATES = st.sampled_from(["done", "stopped", "length", "error", "streaming"])


class Chat(RuleBasedStateMachine):
    """What people do, in any order; a list of everything ever said stands beside."""

    def __init__(self) -> None:
        super().__init__()
        self.c = Conversation()
        self.said: dict[str, tuple[str | None, str, str]] = {}

    def note(self, m: Message) -> None:
        assert m.id not in self.said
        assert self.c.head == m.id
        self.said[m.id] = (m.parent, m.role, m.text)

    def pick(self, data: Any, role: str | None = None) -> Message | None:
        found = [m for m in self.c.messages.values() if role in (None, m.role)]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(text=TEXTS, file=st.booleans())
    def ask(self, text: str, file: bool) -> None:
        files = (Attachment("a`b.py", "x = '```'"),) if file else ()
        self.note(self.c.add("user", text, attachments=files))

    @precondition(lambda self: self.c.path() and self.c.path()[-1].role != "assistant")
    @rule(text=TEXTS, state=STATES, code=st.sampled_from(["", "context_length_exceeded"]))
    def answer(self, text: str, state: Any, code: str) -> None:
        self.note(self.c.add("assistant", text, state=state, code=code if state == "error" else ""))

    @precondition(lambda self: self.c.path() and self.c.path()[-1].role != "assistant")
    @rule(known=st.booleans(), n=st.integers(1, 2), data=st.data())
    def call(self, known: bool, n: int, data: Any) -> None:
        calls = tuple(ToolCall(f"c{len(self.said)}{i}", "f", "{}") for i in range(n))
        self.note(self.c.add("assistant", "", calls=calls))
        for c in calls[: data.draw(st.integers(0, n))]:
            self.note(self.c.add("tool", "result", call_id=c.id if known else "other"))

    @rule(data=st.data(), text=TEXTS)
    def edit(self, data: Any, text: str) -> None:
        if m := self.pick(data):
            new = self.c.edit(m.id, text)
            self.note(new)
            assert (new.role, new.parent, new.attachments) == (m.role, m.parent, m.attachments)
            assert {m.id, new.id} <= set(self.c.siblings(m.id))

    @rule(data=st.data(), text=TEXTS)
    def again(self, data: Any, text: str) -> None:
        m = self.pick(data, "assistant")
        if m and self.c.retry(m.id):
            assert self.c.path()[-1].role == "user"
            self.note(self.c.add("assistant", text))

    @rule(data=st.data(), step=st.integers(-3, 3))
    def switch(self, data: Any, step: int) -> None:
        if m := self.pick(data):
            beside = self.c.siblings(m.id)
            to = beside[min(max(beside.index(m.id) + step, 0), len(beside) - 1)]
            self.c.switch(m.id, step)
            assert to in [x.id for x in self.c.path()]

    @rule(data=st.data())
    def there_and_back(self, data: Any) -> None:
        """To another branch and back shows what was shown."""
        path = self.c.path()
        if not path:
            return
        self.c.show(path[-1].id)  # after an undo there may be more below
        before = [m.id for m in self.c.path()]
        m = data.draw(st.sampled_from(self.c.path()))
        at, n = self.c.place(m.id)
        other = self.c.siblings(m.id)[at % n]
        self.c.switch(m.id, 1 if at < n else 1 - n)
        assert other in [x.id for x in self.c.path()]
        self.c.show(m.id)
        assert [x.id for x in self.c.path()] == before

    @rule(n=st.integers(1, 3))
    def undo_and_redo(self, n: int) -> None:
        while self.c.redo():
            pass
        before = self.c.head
        taken = [q for _ in range(n) if (q := self.c.undo())]
        assert all(q.role == "user" for q in taken)
        for _ in taken:
            assert self.c.redo()
        assert self.c.head == before
        assert not self.c.redo()

    @rule()
    def undo(self) -> None:
        question = self.c.undo()
        assert question is None or question.id not in [m.id for m in self.c.path()]

    @rule()
    def reopen(self) -> None:
        c = self.c
        self.c = Conversation(
            c.id, c.title, c.named, c.system, c.head, dict(c.messages), dict(c.visited), c.created
        )

    @rule()
    def through_the_store(self) -> None:
        """Kept and opened again it is the same, down to the branches that are not shown."""
        store, c = Store(memory=True), self.c
        for m in c.messages.values():
            store.put(c.id, m)
        store.save(c)
        again = store.open(c.id) if c.messages else c
        store.close()
        for m in c.messages.values():
            if m.state == "streaming":
                m.state = "stopped"
        assert again == c
        for m in c.messages.values():
            one, other = copy.deepcopy(c), copy.deepcopy(again)
            one.show(m.id)
            other.show(m.id)
            assert one.head == other.head
        self.c = again

    @rule(text=st.sampled_from(["", "Be brief."]))
    def system(self, text: str) -> None:
        self.c.system = text

    @invariant()
    def nothing_is_lost(self) -> None:
        now = {m.id: (m.parent, m.role, m.text) for m in self.c.messages.values()}
        assert now == self.said

    @invariant()
    def the_path_is_one(self) -> None:
        path = self.c.path()
        assert [m.parent for m in path] == [None, *[m.id for m in path[:-1]]][: len(path)]
        assert (path[-1].id if path else None) == self.c.head
        for m in path:
            at, n = self.c.place(m.id)
            assert self.c.siblings(m.id)[at - 1] == m.id
            assert n == len(self.c.siblings(m.id))

    @invariant()
    def a_model_can_be_told(self) -> None:
        wire = self.c.wire()
        assert (wire[0]["role"] == "system") if self.c.system else True
        talk = [m for m in wire if m["role"] != "system"]
        assert not talk or talk[0]["role"] == "user"
        before = "assistant"
        open_calls: set[str] = set()
        for m in talk:
            if m["role"] == "tool":
                assert m["tool_call_id"] in open_calls
                open_calls.discard(m["tool_call_id"])
                before = "tool"
                continue
            assert not open_calls, "calls without their results"
            assert m["role"] != before
            before = m["role"]
            if m["role"] == "assistant":
                assert m["content"].strip() or m.get("tool_calls")
                open_calls = {c["id"] for c in m.get("tool_calls", ())}
        assert not open_calls
        shown = self.c.path()
        if shown and shown[-1].role == "user":
            assert talk[-1]["role"] == "user"
            assert shown[-1].text in talk[-1]["content"]


TestChat = Chat.TestCase
TestChat.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_ids_sort_by_time() -> None:
    ids = [new_id() for _ in range(1000)]
    assert ids == sorted(set(ids))
    assert {len(i) for i in ids} == {24}


def talked() -> Conversation:
    c = Conversation()
    for n in range(3):
        c.add("user", f"q{n}")
        c.add("assistant", f"a{n}")
    return c


def contents(c: Conversation) -> list[str]:
    return [m["content"] for m in c.wire()]


def test_an_edit_goes_another_way_from_there() -> None:
    c = talked()
    second = c.path()[2]
    new = c.edit(second.id, "other")
    assert contents(c) == ["q0", "a0", "other"]
    c.add("assistant", "answer")
    c.switch(new.id, -1)
    assert contents(c) == ["q0", "a0", "q1", "a1", "q2", "a2"]
    c.switch(second.id, 1)
    assert contents(c) == ["q0", "a0", "other", "answer"]
    assert c.place(new.id) == (2, 2)
    c.switch(new.id, 5)
    assert contents(c)[-1] == "answer"


def test_an_edited_first_question_begins_anew_beside_the_old() -> None:
    c = talked()
    c.edit(c.path()[0].id, "hello")
    assert contents(c) == ["hello"]
    c.switch(c.head or "", -1)
    assert len(c.path()) == 6


def test_undo_steps_back_by_questions_and_redo_forth() -> None:
    c = talked()
    assert c.undo() is not None
    undone = c.undo()
    assert undone is not None
    assert undone.text == "q1"
    assert contents(c) == ["q0", "a0"]
    assert c.redo()
    assert contents(c) == ["q0", "a0", "q1", "a1"]
    c.add("user", "new")
    assert not c.redo()  # it went another way
    assert len(c.messages) == 7


def test_undo_of_everything_shows_nothing() -> None:
    c = talked()
    while c.undo():
        pass
    assert c.path() == []
    assert c.wire() == []
    assert c.redo()
    assert contents(c) == ["q0", "a0"]


def test_a_stopped_question_goes_along_with_the_next_and_a_refused_one_does_not() -> None:
    c = Conversation()
    c.add("user", "first")
    c.add("assistant", "", state="stopped")
    c.add("user", "second")
    assert contents(c) == ["first\n\nsecond"]
    c.add("assistant", "", state="error", code="context_length_exceeded", note="too long")
    c.add("user", "third")
    assert contents(c) == ["first\n\nthird"]
    c.add("assistant", "", state="error", code="backend_unavailable", note="gone")
    c.add("user", "fourth")
    assert contents(c) == ["first\n\nthird\n\nfourth"]


def test_what_an_answer_said_before_it_failed_is_told() -> None:
    c = Conversation()
    c.add("user", "q")
    c.add("assistant", "half an", state="error", note="gone")
    c.add("user", "go on")
    assert [m["role"] for m in c.wire()] == ["user", "assistant", "user"]


def test_files_go_before_the_question_in_fences_that_hold() -> None:
    c = Conversation()
    text = "a\n````\nb"
    c.add("user", "why?", attachments=(Attachment("x/y z.md", text), Attachment("e", "")))
    assert contents(c) == [f"`````x/y z.md\n{text}\n`````\n\n```e\n```\n\nwhy?"]


def test_calls_without_results_are_told_in_words() -> None:
    c = Conversation()
    c.add("user", "weather?")
    c.add("assistant", "", calls=(ToolCall("1", "look", '{"at": "sky"}'),))
    c.add("user", "well?")
    assert c.wire()[1] == {"role": "assistant", "content": 'look({"at": "sky"})'}


def test_calls_with_results_are_told_as_calls() -> None:
    c = Conversation()
    c.add("user", "weather?")
    c.add("assistant", "", calls=(ToolCall("1", "look", "{}"),))
    c.add("tool", "blue", call_id="1")
    wire = c.wire()
    assert wire[1]["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert wire[2] == {"role": "tool", "tool_call_id": "1", "content": "blue"}


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("hello", "hello"),
        ("\n\n  two\t words \nmore", "two words"),
        ("", ""),
        ("x" * 100, "x" * 59 + "…"),
    ],
)
def test_titles(text: str, title: str) -> None:
    assert title_of(text) == title


def test_the_title_is_the_first_question_until_it_is_named() -> None:
    c = talked()
    assert c.title == "q0"
    c.rename("  Mine ")
    c.add("user", "more")
    assert (c.title, c.named) == ("Mine", True)
    c.rename("")
    assert (c.title, c.named) == ("q0", False)


def test_an_answer_needs_a_question() -> None:
    c = Conversation()
    with pytest.raises(ValueError, match="below a question"):
        c.add("assistant", "x")
    c.add("user", "q")
    c.add("assistant", "a")
    with pytest.raises(ValueError, match="below a question"):
        c.add("assistant", "b")
