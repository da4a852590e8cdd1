"""Anthropic's API, as Anthropic's own client meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from helpers import answers
from helpers.http import Endpoint

USER = {"role": "user", "content": "Hi"}
TOOL = answers.MESSAGES_ADD
IMAGE = answers.IMAGE


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
