"""GBNF against Python's ``re`` and ``json``, and its errors."""

from __future__ import annotations

import json
import random
import re

import pytest
from llguidance import LLMatcher, LLTokenizer

from edgerun.errors import RequestError
from edgerun.structured.gbnf import to_lark

#: After the format's own documentation.
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# one kind of space
ws ::= | " " | "\n" [ \t]{0,20}
"""


@pytest.fixture(scope="module")
def tokens() -> LLTokenizer:
    return LLTokenizer("byte")


def matches(tokens: LLTokenizer, grammar: str, text: str) -> bool:
    lark = LLMatcher.grammar_from_lark(to_lark(grammar, "grammar"))
    m = LLMatcher(tokens, lark, log_level=0)
    assert not m.is_error(), m.get_error()
    raw = list(text.encode())
    return m.try_consume_tokens(raw) == len(raw) and m.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "expression"),
    [
        ('root ::= "a" "b"? [c-e]* | "xy"+', "ab?[c-e]*|(xy)+"),
        ('root ::= x{2,3}\nx ::= "a" | "bc"', "(a|bc){2,3}"),
        ('root ::= x{2} "."\nx ::= [^a-b\\n]', r"[^a-b\n]{2}\."),
        ('root ::= x{1,} # comment\n\n  # more\nx ::= "a"', "a+"),
        ('root ::= [a-z]+ "b"', "[a-z]+b"),  # a terminal must not eat what follows it
        ('root ::= "" | "a" (\n "b" |\n "c" )', "|a(b|c)"),
        ('root ::= .  .', "(?s:..)"),
        ('root ::= "\\u00e9\\x41\\n" ["\\]\\\\-]', 'éA\n["\\]\\\\-]'),
        ('root ::= a-b c_1\na-b ::= "x"\nc_1 ::= [yz]', "x[yz]"),
        ('root ::= "/" [/&|~] "//"', "/[/&|~]//"),
    ],
)  # fmt: skip
def test_regular_grammars_are_expressions(
    tokens: LLTokenizer, grammar: str, expression: str
) -> None:
    rng = random.Random(grammar)
    alphabet = 'abcdexyz./"\\-]éA\n&|~'
    texts = [
        "",
        "a",
        "abca",
        "abx",
        "xy.",
        "ab",
        "xy",
        "aab",
        "éA\n-",
        "xy" * 3,
        "////",
        "/&//",
        "abcde",
    ]
    texts += ["".join(rng.choices(alphabet, k=rng.randrange(1, 5))) for _ in range(150)]
    found = [matches(tokens, grammar, t) for t in texts]
    assert found == [re.fullmatch(expression, t) is not None for t in texts]
    assert any(found)


def test_json(tokens: LLTokenizer) -> None:
    for value in ({"a": [1, 2.5, {"b": None}], "c": 'x"\n'}, {}, {"é": True}, {"a": [[[{}]]]}):
        assert matches(tokens, JSON, json.dumps(value))
        assert matches(tokens, JSON, json.dumps(value, indent=2, ensure_ascii=False))
    for text in ('{"a":1,}', "[1]", '{"a" 1}', '{"a":01}', "{}  ", '{"a":"\n"}'):
        assert not matches(tokens, JSON, text)


def test_recursion(tokens: LLTokenizer) -> None:
    grammar = 'root ::= pair\npair ::= "(" pair ")" | [a-z]+ | ""'
    for text, right in (("", 1), ("((abc))", 1), ("((a)", 0), ("()", 1), ("(a)b", 0)):
        assert matches(tokens, grammar, text) == bool(right)


@pytest.mark.parametrize(
    ("grammar", "word"),
    [
        ('root ::= "a', "line 1: expected a closing quote"),
        ('x ::= "a"', "no rule 'root'"),
        ("root ::= b", "names b, which is not there"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule root is defined twice"),
        ("root ::= [z-a]", "a range that goes up"),
        ("root ::= []", "a character"),
        ('root = "a"', "expected ::="),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= "\\ud800"', "a character's number"),
        ('root ::= "\\u12"', "4 hexadecimal digits"),
        ('root ::= "a" !', "expected a literal"),
        ('root ::= "a"{2,1}', "not below the first"),
        ('root ::= "a"{x}', "expected {m}"),
        ('root ::= ("a"', "expected )"),
        ("root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "nested deeper"),
        ('root ::= ("a"{1000}){1000}', "repeats too much"),
        ('root ::= a{1000}\na ::= b{1000}\nb ::= "a"', "repeats too much"),
        ("\n".join(f"r{i} ::= r{i + 1}" for i in range(3000)), "more than 2000 rules"),
    ],
    ids=lambda v: v[:24],
)
def test_errors_name_the_place(grammar: str, word: str) -> None:
    with pytest.raises(RequestError) as e:
        to_lark(grammar, "grammar")
    assert word in str(e.value)
    assert e.value.param == "grammar"
    assert "\n" not in str(e.value)
