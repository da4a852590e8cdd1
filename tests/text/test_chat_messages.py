"""Chat messages: what clients send, checked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgerun.errors import RequestError
from edgerun.text.messages import Message, parse_messages, parse_tools, plain_json


def only(message: dict[str, Any]) -> Message:
    return parse_messages([message])[0]


def refused(messages: Any) -> str:
    with pytest.raises(RequestError) as e:
        parse_messages(messages)
    assert e.value.param == "messages"
    assert "\n" not in str(e.value)
    return str(e.value)


def test_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, "b", {"type": "input_text", "text": "c"}]
    assert only({"role": "user", "content": parts}).content == "a\nb\nc"
    assert only({"role": "user", "content": []}).content == ""


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video\x1b[2J"])
def test_other_parts_are_named(kind: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {}}]
    said = refused([{"role": "user", "content": "x"}, {"role": "user", "content": parts}])
    assert said.startswith("messages[1].content[1] is a part of type")
    assert kind.replace("\x1b", "\\x1b") in said


def test_null_content_is_not_empty_content() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    m = only({"role": "assistant", "content": None, "tool_calls": [call]})
    assert m.content is None
    assert m.tool_calls[0].arguments == {"x": [1]}
    assert m.tool_calls[0].raw == '{"x": [1]}'
    assert only({"role": "assistant", "content": ""}).content == ""
    assert only({"role": "assistant", "tool_calls": None}).tool_calls == ()


@pytest.mark.parametrize(
    ("sent", "arguments"),
    [("", {}), (None, {}), ({"a": 1}, {"a": 1}), ("[1]", "[1]"), ("{oops", "{oops"), ("1", "1")],
)
def test_arguments_that_are_no_object_stay_text(sent: Any, arguments: Any) -> None:
    m = only({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": sent}}]})
    assert m.tool_calls[0].arguments == arguments


def test_a_result_gets_its_functions_name() -> None:
    call = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
    got = parse_messages(
        [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c1", "name": "g", "content": "1"},
            {"role": "tool", "tool_call_id": "zz", "content": "1"},
        ]
    )
    assert [m.name for m in got] == [None, "f", "g", None]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_by_any_name(field: str) -> None:
    m = only({"role": "assistant", "content": "4", field: "2+2"})
    assert m.reasoning_content == "2+2"
    assert not m.extra


def test_unknown_fields_are_kept() -> None:
    assert only({"role": "user", "content": "x", "weight": 1, "z": None}).extra == {"weight": 1}


@pytest.mark.parametrize("role", ["banana", "function", "", None, 3, ["user"], "b\x1b[2J"])
def test_unknown_roles(role: Any) -> None:
    said = refused([{"role": role, "content": "x"}])
    assert "messages[0].role" in said
    assert "assistant" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        "hi",
        {"role": "user"},
        [None],
        ["hi"],
        [{}],
        [{"role": "user", "content": 3}],
        [{"role": "user", "content": {"type": "text"}}],
        [{"role": "user", "content": [{"text": "x"}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": None}]}],
        [{"role": "assistant", "tool_calls": {}}],
        [{"role": "assistant", "tool_calls": [{}]}],
        [{"role": "assistant", "tool_calls": [{"function": {}}]}],
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}],
        [{"role": "tool", "tool_call_id": 5}],
        [{"role": "user", "content": "x", "extra": float("nan")}],
        [{"role": "user", "content": "x", "extra": object()}],
        [{"role": "user", "content": "x", "extra": 1 << 5000}],
    ],
)
def test_malformed_messages(messages: Any) -> None:
    refused(messages)


def test_nesting_is_bounded() -> None:
    deep: Any = "x"
    for _ in range(10_000):
        deep = [deep]
    assert "nested more than 64 deep" in refused([{"role": "user", "content": "x", "extra": deep}])
    refused([{"role": "user", "content": deep}])
    arguments = "[" * 10_000 + "]" * 10_000
    call = {"function": {"name": "f", "arguments": '{"a": ' + arguments + "}"}}
    try:
        json.loads(arguments)
    except RecursionError:  # then it is text to us as well
        assert parse_messages([{"role": "assistant", "tool_calls": [call]}])
    else:
        refused([{"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(RequestError, match="nested") as e:
        parse_tools([{"function": {"name": "f", "parameters": deep}}])
    assert e.value.param == "tools"


def test_half_surrogate_pairs_are_replaced() -> None:
    assert only({"role": "user", "content": "a\ud800b😀"}).content == "a\ufffdb😀"


def test_values_are_copied() -> None:
    class Shout(str):
        def upper(self) -> str:
            raise AssertionError

    sent = {"a": [Shout("x"), True, None, 1.5]}
    got = plain_json(sent, "x", "messages")
    assert got == sent
    assert got["a"] is not sent["a"]
    assert type(got["a"][0]) is str


@pytest.mark.parametrize(
    "tools", ["x", {}, [1], [{}], [{"function": {}}], [{"function": {"name": ""}}]]
)
def test_malformed_tools(tools: Any) -> None:
    with pytest.raises(RequestError) as e:
        parse_tools(tools)
    assert e.value.param == "tools"


def test_tools() -> None:
    assert parse_tools(None) is None
    assert parse_tools([]) is None
    assert parse_tools([{"function": {"name": "f"}}]) == [
        {"function": {"name": "f"}, "type": "function"}
    ]
