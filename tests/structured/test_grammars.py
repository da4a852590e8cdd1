"""Grammars for a model's own tokens: special ones, every vocabulary, limits, the cache."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.models import gemma3, smollm2
from helpers.tok import spm, vocab_files

from edgerun.core import Constraint
from edgerun.errors import GenerationError, RequestError
from edgerun.gguf import GGUFFile
from edgerun.structured import grammars as module
from edgerun.structured.grammars import Grammars
from edgerun.structured.matcher import Matcher
from edgerun.structured.vocabulary import lark_free, lark_text, special_ids
from edgerun.text.tokenizer import Tokenizer, load_tokenizer

RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "mood": {"enum": ["😀", "sad"]}},
    "required": ["name", "mood"],
    "additionalProperties": False,
}
TEXT = '{"name": "Ada Lovelace, größer 漢字\\n", "mood": "😀"}'
CONTROL, USER = 3, 4


def load(path: Path) -> Tokenizer:
    with GGUFFile.open(path) as f:
        return load_tokenizer(f.metadata)


def allowed(m: Matcher, n: int) -> set[int]:
    return set(
        np.flatnonzero(np.unpackbits(m.mask().view(np.uint8), bitorder="little")[:n]).tolist()
    )


def follow(tokenizer: Tokenizer, m: Matcher, ids: list[int]) -> None:
    for i in ids:
        assert i in allowed(m, tokenizer.n_vocab), tokenizer.token_text(i)
        assert m.fits([i]) == 1
        forced = m.forced(8)
        assert not forced or allowed(m, tokenizer.n_vocab) == {forced[0]}
        m.accept(i)


def check_vocabulary(tokenizer: Tokenizer) -> None:
    """Text in, text out, and no token whose bytes do not fit."""
    [m] = Grammars(tokenizer).matchers(Constraint("json_schema", RECORD))
    n = tokenizer.n_vocab
    start = allowed(m, n)
    assert start
    assert all(TEXT.encode().startswith(tokenizer.token_bytes(i)[:1]) for i in start)
    assert all(tokenizer.token_bytes(i) for i in start)
    follow(tokenizer, m, tokenizer.encode_more(TEXT))
    assert m.ended
    [m] = Grammars(tokenizer).matchers(Constraint("regex", ".+"))
    free = allowed(m, n)
    assert not free & special_ids(tokenizer)
    assert len(free) > 0.5 * (n - len(special_ids(tokenizer)))
    follow(tokenizer, m, tokenizer.encode_more("x y"))
    assert allowed(m, n) & special_ids(tokenizer) == tokenizer.eog_ids


#: One of each kind; large ones take long to load.
KINDS = ("llama-spm", "phi-3", "gpt-2", "llama-bpe", "qwen2", "falcon", "starcoder", "mpt")


@pytest.mark.parametrize(
    "path", [p for p in vocab_files() if p.stem.endswith(KINDS)], ids=lambda p: p.stem
)
def test_kinds_of_vocabularies(path: Path) -> None:
    check_vocabulary(load(path))


@pytest.mark.parametrize("model", [smollm2, gemma3])
def test_real_models(model) -> None:
    check_vocabulary(load(model()))


@pytest.fixture(scope="module")
def marked() -> Tokenizer:
    """With markup that a template may write, and text that may not spell it."""
    extra = [("<tool_call>", USER), ("</tool_call>", USER), ("<think>", USER), ("<|x|>", CONTROL)]
    template = "{{ '<tool_call></tool_call><think>' }}"
    words = ["hello", " world", "tool", "call", '{"']
    metadata = spm(words, extra)
    metadata["tokenizer.chat_template"] = template
    return load_tokenizer(metadata)


def test_special_tokens_are_named_and_never_spelled(marked: Tokenizer) -> None:
    ids = {t: i for i, t in enumerate(marked.vocab.tokens)}
    tool, end, think, control = (
        ids[t] for t in ("<tool_call>", "</tool_call>", "<think>", "<|x|>")
    )
    assert {tool, end, think, control} <= special_ids(marked)
    source = lark_text(marked, '<tool_call>\n{"a": ')
    assert source == f'<[{tool}]> "\\n{{\\"a\\": "'
    [m] = Grammars(marked).matchers(Constraint("lark", f"start: {source} /[0-9]/ </tool_call>"))
    assert allowed(m, marked.n_vocab) == {tool}
    follow(marked, m, [tool, *marked.encode_more('\n{"a": 7'), end])
    assert m.ended
    [m] = Grammars(marked).matchers(Constraint("regex", "<tool_call>.*"))
    assert tool not in allowed(m, marked.n_vocab)  # as text it is written letter by letter
    assert lark_text(marked, 'plain "text"\\') == '"plain \\"text\\"\\\\"'


def test_free_text_until_a_special_token(marked: Tokenizer) -> None:
    ids = {t: i for i, t in enumerate(marked.vocab.tokens)}
    tool, end, think = ids["<tool_call>"], ids["</tool_call>"], ids["<think>"]
    free = lark_free(marked, "free", (tool, end))
    call = json.dumps(RECORD)
    source = f"start: free (<tool_call> call </tool_call> free)*\ncall: %json {call}\n{free}"
    [m] = Grammars(marked).matchers(Constraint("lark", source))
    hello = marked.encode_more("hello world")
    follow(marked, m, [*hello, think, *hello])
    now = allowed(m, marked.n_vocab)
    assert {tool, think} <= now
    assert not {end, ids["<|x|>"]} & now
    assert marked.eog_ids <= now
    follow(marked, m, [tool])
    assert allowed(m, marked.n_vocab).isdisjoint({tool, think, *marked.eog_ids})
    follow(marked, m, [*marked.encode_more(TEXT), end, *hello])
    assert marked.eog_ids <= allowed(m, marked.n_vocab)


def test_free_text_until_a_trigger_of_plain_text(marked: Tokenizer) -> None:
    source = 'start: (head %json {"type": "integer"} "!")* TEXT\nhead[lazy]: TEXT "<call>"\n'
    source += "TEXT: /(.|\\n)*/"
    [m] = Grammars(marked).matchers(Constraint("lark", source))
    follow(marked, m, marked.encode_more("hello <cal<call>"))
    assert allowed(m, marked.n_vocab) <= {
        i for i in range(marked.n_vocab) if marked.token_bytes(i)[:1] in b"-0123456789"
    }
    follow(marked, m, marked.encode_more("42!then <call>7! more"))
    assert marked.eog_ids <= allowed(m, marked.n_vocab)


def test_schemas_in_a_grammar_are_checked_too(marked: Tokenizer) -> None:
    for schema, word in (
        ('{"type": "array", "uniqueItems": true}', "uniqueItems at #"),
        ('{"x-guidance": {"lenient": true}, "not": {}}', "not at #"),
        ("{,}", "%json schema is not JSON"),
    ):
        with pytest.raises(RequestError, match=word) as e:
            Grammars(marked).matchers(Constraint("lark", f'start: "a" %json {schema}', "tools[0]"))
        assert e.value.param == "tools[0]"
    c = Constraint("lark", 'start: a\na: %json {"type": "object"}')
    [m] = Grammars(marked).matchers(c)
    follow(marked, m, marked.encode_more("{ "))
    assert not allowed(m, marked.n_vocab) & set(marked.encode_more(" \n\t"))


def test_states_are_apart_and_grammars_kept(marked: Tokenizer, monkeypatch) -> None:
    grammars = Grammars(marked)
    c = Constraint("regex", "a{2}|b{3}")
    a, b = grammars.matchers(c, 2)
    follow(marked, a, marked.encode_more("aa"))
    assert a.ended
    assert not b.ended
    follow(marked, b, marked.encode_more("bbb"))
    calls = []
    real = module._compile
    monkeypatch.setattr(module, "_compile", lambda t, c: (calls.append(c), real(t, c))[1])
    grammars.matchers(c)
    assert not calls
    monkeypatch.setattr(module, "_MOST", 3)
    for i in range(5):
        grammars.matchers(Constraint("regex", f"x{i}"))
    assert len(calls) == 5
    assert len(grammars._known) == 3
    monkeypatch.setattr(module, "_MOST_BYTES", 50)
    grammars.matchers(Constraint("regex", "y" * 40))
    assert sum(len(k[1]) for k in grammars._known) <= 50


def test_a_token_that_does_not_fit_fails_the_text(marked: Tokenizer) -> None:
    [m] = Grammars(marked).matchers(Constraint("regex", "a+"))
    with pytest.raises(GenerationError, match="cannot be followed"):
        m.accept(marked.encode_more("b")[0])


def test_a_slow_compilation_is_left_alone(marked: Tokenizer, monkeypatch) -> None:
    grammars = Grammars(marked)
    grammars.matchers(Constraint("regex", "warm"))
    go = threading.Event()
    real = module._compile

    def slow(tokens, c):
        if c.source == "slow":
            go.wait(20)
        return real(tokens, c)

    monkeypatch.setattr(module, "_compile", slow)
    monkeypatch.setattr(module, "_SECONDS", 0.3)
    start = time.monotonic()
    with pytest.raises(RequestError, match="takes longer than"):
        grammars.matchers(Constraint("regex", "slow"))
    assert time.monotonic() - start < 5
    assert grammars.matchers(Constraint("regex", "quick"))
    go.set()


@pytest.mark.parametrize(
    ("kind", "source", "word"),
    [
        ("lark", "start: " + "(" * 100_000 + '"a"' + ")" * 100_000, "too deeply nested"),
        ("lark", "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(5000)), "2000 rules"),
        ("lark", "start: A\nA: A", "circular"),
        ("lark", "start: <nothing>", "nothing"),
        ("regex", "(" * 100_000 + "a" + ")" * 100_000, "repeats too much"),
        ("regex", "(" * 5000 + "a" + ")" * 5000, "nest"),
        ("regex", "(a{1000}){1000}", "repeats too much"),
        ("regex", "x" * (1 << 20) + "y", "larger than 1 MiB"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_hostile_grammars(marked: Tokenizer, kind: str, source: str, word: str) -> None:
    start = time.monotonic()
    with pytest.raises(RequestError, match=word) as e:
        Grammars(marked).matchers(Constraint(kind, source, "grammar"))
    assert time.monotonic() - start < 10
    assert len(str(e.value)) < 400


def test_long_chains_of_rules_do_not_exhaust_the_stack(marked: Tokenizer) -> None:
    for name in ("r", "R"):
        rules = "".join(f"{name}{i}: {name}{i + 1}\n" for i in range(1900))
        source = f'start: {name}0\n{rules}{name}1900: "a"'
        assert Grammars(marked).matchers(Constraint("lark", source))
    refs = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(900)} | {"d900": {"const": 1}}
    c = Constraint("json_schema", {"$defs": refs, "$ref": "#/$defs/d0"})
    assert Grammars(marked).matchers(c)


def test_llguidance_waits_for_the_first_constraint() -> None:
    import subprocess

    code = "import edgerun.llm, sys; print('llguidance' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
