"""Folding: no row is too wide, no character is lost, none is torn apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.tui.text import graphemes, width
from edgerun.tui.transcript.lines import Run, fold, line, plain

FAMILY = "👩\u200d👩\u200d👧"
PARTS = [
    "a",
    "bc",
    "word",
    " ",
    "  ",
    "あ",
    "字",
    "、",
    "。",
    "👍🏽",
    "❤\ufe0f",
    FAMILY,
    "🇩🇪",
    "e\u0301",
]
PARTS += ["ä", "\n", "—", "한", "ش", "x" * 9]


def texts(runs: list[Run], cells: int, *, words: bool = True) -> list[str]:
    return [plain(row) for row, _ in fold(runs, cells, words=words)]


@pytest.mark.parametrize(
    ("text", "cells", "rows"),
    [
        ("hello world this is", 11, ["hello world", "this is"]),
        ("a  b", 1, ["a", "b"]),
        ("  indented code", 10, ["  indented", "code"]),
        ("tiny enormouslylong x", 6, ["tiny", "enormo", "uslylo", "ng x"]),
        ("あいうえお", 4, ["あい", "うえ", "お"]),
        ("あい、う", 4, ["あ", "い、", "う"]),  # no line begins with a comma
        ("see 日本語 now", 7, ["see 日", "本語", "now"]),
        (FAMILY * 3, 5, [FAMILY * 2, FAMILY]),
        ("🇩🇪🇩🇪🇩🇪", 3, ["🇩🇪", "🇩🇪", "🇩🇪"]),
        ("a\n\nb", 5, ["a", "", "b"]),
        ("", 5, [""]),
        ("あ", 1, ["あ"]),  # wider than the window: better than nothing
    ],
)
def test_rows(text: str, cells: int, rows: list[str]) -> None:
    assert texts([Run(text)], cells) == rows


def test_code_breaks_anywhere_and_keeps_its_blanks() -> None:
    assert texts([Run("if  x:  pass")], 5, words=False) == ["if  x", ":  pa", "ss"]


@given(
    st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from([(), ("em",)])), max_size=40),
    st.integers(1, 14),
    st.booleans(),
)
def test_nothing_is_lost_or_torn(
    parts: list[tuple[str, tuple[str, ...]]], cells: int, words: bool
) -> None:
    runs = [Run(text, style) for text, style in parts]
    text = plain(runs)
    rows = fold(runs, cells, words=words)
    # What was dropped at each break, put back, gives the text, but for blanks that end a line.
    whole = "".join(("\n" if glue is None else glue) + plain(row) for row, glue in rows)[1:]
    kept = whole if not words else "\n".join(x.rstrip() for x in whole.split("\n"))
    assert kept == (text if not words else "\n".join(x.rstrip() for x in text.split("\n")))
    starts = set()
    at = 0
    for part in text.split("\n"):
        starts |= {at + a for a, _, _ in graphemes(part)} | {at + len(part)}
        at += len(part) + 1
    at = -1
    for row, glue in rows:
        shown = plain(row)
        assert width(shown) <= cells or len(graphemes(shown)) == 1
        at = text.find(shown, at + 1 if glue is None else at + len(glue)) if shown else at + 1
        if shown:
            assert at in starts
            at += len(shown)
            assert at in starts
    styles = "".join(("e" if s else "-") * len(t.replace("\n", "")) for t, s in parts)
    if not words:
        assert (
            "".join(("e" if r.style else "-") * len(r.text) for x, _ in rows for r in x) == styles
        )


def test_neighbours_of_one_style_are_one_run() -> None:
    row = line([Run("a"), Run("b"), Run("", ("em",)), Run("あ", ("em",))])
    assert row.runs == (Run("ab"), Run("あ", ("em",)))
    assert row.cells == 4
