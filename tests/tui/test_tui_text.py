"""What reaches a terminal: nothing that is a command to it, and everything else as it was."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.tui.text import Cleaner, clean, fit, graphemes, one_line, width

HOSTILE = [
    ("\x1b]52;c;aGk=\x07", "\ufffd]52;c;aGk=\ufffd"),  # sets the clipboard
    ("\x1b[2J\x1b[H", "\ufffd[2J\ufffd[H"),  # clears the screen
    ("\x9b2J\x9d0;t\x9c", "\ufffd2J\ufffd0;t\ufffd"),  # the same in C1
    ("a\x7fb\x08c\x00", "a\ufffdb\ufffdc\ufffd"),
    ("\u202egpj.exe\u202c \u2066x\u2069", "\ufffdgpj.exe\ufffd \ufffdx\ufffd"),  # reorders
    ("\ud83d \udc00", "\ufffd \ufffd"),  # halves of characters
    ("a\u2028b\u2029c", "a\ufffdb\ufffdc"),
    ("pass\u00adword\ufeff", "password"),
    ("x\U000e0041\U000e0042y", "xy"),  # a message that only a model would read
    ("a\r\nb\rc\td", "a\nb\nc\td"),
]
KEPT = [
    "[/] [b + x [/#888888] [@click=app.quit]x[/]",
    "あいう 日本語",
    "👩\u200d👩\u200d👧 ❤\ufe0f 👍🏽 🇩🇪",
    "مرحبا \u200fעולם\u200e می\u200cخواهم",
    "e\u0301 n\u0303 ก็",
]


@pytest.mark.parametrize(("text", "shown"), HOSTILE)
def test_what_commands_a_terminal_is_replaced(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize("text", KEPT)
def test_writing_of_every_kind_is_kept(text: str) -> None:
    assert clean(text) == text


@given(st.text(st.characters()), st.data())
def test_clean_is_whole_and_final(text: str, data: st.DataObject) -> None:
    shown = clean(text)
    assert clean(shown) == shown
    bad = {"Cc", "Cs", "Zl", "Zp"}
    assert all(c in "\n\t" or unicodedata.category(c) not in bad for c in shown)
    assert shown.encode("utf-8").decode("utf-8") == shown
    cut = data.draw(st.integers(0, len(text)))
    cleaner = Cleaner()
    assert cleaner.push(text[:cut]) + cleaner.push(text[cut:]) + cleaner.flush() == shown


def test_a_line_end_cut_in_two_is_one() -> None:
    cleaner = Cleaner()
    assert cleaner.push("a\r") == "a"
    assert cleaner.push("\nb\r") == "\nb"
    assert cleaner.flush() == "\n"


def test_names_are_one_line() -> None:
    assert one_line(" my\n\x1b[31m model\t7b ") == "my \ufffd[31m model 7b"


@pytest.mark.parametrize(
    ("text", "cells"),
    [("あいう", 6), ("❤\ufe0f", 2), ("☎", 1), ("👩\u200d👩\u200d👧", 2), ("🇩🇪", 2), ("e\u0301", 1)],
)
def test_widths(text: str, cells: int) -> None:
    assert width(text) == cells
    assert sum(size for *_, size in graphemes(text)) == cells


def test_graphemes_hold_together() -> None:
    text = "e\u0301👩\u200d👩\u200d👧🇩🇪🇫🇷❤\ufe0fx"
    parts = [text[a:b] for a, b, _ in graphemes(text)]
    assert parts == ["e\u0301", "👩\u200d👩\u200d👧", "🇩🇪", "🇫🇷", "❤\ufe0f", "x"]


def test_fit() -> None:
    assert fit("hello", 5) == "hello"
    assert fit("hello", 4) == "hel…"
    assert fit("あいうえ", 5) == "あい…"
    assert fit("あいうえ", 4) == "あ…"
    assert fit("👩\u200d👩\u200d👧👩\u200d👩\u200d👧", 3) == "👩\u200d👩\u200d👧…"
    assert fit("x", 0) == ""
