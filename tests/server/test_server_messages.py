"""Anthropic's API: what is asked and what leaves."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers import answers
from hypothesis import given, settings

from edgerun.chat import ToolCallDelta
from edgerun.core import Chunk, Constraint, FinishReason, Usage
from edgerun.errors import RequestError
from edgerun.server.messages_in import MessagesBody, parse
from edgerun.server.messages_out import MessageEvents, whole

USER = {"role": "user", "content": "Hi"}
TOOL = answers.MESSAGES_ADD


def asked(**fields: Any) -> Any:
    body = {"model": "talk", "max_tokens": 100, "messages": [USER]} | fields
    return parse(MessagesBody.model_validate(body))


# -- what is asked ------------------------------------------------------------------------------


def test_a_conversation_in_openais_shape() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Add"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "xx"},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": "ü"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "3"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "is_error": True,
                    "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "pe"}],
                },
                {"type": "tool_result", "tool_use_id": "t3"},
                {"type": "text", "text": "Go on"},
            ],
        },
        {"role": "user", "content": "please"},
    ]
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=1a2b3;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    assert asked(messages=messages, system=system).messages == [
        {"role": "system", "content": "Be brief.\n\nBe kind."},
        {"role": "user", "content": "Add"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "hm",
            "tool_calls": [
                {
                    "id": "t1",
                    "type": "function",
                    "function": {"name": "add", "arguments": '{"a": "ü"}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "3"},
        {"role": "tool", "tool_call_id": "t2", "content": "Error: no\npe"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "Go on\n\nplease"},
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"type": "document", "source": {"type": "text", "data": "doc"}}, "doc"),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "in"}]},
            },
            "in",
        ),
        ({"type": "search_result", "content": [{"type": "text", "text": "found"}]}, "found"),
    ],
)
def test_blocks_made_of_text(content: dict[str, Any], expected: str) -> None:
    found = asked(messages=[{"role": "user", "content": [content]}]).messages
    assert found == [{"role": "user", "content": expected}]


def test_sampling_and_limits() -> None:
    params = asked(
        max_tokens=9, temperature=1, top_k=3, top_p=0.5, stop_sequences=["END", ""], metadata={}
    ).params
    assert (params.max_tokens, params.temperature, params.top_k) == (9, 1, 3)
    assert (params.top_p, params.stop) == (0.5, ("END",))


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ("auto", True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, ("auto", False)),
        ({"type": "any"}, ("required", True)),
        ({"type": "none"}, ("none", True)),
        ({"type": "tool", "name": "add"}, ({"name": "add"}, True)),
    ],
)
def test_tools_and_choice(choice: Any, expected: Any) -> None:
    options = asked(tools=[TOOL], tool_choice=choice).options
    assert (options.tool_choice, options.parallel_tool_calls) == expected
    (tool,) = options.tools
    assert tool["type"] == "function"
    assert tool["function"]["parameters"] == TOOL["input_schema"]
    assert tool["function"]["description"] == "Adds."


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, ("none", None)),
        ({"type": "disabled"}, ("none", None)),
        ({"type": "enabled", "budget_tokens": 50}, (None, 50)),
        ({"type": "adaptive"}, ("high", None)),
    ],
)
def test_thinking(thinking: Any, expected: Any) -> None:
    config = {"effort": "max"} if expected[0] == "high" else None
    options = asked(thinking=thinking, output_config=config).options
    assert (options.reasoning_effort, options.reasoning_budget) == expected


def test_the_assistants_last_words_are_gone_on_with() -> None:
    assert asked(messages=[USER, {"role": "assistant", "content": "So"}]).options.continue_final
    call = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    for last in (USER, {"role": "assistant", "content": [call]}):
        assert not asked(messages=[USER, last]).options.continue_final


@pytest.mark.parametrize("key", ["output_format", "output_config"])
def test_a_schema(key: str) -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    constraint = asked(**{key: form if key == "output_format" else {"format": form}}).params
    assert isinstance(constraint.constraint, Constraint)
    assert constraint.constraint.kind == "json_schema"


IMAGE = answers.IMAGE


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [USER, {"role": "user", "content": [IMAGE]}]}, "messages[1].content[0]"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]}
                        ],
                    }
                ]
            },
            "messages[0].content[0].content[0]",
        ),
        ({"system": [IMAGE]}, "system[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
        ({"tools": [{"name": "add"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 100}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "x"}}, "thinking.type"),
        ({"output_format": {"type": "xml"}}, "output_format.type"),
        ({"temperature": -2.0}, "temperature"),
        ({"output_config": {"effort": []}}, "output_config"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as e:
        asked(**fields)
    assert e.value.param == param
    assert "\n" not in str(e.value)


# -- what leaves --------------------------------------------------------------------------------


def folded(stream: list[Any]) -> dict[str, Any]:
    """The message that events add up to, checked on the way."""
    names = [e.name for e in stream]
    assert names[:2] == ["message_start", "ping"]
    assert names[-2:] == ["message_delta", "message_stop"]
    message: dict[str, Any] = dict(stream[0].data["message"])
    blocks: list[Any] = message["content"]
    arguments: dict[int, str] = {}
    is_open = None
    for event in stream[2:-2]:
        data = event.data
        assert data["type"] == event.name
        index = data["index"]
        if event.name == "content_block_start":
            assert is_open is None
            assert index == len(blocks)
            blocks.append(dict(data["content_block"]))
            is_open = index
        elif event.name == "content_block_stop":
            assert is_open == index
            is_open = None
        else:
            assert is_open == index
            delta = data["delta"]
            kind, key = {
                "text_delta": ("text", "text"),
                "thinking_delta": ("thinking", "thinking"),
                "input_json_delta": ("tool_use", "partial_json"),
            }[delta["type"]]
            assert blocks[index]["type"] == kind
            assert delta[key]
            if kind == "tool_use":
                arguments[index] = arguments.get(index, "") + delta[key]
            else:
                blocks[index][key] += delta[key]
    for index, text in arguments.items():
        blocks[index]["input"] = json.loads(text)
    assert is_open is None
    last = stream[-2].data
    return message | last["delta"] | {"usage": message["usage"] | last["usage"]}


def merged(message: dict[str, Any]) -> dict[str, Any]:
    """With the texts of a kind as one block, first thoughts: the whole answer has one of each."""
    out: dict[str, Any] = {}
    for block in message["content"]:
        kind = block["type"]
        if kind == "tool_use":
            out[block["id"]] = block
        else:
            out[kind] = out.get(kind, "") + block[kind]
    return message | {"content": out}


@pytest.mark.parametrize("thinking", [True, False])
@given(chunks=answers.chunk_lists())
@settings(deadline=None, max_examples=150)
def test_streamed_and_whole_are_one_answer(thinking: bool, chunks: list[Chunk]) -> None:
    answering = answers.answering(asked())
    stream = answers.events(MessageEvents(answering, thinking), chunks)
    message = whole(answering, answers.completion(chunks), thinking)
    assert merged(folded(stream)) == merged(message)
    start = stream[0].data["message"]
    assert start["usage"]["input_tokens"] == 7
    assert start["stop_reason"] is None
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == 7
    assert any(b["type"] == "thinking" for b in message["content"]) <= thinking


def test_a_call_cut_short() -> None:
    chunks = [
        Chunk(tool_calls=(ToolCallDelta(0, '{"a": "un', "c1", "add"),)),
        Chunk(finish_reason=FinishReason.LENGTH, usage=Usage(7, 3)),
    ]
    message = whole(answers.answering(asked()), answers.completion(chunks), True)
    assert message["content"] == [{"type": "tool_use", "id": "c1", "name": "add", "input": {}}]
    assert message["stop_reason"] == "max_tokens"


def test_a_failure_on_the_way_is_one_event_in_anthropics_shape() -> None:
    events = MessageEvents(answers.answering(asked()), True)
    error = {"message": "broken", "type": "server_error", "code": "x", "param": None}
    (event,) = events.error(error)
    assert event.name == "error"
    assert event.data["type"] == "error"  # type: ignore[call-overload, index]
    assert event.data["error"]["type"] == "api_error"  # type: ignore[call-overload, index]
