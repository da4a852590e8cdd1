"""Whatever a grammar of calls allows is read as calls that follow their tools' schemas."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from helpers.reading import read, tool
from llguidance import LLMatcher, LLTokenizer

from edgerun.text.answer.formats import FORMATS, HARMONY
from edgerun.text.answer.grammar import Speller, calls_grammar
from edgerun.text.answer.reader import AnswerShape
from edgerun.text.answer.syntax import SYNTAXES
from edgerun.text.answer.tools import Tools

SCHEMAS: dict[str, Any] = {
    "plan": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 5},
            "unit": {"enum": ["C", "F"]},
            "on": {"type": "boolean"},
            "where": {
                "type": "object",
                "properties": {"lat": {"type": "number"}, "tag": {"type": "string"}},
                "required": ["tag"],
                "additionalProperties": False,
            },
            "xs": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        },
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
}
TOOLS = Tools([tool(n, s) for n, s in SCHEMAS.items()])
#: What is written in two ways is read by one format.
READER = {
    "deepseek_r1": "deepseek", "deepseek_dsml_v4": "deepseek_dsml", "glm_tight": "glm",
    "tool_calls_lines": "tool_calls", "function_json": "llama3", "mistral_named": "mistral",
}  # fmt: skip
BYTES = LLTokenizer("byte")
SPELLER = Speller(text=lambda t: json.dumps(t, ensure_ascii=False), free=lambda name, end: None)


def walk(grammar: str, rng: random.Random, start: bytes, ends: list[bytes]) -> str | None:
    """A random text of the grammar, None where it gets too long. ``ends`` are tried now and then,
    which random letters would never hit."""
    m = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar))
    assert not m.is_error(), m.get_error()
    out = bytearray(start)
    assert m.consume_tokens(list(start))
    while len(out) < 600:
        bias = m.compute_logit_bias()
        possible = [i for i in range(256) if bias[i]]
        if not possible or (m.is_accepting() and rng.random() < 0.3):
            return out.decode("utf-8", "replace")
        end = rng.choice(ends)
        if rng.random() < 0.2 and m.validate_tokens(list(end)) == len(end):
            out += end
            assert m.consume_tokens(list(end))
            continue
        closing = [i for i in possible if chr(i) in '"}]\n']
        plain = [i for i in possible if 32 <= i < 127 or i == 10] or possible
        out.append(rng.choice(closing if closing and rng.random() < 0.4 else plain))
        assert m.consume_token(out[-1])
    return None


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("name", SYNTAXES)
def test_calls_follow_their_schemas(name: str, forced: bool, parallel: bool) -> None:
    syntax = SYNTAXES[name]
    grammar = calls_grammar(syntax, SCHEMAS, SPELLER, forced=forced, parallel=parallel)
    if grammar is None:
        assert not syntax.trigger
        assert not forced
        return
    form = READER.get(name, name)
    shape = AnswerShape(format=FORMATS.get(form), tools=TOOLS, harmony=form == HARMONY)
    ends = [syntax.quote, syntax.xml.close if syntax.xml else "", '"']
    rng, done = random.Random(name), 0
    for _ in range(8):
        start = b"" if forced else f"Well, {syntax.trigger}".encode()
        text = walk(grammar, rng, start, [e.encode() for e in ends if e])
        if text is None or "\ufffd" in text:
            continue
        done += 1
        got = read(shape, [text])
        assert got.calls, text
        assert parallel or len(got.calls) == 1
        assert not forced or got.text == ""
        for called, arguments in got.calls:
            jsonschema.validate(arguments, SCHEMAS[called])
    assert done >= 2


def test_text_without_calls_is_free() -> None:
    grammar = calls_grammar(SYNTAXES["hermes"], SCHEMAS, SPELLER, forced=False, parallel=True)
    assert grammar is not None
    m = LLMatcher(BYTES, LLMatcher.grammar_from_lark(grammar))
    assert m.consume_tokens(list(b'Any <tool text {\n"name": 1}'))
    assert m.is_accepting()
    assert m.consume_tokens(list(b"<tool_call>"))
    assert not m.is_accepting()
    assert m.validate_tokens(list(b" garbage")) == 0
    assert m.validate_tokens(list(b'\n{"name": "ping", "arguments": {}')) > 20
    assert m.validate_tokens(list(b'\n{"name": "pong"')) < 15
