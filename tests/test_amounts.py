"""Bytes in words: one unit wherever a person reads them."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from helpers.paths import ROOT
from hypothesis import given
from hypothesis import strategies as st

from edgerun.amounts import size_text


@pytest.mark.parametrize(
    ("n", "three", "two"),
    [
        (0, "0 B", "0 B"),
        (999, "999 B", "999 B"),
        (1000, "1.00 kB", "1.0 kB"),
        (98_300_000, "98.3 MB", "98 MB"),
        (999_499_999, "999 MB", "999 MB"),
        (999_500_000, "1.00 GB", "1.0 GB"),
        (4_680_000_000, "4.68 GB", "4.7 GB"),
        (9_996_000_000, "10.0 GB", "10 GB"),
        (99_960_000_000, "100 GB", "100 GB"),
        (142_000_000_000, "142 GB", "142 GB"),
        (10**15, "1000 TB", "1000 TB"),
    ],
)
def test_sizes_in_words(n: int, three: str, two: str) -> None:
    assert size_text(n) == three
    assert size_text(n, 2) == two


@given(st.integers(1000, 10**16), st.integers(1, 4))
def test_a_size_is_that_of_the_words(n: int, digits: int) -> None:
    number, unit = size_text(n, digits).split()
    unit_size = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}[unit]
    most = Fraction(unit_size, 2 * 10 ** len(number.partition(".")[2]))
    assert abs(Fraction(number) * unit_size - n) <= most * Fraction(1001, 1000)
    assert Fraction(1) <= Fraction(number) < 1000 or unit == "TB"
    assert len(number.replace(".", "")) >= digits


def test_nobody_writes_sizes_in_words_of_their_own() -> None:
    """A number formatted before a unit of bytes, anywhere but in the helper."""
    own = re.compile(r"\}\s?(?:[kMGT]i?B|bytes/s)\b")
    found = [
        f"{path.relative_to(ROOT)}:{i}: {line.strip()}"
        for path in sorted([*ROOT.glob("edgerun/**/*.py"), *ROOT.glob("backends/**/*.py")])
        for i, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if own.search(line) and path.name != "amounts.py"
    ]
    assert found == []
