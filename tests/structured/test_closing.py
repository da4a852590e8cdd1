"""Objects that name their properties: closed where that contradicts nothing."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from edgerun.core import Constraint
from edgerun.structured.closing import closed
from edgerun.structured.grammars import _grammar
from edgerun.structured.schema import prepare_schema

A: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
B: dict[str, Any] = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}


def close(schema: dict[str, Any]) -> dict[str, Any]:
    return closed(prepare_schema(json.dumps(schema), "json_schema"))


def accepted(schema: dict[str, Any], value: Any) -> bool:
    m = LLMatcher(LLTokenizer("byte"), _grammar(Constraint("json_schema", schema)), log_level=0)
    assert not m.is_error(), m.get_error()
    raw = list(json.dumps(value).encode())
    return m.try_consume_tokens(raw) == len(raw) and m.is_accepting()


@pytest.mark.parametrize(
    ("schema", "good", "invented"),
    [
        (A, {"a": 1}, {"a": 1, "c": 2}),
        ({"properties": {"a": A}, "required": ["a"]}, {"a": {"a": 1}}, {"a": {"a": 1, "c": 2}}),
        ({"type": "array", "items": A}, [{"a": 1}], [{"a": 1, "c": 2}]),
        ({"anyOf": [A, {"type": "null"}]}, {"a": 1}, {"a": 1, "c": 2}),
        ({"$ref": "#/$defs/x", "$defs": {"x": A}}, {"a": 1}, {"a": 1, "c": 2}),
        ({"allOf": [A]}, {"a": 1}, {"a": 1, "c": 2}),
        # A property that has the name of a keyword is one all the same.
        ({"properties": {"properties": A, "allOf": A}}, {"allOf": {"a": 1}}, {"allOf": {"c": 1}}),
        ({"properties": {"default": A}}, {"default": {"a": 1}}, {"default": {"a": 1, "c": 2}}),
    ],
)
def test_nothing_is_invented(schema: dict[str, Any], good: Any, invented: Any) -> None:
    assert accepted(schema, good)
    assert not accepted(schema, invented)


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({**A, "additionalProperties": True}, {"a": 1, "c": 2}),
        ({**A, "additionalProperties": {"type": "string"}}, {"a": 1, "c": "x"}),
        ({**A, "patternProperties": {"^x": {"type": "integer"}}}, {"a": 1, "xy": 2}),
        ({"type": "object"}, {"c": 2}),
        ({"type": "object", "properties": {}}, {"c": 2}),
        ({**A, "required": ["a", "c"]}, {"a": 1, "c": 2}),
        ({"allOf": [A, B]}, {"a": 1, "b": 2}),
        ({**A, "allOf": [B]}, {"a": 1, "b": 2}),
        ({**A, "anyOf": [B, {"required": ["a"]}]}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/$defs/x"}, B], "$defs": {"x": A}}, {"a": 1, "b": 2}),
        ({"allOf": [{"$ref": "#/$defs/y"}, B],
          "$defs": {"x": A, "y": {"$ref": "#/$defs/x"}}}, {"a": 1, "b": 2}),
        ({"allOf": [{"properties": {"p": A}}, {"properties": {"p": B}}]}, {"p": {"a": 1, "b": 2}}),
    ],
)  # fmt: skip
def test_what_may_have_more_stays_open(schema: dict[str, Any], value: Any) -> None:
    jsonschema.validate(value, schema)
    assert accepted(schema, value)


def test_a_tool_without_parameters_gets_none() -> None:
    nothing = prepare_schema('{"type": "object", "properties": {}}', "parameters")
    assert closed(nothing, empty=True) == {**nothing, "additionalProperties": False}


leaf = st.sampled_from([{"type": "integer"}, {"type": "null"}, {}])
names = st.sampled_from(["a", "b", "properties", "required"])


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    made = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, unique=True, max_size=2),
            "additionalProperties": st.booleans(),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
        },
    )
    return made | st.fixed_dictionaries({"type": st.just("array"), "items": inner})


values = st.recursive(
    st.none() | st.integers(0, 3),
    lambda v: st.lists(v, max_size=2) | st.dictionaries(names | st.just("c"), v, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(st.recursive(leaf, objects, max_leaves=6), values)
def test_what_follows_the_closed_schema_follows_the_given_one(schema: Any, value: Any) -> None:
    given_, tight = jsonschema.Draft202012Validator(schema), close(schema)
    if jsonschema.Draft202012Validator(tight).is_valid(value):
        assert given_.is_valid(value)
    assert closed(tight) == tight
