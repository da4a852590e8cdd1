"""Exports: JSON holds everything, Markdown what is shown, and no text breaks out of its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from edgerun.chat import ToolCall
from edgerun.core import Timings, Usage
from edgerun.tui.conversation import Attachment, Conversation
from edgerun.tui.export import from_json, to_json, to_markdown


def branched() -> Conversation:
    c = Conversation(system="Be brief.")
    first = c.add("user", "what?", attachments=(Attachment("a.py", "x = 1\n", 5),))
    c.add(
        "assistant", "yes ✓", reasoning="hm", model="m-1b", usage=Usage(10, 5, 3, 1),
        timings=Timings(0.1, 0.2, 0.3, 7, 4),
    )  # fmt: skip
    c.add("user", "call")
    c.add("assistant", "", calls=(ToolCall("1", "f", '{"a": "```"}'),), state="stopped")
    c.edit(first.id, "other?")
    c.add("assistant", "", state="error", note="it *broke*", code="closed")
    c.switch(c.path()[0].id, -1)
    return c


def test_json_holds_everything() -> None:
    c = branched()
    again = from_json(to_json(c))
    assert again == c
    assert again.visited == c.visited
    plain = json.loads(to_json(c))
    assert plain["path"] == [m.id for m in c.path()]
    assert len(plain["messages"]) == 6


@settings(max_examples=50, deadline=None)
@given(text=st.text(), title=st.text(), n=st.integers(0, 3))
def test_json_holds_any_text(text: str, title: str, n: int) -> None:
    c = Conversation(title=title, named=True)
    c.add("user", text)
    for _ in range(n):
        c.edit(c.head or "", text + "!")
    again = from_json(to_json(c))
    assert [m.text for m in again.messages.values()] == [m.text for m in c.messages.values()]
    assert again.title == title


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no conversation"),
        ('{"format": "other"}', "no conversation"),
        ("{", "Expecting"),
        ('{"format": "edgerun-chat-1", "messages": [{"id": 1}]}', "not as it should be"),
        (
            '{"format": "edgerun-chat-1", "messages": [{"id": "1", "role": "king"}]}',
            "'king'",
        ),
        (
            '{"format": "edgerun-chat-1", "messages": '
            '[{"id": "1", "role": "user", "parent": "9"}]}',
            "not there",
        ),
        ('{"format": "edgerun-chat-1", "messages": []}', "head"),
    ],
)
def test_what_is_no_export_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        from_json(text)


def parsed(markdown: str) -> list[Token]:
    return MarkdownIt("commonmark").parse(markdown)


def headings(tokens: list[Token]) -> list[str]:
    at = [i for i, t in enumerate(tokens) if t.type == "heading_open" and t.level == 0]
    return [tokens[i + 1].content for i in at]


def test_markdown_shows_the_path() -> None:
    tokens = parsed(to_markdown(branched()))
    assert headings(tokens) == ["what?", "System", "You", "m-1b", "You", "Assistant"]
    fences = [(t.info, t.content) for t in tokens if t.type == "fence"]
    assert fences == [("", "x = 1\n"), ("json", '{"a": "```"}\n')]
    quotes = [t for t in tokens if t.type == "blockquote_open"]
    assert len(quotes) == 1
    assert "other?" not in to_markdown(branched())
    assert "stopped" in to_markdown(branched())


TEXTS = [
    "```python\nno end",
    "~~~~\n```\nno end",
    "````\n```\nstill open",
    "```\nclosed\n```\n",
    "- list\n  ```\n  in a list",
    "> quote\n> ```\n> in it",
    "``` not `a fence\nplain",
    "    ```\n    indented",
    "text\n```",
    "<!-- comment\nopen",
    "<pre>\nopen",
    "1. a\n\n   ```x\n   y",
    "trailing space  ",
    "~~~ `a` \nopen",
]


@pytest.mark.parametrize("text", TEXTS)
def test_no_text_swallows_what_follows(text: str) -> None:
    c = Conversation()
    for _ in range(2):
        c.add("user", text)
        c.add("assistant", text, reasoning=text, model="m")
    c.rename("t")
    assert headings(parsed(to_markdown(c))) == ["t", "You", "m", "You", "m"]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_stay_as_they_are(text: str) -> None:
    c = Conversation()
    c.add("user", text)
    assert text.rstrip("\n") in to_markdown(c)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            ["```", "~~~", "````", "a", "", "> ", "- ", "    ", "<div>", "-->", "<!--"]
        ),
        max_size=8,
    )
)
def test_no_mix_swallows_what_follows(parts: list[str]) -> None:
    for joint in ("\n", ""):
        c = Conversation()
        c.add("user", "q")
        c.add("assistant", joint.join(parts), model="m", reasoning=joint.join(parts))
        c.add("user", "last")
        c.rename("t")
        found = headings(parsed(to_markdown(c)))
        assert found[-1] == "You"
        assert found.count("You") == 2


def test_names_are_no_markup() -> None:
    c = Conversation()
    c.add("user", "q", attachments=(Attachment("[x](y)\n# z", "text"),))
    c.add("assistant", "a", model="*m* <b>")
    c.rename("# *t* `x` <script>")
    tokens = parsed(to_markdown(c))
    inline = [t for t in tokens if t.type == "inline"]
    kinds = {child.type for t in inline for child in t.children or ()}
    assert kinds <= {"text", "softbreak", "em_open", "em_close"}  # the date is in italics
    assert [t.content for t in tokens if t.type == "fence"] == ["text\n"]
