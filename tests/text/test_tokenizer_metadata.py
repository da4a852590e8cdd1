"""What a file may say about its vocabulary, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.tok import CONTROL, NORMAL, USER, bpe, metadata, spm

from edgerun.errors import GGUFError, RequestError, UnsupportedModelError
from edgerun.text.tokenizer import FimTokens, load_tokenizer

T = "tokenizer.ggml."


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("tokens", np.arange(5), "tokenizer.ggml.tokens must be an array of strings"),
        ("tokens", ["a", 1], "tokenizer.ggml.tokens must be an array of strings"),
        ("tokens", None, "tokenizer.ggml.tokens must be an array of strings, not missing"),
        ("tokens", [], "tokenizer.ggml.tokens is empty"),
        ("token_type", np.zeros(3, np.int32), "tokenizer.ggml.token_type has 3 entries for"),
        ("token_type", ["a"], "tokenizer.ggml.token_type must be an array of integers"),
        ("token_type", np.zeros(3, np.float32), "must be an array of integers, not an array of"),
        ("scores", np.zeros(7, np.float32), "tokenizer.ggml.scores has 7 entries for"),
        ("scores", np.zeros(900, np.int32), "tokenizer.ggml.scores must be an array of floats"),
        ("scores", ["1.0"], "tokenizer.ggml.scores must be an array of floats"),
        ("scores", None, "tokenizer.ggml.scores is missing"),
        ("bos_token_id", "1", "tokenizer.ggml.bos_token_id must be a token id"),
        ("bos_token_id", True, "tokenizer.ggml.bos_token_id must be a token id"),
        ("bos_token_id", 1.0, "tokenizer.ggml.bos_token_id must be a token id"),
        ("add_bos_token", 1, "tokenizer.ggml.add_bos_token must be true or false"),
        ("add_space_prefix", "yes", "tokenizer.ggml.add_space_prefix must be true or false"),
        ("model", 7, "tokenizer.ggml.model must name the tokenizer"),
    ],
)
def test_bad_values_are_refused_by_key(key: str, value: Any, says: str) -> None:
    m = spm(["hello"])
    m[T + key] = value
    if value is None:
        del m[T + key]
    with pytest.raises(GGUFError) as e:
        load_tokenizer(m)
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def test_nan_score_is_refused() -> None:
    m = spm(["hello"])
    m[T + "scores"][3] = np.nan
    with pytest.raises(GGUFError, match=r"scores\[3\] is not a number"):
        load_tokenizer(m)


@pytest.mark.parametrize("name", ["bos", "eos", "eot", "eom", "unknown", "padding", "fim_pre"])
@pytest.mark.parametrize("token_id", [10**6, -1, 2**32 - 1])
def test_special_id_past_the_vocabulary(name: str, token_id: int) -> None:
    m = spm(["hello"]) | {f"{T}{name}_token_id": token_id}
    n = len(m[T + "tokens"])
    with pytest.raises(GGUFError, match=f"{name}_token_id is {token_id}, .* of {n} tokens"):
        load_tokenizer(m)


def test_the_last_id_is_still_inside() -> None:
    m = spm(["hello"])
    m[T + "eos_token_id"] = len(m[T + "tokens"]) - 1
    assert load_tokenizer(m).eos_id == len(m[T + "tokens"]) - 1


def test_family_defaults_past_a_tiny_vocabulary_are_absent() -> None:
    tok = load_tokenizer(metadata("gpt2", [("a", NORMAL), ("b", NORMAL)], merges=[], pre="gpt-2"))
    assert (tok.bos_id, tok.eos_id, tok.eog_ids) == (None, None, frozenset())
    assert tok.encode("ab") == [0, 1]
    tiny = [("[UNK]", CONTROL), ("▁a", NORMAL)]
    tok = load_tokenizer(metadata("bert", tiny))
    assert (tok.bos_id, tok.vocab.unk_id, tok.vocab.sep_id) == (None, None, None)
    assert tok.encode("a", add_eos=True) == [1]


def test_a_family_default_on_plain_text_is_absent() -> None:
    # Byte 11 is GPT-2's default end; here it is a vertical tab.
    assert load_tokenizer(bpe()).eos_id is None


def test_vocabulary_larger_than_the_embedding() -> None:
    m = spm(["hello"])
    n = len(m[T + "tokens"])
    assert load_tokenizer(m, n_embd_rows=n).n_vocab == n
    with pytest.raises(GGUFError, match=f"{n} tokens .* only {n - 1} rows"):
        load_tokenizer(m, n_embd_rows=n - 1)


def test_ids_outside_the_vocabulary_are_the_callers_error() -> None:
    tok = load_tokenizer(bpe())
    for i in (-1, 256, 2**40):
        for call in (tok.token_bytes, tok.token_text, tok.is_control, lambda i: tok.decode([i])):
            with pytest.raises(RequestError, match="ids are 0 to 255"):
                call(i)


@pytest.mark.parametrize("model", ["rwkv", "none", "no_vocab", "plamo2", "\x1b[2J"])
def test_unknown_tokenizer_models_are_refused(model: str) -> None:
    with pytest.raises(UnsupportedModelError, match="llama, gpt2, gemma4, bert, t5") as e:
        load_tokenizer(metadata(model, [("a", NORMAL)]))
    assert "\x1b" not in str(e.value)


def test_bytes_must_read_as_bytes() -> None:
    m = spm(["hello"])
    m[T + "tokens"][5] = "<0xZZ>"
    with pytest.raises(GGUFError, match="token 5 is typed as a byte but reads '<0xZZ>'"):
        load_tokenizer(m)


def test_merges_are_checked() -> None:
    for bad in (None, np.arange(3), ["a b", "ab"], ["a "], [3]):
        m = bpe()
        m[T + "merges"] = bad
        with pytest.raises(GGUFError, match=r"tokenizer\.ggml\.merges"):
            load_tokenizer(m)


@pytest.mark.parametrize("useless", ["ab c", "zz b", "a zz"])
def test_a_merge_the_vocabulary_lacks_is_ignored(
    useless: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    m = bpe(["a b"], extra=[("zzb", NORMAL), ("azz", NORMAL)])
    m[T + "merges"] = ["a b", useless]
    assert load_tokenizer(m).encode("abc") == [256, ord("c")]
    assert "1 of 2 entries of tokenizer.ggml.merges" in caplog.text
    assert capfd.readouterr().err == ""  # the library's panics print a trace


@pytest.mark.parametrize("make", [spm, bpe])
def test_odd_tokens_do_no_harm(make: Any) -> None:
    odd = [("", NORMAL), ("dup", NORMAL), ("dup", NORMAL), ("\udc80\udcff", NORMAL), ("\0", NORMAL)]
    tok = load_tokenizer(make(extra=[*odd, ("x" * 100_000, USER), ("", CONTROL), ("", USER)]))
    assert tok.decode(tok.encode("dup \0 xyz", add_bos=False)) == "dup \0 xyz"
    for i in range(tok.n_vocab):
        assert isinstance(tok.token_bytes(i), bytes)
        assert isinstance(tok.token_text(i), str)


def test_a_deep_chain_of_special_tokens() -> None:
    # As nested patterns these would exceed every recursion limit.
    tok = load_tokenizer(bpe(extra=[("<|" + "a" * n, CONTROL) for n in range(3000)]))
    assert tok.encode("<|" + "a" * 2999, parse_special=True) == [256 + 2999]
    assert tok.encode("<|aaa>", parse_special=True) == [256 + 3, ord(">")]


def test_lone_surrogates_become_replacement_characters() -> None:
    for m in (spm(["hello"]), bpe()):
        tok = load_tokenizer(m)
        assert tok.decode(tok.encode("a\ud800b", add_bos=False)) == "a\ufffdb"


def test_end_of_generation_tokens_beside_eos() -> None:
    extra = [("<|endoftext|>", CONTROL), ("<|im_start|>", CONTROL), ("<|im_end|>", USER)]
    tok = load_tokenizer(bpe(extra=extra, eos_token_id=256))
    assert tok.eos_id == 256
    assert tok.eog_ids == {256, 258}
    assert 258 in tok.eog_ids
    assert 257 not in tok.eog_ids
    # The file types <|im_end|> as user-defined, yet it never shows and is never read from text.
    assert tok.is_control(258)
    assert tok.decode([ord("x"), 258]) == "x"
    assert tok.decode([ord("x"), 258], special=True) == "x<|im_end|>"
    assert 258 not in tok.encode("<|im_end|>")


def test_eot_and_eom_keys_end_a_generation() -> None:
    extra = [("<A>", CONTROL), ("<B>", NORMAL), ("<C>", CONTROL)]
    m = bpe(extra=extra, eos_token_id=256, eot_token_id=257, eom_token_id=258)
    tok = load_tokenizer(m)
    assert tok.eog_ids == {256, 257, 258}
    assert tok.is_control(257)


def test_harmony_end_closes_a_message_only() -> None:
    texts = ["<|return|>", "<|call|>", "<|end|>", "<|start|>", "<|message|>", "<|channel|>"]
    tok = load_tokenizer(bpe(extra=[(t, CONTROL) for t in texts], eos_token_id=256))
    assert tok.eog_ids == {256, 257}
    assert tok.decode(range(258, 262)) == "<|end|><|start|><|message|><|channel|>"
    assert not set(range(256, 262)) & set(tok.encode("".join(texts)))
    assert tok.encode("".join(texts), parse_special=True) == list(range(256, 262))


def test_html_end_tag_is_not_an_end_of_generation() -> None:
    tok = load_tokenizer(bpe(extra=[("<eos>", CONTROL), ("</s>", USER)], eos_token_id=256))
    assert tok.eog_ids == {256}
    assert tok.encode("</s>") == [257]


def test_fim_ids_from_texts_and_keys() -> None:
    texts = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|file_sep|>"]
    tok = load_tokenizer(bpe(extra=[(t, USER) for t in texts]))
    assert tok.fim == FimTokens(prefix=256, suffix=257, middle=258, pad=259, separator=260)
    assert tok.eog_ids == {259, 260}
    assert not set(range(256, 261)) & set(tok.encode("".join(texts)))
    named = [("<a>", CONTROL), ("<b>", CONTROL), ("<c>", CONTROL)]
    keys: dict[str, Any] = {
        "fim_pre_token_id": 257,
        "suffix_token_id": 256,
        "fim_mid_token_id": 258,
    }
    tok = load_tokenizer(bpe(extra=named, **keys))
    assert tok.fim == FimTokens(prefix=257, suffix=256, middle=258)
    assert load_tokenizer(bpe(extra=[("<|fim_prefix|>", CONTROL)])).fim is None


def test_chat_templates() -> None:
    m = bpe()
    assert (load_tokenizer(m).chat_template, load_tokenizer(m).chat_templates) == (None, {})
    m |= {"tokenizer.chat_template": "A", "tokenizer.chat_template.rag": "B"}
    m |= {"tokenizer.chat_templates": ["rag"]}
    tok = load_tokenizer(m)
    assert (tok.chat_template, tok.chat_templates) == ("A", {"default": "A", "rag": "B"})
    m["tokenizer.chat_template.rag"] = 5
    with pytest.raises(GGUFError, match=r"tokenizer\.chat_template\.rag must be a string"):
        load_tokenizer(m)


def test_libraries_load_only_when_a_family_needs_them() -> None:
    code = (
        "import sys; import edgerun.text.tokenizer, edgerun.text.detok\n"
        "assert not {'tokenizers', 'sentencepiece'} & set(sys.modules), 'on import'\n"
        "from helpers.tok import spm; edgerun.text.tokenizer.load_tokenizer(spm(['a']))\n"
        "assert 'tokenizers' not in sys.modules and 'sentencepiece' in sys.modules\n"
    )
    path = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]\n"
    subprocess.run([sys.executable, "-c", path + code], check=True, timeout=60)
