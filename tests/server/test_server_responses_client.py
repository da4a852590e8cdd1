"""OpenAI's responses API, as OpenAI's own client meets it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pydantic
import pytest
from helpers import answers
from helpers.http import Endpoint

ADD = answers.RESPONSES_ADD


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with Endpoint(answers.models(tmp_path_factory.mktemp("models"))) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def client(server: Endpoint) -> openai.OpenAI:
    return server.openai()


def test_text(client: openai.OpenAI) -> None:
    done = client.responses.create(model="talk", input="Hi", instructions="Be brief.")
    assert done.output_text == "".join(answers.TALK)
    assert done.status == "completed"
    assert done.usage is not None
    assert done.usage.output_tokens == len(answers.TALK)
    with client.responses.stream(model="talk", input="Hi", instructions="Be brief.") as stream:
        kinds = [e.type for e in stream]
        again = stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert again.output_text == done.output_text
    assert again.usage is not None
    assert again.usage.output_tokens == done.usage.output_tokens


def test_a_chain_goes_on_from_what_is_cached(client: openai.OpenAI) -> None:
    previous, cached, total = None, [], []
    for text in ("a long beginning " * 20, "and then", "and then?"):
        done = client.responses.create(
            model="talk", input=text, previous_response_id=previous, temperature=0
        )
        assert done.previous_response_id == previous
        assert done.usage is not None
        previous = done.id
        cached.append(done.usage.input_tokens_details.cached_tokens)
        total.append(done.usage.input_tokens)
    assert cached[0] < 64 < 300 < cached[1] < cached[2]
    assert cached[2] >= total[1]  # the second question, too
    assert client.responses.retrieve(previous or "").output_text == "".join(answers.TALK)
    items = client.responses.input_items.list(previous or "").data
    assert len(items) == 5
    # Streamed answers can be gone on from as well.
    with client.responses.stream(model="talk", input="x", previous_response_id=previous) as s:
        last = s.get_final_response()
    assert client.responses.retrieve(last.id).id == last.id


def test_what_is_not_kept(client: openai.OpenAI) -> None:
    gone = client.responses.create(model="talk", input="Hi", store=False)
    assert gone.store is False
    kept = client.responses.create(model="talk", input="Hi")
    client.responses.delete(kept.id)
    for response_id in (gone.id, kept.id, "resp_x"):
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(response_id)
        with pytest.raises(openai.NotFoundError):
            client.responses.delete(response_id)
        with pytest.raises(openai.BadRequestError) as e:
            client.responses.create(model="talk", input="Hi", previous_response_id=response_id)
        assert (e.value.param, e.value.code) == (
            "previous_response_id",
            "previous_response_not_found",
        )


def test_item_references(client: openai.OpenAI) -> None:
    done = client.responses.create(model="talk", input="Hi")
    reference: Any = {"type": "item_reference", "id": done.output[0].id}
    user: Any = {"role": "user", "content": "Hi"}
    assert client.responses.create(model="talk", input=[user, reference, user]).output_text


def test_thoughts_are_an_item(client: openai.OpenAI) -> None:
    done = client.responses.create(model="think", input="Hi")
    thought, message = done.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert thought.content[0].text.strip() == "".join(answers.THOUGHTS)
    assert done.output_text.strip() == "It is 42."
    assert message.type == "message"
    assert done.usage is not None
    thoughts = done.usage.output_tokens_details.reasoning_tokens
    assert len(answers.THOUGHTS) <= thoughts <= len(answers.THOUGHTS) + 2
    with client.responses.stream(model="think", input="Hi") as stream:
        again = stream.get_final_response()
    assert [o.type for o in again.output] == ["reasoning", "message"]
    assert again.usage == done.usage.model_copy(
        update={"input_tokens_details": again.usage and again.usage.input_tokens_details}
    )
    assert again.output_text == done.output_text


def test_calls(client: openai.OpenAI) -> None:
    tools: Any = [ADD]
    done = client.responses.create(model="call", input="Add", tools=tools)
    call = done.output[-1]
    assert call.type == "function_call"
    assert json.loads(call.arguments) == answers.ARGUMENTS
    with client.responses.stream(model="call", input="Add", tools=tools) as stream:
        deltas = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        again = stream.get_final_response().output[-1]
    assert again.type == "function_call"
    assert again.arguments == "".join(deltas) == call.arguments
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    after = client.responses.create(
        model="talk", input=[result], tools=tools, previous_response_id=done.id
    )
    assert after.output_text == "".join(answers.TALK)


def test_a_limit_makes_it_incomplete(client: openai.OpenAI) -> None:
    done = client.responses.create(model="talk", input="Hi", max_output_tokens=2)
    assert done.status == "incomplete"
    assert done.incomplete_details is not None
    assert done.incomplete_details.reason == "max_output_tokens"
    kinds = [
        e.type
        for e in client.responses.create(model="talk", input="Hi", max_output_tokens=2, stream=True)
    ]
    assert kinds[-1] == "response.incomplete"


def test_logprobs(client: openai.OpenAI) -> None:
    done = client.responses.create(
        model="talk", input="Hi", include=["message.output_text.logprobs"], top_logprobs=2
    )
    part: Any = done.output[0]
    found = part.content[0].logprobs
    assert "".join(p.token for p in found) == done.output_text
    assert all(len(p.top_logprobs) == 2 for p in found)


class City(pydantic.BaseModel):
    city: str


def test_parsed(client: openai.OpenAI) -> None:
    done = client.responses.parse(
        model="json", input="Where?", text_format=City, temperature=0, max_output_tokens=200
    )
    assert done.output_parsed == City.model_validate_json(done.output_text)
    with client.responses.stream(
        model="json", input="Where?", text_format=City, temperature=0, max_output_tokens=200
    ) as stream:
        assert stream.get_final_response().output_parsed == done.output_parsed


def test_truncation(client: openai.OpenAI) -> None:
    long: Any = [{"role": "user", "content": "x" * 1500} for _ in range(4)]
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.create(model="talk", input=long)
    assert e.value.code == "context_length_exceeded"
    done = client.responses.create(model="talk", input=long, truncation="auto")
    assert done.usage is not None
    assert 1500 < done.usage.input_tokens < 3500
    assert done.usage.model_extra == {"messages_left_out": 2}


def test_async(server: Endpoint) -> None:
    async def work() -> str:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="none", max_retries=0
        ) as client:
            async with client.responses.stream(model="talk", input="Hi") as stream:
                final = await stream.get_final_response()
            return final.output_text

    assert asyncio.run(work()) == "".join(answers.TALK)


def test_errors(client: openai.OpenAI, server: Endpoint) -> None:
    for stream in (False, True):  # refused before the stream begins
        with pytest.raises(openai.NotFoundError) as e:
            client.responses.create(model="x", input="Hi", stream=stream)
        assert e.value.code == "model_not_found"
    assert server.refused("/v1/responses", {"model": "talk"})["param"] == "input"
    assert server.refused("/v1/responses", {"model": "talk", "input": 3})["param"] == "input"
