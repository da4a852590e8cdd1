"""Every keyword of a schema is enforced, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher, LLTokenizer

from edgerun.core import Constraint
from edgerun.errors import RequestError
from edgerun.structured.grammars import _grammar
from edgerun.structured.patterns import MAX_PATTERN, check_pattern
from edgerun.structured.schema import prepare_schema


@pytest.fixture(scope="module")
def tokens() -> LLTokenizer:
    return LLTokenizer("byte")


def matches(tokens: LLTokenizer, schema: Any, text: str) -> bool:
    m = LLMatcher(tokens, _grammar(Constraint("json_schema", schema)), log_level=0)
    assert not m.is_error(), m.get_error()
    raw = list(text.encode())
    return m.try_consume_tokens(raw) == len(raw) and m.is_accepting()


def refusal(schema: Any) -> str:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    with pytest.raises(RequestError) as e:
        prepare_schema(text, "tools[2].function.parameters")
    assert e.value.param == "tools[2].function.parameters"
    assert str(e.value).startswith("tools[2].function.parameters: ")
    return str(e.value)


@pytest.mark.parametrize(
    ("keyword", "rest"),
    [
        ("not", {"type": "string"}), ("if", {"type": "string"}), ("then", {}), ("else", {}),
        ("contains", {"type": "string"}), ("minContains", 2), ("maxContains", 2),
        ("uniqueItems", True), ("propertyNames", {"pattern": "^a"}),
        ("dependentRequired", {"a": ["b"]}), ("dependentSchemas", {"a": {}}),
        ("dependencies", {"a": ["b"]}), ("unevaluatedItems", False),
        ("unevaluatedProperties", False), ("$dynamicRef", "#a"), ("$recursiveRef", "#"),
        ("format", "idn-email"), ("format", "unknown"), ("multipleOf", 1_000_003),
        ("multipleOf", 0), ("minLength", -1), ("pattern", 3), ("enum", []), ("required", "a"),
        ("properties", []), ("anyOf", []), ("type", "sting"), ("minimum", "1"),
        ("minimum", 2**53 + 1), ("const", 2**53 + 1), ("enum", ["a\u0001"]),
        ("$ref", "https://example.com/schema"), ("$ref", "#/$defs/nothing"), ("$ref", "#nothing"),
        ("$id", "https://example.com/nested"), ("minProperties", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("draft", [None, "http://json-schema.org/draft-07/schema#"])
def test_refused_by_name_and_place(keyword: str, rest: Any, draft: str | None) -> None:
    schema = {"type": "object", "properties": {"a/b": {keyword: rest}}}
    if draft:  # an older one does not know some of them, and would ignore them
        schema["$schema"] = draft
    message = refusal(schema)
    assert f"{keyword} at #/properties/a~1b " in message
    assert "\n" not in message


def test_keywords_of_draft_2020_12_are_all_decided() -> None:
    """Against jsonschema's list of keywords that validate."""
    known = set(jsonschema.Draft202012Validator.VALIDATORS)
    tried = {
        "type": "string", "properties": {}, "required": [], "items": {}, "prefixItems": [{}],
        "additionalProperties": {}, "patternProperties": {}, "minLength": 1, "maxLength": 1,
        "pattern": "a", "format": "date", "minimum": 1, "maximum": 1, "exclusiveMinimum": 1,
        "exclusiveMaximum": 1, "multipleOf": 2, "minItems": 1, "maxItems": 1, "minProperties": 1,
        "maxProperties": 1, "enum": [1], "const": 1, "anyOf": [{}], "oneOf": [{}], "allOf": [{}],
        "$ref": "#",
    }  # fmt: skip
    for keyword in known:
        if keyword in tried:
            assert keyword in str(prepare_schema(json.dumps({keyword: tried[keyword]}), "p")) or (
                keyword == "oneOf"
            )
        else:
            assert f"{keyword} at #" in refusal({keyword: {"x": ["y"]}})


@pytest.mark.parametrize(
    "idle",
    [
        {"uniqueItems": False}, {"not": False}, {"propertyNames": {"type": "string"}},
        {"dependentRequired": {}}, {"unevaluatedProperties": True}, {"title": "t", "x-y": 1},
        {"deprecated": True, "contentSchema": {}, "examples": [1]}, {"format": "password"},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "http://a/b"},
        {"x-guidance": {"lenient": True, "whitespace_pattern": ".*"}},
    ],
    ids=str,
)  # fmt: skip
def test_what_demands_nothing_is_left_out(idle: dict[str, Any]) -> None:
    assert prepare_schema(json.dumps({"type": "string", **idle}), "p") == {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"const": None}, ["null"], ["1", '"a"']),
        ({"type": "integer", "format": "int8"}, ["-128", "127"], ["128", "-129"]),
        ({"type": ["integer", "null"], "format": "uint8"}, ["null", "255"], ["256", "-1"]),
        ({"type": "integer", "format": "int64"}, ["999999999999999999"], ["9" * 20]),
        ({"type": "number", "format": "double"}, ["1.5"], []),
        ({"type": "integer", "maximum": 2**63 - 1, "minimum": -(2**63)}, ["-5", "9" * 18],
         ["9" * 20]),
        ({"type": "string", "minLength": 2.0}, ['"ab"'], ['"a"']),
        ({"type": "string", "pattern": "\\S"}, ['"a"', '" a "'], ['" "', '""', '"\\n"']),
        ({"type": "string", "pattern": r"^\d+$"}, ['"12"'], ['"1a"', '""', '"12\\n"', '"\u0663"']),
        ({"type": "object", "properties": {}}, ["{}", '{"a": [1]}'], ["1"]),
        ({"enum": ["😀"]}, ['"😀"'], ['"\\ud83d\\ude00"', '"x"']),
        (
            {"properties": {"name": {"type": "string"}}, "type": "object",
             "additionalProperties": {"type": "integer"}},
            ['{"name": "a", "x": 1}', '{"x": 1}'],
            ['{"name": 5}', '{"n\\u0061me": 5}', '{"x": "a"}'],
        ),
        (
            {"type": "object", "patternProperties": {"^a": {"type": "integer"}}},
            ['{"ab": 1}', '{"b": "x"}'],
            ['{"ab": "x"}', '{"\\u0061b": "x"}'],
        ),
        ({"items": [{"type": "string"}], "additionalItems": False, "type": "array"}, ['["a"]'],
         ['["a", 1]']),
        ({"$defs": {"x": {"$anchor": "foo", "type": "string"}}, "$ref": "#foo"}, ['"a"'], ["1"]),
        ({"definitions": {"a b": {"const": "a"}}, "$ref": "#/definitions/a%20b"}, ['"a"'], ["1"]),
        ({"x": {"schemas": {"y": {"const": 1}}}, "$ref": "#/x/schemas/y"}, ["1"], ["2"]),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "minimum": 1, "type": "integer",
          "exclusiveMinimum": True}, ["2"], ["1"]),
        ({"anyOf": [{"const": 1}, {"const": 2}], "oneOf": [{"const": 2}, {"const": 3}]}, ["2"],
         ["1", "3"]),
        ({}, ["1", '{"a": [null]}'], ["", "x"]),
        ({"type": "object"}, ['{\n  "a": 1,\n  "b": [1, 2]\n}', "{}", "{ }"],
         ['{  "a": 1}', '{\n\n"a": 1}', ' {"a": 1}', '{"a": 1} ', "{" + "\n" + " " * 41 + "}"]),
        ({"required": ["a", "b"], "type": "object",
          "properties": {"b": {"const": 1}, "a": {"const": 1}}},
         ['{"b": 1, "a": 1}'], ['{"a": 1, "b": 1}', '{"b": 1}']),
    ],
    ids=lambda v: json.dumps(v)[:40] if isinstance(v, dict) else "",
)  # fmt: skip
def test_enforced(tokens: LLTokenizer, schema: Any, yes: list[str], no: list[str]) -> None:
    for text in yes:
        assert matches(tokens, schema, text), text
    for text in no:
        assert not matches(tokens, schema, text), text


CAT = {"type": "object", "properties": {"k": {"const": "cat"}}, "required": ["k"]}
DOG = {"type": "object", "properties": {"k": {"enum": ["dog", "wolf"]}}, "required": ["k"]}
CLOSED = {"type": "object", "properties": {"x": {}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("options", "provable"),
    [
        ([{"type": "string"}, {"type": ["integer", "null"]}], True),
        ([{"type": "integer"}, {"type": "number"}], False),
        ([{"const": 1}, {"const": True}], True),
        ([{"const": 1}, {"const": 1.0}], False),
        ([{"enum": [1, 2]}, {"enum": [3]}, {"type": "string"}], True),
        ([{"enum": ["a"]}, {"type": "string"}], False),
        ([CAT, DOG], True),
        ([{**CAT, "required": []}, DOG], False),
        ([{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], True),
        ([{"$ref": "#/$defs/cat"}, {"allOf": [{"$ref": "#/$defs/cat"}]}], False),
        ([{"anyOf": [CAT, {"type": "null"}]}, DOG], True),
        ([CAT, CLOSED], True),
        ([{**CAT, "required": []}, CLOSED], False),
        ([{"properties": {"k": {"const": 1}}, "required": ["k"]},
          {"properties": {"k": {"const": 2}}, "required": ["k"]}], False),  # both allow "a"
        ([True, False], True),
        ([True, {}], False),
    ],
    ids=str,
)  # fmt: skip
def test_one_of_is_any_of_where_options_are_apart(options: list[Any], provable: bool) -> None:
    schema = {"oneOf": options, "$defs": {"cat": CAT, "dog": DOG}}
    if provable:
        assert len(prepare_schema(json.dumps(schema), "p")["anyOf"]) == len(options)
    else:
        assert "oneOf at # cannot be enforced: options 0 and 1 may both match" in refusal(schema)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('{"items":' * 10_000 + "true" + "}" * 10_000, "nested deeper than 100"),
        ('{"const":' + "[" * 200 + "]" * 200 + "}", "nested deeper than 100"),
        ('{"default":' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper than 100"),
        ("[" * 100_000, "nested"),
        ('{"a": NaN}', "NaN"),
        ('{"a": ', "not JSON"),
        ('{"const": "\ud800"}', "not JSON"),
        ("[]", "not an object"),
        ("false", "allows nothing"),
        ('{"properties": {"a": 1}}', "must be a schema"),
        ('{"description": "' + "x" * (1 << 20) + '"}', "larger than 1 MiB"),
        (json.dumps({"properties": {f"p{i}": True for i in range(1001)}}), "1001 entries"),
        (json.dumps({"anyOf": [True] * 20_000}), "too many"),
        (json.dumps({"pattern": "(a{1000}){1000}"}), "repeats too much"),
        (json.dumps({"patternProperties": {"a{30000}": True}}), "repeats too much"),
    ],
    ids=lambda v: v[:30],
)
def test_hostile_schemas_are_refused_at_once(text: str, word: str) -> None:
    message = refusal(text)
    assert word in message
    assert len(message) < 400


def test_sizes_of_patterns() -> None:
    for good in ("a{3}", "[0-9]{4}-[a-z]{2,}", "(ab|c){100}", r"[{]{3}\{5\}", "[]{99999}]", "("):
        assert check_pattern(good) is None
    for bad in ("a{30000}", "(a{200}){200}", "((a{30}){30}){30}", "a" * (MAX_PATTERN + 1)):
        assert check_pattern(bad) is not None
