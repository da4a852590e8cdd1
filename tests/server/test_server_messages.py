"""Anthropic's API: what is asked, what leaves, and Anthropic's own client against it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from helpers import answers
from helpers.http import Endpoint
from hypothesis import given, settings

from edgerun.chat import ToolCallDelta
from edgerun.core import Chunk, Constraint, FinishReason, Usage
from edgerun.errors import RequestError
from edgerun.server.messages_in import MessagesBody, parse
from edgerun.server.messages_out import MessageEvents, whole

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "name": "add",
    "description": "Adds.",
    "input_schema": answers.ADD,
}


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


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


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


# -- the client ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with Endpoint(answers.models(tmp_path_factory.mktemp("models"))) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def client(server: Endpoint) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)


def ask(model: str, **fields: Any) -> Any:
    return {"model": model, "max_tokens": 50, "messages": [USER]} | fields


def texts(message: Any) -> list[Any]:
    return [getattr(b, b.type) for b in message.content]


def test_text(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ask("talk"))
    assert message.content[0].text == "".join(answers.TALK)  # type: ignore[union-attr]
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert message.usage.output_tokens == len(answers.TALK)
    assert message.id.startswith("msg_")
    assert message.model == "talk"
    with client.messages.stream(**ask("talk")) as stream:
        assert "".join(stream.text_stream) == "".join(answers.TALK)
        again = stream.get_final_message()
    assert texts(again) == texts(message)
    assert again.usage.output_tokens == message.usage.output_tokens


def test_stop_sequences_and_limits(client: anthropic.Anthropic) -> None:
    stop = ask("talk", stop_sequences=["x", "!\nB"])
    message = client.messages.create(**stop)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "!\nB")
    with client.messages.stream(**stop) as stream:
        again = stream.get_final_message()
    assert (again.stop_reason, again.stop_sequence) == ("stop_sequence", "!\nB")
    assert again.content[0].text == message.content[0].text == "Hello, world"  # type: ignore[union-attr]
    assert client.messages.create(**ask("talk", max_tokens=2)).stop_reason == "max_tokens"


def test_thoughts(client: anthropic.Anthropic) -> None:
    on = {"type": "enabled", "budget_tokens": 40}
    message = client.messages.create(**ask("think", thinking=on))
    assert [b.type for b in message.content] == ["thinking", "text"]
    assert message.content[0].thinking.strip() == "".join(answers.THOUGHTS)  # type: ignore[union-attr]
    with client.messages.stream(**ask("think", thinking=on)) as stream:
        assert texts(stream.get_final_message()) == texts(message)
    # Whoever does not ask for thoughts reads text as the first block.
    plain = client.messages.create(**ask("think"))
    assert [b.type for b in plain.content] == ["text"]
    assert plain.content[0].text.endswith("It is 42.")  # type: ignore[union-attr]


def test_calls(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**ask("call", tools=[TOOL], max_tokens=200))
    assert message.stop_reason == "tool_use"
    call = message.content[-1]
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("add", answers.ARGUMENTS)
    with client.messages.stream(**ask("call", tools=[TOOL], max_tokens=200)) as stream:
        again = stream.get_final_message()
    assert again.stop_reason == "tool_use"
    assert again.content[-1].input == call.input  # type: ignore[union-attr]
    # And back again, as an agent sends it.
    results = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
    turn = [
        USER,
        {"role": "assistant", "content": [b.model_dump() for b in message.content]},
        {"role": "user", "content": [results]},
    ]
    assert client.messages.create(**ask("talk", messages=turn, tools=[TOOL])).content


def test_async(server: Endpoint) -> None:
    async def work() -> str:
        async with anthropic.AsyncAnthropic(
            base_url=server.url, api_key="none", max_retries=0
        ) as client:
            await client.messages.create(**ask("talk"))
            async with client.messages.stream(**ask("talk")) as stream:
                return "".join([t async for t in stream.text_stream])

    assert asyncio.run(work()) == "".join(answers.TALK)


def test_counting_tokens(client: anthropic.Anthropic) -> None:
    for fields in ({}, {"system": "Be brief."}, {"tools": [TOOL]}):
        counted = client.messages.count_tokens(model="talk", messages=[USER], **fields)  # type: ignore[list-item, arg-type]
        usage = client.messages.create(**ask("talk", max_tokens=1, **fields)).usage
        assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_what_was_computed_before_is_counted_apart(client: anthropic.Anthropic) -> None:
    long = ask("talk", messages=[{"role": "user", "content": "once more " * 30}])
    cold, warm = (client.messages.create(**long).usage for _ in range(2))
    total = cold.input_tokens + (cold.cache_read_input_tokens or 0)
    assert warm.cache_read_input_tokens is not None
    assert warm.cache_read_input_tokens > 200
    assert warm.input_tokens + warm.cache_read_input_tokens == total
    with client.messages.stream(**long) as stream:
        assert stream.get_final_message().usage == warm


@pytest.mark.parametrize(
    ("fields", "error", "said"),
    [
        ({"model": "claude-x"}, anthropic.NotFoundError, "talk"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, anthropic.BadRequestError, "image"),
        ({"stop_sequences": "x"}, anthropic.BadRequestError, "stop_sequences"),
        (
            {"messages": [{"role": "user", "content": "x" * 9000}]},
            anthropic.BadRequestError,
            "4096",
        ),
    ],
)
def test_errors(
    client: anthropic.Anthropic, fields: Any, error: type[anthropic.APIStatusError], said: str
) -> None:
    for stream in (False, True):  # refused before the stream begins
        with pytest.raises(error) as e:
            client.messages.create(**ask("talk", stream=stream) | fields)
        body: Any = e.value.body
        assert body["type"] == "error"
        kind = "not_found_error" if error is anthropic.NotFoundError else "invalid_request_error"
        assert body["error"]["type"] == kind
        assert said in body["error"]["message"]


def test_max_tokens_is_required(server: Endpoint) -> None:
    error = server.refused("/v1/messages", {"model": "talk", "messages": [USER]})
    assert "max_tokens" in error["message"]


def test_names_of_events_on_the_wire(server: Endpoint) -> None:
    stream = server.named_events("/v1/messages", ask("talk", stream=True))
    assert all(name == data["type"] for name, data in stream)
    assert [name for name, _ in stream][:3] == ["message_start", "ping", "content_block_start"]
