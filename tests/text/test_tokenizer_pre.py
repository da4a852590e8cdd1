"""The table of ``tokenizer.ggml.pre`` names: complete, correct, linear."""

from __future__ import annotations

import random
import time
import warnings

import pytest
from helpers.tok import BYTES, NORMAL, alphabet, bpe, metadata
from tokenizers import Regex, pre_tokenizers

from edgerun.errors import GGUFError, UnsupportedModelError
from edgerun.text.tokenizer import Tokenizer, load_tokenizer
from edgerun.text.tokenizer.bpe import pretokenizer, pretokenizer_names

NAMES = pretokenizer_names()
DISTINCT = list(
    {tuple(pretokenizer({"tokenizer.ggml.pre": n})["split"]): n for n in NAMES}.values()
)
#: An input of each kind that some regular expression handles badly.
UNITS = [
    *("a", "A", "漢", "\u0301", "1", "½", "!", " ", "\n", "\t", "ʰ", "'s", " a", "a\u0301", "한"),
    *("\n ", " \n", "!\n", "1,", "A!", "<", "IMG", "\u3000", "🙂", "½1", "a_", "Aa"),
]


def tiny(pre: str) -> Tokenizer:
    """A vocabulary of bytes alone: the words show in nothing but the time."""
    if pretokenizer({"tokenizer.ggml.pre": pre}).get("escape_whitespaces"):
        return load_tokenizer(metadata("gpt2", [*BYTES, ("▁", NORMAL)], merges=[], pre=pre))
    return load_tokenizer(bpe(pre=pre))


def split(pre: str, text: str) -> list[str]:
    steps = pretokenizer({"tokenizer.ggml.pre": pre})["split"]
    pre_tok = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(s), "isolated") for s in steps])
    return [piece for piece, _ in pre_tok.pre_tokenize_str(text)]


def test_there_are_91_names() -> None:
    assert len(set(NAMES)) == 91


@pytest.mark.parametrize("pre", NAMES)
def test_every_name_builds_and_round_trips(pre: str) -> None:
    tok = tiny(pre)
    for text in (
        "1234567",
        "4 ½ ²",
        "I'LL don't",
        "e\u0301x",
        "\r\n\n  x",
        "a\u2029b",
        "👩‍👧 漢字",
    ):
        assert tok.decode(tok.encode(text, add_bos=False)) == text


@pytest.mark.parametrize("pre", ["nonsense", "", "llama-bpe ", "\x1b[31m"])
def test_unknown_names_are_refused_with_the_way_out(pre: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre is .*qwen2") as e:
        load_tokenizer(bpe(pre=pre))
    assert "\x1b" not in str(e.value)


def test_a_missing_name_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"tokenizer\.ggml\.pre is missing.*'default'"):
        load_tokenizer(bpe(pre=None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_tokenizer(bpe(pre="default"))


def test_a_name_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(GGUFError, match=r"tokenizer\.ggml\.pre must be a string"):
        load_tokenizer(bpe() | {"tokenizer.ggml.pre": 3})


# By hand from the patterns; the same splits come out of Python's ``regex`` module.
@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "1234567", ["1234567"]),
        ("llama-bpe", "1234567", ["123", "456", "7"]),
        ("qwen2", "1234567", list("1234567")),
        ("superbpe", "1234567", ["1", "234", "567"]),
        ("afmoe", "1234567", ["1", "234", "567"]),
        ("tiny_aya", "12345678", ["12", "345", "678"]),
        ("falcon", "1234567", ["123", "456", "7"]),
        ("gpt-2", "4 ½ ²", ["4", " ½", " ²"]),
        ("llama-bpe", "4 ½ ²", ["4", " ", "½", " ", "²"]),
        ("gpt-2", "I'LL I'll", ["I", "'", "LL", " I", "'ll"]),
        ("llama-bpe", "I'LL I'll", ["I", "'LL", " I", "'ll"]),
        ("gpt-4o", "I'LL HELLOWorld", ["I'LL", " HELLOWorld"]),
        ("gpt-2", "e\u0301a", ["e", "\u0301", "a"]),
        ("qwen2", "e\u0301a", ["e", "\u0301a"]),
        ("qwen35", "e\u0301a", ["e\u0301a"]),
        ("gpt-2", "\r\n\n  x", ["\r\n\n ", " x"]),
        ("llama-bpe", "\r\n\n  x", ["\r\n\n", " ", " x"]),
        ("deepseek-llm", "\r\n\n  x", ["\r", "\n", "\n", " ", " x"]),
        ("gpt-2", "a\u2029b", ["a", "\u2029", "b"]),
        ("llama-bpe", "a\u2029b", ["a", "\u2029b"]),
        ("llama-bpe", "👩‍👧 x", ["👩‍👧", " x"]),
        ("deepseek-v3", "中文abc!d", ["中文", "abc", "!d"]),
        ("kimi-k2", "中文abc", ["中文", "abc"]),
        ("gemma4", "a b\n\nc", ["a b", "\n\n", "c"]),
    ],
)
def test_splits(pre: str, text: str, pieces: list[str]) -> None:
    assert split(pre, text) == pieces


@pytest.mark.parametrize(
    ("pre", "step", "original", "letters"),
    [
        ("deepseek-llm", 3, r"\s+$", " \t\u2028a"),
        ("afmoe", 0, r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", "0123٣½a ."),
        ("tiny_aya", 0, r"\d{1,3}(?=(?:\d{3})*\b)", "012½٣a _."),
        ("superbpe", 1, r"(?=(\d{3})+(?!\d))", "0123½²٣"),
    ],
)
def test_rewritten_patterns_split_as_the_originals(
    pre: str, step: int, original: str, letters: str
) -> None:
    ours = pretokenizer({"tokenizer.ggml.pre": pre})["split"][step]
    assert ours != original
    a = pre_tokenizers.Split(Regex(original), "isolated")
    b = pre_tokenizers.Split(Regex(ours), "isolated")
    rnd = random.Random(1)
    for _ in range(5000):
        text = "".join(rnd.choices(letters, k=rnd.randrange(1, 14)))
        assert a.pre_tokenize_str(text) == b.pre_tokenize_str(text), text


@pytest.mark.parametrize("pre", ["deepseek-llm", "afmoe", "tiny_aya", "superbpe"])
def test_rewritten_patterns_are_linear(pre: str) -> None:
    tok = tiny(pre)
    start = time.process_time()
    for text in ("1" * 100_000, "1" * 100_000 + "x", " " * 100_000 + "x", "½1" * 50_000):
        tok.encode(text)
    assert time.process_time() - start < 4.0  # the originals take 7 s to minutes


@pytest.mark.parametrize("pre", DISTINCT)
def test_no_pattern_is_quadratic(pre: str) -> None:
    tok = tiny(pre)
    start = time.process_time()
    for unit in UNITS:
        for end in ("", "x"):
            tok.encode(unit * (12000 // len(unit)) + end)
    # All 54 inputs together; a quadratic pattern takes longer than this for one of them.
    assert time.process_time() - start < 4.0


def test_flags() -> None:
    extra = [("<s>", 3)]
    assert load_tokenizer(bpe(pre="llama-bpe", extra=extra, bos_token_id=256)).encode("") == [256]
    assert load_tokenizer(bpe(pre="gpt-2", extra=extra, bos_token_id=256)).encode("") == []
    m = bpe(["a b"], pre="llama-bpe", extra=[("abc", NORMAL), ("[x]", 3)])
    assert load_tokenizer(m).encode("abc") == [257]  # a whole word wins over its merges
    m = bpe(["a b"], pre="gpt-2", extra=[("abc", NORMAL)])
    assert load_tokenizer(m).encode("abc") == [256, ord("c")]


def test_a_whole_word_never_becomes_a_control_token() -> None:
    # llama-bpe looks words up whole, and this one is a word to its pattern.
    tok = load_tokenizer(bpe(pre="llama-bpe", extra=[("secret", 3)]))
    assert tok.encode("secret") == list(map(ord, "secret"))
    assert tok.encode("secret", parse_special=True) == [256]
    merged = bpe(["s y", "sy s"], pre="gpt-2")
    merged["tokenizer.ggml.token_type"][257] = 3
    assert 257 not in load_tokenizer(merged).encode("sys")


def test_bytes_have_their_own_ids() -> None:
    tok = load_tokenizer(bpe())
    order = {c: b for b, c in enumerate(alphabet())}
    assert [tok.token_bytes(i) for i in range(256)] == [
        bytes([order[tok.token_text(i)]]) for i in range(256)
    ]
    assert tok.encode("é 漢") == list("é 漢".encode())
