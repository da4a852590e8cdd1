"""Streaming Markdown: the same rows however the text was cut, for a constant price per chunk."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from edgerun.tui.transcript import blocks
from edgerun.tui.transcript.flow import Flow
from edgerun.tui.transcript.stream import Markdown

LINES = """\
- a|  - b|* c|1. one|2. two|   more||> q|> - qi|> > qq|```py|```|~~~|    code|# H|## H2 *x*|
text here|text **b** `c`|---|===|- [ ] t|- [x] d|   ```|   code in|$$|\\[|\\]|10. ten|\ttab|-|1)|
lazy|> 1. x|>    y|* * *|       deep|     - n5|    - n4|> ```|> x|あいう [/] [x](http://y.z)|
a line that is long enough to fold""".replace("|\n", "|").split("|")
LINES += [
    "a | b",
    "---|---",
    "|1|2|",
    "| x \\| y | `z` |",
    "|:-|-:|",
    "-   wide\n    in it",
    "-\n  z",
]
DOCUMENTS = st.builds(
    lambda lines, end: "\n".join(lines) + end,
    st.lists(st.sampled_from(LINES), max_size=24),
    st.sampled_from(["", "\n"]),
)


def rows(flow: Flow, cells: int) -> list[str]:
    return [row.text.rstrip() for row in flow.lay(cells)]


def whole(text: str, cells: int = 40) -> list[str]:
    return rows(Flow(text, ended=True), cells)


def fed(chunks: Sequence[str], cells: int = 40, widths: Sequence[int] = ()) -> Flow:
    """The chunks one by one, each laid out, at other widths now and then."""
    flow = Flow()
    for i, chunk in enumerate(chunks):
        flow.feed(chunk)
        flow.lay(widths[i % len(widths)] if widths else cells)
    assert flow.end("".join(chunks))
    return flow


def cut(text: str, rng: random.Random) -> list[str]:
    out, at = [], 0
    while at < len(text):
        size = rng.choice([1, 1, 2, 3, 7, 30])
        out.append(text[at : at + size])
        at += size
    return out


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces so short that every document is cut into many."""
    monkeypatch.setattr(blocks, "MAX_CHARS", 24)
    monkeypatch.setattr(blocks, "MAX_LINES", 3)
    monkeypatch.setattr(blocks, "MAX_ROWS", 2)


@settings(max_examples=70, deadline=None)
@given(DOCUMENTS, st.integers(0, 2**32), st.sampled_from([(), (40,), (12, 40, 25)]))
def test_chunks_and_resizes_leave_no_trace(text: str, seed: int, widths: tuple[int, ...]) -> None:
    flow = fed(cut(text, random.Random(seed)), widths=widths)
    assert list(flow.lay(40)) == list(Flow(text, ended=True).lay(40))


def test_chunks_leave_no_trace_in_long_blocks(small_pieces: None) -> None:
    rng = random.Random(7)
    for _ in range(100):
        text = "\n".join(rng.choice(LINES) for _ in range(rng.randint(1, 24)))
        flow = fed(cut(text, rng))
        assert rows(flow, 40) == whole(text), text


@settings(max_examples=60, deadline=None)
@given(st.text(st.sampled_from("ab *_`~[]()<>!&$\\|#-+.:1\n\t>あ\u200d\ufe0f\x1b"), max_size=120))
def test_any_characters_at_all(text: str) -> None:
    assert rows(fed(list(text)), 20) == whole(text, 20)


def words(text: str) -> str:
    return "".join(re.findall(r"[^\W_]", text))


def said(tokens: Sequence[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "inline":
            yield from said(token.children or [])
        elif token.type in ("text", "code_inline", "fence", "code_block", "text_special"):
            yield token.content


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS)
def test_every_word_that_the_reference_parser_finds_is_shown(text: str) -> None:
    # Without what we read otherwise on purpose: math, task marks, links' addresses.
    text = re.sub(r"\$|\\[\[\]]|\[[ x]\]|http\S*", "", text)
    md = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    md.disable("reference")
    flow = Flow(text, ended=True)
    shown = "".join(row.text[row.indent :] for row in flow.lay(40))
    assert words(shown) == words("".join(said(md.parse(text))))


LONG = {
    "list": ("", "- item {} **b**\n"),
    "nested": ("- top\n", "  - item {}\n    more\n"),
    "numbered": ("", "1. item {}\n\n   text\n\n"),
    "code": ("```py\n", "x = {}\n"),
    "code in a list": ("- a\n  ```py\n", "  x = {}\n"),
    "code on a marker": ("1. ```\n", "   x = {}\n"),
    "indented code": ("text\n\n", "    x = {}\n"),
    "quote": ("", "> line {}\n"),
    "list in a quote": ("", "> - line {}\n"),
    "lazy quote": ("> line\n", "a lazy line {}\n"),
    "table": ("a|b\n-|-\n", "|{}|x|\n"),
    "table in a list": ("- x\n\n  a|b\n  -|-\n", "  |{}|x|\n"),
    "lines": ("", "some words here {}\n"),
    "one line": ("", "word{} "),
    "one word": ("", "{}x"),
    "a heading": ("# ", "word{} "),
    "line in a list": ("- ", "word{} "),
    "math": ("$$\n", "x_{}\n"),
    "paragraphs": ("", "text {}\n\n"),
}


@pytest.mark.parametrize("kind", LONG)
def test_one_long_block_costs_no_more_per_chunk(kind: str) -> None:
    """What is parsed again stays short, and it still is the same as all at once."""
    first, more = LONG[kind]
    text = first + "".join(more.format(i) for i in range(450))
    doc = Markdown()
    longest = 0
    for at in range(0, len(text), 61):
        doc.feed(text[at : at + 61])
        doc.update()
        longest = max(longest, doc.pending)
    assert longest < 5000
    assert doc.open
    doc.end()
    doc.update()
    at_once = Markdown(text, ended=True)
    at_once.update()
    assert len(doc.done) == len(at_once.done)
    assert all(
        a.same(b) and a.blank == b.blank for a, b in zip(doc.done, at_once.done, strict=True)
    )


def test_what_cannot_be_divided_is_parsed_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    parses: list[int] = []
    parse = Markdown._parse

    def counted(self: Markdown, context: object, tail: str) -> object:
        parses.append(len(tail))
        return parse(self, context, tail)  # type: ignore[arg-type]

    monkeypatch.setattr(Markdown, "_parse", counted)
    doc = Markdown("```\n")
    for _ in range(2000):
        doc.feed("x" * 100)  # one line of code: 200 kB
        doc.update()
    assert sum(parses) < 20 * 200_000
    doc.end()
    doc.update()
    assert len(doc.done[-1].text) == 200_000


@pytest.mark.parametrize("text", [">" * 60 + " x", "- " * 60 + "x", "> - " * 40 + "x\ny"])
def test_nothing_is_lost_however_deep(text: str) -> None:
    assert "x" in "".join(whole(text, 80))
    assert rows(fed(list(text)), 80) == whole(text, 80)


def test_undecided_lines_wait() -> None:
    """A dash may become a rule, an item or an underline: until then nothing flickers."""
    flow = Flow("text\n")
    before = rows(flow, 40)
    for mark in ("-", "`", "``", "1", "#", "|", "> ", "=", "**"):
        flow = Flow("text\n")
        flow.feed(mark)
        assert rows(flow, 40) == before, mark
    flow.end("text\n**")
    assert rows(flow, 40) == ["text", "**"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# Title\ntext", ["Title", "text"]),
        ("a\n## b", ["a", "", "b"]),
        ("Title\n=====\ntext", ["Title", "text"]),
        ("- a\n- b\n\n- c", ["• a", "• b", "", "• c"]),
        ("- a\n  - b\n    - c\n      - d", ["• a", "  ◦ b", "    ▪ c", "      • d"]),
        ("3. a\n3. b\n10) c", ["3. a", "4. b", "10. c"]),
        ("- [ ] a\n- [x] b\n- [y] c", ["[ ] a", "[x] b", "• [y] c"]),
        ("> a\n> > b\nlazy\n\nc", ["│ a", "│ │ b", "│ │ lazy", "", "c"]),
        ("a\nb  \nc\\\nd", ["a", "b", "c", "d"]),  # line ends are meant
        ("***", ["─" * 20]),
        ("- one two three four five", ["• one two three four", "  five"]),
        ("[x](http://a.b)", ["x (http://a.b)"]),
        ("<http://a.b>", ["http://a.b"]),
        ("![pic](p.png)", ["pic (p.png)"]),
        ("a <b>bold</b> &amp; [/] [b + x [/#888888]", ["a <b>bold</b> & [/]", "[b + x [/#888888]"]),
        ("[@click=quit]x[/]", ["[@click=quit]x[/]"]),
        ("[a]: http://x.y\n\n[a]", ["[a]: http://x.y", "", "[a]"]),
        (r"\(a_1*b*c_2\) and $x_1$", [r"\(a_1*b*c_2\) and", "$x_1$"]),
        ("$$\na\n- b\n$$\nc", ["$$", "a", "- b", "$$", "c"]),
        ("costs $5 or $6", ["costs $5 or $6"]),
        ("&#x202e;&#27;x", ["\ufffd\ufffdx"]),
        ("a\x1b[2Jb\x9bc", ["a\ufffd[2Jb\ufffdc"]),
        ("    x\ty", ["                  1", " x   y"]),
        ("| a | b |\n|--|-:|\n| 1 | 2 |\n| あ | |", ["a  │ b", "───┼──", "1  │ 2", "あ │"]),
    ],
)
def test_rows(text: str, expected: list[str]) -> None:
    assert whole(text, 20) == expected


def test_a_table_narrower_than_its_columns_becomes_a_list() -> None:
    text = "|name|value|more|\n|-|-|-|\n|a|b|c|"
    assert whole(text, 12) == ["name: a", "value: b", "more: c", "─" * 12]


def test_cells_are_folded_in_their_columns() -> None:
    text = "|a|long one|\n|-|-|\n|x|some words that need room|"
    assert whole(text, 20) == [
        "a │ long one",
        "──┼─────────────────",
        "x │ some words that",
        "  │ need room",
    ]


def test_a_long_tables_columns_stay() -> None:
    """Later rows change nothing above them."""
    flow = Flow("|a|b|\n|-|-|\n" + "|1|2|\n" * 40)
    before = rows(flow, 40)
    flow.feed("|a much longer cell|x|\n")
    assert rows(flow, 40)[: len(before)] == before


def test_links_lead_only_to_the_web() -> None:
    def links(text: str) -> set[str]:
        return {r.link for row in Flow(text, ended=True).lay(80) for r in row.runs if r.link}

    assert links("[a](http://b.c/d) <https://e.f> https://g.h.") == {
        "http://b.c/d",
        "https://e.f",
        "https://g.h",
    }
    assert links("[a](file:///etc/passwd) [b](ssh://x) [c](javascript:1)") == set()
    assert links("[a](http://x.y/\x1b]8;;evil\x1b\\)") == set()
    assert all(x.isascii() and x.isprintable() for x in links("[a](<http://b/ü \u202e;x>)"))


def test_code_blocks_are_numbered_and_come_back_whole() -> None:
    code = "".join(f"\tline {i}\n" for i in range(120))
    text = f"```make\n{code}```\n\n- x\n  ```\n  second\n  ```\n\ntext\n\n    third"
    for flow in (Flow(text, ended=True), fed(cut(text, random.Random(1)))):
        assert flow.codes() == [code.removesuffix("\n"), "second", "third"]
        labels = [x.split() for x in rows(flow, 40) if re.fullmatch(r" *(make)? +\d", x)]
        assert labels == [["make", "1"], ["2"], ["3"]]


def test_asking_for_code_while_it_streams() -> None:
    flow = Flow("```\none\n")
    flow.lay(20)
    flow.feed("two\n```\nend")
    assert flow.codes() == ["one\ntwo"]
    assert rows(flow, 20)[1:] == [" one", " two", "end"]


def test_rows_that_are_done_are_not_made_again() -> None:
    flow = Flow("one\n\ntwo\n\nthree\n\nfo")
    flow.lay(40)
    done = [id(row) for row in flow.lay(40)[: flow.steady]]
    assert len(done) == 3  # "fo" may still become part of something
    flow.feed("ur")
    assert [id(row) for row in flow.lay(40)[: len(done)]] == done
