"""Marked text behaves as the same text without marks, and its marks follow its characters."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from edgerun.text.marked import Marked, Segment, concat, join, mark, mark_literals, segments

# Trusted characters are upper case, all others are not: a mark that strays shows.
piece = st.text("ab \n|<>", max_size=6)
parts = st.lists(st.tuples(piece, st.booleans()), max_size=6)
separator = st.sampled_from([" ", "|", "<", "ab", "B", "A|", None])


def build(spec: list[tuple[str, bool]]) -> str:
    return concat([mark(s.upper()) if t else s.lower() for s, t in spec])


def check(text: str, want: str) -> None:
    assert text == want
    assert type(text) in (str, Marked)
    trusted = [s.trusted for s in segments(text) for _ in s.text]
    for c, t in zip(text, trusted, strict=True):
        if c.isalpha():
            assert c.isupper() == t
    assert "".join(s.text for s in segments(text)) == want
    assert all(s.text for s in segments(text))


@given(parts, st.integers(-9, 9), st.integers(-9, 9), separator, st.integers(-1, 3))
def test_every_operation(
    spec: list[tuple[str, bool]], i: int, j: int, sep: str | None, most: int
) -> None:
    text = build(spec)
    plain = "".join(text)
    check(text, plain)
    check(text[i:j], plain[i:j])
    if -len(plain) <= i < len(plain):
        check(text[i], plain[i])
    for chars in (None, " ", "a<", "AB\n"):
        check(text.strip(chars), plain.strip(chars))
        check(text.lstrip(chars), plain.lstrip(chars))
        check(text.rstrip(chars), plain.rstrip(chars))
    for got, want in (
        (text.split(sep, most), plain.split(sep, most)),
        (text.rsplit(sep, most), plain.rsplit(sep, most)),
        (text.splitlines(), plain.splitlines()),
        (text.splitlines(True), plain.splitlines(True)),
        (text.partition(sep or "|"), plain.partition(sep or "|")),
        (text.rpartition(sep or "|"), plain.rpartition(sep or "|")),
    ):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            check(g, w)
    check(text.removeprefix(sep or "a"), plain.removeprefix(sep or "a"))
    check(text.removesuffix(sep or "a"), plain.removesuffix(sep or "a"))
    old = sep or "a"
    if isinstance(text, Marked):  # a plain one's own method knows no marks
        check(text.replace(old, mark("XY"), most), plain.replace(old, "XY", most))
    check(text.replace(old, "xy", most), plain.replace(old, "xy", most))
    assert json.dumps(text) == json.dumps(plain)
    assert {text: 1}[plain] == 1
    assert str(text) is text


@given(st.lists(parts, max_size=4), parts)
def test_joining(specs: list[list[tuple[str, bool]]], between: list[tuple[str, bool]]) -> None:
    texts = [build(s) for s in specs]
    sep = build(between)
    check(join(sep, texts), "".join(sep).join("".join(t) for t in texts))


def test_changing_case_keeps_marks_only_where_lengths_allow() -> None:
    assert segments(mark("ab").upper()) == [Segment("AB", True)]
    assert segments(concat([mark("a"), "b"]).title()) == [Segment("A", True), Segment("b", False)]
    assert segments(concat([mark("a"), "ß"]).upper()) == [Segment("ASS", False)]


def test_what_no_method_knows_of_is_not_trusted() -> None:
    text = mark("<s>")
    for made in (f"{text}a", text.center(9), text.swapcase(), text[::-1], "a" + text):
        assert not any(s.trusted for s in segments(made))


def test_literals() -> None:
    text = mark_literals("a<think>b</think><think>", ["<think>", "</think>"])
    assert segments(text) == [
        Segment("a", False),
        Segment("<think>", True),
        Segment("b", False),
        Segment("</think><think>", True),
    ]
    assert type(mark_literals("abc", ["<think>"])) is str
