"""OpenAI's responses API: what is asked, what leaves, what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from helpers import answers
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.core import Chunk
from edgerun.errors import RequestError
from edgerun.server.responses_in import ResponsesBody, Wanted, parse
from edgerun.server.responses_items import as_items, find_references, to_messages
from edgerun.server.responses_out import ResponseEvents, whole
from edgerun.server.responses_store import ResponseStore

ADD = answers.RESPONSES_ADD
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Patches.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /x+/"},
}
SHELL = {"type": "namespace", "name": "mcp", "tools": [{"type": "function", "name": "ls"}]}


def wanted(**fields: Any) -> Wanted:
    body = ResponsesBody.model_validate({"model": "talk", "input": "Hi"} | fields)
    assert body.input is not None
    return parse(body, as_items(body.input))


# -- what is asked ------------------------------------------------------------------------------


def test_items_as_a_conversation() -> None:
    items = [
        {"role": "developer", "content": "Be brief."},
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "Add"},
                {"type": "input_text", "text": "it"},
            ],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "short"}],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "content": [{"type": "output_text", "text": "I add.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x\ny"},
        {"type": "web_search_call", "id": "ws", "status": "completed"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {
            "type": "custom_tool_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "ok"}],
        },
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "again"}]},
        {"type": "function_call", "call_id": "c3", "name": "ls", "arguments": "", "namespace": "m"},
    ]
    add = {"name": "add", "arguments": '{"a": 1}'}
    patch = {"name": "patch", "arguments": '{"input": "x\\ny"}'}
    assert to_messages(items, "You are.") == [
        {"role": "system", "content": "You are."},
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Add\nit"},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": add},
                {"id": "c2", "type": "function", "function": patch},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "ok"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "again",
            "tool_calls": [
                {"id": "c3", "type": "function", "function": {"name": "m__ls", "arguments": ""}}
            ],
        },
    ]


def test_tools() -> None:
    found = wanted(tools=[ADD, PATCH, SHELL, {"type": "web_search"}, {"type": "local_shell"}])
    assert list(found.tools) == ["add", "patch", "mcp__ls"]
    add, patch, ls = (t["function"] for t in found.asked.options.tools)
    assert add == {k: ADD[k] for k in ("name", "parameters", "description", "strict")}
    assert patch["parameters"]["required"] == ["input"]
    assert "start: /x+/" in patch["description"]
    assert ls["name"] == "mcp__ls"


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        (None, "auto", ["add", "patch"]),
        ("none", "none", ["add", "patch"]),
        ("required", "required", ["add", "patch"]),
        ({"type": "function", "name": "add"}, {"name": "add"}, ["add", "patch"]),
        ({"type": "custom", "name": "patch"}, {"name": "patch"}, ["add", "patch"]),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"name": "patch"}]},
            "required",
            ["patch"],
        ),
    ],
)
def test_tool_choice(choice: Any, expected: Any, names: list[str]) -> None:
    found = wanted(tools=[ADD, PATCH], tool_choice=choice, parallel_tool_calls=False)
    assert found.asked.options.tool_choice == expected
    assert list(found.tools) == names
    assert not found.asked.options.parallel_tool_calls


def test_sampling_and_format() -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    found = wanted(
        max_output_tokens=9,
        temperature=0,
        top_p=0.5,
        top_logprobs=2,
        text={"format": form, "verbosity": "low"},
        reasoning={"effort": "xhigh", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        metadata={"a": "b"},
        prompt_cache_key="x",
    ).asked
    assert (found.params.max_tokens, found.params.temperature, found.params.top_p) == (9, 0, 0.5)
    assert found.params.logprobs == 2
    assert found.params.constraint is not None
    assert found.params.constraint.kind == "json_schema"
    assert found.options.reasoning_effort == "high"
    assert wanted(include=["message.output_text.logprobs"]).asked.params.logprobs == 0
    assert wanted().asked.params.logprobs is None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"tools": [{"type": "file_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "mcp", "server_url": "x"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"reasoning": {"effort": "x"}}, "reasoning.effort"),
        ({"truncation": "x"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_output_tokens": -1}, "max_output_tokens"),
        ({"min_p": 2}, "min_p"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "name": []}}, "tool_choice"),
        ({"tools": [{**ADD, "parameters": [1]}]}, "tools[0].parameters"),
    ],
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as e:
        wanted(**fields)
    assert e.value.param == param
    assert "\n" not in str(e.value)


def test_references() -> None:
    kept = {"id": "msg_1", "type": "message", "role": "assistant", "content": "x"}
    found = find_references([{"type": "item_reference", "id": "msg_1"}], {"msg_1": kept}.get)
    assert found == [kept]
    with pytest.raises(RequestError, match="msg_2"):
        find_references([{"type": "item_reference", "id": "msg_2"}], {"msg_1": kept}.get)


# -- what leaves --------------------------------------------------------------------------------

ORDER = {
    "message": ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"],
    "reasoning": [
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
    ],
    "function_call": ["function_call_arguments.delta", "function_call_arguments.done"],
    "custom_tool_call": ["custom_tool_call_input.delta", "custom_tool_call_input.done"],
}


def checked(stream: list[Any]) -> dict[str, Any]:
    """The final response of a stream whose events are in OpenAI's order and agree with it."""
    data: list[Any] = [e.data for e in stream]
    assert [d["sequence_number"] for d in data] == list(range(len(data)))
    assert all(e.name == d["type"] for e, d in zip(stream, data, strict=True))
    kinds = [d["type"].removeprefix("response.") for d in data]
    assert kinds[:2] == ["created", "in_progress"]
    final: dict[str, Any] = data[-1]["response"]
    assert kinds[-1] == final["status"]
    at = 2
    for index, item in enumerate(final["output"]):
        assert kinds[at] == "output_item.added"
        assert data[at]["item"]["id"] == item["id"]
        assert data[at]["item"]["status"] == "in_progress"
        end = kinds.index("output_item.done", at)
        assert data[end]["item"] == item
        inner = data[at + 1 : end]
        assert all(d["output_index"] == index and d["item_id"] == item["id"] for d in inner)
        names = [*dict.fromkeys(kinds[at + 1 : end])]
        assert names == [n for n in ORDER[item["type"]] if n in names]
        assert kinds[end - 1] == ORDER[item["type"]][-1]
        said = "".join(d.get("delta", "") for d in inner)
        (whole_text,) = {d[k] for d in inner for k in ("text", "arguments", "input") if k in d}
        content = item.get("content") or [{}]
        assert said == whole_text
        assert said in (content[0].get("text"), item.get("arguments"), item.get("input"))
        at = end + 1
    assert at == len(data) - 1
    return final


@given(chunks=answers.chunk_lists())
@settings(deadline=None, max_examples=200)
def test_streamed_and_whole_are_one_answer(chunks: list[Chunk]) -> None:
    asking = wanted(tools=[ADD, PATCH, {"type": "function", "name": "shell"}])
    answering, kept = answers.answering(asking.asked), []
    final = checked(answers.events(ResponseEvents(asking, answering, kept.append), chunks))
    assert kept == [final]
    other = whole(asking, answering, answers.completion(chunks))

    def facts(response: Mapping[str, Any]) -> Any:
        """Texts of a kind as one: the whole answer has one of each."""
        found: dict[Any, Any] = {}
        for item in response["output"]:
            key = item.get("call_id", item["type"])
            text = item.get("arguments") or item.get("input")
            for part in item.get("content") or []:
                text = part["text"]
            found[key] = found.get(key, "") + (text or "")
        return {k: v for k, v in found.items() if v or k.startswith("call")}

    assert facts(final) == facts(other)
    for key in final.keys() - {"output"}:
        assert final[key] == other[key], key
    assert final["usage"]["total_tokens"] == 7 + final["usage"]["output_tokens"]


def test_a_custom_tools_call_leaves_as_its_text() -> None:
    asking = wanted(tools=[PATCH])
    chunks = [
        Chunk(tool_calls=(answers.ToolCallDelta(0, '{"inp', "c1", "patch"),)),
        Chunk(tool_calls=(answers.ToolCallDelta(0, 'ut": "a\\nb"}'),)),
        answers.Chunk(finish_reason=answers.FinishReason.TOOL_CALLS, usage=answers.Usage(7, 2)),
    ]
    answering = answers.answering(asking.asked)
    final = checked(answers.events(ResponseEvents(asking, answering, lambda _: None), chunks))
    (item,) = final["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "a\nb")


def test_a_namespaced_call_leaves_with_its_namespace() -> None:
    asking = wanted(tools=[SHELL])
    call = answers.ToolCallDelta(0, "{}", "c1", "mcp__ls")
    end = Chunk(finish_reason=answers.FinishReason.TOOL_CALLS, usage=answers.Usage(7, 2))
    done = answers.completion([Chunk(tool_calls=(call,)), end])
    (item,) = whole(asking, answers.answering(asking.asked), done)["output"]
    assert (item["name"], item["namespace"], item["call_id"]) == ("ls", "mcp", "c1")


def test_a_failure_on_the_way_is_a_failed_response() -> None:
    asking = wanted()
    stream = ResponseEvents(asking, answers.answering(asking.asked), lambda _: None)
    list(stream.start())
    list(stream.chunk(Chunk(text="Hel")))
    (event,) = stream.error({"message": "broken", "code": "internal_error"})
    data: Any = event.data
    assert data["type"] == "response.failed"
    assert data["response"]["status"] == "failed"
    assert data["response"]["error"]["message"] == "broken"


# -- what is kept -------------------------------------------------------------------------------


def response(name: str, size: int = 10) -> dict[str, Any]:
    return {"id": name, "output": [{"id": f"i_{name}", "text": "x" * size}]}


def test_the_longest_unused_answer_is_forgotten() -> None:
    store = ResponseStore(most=2)
    store.put(response("a"), [])
    store.put(response("b"), [])
    assert store.get("a") is not None
    store.put(response("c"), [])
    assert store.get("b") is None
    assert store.item("i_b") is None
    assert store.get("a") is not None
    assert store.item("i_c") is not None
    assert store.delete("a")
    assert not store.delete("a")
    assert len(store) == 1


@given(sizes=st.lists(st.integers(0, 5000), max_size=30))
@settings(deadline=None)
def test_the_size_of_what_is_kept_is_bounded(sizes: list[int]) -> None:
    store = ResponseStore(most=20, most_bytes=20000)
    for i, size in enumerate(sizes):
        store.put(response(f"r{i}", size), [{"x": "y"}])
        assert store.size <= 20000
    for i in range(len(sizes)):
        store.delete(f"r{i}")
    assert store.size == 0
