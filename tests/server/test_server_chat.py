"""``/v1/chat/completions`` on a real socket: OpenAI's client and types, and raw requests."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from helpers.http import Endpoint
from openai.types.chat import ChatCompletion, ChatCompletionChunk

PATH = "/v1/chat/completions"
TEXT = "Hello, world! Say \nlollollo w"
HI: Any = [{"role": "user", "content": "hi"}]


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": HI, "temperature": 0, **more}


def wild(**more: Any) -> dict[str, Any]:
    """To the random model, which would go on for ever."""
    return ask(model="random", temperature=1.0, ignore_eos=True) | more


def joined(events: list[Any], index: int = 0) -> dict[str, Any]:
    """What a client makes of a stream: text, finish, log probabilities of one choice."""
    assert events[-1] == "[DONE]"
    out: dict[str, Any] = {"text": "", "finish": None, "logprobs": [], "roles": 0}
    for event in events[:-1]:
        ChatCompletionChunk.model_validate(event)
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            assert out["finish"] is None, "something came after the end"
            out["text"] += choice["delta"].get("content") or ""
            out["roles"] += "role" in choice["delta"]
            out["finish"] = choice["finish_reason"]
            if choice["logprobs"]:
                out["logprobs"] += choice["logprobs"]["content"]
    return out


# -- OpenAI's own client -------------------------------------------------------------------------


def test_openai_client(server: Endpoint) -> None:
    with server.openai() as client:
        done = client.chat.completions.create(model="scripted", messages=HI, temperature=0)
        assert done.choices[0].message.content == TEXT
        assert done.choices[0].finish_reason == "stop"
        assert done.usage is not None
        assert done.usage.completion_tokens == 10
        assert done.usage.total_tokens == done.usage.prompt_tokens + 10
        parts = client.chat.completions.create(
            model="scripted",
            messages=HI,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(parts)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 10


def test_openai_async_client_many_at_once(server: Endpoint) -> None:
    async def one(client: openai.AsyncOpenAI, stream: bool) -> str:
        if not stream:
            done = await client.chat.completions.create(
                model="scripted", messages=HI, temperature=0
            )  # fmt: skip
            return done.choices[0].message.content or ""
        text = ""
        async for c in await client.chat.completions.create(
            model="scripted", messages=HI, temperature=0, stream=True
        ):  # fmt: skip
            text += c.choices[0].delta.content or ""
        return text

    async def many() -> list[str]:
        url = f"{server.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            return await asyncio.gather(*(one(client, i % 2 == 0) for i in range(12)))

    assert asyncio.run(many()) == [TEXT] * 12


def test_openai_errors(server: Endpoint) -> None:
    with server.openai() as client:
        with pytest.raises(openai.NotFoundError) as unknown:
            client.chat.completions.create(model="gpt-4o", messages=HI)
        with pytest.raises(openai.BadRequestError) as wrong:
            client.chat.completions.create(model="scripted", messages=HI, n=0)
    assert unknown.value.code == "model_not_found"
    assert "scripted" in str(unknown.value)
    assert "random" in str(unknown.value)
    assert wrong.value.param == "n"


# -- shapes --------------------------------------------------------------------------------------


def test_shapes(server: Endpoint) -> None:
    body = server.post(PATH, ask())
    ChatCompletion.model_validate(body)
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "scripted"
    assert body["system_fingerprint"].startswith("edgerun-")
    assert body["choices"][0]["message"] == {"role": "assistant", "content": TEXT, "refusal": None}
    assert body["choices"][0]["logprobs"] is None
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] >= 0
    timings = body["timings"]
    assert timings["predicted_n"] == 10
    assert timings["prompt_n"] + timings["cache_n"] == body["usage"]["prompt_tokens"]
    assert min(timings["predicted_per_second"], timings["prompt_ms"]) > 0

    events = server.events(PATH, ask(stream=True))
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert events[-2]["choices"][0] == {
        "index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop",
    }  # fmt: skip
    assert events[-2]["timings"]["predicted_n"] == 10
    got = joined(events)
    assert (got["text"], got["finish"], got["roles"]) == (TEXT, "stop", 1)
    assert len({e["id"] for e in events[:-1]}) == 1


def test_headers_of_a_stream(server: Endpoint) -> None:
    with server.client.stream("POST", PATH, json=ask(stream=True)) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        assert "no-cache" in response.headers["cache-control"]
        assert response.headers["x-request-id"]


@pytest.mark.parametrize("include", [True, False, None, "absent"])
def test_usage_of_a_stream(server: Endpoint, include: Any) -> None:
    whole = server.post(PATH, ask())["usage"]
    more = {} if include == "absent" else {"stream_options": {"include_usage": include}}
    events = server.events(PATH, ask(stream=True, **more))
    with_usage = [e for e in events[:-1] if e.get("usage")]
    if include is not True:
        assert with_usage == []
        return
    assert with_usage == [events[-2]]
    assert events[-2]["choices"] == []
    usage = events[-2]["usage"]
    assert {k: v for k, v in usage.items() if k != "prompt_tokens_details"} == {
        k: v for k, v in whole.items() if k != "prompt_tokens_details"
    }
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0


OPTIONAL = """
    stop seed n logit_bias temperature top_p presence_penalty frequency_penalty n_predict top_k
    min_p samplers grammar json_schema stream stream_options max_tokens max_completion_tokens
    logprobs top_logprobs response_format tools tool_choice parallel_tool_calls functions
    function_call reasoning_effort reasoning_budget chat_template_kwargs continue_final_message
    mirostat user store
"""


def test_null_is_omitted(server: Endpoint) -> None:
    body = {"model": "scripted", "messages": HI, **dict.fromkeys(OPTIONAL.split())}
    done = server.post(PATH, body)
    assert done["choices"][0]["message"]["content"] == TEXT
    assert server.post(PATH, {"model": None, "messages": HI})["model"] == "scripted"


@pytest.mark.parametrize("stop", [[], "", [""], None])
def test_empty_stops_are_none(server: Endpoint, stop: Any) -> None:
    for stream in (False, True):
        if stream:
            got = joined(server.events(PATH, ask(stop=stop, stream=True)))
        else:
            choice = server.post(PATH, ask(stop=stop))["choices"][0]
            got = {"text": choice["message"]["content"], "finish": choice["finish_reason"]}
        assert (got["text"], got["finish"]) == (TEXT, "stop")


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("lo, w", "Hel"),  # over three tokens
        (["xyz", "ld! S"], "Hello, wor"),
        ("ld! X", TEXT),  # half matched, then not
        ("llo wX", TEXT),  # held at the very end
        ("llo w", "Hello, world! Say \nlollo"),  # the end itself
    ],
)
def test_stop_strings(server: Endpoint, stop: Any, text: str) -> None:
    choice = server.post(PATH, ask(stop=stop))["choices"][0]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"
    got = joined(server.events(PATH, ask(stop=stop, stream=True)))
    assert (got["text"], got["finish"]) == (text, "stop")


# -- limits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "tokens", "finish"),
    [
        ({"max_completion_tokens": 3}, 3, "length"),
        ({"max_tokens": 5, "max_completion_tokens": 2}, 2, "length"),
        ({"max_tokens": 2, "max_completion_tokens": 5}, 2, "length"),
        ({"n_predict": 1}, 1, "length"),
        ({"max_tokens": 0}, 0, "length"),
        ({"max_tokens": -1}, 10, "stop"),
        ({"max_tokens": 2**40}, 10, "stop"),
        ({"max_completion_tokens": 2**70}, 10, "stop"),
    ],
)
def test_token_limits(server: Endpoint, limits: Any, tokens: int, finish: str) -> None:
    done = server.post(PATH, ask(**limits))
    assert done["usage"]["completion_tokens"] == tokens
    assert done["choices"][0]["finish_reason"] == finish
    events = server.events(PATH, ask(**limits, stream=True, stream_options={"include_usage": True}))
    assert events[-2]["usage"]["completion_tokens"] == tokens
    assert joined(events)["finish"] == finish


WRONG = [
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "3"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_completion_tokens": -2}, "max_completion_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"stop": 3}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"seed": "x"}, "seed"),
    ({"samplers": ["nonsense"]}, "samplers"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": [{"role": "banana", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": 3}, "logprobs"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"abc": 1}}, "logit_bias"),
    ({"logit_bias": {"3": "x"}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "text"}, "grammar": "x", "json_schema": {}}, "grammar"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ({"stream_options": {"include_usage": "y"}}, "stream_options.include_usage"),
]


@pytest.mark.parametrize(("wrong", "param"), WRONG, ids=[f"{w}"[:40] for w, _ in WRONG])
def test_wrong_values_name_the_field(server: Endpoint, wrong: Any, param: str) -> None:
    for stream in ({}, {"stream": True}):  # refused before any event
        error = server.refused(PATH, {**ask(), **stream, **wrong})
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param
        assert error["code"]


def test_an_image_is_named(server: Endpoint) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    error = server.refused(PATH, ask(messages=[{"role": "user", "content": parts}]))
    assert "image_url" in error["message"]
    assert "messages[0].content[1]" in error["message"]


def test_prompts_longer_than_the_context(server: Endpoint) -> None:
    long = [{"role": "user", "content": "word " * 100}]
    for stream in (False, True):
        error = server.refused(PATH, ask(model="small", messages=long, stream=stream))
        assert error["code"] == "context_length_exceeded"
        assert error["n_ctx"] == 64
        assert error["n_prompt_tokens"] > 64
    # Who asks for it gets an answer to the end of the conversation.
    more = [*long, {"role": "assistant", "content": "."}, {"role": "user", "content": "hi"}]
    assert server.refused(PATH, ask(model="small", messages=more))["n_prompt_tokens"] > 64
    body = ask(model="small", max_tokens=4)
    done = server.post(PATH, body | {"messages": more, "context_shift": True})
    alone = server.post(PATH, body | {"messages": more[-1:], "context_shift": True})
    assert done["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    assert done["usage"]["messages_left_out"] == 2
    assert "messages_left_out" not in alone["usage"]


def test_a_failure_after_the_start_is_one_event(server: Endpoint) -> None:
    events = server.events(PATH, ask(model="broken", stream=True))
    assert [e for e in events if "error" in e] == [events[-1]]
    assert events[-1]["error"]["code"] == "generation_error"
    assert server.refused(PATH, ask(model="broken"), 500)["type"] == "server_error"
    assert server.post(PATH, ask())["choices"][0]["message"]["content"] == TEXT  # others live on


# -- log probabilities, several answers ----------------------------------------------------------


@pytest.mark.parametrize("top", [None, 0, 3])
def test_logprobs_streamed_and_not(server: Endpoint, top: int | None) -> None:
    body = wild(logprobs=True, top_logprobs=top, seed=5, max_tokens=24, stop=["\n"])
    whole = server.post(PATH, body)
    ChatCompletion.model_validate(whole)
    entries = whole["choices"][0]["logprobs"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"]
    raw = b"".join(bytes(e["bytes"]) for e in entries)
    assert raw.decode("utf-8", "replace") == whole["choices"][0]["message"]["content"]
    for e in entries:
        assert e["token"] == bytes(e["bytes"]).decode("utf-8", "replace")
        assert len(e["top_logprobs"]) == (top or 0)
        assert e["logprob"] <= 0
        if top:
            assert e["top_logprobs"][0]["logprob"] >= e["logprob"]
    got = joined(server.events(PATH, body | {"stream": True}))
    assert got["logprobs"] == entries
    assert got["text"] == whole["choices"][0]["message"]["content"]


def test_logprobs_with_a_stop_string(server: Endpoint) -> None:
    body = ask(logprobs=True, stop="ld! S")
    entries = server.post(PATH, body)["choices"][0]["logprobs"]["content"]
    got = joined(server.events(PATH, body | {"stream": True}))
    assert got["logprobs"] == entries
    assert b"".join(bytes(e["bytes"]) for e in entries).startswith(b"Hello, wor")


def test_several_answers_with_a_seed(server: Endpoint) -> None:
    body = wild(n=4, seed=11, max_tokens=12)
    first, again = server.post(PATH, body), server.post(PATH, body)
    texts = [c["message"]["content"] for c in first["choices"]]
    assert [c["index"] for c in first["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert texts == [c["message"]["content"] for c in again["choices"]]
    assert first["usage"]["completion_tokens"] == 48
    one = server.post(PATH, wild(max_tokens=1))["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens"] == one
    events = server.events(PATH, body | {"stream": True, "stream_options": {"include_usage": True}})
    assert [joined(events, i)["text"] for i in range(4)] == texts
    assert [joined(events, i)["roles"] for i in range(4)] == [1] * 4
    assert events[-2]["usage"]["completion_tokens"] == 48
    assert events[-2]["usage"]["prompt_tokens"] == one


def test_logit_bias_works_in_both_forms(server: Endpoint) -> None:
    comma = server.llm("scripted").tokenize("Hello, ", add_bos=False)[-1]
    for bias in ({str(comma): -100}, [[comma, False]]):
        text = server.post(PATH, ask(logit_bias=bias))["choices"][0]["message"]["content"]
        assert ", " not in text


# -- conversations -------------------------------------------------------------------------------


def test_the_assistants_last_words_are_continued(server: Endpoint) -> None:
    said = [*HI, {"role": "assistant", "content": "Hello, wor"}]
    llm = server.llm("scripted")
    open_end = len(llm.apply_template(said, continue_final=True))
    closed = len(llm.apply_template(said))
    assert open_end < closed
    for more, n in (
        ({}, open_end),
        ({"continue_final_message": True}, open_end),
        ({"continue_final_message": False}, closed),
        ({"add_generation_prompt": True}, closed),
    ):
        assert server.post(PATH, ask(messages=said, **more))["usage"]["prompt_tokens"] == n
    with_calls = {"role": "assistant", "content": "x", "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
    server.post(PATH, ask(messages=[*HI, with_calls]))  # nothing to be continued


def test_roles_and_forms_of_content(server: Endpoint) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "42"},
    ]  # fmt: skip
    assert server.post(PATH, ask(messages=messages))["choices"][0]["finish_reason"] == "stop"


def test_paths_without_v1(server: Endpoint) -> None:
    assert server.post("/chat/completions", ask())["choices"][0]["message"]["content"] == TEXT
