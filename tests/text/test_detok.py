"""Streaming: whole characters only, stop strings neither leaked nor lost."""

from __future__ import annotations

import random
import time
from itertools import pairwise

import pytest
from helpers.tok import CONTROL, USER, bpe, spm
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.errors import RequestError
from edgerun.text.detok import StreamDetokenizer
from edgerun.text.stops import MAX_STOP_CHARS, StopMatcher
from edgerun.text.tokenizer import Tokenizer, load_tokenizer

BYTES = load_tokenizer(bpe(extra=[("<|im_end|>", CONTROL), ("<tool>", USER)]))
SPM = load_tokenizer(spm(["hi", "there"], extra=[("<|im_end|>", CONTROL), ("<tool>", USER)]))
FAMILY = "👩‍👩‍👧"


def stream(tok: Tokenizer, ids: list[int], *stop: str) -> tuple[list[str], StreamDetokenizer]:
    d = StreamDetokenizer(tok, stop=stop)
    return [*map(d.push, ids), d.flush()], d


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, and that string; the longest wins."""
    for end in range(len(text) + 1):
        hits = [s for s in stops if s and text[:end].endswith(s)]
        if hits:
            longest = max(hits, key=len)
            return text[: end - len(longest)], longest
    return text, None


# -- characters -------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [FAMILY, "漢字かな", "naïve", "e\u0301", "🇫🇷", "\0a", ""])
def test_every_piece_is_whole_characters(text: str) -> None:
    pieces, _ = stream(BYTES, list(text.encode()))
    assert "".join(pieces) == text
    assert "\ufffd" not in "".join(pieces)
    # A character appears with the last of its bytes, not later.
    done = [len(text[:n].encode()) - 1 for n in range(1, len(text) + 1)]
    assert [i for i, p in enumerate(pieces) if p] == done


@pytest.mark.parametrize(
    ("data", "pieces"),
    [
        (b"\xff", ["\ufffd", ""]),
        (b"\xe6\xbc", ["", "", "\ufffd"]),  # cut short: sure only at the end
        (b"\xe6\xbca", ["", "", "\ufffda", ""]),
        (b"\xe6\xe6\xbc\xa2", ["", "\ufffd", "", "漢", ""]),
        (b"\xf0\x9f\x99\xff", ["", "", "", "\ufffd\ufffd", ""]),
    ],
)
def test_invalid_bytes_show_once_sure(data: bytes, pieces: list[str]) -> None:
    assert stream(BYTES, list(data))[0] == pieces


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_decode_as_at_once(data: bytes) -> None:
    assert "".join(stream(BYTES, list(data))[0]) == data.decode("utf-8", "replace")
    assert BYTES.decode(list(data)) == data.decode("utf-8", "replace")


def test_control_tokens_are_not_text() -> None:
    end, tool = 256, 257
    assert stream(BYTES, [ord("a"), end, tool, ord("b")])[0] == ["a", "", "<tool>", "b", ""]
    d = StreamDetokenizer(BYTES, special=True)
    assert d.push(end) == "<|im_end|>"
    with pytest.raises(RequestError, match="outside the vocabulary"):
        d.push(258)


def test_the_leading_space() -> None:
    hi, end, tool = (SPM.vocab.ids[t] for t in ("▁hi", "<|im_end|>", "<tool>"))
    assert StreamDetokenizer(SPM).push(hi) == "hi"
    assert StreamDetokenizer(SPM, previous=end).push(hi) == "hi"
    assert StreamDetokenizer(SPM, previous=hi).push(hi) == " hi"
    assert stream(SPM, [hi, hi, tool, hi, SPM.vocab.ids["▁"], hi])[0][:4] == [
        "hi",
        " hi",
        "<tool>",
        "hi",
    ]
    bare = load_tokenizer(spm(["hi"], add_space_prefix=False))
    assert StreamDetokenizer(bare).push(bare.vocab.ids["▁hi"]) == " hi"


@settings(max_examples=200, deadline=None)
@given(st.text("hi there<tol>|_end\n漢🙂", max_size=30), st.booleans())
def test_streaming_equals_decoding(text: str, trusted: bool) -> None:
    for tok in (BYTES, SPM):
        ids = tok.encode(text, add_bos=False, parse_special=trusted)
        assert "".join(stream(tok, ids)[0]) == tok.decode(ids)


# -- stop strings -----------------------------------------------------------------------------


def test_a_stop_string_over_tokens() -> None:
    pieces, d = stream(BYTES, list(b"say END now"), "END")
    assert pieces == [*"say ", *[""] * 8]
    assert (d.stopped, d.matched) == (True, "END")


def test_a_half_match_is_released_at_once() -> None:
    pieces, d = stream(BYTES, list(b"an ENx ENEND"), "END")
    assert pieces[:7] == ["a", "n", " ", "", "", "ENx", " "]
    assert "".join(pieces) == "an ENx EN"
    assert d.matched == "END"


def test_a_held_tail_is_not_lost() -> None:
    pieces, d = stream(BYTES, list(b"the EN"), "END")
    assert pieces == [*"the ", "", "", "EN"]
    assert (d.stopped, d.matched) == (False, None)
    assert d.flush() == ""


def test_a_stop_string_at_the_very_start_and_end() -> None:
    assert "".join(stream(BYTES, list(b"ENDx"), "END")[0]) == ""
    assert "".join(stream(BYTES, list(b"xEND"), "END")[0]) == "x"


def test_a_stop_string_of_cut_characters() -> None:
    pieces, d = stream(BYTES, list(f"a{FAMILY}b".encode()), FAMILY)
    assert ("".join(pieces), d.matched) == ("a", FAMILY)
    pieces, d = stream(BYTES, [ord("a"), 0xE6], "\ufffd")
    assert ("".join(pieces), d.matched) == ("a", "\ufffd")


def test_empty_stop_strings_stop_nothing() -> None:
    pieces, d = stream(BYTES, list(b"abc"), "", "")
    assert ("".join(pieces), d.stopped) == ("abc", False)


def test_feed_tells_how_many_tokens_count() -> None:
    d = StreamDetokenizer(BYTES, stop=["b!"])
    assert d.feed(list(b"aab")) == ("aa", 3)
    assert d.feed(list(b"!xyz")) == ("", 1)
    assert d.stopped
    assert d.feed(list(b"xyz")) == ("", 0)
    assert d.push(ord("x")) == d.flush() == ""
    assert StreamDetokenizer(BYTES).feed([]) == ("", 0)


LETTERS = "ab\n漢🙂\u200d"


@settings(max_examples=600, deadline=None)
@given(
    st.text(LETTERS, max_size=40),
    st.lists(st.text(LETTERS, max_size=5), max_size=4),
    st.lists(st.integers(0, 160), max_size=20),
)
def test_output_is_the_text_before_the_first_stop(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    """Whatever the text, the stop strings, and the tokens that cut it."""
    data = text.encode()
    bounds = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    parts = [data[a:b] for a, b in pairwise(bounds)]
    d = StreamDetokenizer(_Pieces(parts), stop=stops)  # type: ignore[arg-type]
    expected, matched = first_stop(text, stops)
    shown = ""
    for i in range(len(parts)):
        shown += d.push(i)
        assert expected.startswith(shown)
    assert shown + d.flush() == expected
    assert d.matched == matched
    if len(stops) == 1 and stops[0]:
        assert expected == text.split(stops[0])[0]


class _Pieces:
    """A tokenizer whose tokens are these bytes."""

    space_prefix = False

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        return self.parts[token_id]


@settings(max_examples=300, deadline=None)
@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=6), max_size=4))
def test_no_more_is_held_than_could_become_a_stop(text: str, stops: list[str]) -> None:
    m = StopMatcher(stops)
    shown = ""
    for n, c in enumerate(text, 1):
        shown += m.push(c)
        if m.matched is not None:
            return
        held = text[len(shown) : n]
        longest = max(
            (k for s in stops for k in range(len(s)) if text[:n].endswith(s[:k])), default=0
        )
        assert len(held) == longest


def test_the_cost_of_a_token_does_not_grow() -> None:
    rnd = random.Random(2)
    ids = [rnd.choice(b"ab \n") for _ in range(200_000)]
    d = StreamDetokenizer(BYTES, stop=["ab ab ab\nQ", "a" * 1000 + "Q"])
    start = time.process_time()
    shown = [d.push(i) for i in ids]
    assert time.process_time() - start < 4.0
    assert "".join(shown) + d.flush() == bytes(ids).decode()


def test_a_long_half_match_costs_no_more() -> None:
    stop = "a" * 50_000 + "b"
    m = StopMatcher([stop])
    start = time.process_time()
    assert not any(m.push("a") for _ in range(50_000))
    assert time.process_time() - start < 2.0
    assert m.push("c") == "a" * 50_000 + "c"


def test_stop_strings_have_a_bound() -> None:
    with pytest.raises(RequestError, match=f"more than {MAX_STOP_CHARS}") as e:
        StopMatcher(["x" * MAX_STOP_CHARS, "y"])
    assert e.value.param == "stop"
