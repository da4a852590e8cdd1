"""The chat API's translations, without a server: bodies in, chunks to events."""

from __future__ import annotations

from typing import Any, cast

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import ValidationError

from edgerun.chat import ChatOptions, ToolCall, ToolCallDelta
from edgerun.core import Chunk, Completion, FinishReason, SamplingParams, Timings, Usage
from edgerun.errors import RequestError
from edgerun.server.asked import ChatAsked
from edgerun.server.chat_in import ChatBody, parse
from edgerun.server.chat_out import ChatTranslator, whole
from edgerun.server.wire import Answering, Event, UsageSum

FUNCTION = {"name": "add", "description": "adds", "parameters": {"type": "object"}}
TOOL = {"type": "function", "function": FUNCTION}
HI = [{"role": "user", "content": "hi"}]


def parsed(**body: Any) -> ChatAsked:
    return parse(ChatBody.model_validate({"messages": HI, **body}))


def answering(**more: Any) -> Answering:
    asked = ChatAsked(None, HI, SamplingParams(), ChatOptions(), **more)
    return Answering("0" * 32, 1, "m", asked, cast(Any, None))


def chunks() -> list[Chunk]:
    usage, timings = Usage(5, 9, 2), Timings(decode=1.0, decode_tokens=8)
    return [
        Chunk(reasoning="hm"),
        Chunk(text="I add."),
        Chunk(tool_calls=(ToolCallDelta(0, id="c0", name="add"),)),
        Chunk(tool_calls=(ToolCallDelta(0, '{"a":'), ToolCallDelta(0, "1}"))),
        Chunk(tool_calls=(ToolCallDelta(1, "{}", "c1", "add"),)),
        Chunk(finish_reason=FinishReason.TOOL_CALLS, usage=usage, timings=timings),
    ]


def events(translator: ChatTranslator) -> list[Any]:
    out: list[Event] = [*translator.start()]
    for chunk in chunks():
        out += translator.chunk(chunk)
    return [e.data for e in [*out, *translator.end()]]


def test_streamed_calls() -> None:
    got = events(ChatTranslator(answering()))
    for e in got[:-1]:
        ChatCompletionChunk.model_validate(e)
    deltas = [e["choices"][0]["delta"] for e in got[:-1]]
    assert deltas[1] == {"reasoning_content": "hm"}
    assert deltas[2] == {"content": "I add."}
    calls = [c for d in deltas for c in d.get("tool_calls", [])]
    assert calls == [
        {"index": 0, "id": "c0", "type": "function", "function": {"name": "add", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
        {
            "index": 1,
            "id": "c1",
            "type": "function",
            "function": {"name": "add", "arguments": "{}"},
        },
    ]  # fmt: skip
    assert got[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert got[-1] == "[DONE]"


def test_streamed_calls_of_functions() -> None:
    got = events(ChatTranslator(answering(), legacy=True))
    calls = [c for e in got[:-1] if (c := e["choices"][0]["delta"].get("function_call"))]
    assert calls[0] == {"name": "add", "arguments": ""}
    assert calls[1] == {"arguments": '{"a":1}'}
    assert got[-2]["choices"][0]["finish_reason"] == "function_call"


def test_whole_calls() -> None:
    call = ToolCall("c0", "add", '{"a": 1}')
    done = Completion(
        "", (), FinishReason.TOOL_CALLS, Usage(1, 2), Timings(), reasoning="hm", tool_calls=(call,)
    )
    body = whole(answering(), done)
    ChatCompletion.model_validate(body)
    message = body["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == "hm"
    assert message["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    old = whole(answering(), done, legacy=True)["choices"][0]
    assert old["message"]["function_call"] == {"name": "add", "arguments": '{"a": 1}'}
    assert old["finish_reason"] == "function_call"


def test_tools() -> None:
    asked = parsed(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "add"}})
    assert asked.options.tools == [TOOL]
    assert asked.options.tool_choice == {"name": "add"}
    assert parsed(tools=[TOOL], tool_choice="any").options.tool_choice == "required"
    assert parsed(tools=[TOOL], parallel_tool_calls=False).options.parallel_tool_calls is False
    assert parsed(tool_choice="none").options.tool_choice == "none"
    assert parsed(tools=[]).options.tool_choice == "auto"


def test_whole_numbers_may_have_a_point() -> None:
    asked = parsed(max_tokens=3.0, seed=2.0, temperature=1, n=1.0, top_k=1e1)
    params = asked.params
    assert [params.max_tokens, params.seed, params.n, params.top_k] == [3, 2, 1, 10]
    assert all(type(x) is int for x in (params.max_tokens, params.seed, params.n, params.top_k))
    for wrong in (3.5, True, "3", float("inf"), 1e999):
        with pytest.raises(ValidationError):
            parsed(max_tokens=wrong)


def test_functions_become_tools() -> None:
    messages = [
        {"role": "user", "content": "1+1"},
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{}"}},
        {"role": "function", "name": "add", "content": "2"},
    ]
    asked = parsed(messages=messages, functions=[FUNCTION], function_call={"name": "add"})
    assert asked.options.tools == [TOOL]
    assert asked.options.tool_choice == {"name": "add"}
    assert asked.options.parallel_tool_calls is False
    call, result = asked.messages[1]["tool_calls"][0], asked.messages[2]
    assert call["function"]["name"] == "add"
    assert result["role"] == "tool"
    assert result["tool_call_id"] == call["id"]


def test_constraints() -> None:
    schema = {"type": "object"}
    assert parsed(response_format={"type": "text"}).params.constraint is None
    found = parsed(response_format={"type": "json_object"}).params.constraint
    assert found is not None
    assert found.kind == "json_object"
    for form in (
        {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}},
        {"type": "json_schema", "schema": schema},
        {"type": "json_object", "schema": schema},
    ):
        found = parsed(response_format=form).params.constraint
        assert found is not None
        assert (found.kind, found.source) == ("json_schema", '{"type": "object"}')
        assert found.param.startswith("response_format")
    found = parsed(response_format={"type": "regex", "regex": "a+"}).params.constraint
    assert found is not None
    assert (found.kind, found.source) == ("regex", "a+")
    found = parsed(grammar='root ::= "a"').params.constraint
    assert found is not None
    assert (found.kind, found.param) == ("gbnf", "grammar")
    found = parsed(json_schema=schema).params.constraint
    assert found is not None
    assert found.kind == "json_schema"
    with pytest.raises(RequestError):
        parsed(response_format={"type": "json_object"}, grammar="root ::= x")


def test_reasoning_and_template_arguments() -> None:
    asked = parsed(
        reasoning_effort="xhigh",
        reasoning_budget=-1,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert asked.options.reasoning_effort == "high"
    assert asked.options.reasoning_budget is None
    assert asked.options.template_args == {"enable_thinking": False}
    assert parsed(reasoning_budget=64).options.reasoning_budget == 64


def test_samplers_names_and_defaults() -> None:
    assert parsed().params == SamplingParams()
    given = {"top_k": 3, "min_p": 0.1, "repeat_penalty": 1.2, "mirostat": 2, "typical_p": 0.5}
    params = parsed(**given, seed=-1, n_predict=7).params
    assert {k: getattr(params, k) for k in given} == given
    assert params.seed is None
    assert params.max_tokens == 7


def test_usage_counts_each_prompt_once() -> None:
    total = UsageSum(2)
    for index in range(4):  # two answers to each of two prompts
        total.add(Chunk(index=index, finish_reason=FinishReason.STOP, usage=Usage(10, 3, 1)))
    assert total.usage == Usage(20, 12, 2)
