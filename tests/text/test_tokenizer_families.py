"""SPM, Unigram and WordPiece against the libraries they come from."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import sentencepiece
from helpers.tok import CONTROL, NORMAL, UNKNOWN, Typed, metadata, spm
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from edgerun.errors import GGUFError
from edgerun.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "Tokenizers cut text into pieces; pieces join to text again.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "def main():\n    return [x ** 2 for x in range(100)]",
    "日本語の文章と中文的句子 and ﬁne ligatures ½ ①",
] * 8


def trained(kind: str, **options: Any) -> sentencepiece.SentencePieceProcessor:
    """A small model trained by sentencepiece itself."""
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=out,
        model_type=kind,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=out.getvalue())


def as_gguf(sp: sentencepiece.SentencePieceProcessor, model: str, **keys: Any) -> dict[str, Any]:
    """What a converter writes for this model."""

    def kind(i: int) -> int:
        if sp.is_unknown(i):
            return UNKNOWN
        return 6 if sp.is_byte(i) else CONTROL if sp.is_control(i) else NORMAL

    ids = range(sp.get_piece_size())
    scores = np.array([sp.get_score(i) for i in ids], np.float32)
    tokens = [(sp.id_to_piece(i), kind(i)) for i in ids]
    return metadata(model, tokens, scores=scores, unknown_token_id=sp.unk_id(), **keys)


TEXTS = [
    *CORPUS[:5],
    *(
        "",
        " ",
        "hi",
        "  hi",
        "hi ",
        "a\n\nb",
        "日本 fox",
        "🙂 unknown",
        "ﬁ ½ Å",
        "\t x",
        "\0",
        "▁a b",
    ),
    "The   quick  dogs' Deich, quer_über1234",
]


@pytest.fixture(scope="module")
def bpe_model() -> sentencepiece.SentencePieceProcessor:
    return trained(
        "bpe",
        vocab_size=520,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
    )


@pytest.mark.parametrize("prefix", [True, False])
def test_spm_equals_sentencepiece(
    bpe_model: sentencepiece.SentencePieceProcessor, prefix: bool
) -> None:
    tok = load_tokenizer(as_gguf(bpe_model, "llama", add_space_prefix=prefix))
    for text in TEXTS:
        ids = tok.encode(text, add_bos=False)
        if prefix:
            assert ids == bpe_model.encode(text)
        assert tok.decode(ids) == text.replace("▁", " ")


# Llama's rule: a space before the text and after each control token, none after another space.
@pytest.mark.parametrize("prefix", [True, False])
def test_spm_spaces(prefix: bool) -> None:
    tok = load_tokenizer(spm(["hi"], add_space_prefix=prefix))
    v = tok.vocab.ids
    _hi, sp, h_i = v["▁hi"], v["▁"], [v["h"], v["i"]]
    first = [_hi] if prefix else h_i
    cases: list[tuple[str, list[int]]] = [
        ("", []),
        ("hi", first),
        ("<s>hi", [1, *first]),
        ("<s> hi", [1, sp, _hi] if prefix else [1, _hi]),
        ("hi<s>hi", [*first, 1, *first]),
        ("  hi", [sp, sp, _hi] if prefix else [sp, _hi]),
        ("hi</s>", [*first, 2]),
    ]
    for text, ids in cases:
        assert tok.encode(text, add_bos=False, parse_special=True) == ids, text
        assert tok.decode(ids, special=True) == text
    for text in [t for t, _ in cases]:
        plain = tok.encode(text, add_bos=False)
        assert not {1, 2} & set(plain)
        assert tok.decode(plain) == text


@settings(max_examples=200, deadline=None)
@given(st.text("hi ▁<s>/\n漢🙂\0\u0301", max_size=20), st.booleans())
def test_spm_round_trip(text: str, prefix: bool) -> None:
    tok = SPM[prefix]
    ids = tok.encode(text, add_bos=False)
    assert tok.decode(ids) == text.replace("▁", " ")  # the two are one in sentencepiece
    assert tok.decode(tok.encode(text)) == tok.decode(ids)


SPM = {p: load_tokenizer(spm(["hi", "his", "ship"], add_space_prefix=p)) for p in (True, False)}


def test_spm_without_byte_tokens_has_an_unknown() -> None:
    tokens: list[Typed] = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    tokens += [("▁", NORMAL), ("a", NORMAL), ("<0x41>", 6)]
    tok = load_tokenizer(metadata("llama", tokens, scores=np.zeros(6, np.float32)))
    assert tok.encode("aAa", add_bos=False) == [3, 4, 0, 4]
    assert tok.decode([3, 4, 0, 4, 5]) == "aaA"


@pytest.mark.parametrize("rule", ["identity", "nmt_nfkc"])
@pytest.mark.parametrize("squeeze", [True, False])
@pytest.mark.parametrize("prefix", [True, False])
def test_unigram_equals_sentencepiece(rule: str, squeeze: bool, prefix: bool) -> None:
    sp = trained(
        "unigram",
        vocab_size=150,
        hard_vocab_limit=False,
        normalization_rule_name=rule,
        remove_extra_whitespaces=squeeze,
        add_dummy_prefix=prefix,
    )
    keys: dict[str, Any] = {"remove_extra_whitespaces": squeeze, "add_space_prefix": prefix}
    if rule != "identity":
        keys["precompiled_charsmap"] = np.frombuffer(
            charsmap(sp.serialized_model_proto()), np.uint8
        )
    tok = load_tokenizer(as_gguf(sp, "t5", **keys))
    assert tok.fim is None
    for text in TEXTS:
        assert tok.encode(text, add_bos=False) == sp.encode(text), text
    assert tok.decode(sp.encode("The quick brown fox")) == "The quick brown fox"


def charsmap(proto: bytes) -> bytes:
    """ModelProto.normalizer_spec.precompiled_charsmap."""
    return fields(fields(proto)[3])[2]


def fields(message: bytes) -> dict[int, bytes]:
    """The last length-delimited field of each number in a protocol buffer message."""
    out: dict[int, bytes] = {}
    pos = 0

    def varint() -> int:
        nonlocal pos
        value = shift = 0
        while True:
            byte = message[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while pos < len(message):
        tag = varint()
        if tag & 7 == 2:
            n = varint()
            out[tag >> 3] = message[pos : pos + n]
            pos += n
        elif tag & 7 == 0:
            varint()
        else:
            pos += {1: 8, 5: 4}[tag & 7]
    return out


def test_unigram_key_of_the_wrong_type() -> None:
    sp = trained("unigram", vocab_size=150, hard_vocab_limit=False)
    with pytest.raises(GGUFError, match="precompiled_charsmap must be an array of bytes"):
        load_tokenizer(as_gguf(sp, "t5", precompiled_charsmap=np.zeros(4, np.float32)))


WORDS = ["pet", "##rov", "##ic", "##ić", "Pet", "中", "文", "ab", "##c", "!", "c", "ä", "a"]
WORDS += ["##a", "ber", "##lin", "Ber"]


def bert(**keys: Any) -> Tokenizer:
    special: list[Typed] = [(t, CONTROL) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")]
    words = [(w[2:] if w.startswith("##") else "▁" + w, NORMAL) for w in WORDS]
    ids = {"unknown_token_id": 1, "cls_token_id": 2, "seperator_token_id": 3}
    return load_tokenizer(metadata("bert", [*special, *words], **ids, **keys))


def reference(lowercase: bool, strip: bool | None) -> Callable[[str], list[int]]:
    vocab = {t: i for i, t in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])}
    hf = HFTokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=10**6))
    hf.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip)
    hf.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return lambda text: list(hf.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("strip", [None, True, False])
def test_wordpiece_equals_hugging_face(lowercase: bool, strip: bool | None) -> None:
    keys: dict[str, Any] = {"normalizer.lowercase": lowercase}
    if strip is not None:
        keys["normalizer.strip_accents"] = strip
    tok, expected = bert(**keys), reference(lowercase, strip)
    for text in (
        "Petrović",
        "petrovic!",
        "中文abc",
        "Berlin ÄÄa",
        "zz 中",
        "",
        " \t\n",
        "[CLS] a",
        "aaaa",
    ):
        assert tok.encode(text, add_bos=False) == expected(text), text


def test_wordpiece_cases() -> None:
    ids = {t: i + 5 for i, t in enumerate(WORDS)}
    accent = [ids["Pet"], ids["##rov"], ids["##ić"]]
    assert bert(**{"normalizer.lowercase": False}).encode("Petrović", add_bos=False) == accent
    lower = [ids["pet"], ids["##rov"], ids["##ic"]]
    assert bert().encode("Petrović", add_bos=False) == lower
    cjk = [ids["中"], ids["文"], ids["ab"], ids["##c"]]
    assert bert().encode("中文abc") == [2, *cjk]
    assert bert().encode("中文abc", add_eos=True) == [2, *cjk, 3]
    assert bert().encode("[MASK] ab", add_bos=False, parse_special=True) == [4, ids["ab"]]
    assert 4 not in bert().encode("[MASK]")
    assert bert().decode(bert().encode("中文 abc!")) == "中 文 abc !"
    with pytest.raises(GGUFError, match=r"normalizer\.lowercase must be true or false"):
        bert(**{"normalizer.lowercase": 1})
