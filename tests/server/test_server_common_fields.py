"""What no API defines, and each of them takes and gives: llama.cpp's sampling fields, and how many
messages ``context_shift`` left out."""

from __future__ import annotations

from typing import Any

import anthropic
from helpers.http import Endpoint


def test_clients_are_told_what_was_left_out(server: Endpoint) -> None:
    """Beside what each API defines, where its own client's answers hand it on."""
    said: list[Any] = [
        {"role": "user", "content": "word " * 100},
        {"role": "assistant", "content": "."},
        {"role": "user", "content": "hi"},
    ]
    more: Any = {"extra_body": {"context_shift": True}}
    name: Any = "small"
    with server.openai() as client:
        create = client.chat.completions.create
        chat = create(model=name, messages=said, max_tokens=4, n=2, **more)
        last = list(create(
            model=name, messages=said, max_tokens=4, n=2, stream=True,
            stream_options={"include_usage": True}, **more,
        ))[-1]  # fmt: skip
        response = client.responses.create(model=name, input=said, max_output_tokens=4, **more)
        for usage in (chat.usage, last.usage, response.usage):
            assert usage is not None
            assert usage.model_extra == {"messages_left_out": 2}
    with anthropic.Anthropic(base_url=server.url, api_key="any", max_retries=0) as client:
        ask_for: Any = {"model": name, "messages": said, "max_tokens": 4, **more}
        assert client.messages.create(**ask_for).usage.model_extra == {"messages_left_out": 2}
        with client.messages.stream(**ask_for) as stream:
            began = next(e for e in stream if e.type == "message_start").message.usage
            assert began.model_extra == {"messages_left_out": 2}


def test_llama_cpps_fields_count_in_every_api(server: Endpoint) -> None:
    """A grammar leaves one text, a ban and a seed say which, a range is checked."""
    said: Any = {"model": "random", "messages": [{"role": "user", "content": "hi"}]}
    asked: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": said,
        "/v1/messages": {**said, "max_tokens": 9},
        "/v1/responses": {"model": "random", "input": "hi"},
        "/v1/completions": {"model": "random", "prompt": "hi"},
        "/completion": {"model": "random", "prompt": "hi"},
    }
    for path, body in asked.items():
        got = server.post(path, body | {"grammar": 'root ::= "eat"', "ignore_eos": False})
        assert "'eat'" in str(got), path
        assert server.refused(path, body | {"min_p": 2})["param"] == "min_p", path
