"""``/v1/completions`` on a real socket."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.http import Endpoint
from openai.types import Completion

PATH = "/v1/completions"
TEXT = "Hello, world! Say \nlollollo w"


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "scripted", "prompt": "Go", "temperature": 0, **more}


def joined(events: list[Any], index: int = 0) -> dict[str, Any]:
    assert events[-1] == "[DONE]"
    out: dict[str, Any] = {"text": "", "finish": None, "tokens": [], "offsets": []}
    for event in events[:-1]:
        for choice in event["choices"]:
            if choice["index"] == index:
                assert out["finish"] is None
                out["text"] += choice["text"]
                out["finish"] = choice["finish_reason"]
                if choice["logprobs"]:
                    out["tokens"] += choice["logprobs"]["tokens"]
                    out["offsets"] += choice["logprobs"]["text_offset"]
    return out


def test_openai_client(server: Endpoint) -> None:
    with server.openai() as client:
        done = client.completions.create(model="scripted", prompt="Go", temperature=0)
        assert done.choices[0].text == TEXT
        parts = client.completions.create(
            model="scripted", prompt="Go", temperature=0, stream=True
        )  # fmt: skip
        assert "".join(c.choices[0].text for c in parts) == TEXT


def test_shape(server: Endpoint) -> None:
    body = server.post(PATH, ask())
    Completion.model_validate(body)
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    for event in server.events(PATH, ask(stream=True))[:-2]:
        assert event["object"] == "text_completion"


def test_forms_of_prompts(server: Endpoint) -> None:
    ids = server.llm("scripted").tokenize("Go")
    for prompt, n in (("Go", 1), (["Go"], 1), (ids, 1), ([ids, ids], 2), (["Go", ids, "Ah"], 3)):
        body = server.post(PATH, ask(prompt=prompt))
        assert [c["text"] for c in body["choices"]] == [TEXT] * n
        assert [c["index"] for c in body["choices"]] == list(range(n))
        assert body["usage"]["prompt_tokens"] == len(ids) * n
        assert body["usage"]["completion_tokens"] == 10 * n


def test_empty_prompts_start_a_document(server: Endpoint) -> None:
    for prompt in ({"prompt": ""}, {"prompt": None}, {}):
        body = {"model": "scripted", "temperature": 0, **prompt}
        assert server.post(PATH, body)["usage"]["prompt_tokens"] == 1
        assert server.post(PATH, body)["choices"][0]["text"] == TEXT


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**32 + 1]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": [True]}, "prompt[0]"),
        ({"prompt": ["a", 3]}, "prompt[1]"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"n": 0}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": True, "logprobs": 1}, "echo"),
        ({"max_tokens": -2}, "max_tokens"),
    ],
    ids=str,
)
def test_wrong_values_name_the_field(server: Endpoint, wrong: Any, param: str) -> None:
    for stream in (False, True):
        assert server.refused(PATH, ask(stream=stream, **wrong))["param"] == param
    assert server.post(PATH, ask())["choices"][0]["text"] == TEXT


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_at_the_edge_of_the_context(server: Endpoint, stream: bool) -> None:
    for n in (65, 64):
        error = server.refused(PATH, ask(model="small", prompt=[40] * n, stream=stream))
        assert error["code"] == "context_length_exceeded"
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (n, 64)
    body = ask(model="small", prompt=[40] * 63, stream=stream, ignore_eos=True)
    if stream:
        assert joined(server.events(PATH, body))["finish"] == "length"
    else:
        done = server.post(PATH, body)
        assert done["choices"][0]["finish_reason"] == "length"
        assert done["usage"]["prompt_tokens"] == 63


def test_echo(server: Endpoint) -> None:
    ids = server.llm("scripted").tokenize("Go")
    for prompt in ("Go", ids):
        body = ask(prompt=[prompt, prompt] if prompt == ids else prompt, echo=True)
        assert server.post(PATH, body)["choices"][0]["text"] == "Go" + TEXT
        assert joined(server.events(PATH, body | {"stream": True}))["text"] == "Go" + TEXT


def test_logprobs(server: Endpoint) -> None:
    body = {"model": "random", "prompt": "a", "logprobs": 2, "seed": 3, "max_tokens": 12}
    body |= {"ignore_eos": True}
    choice = server.post(PATH, body)["choices"][0]
    found = choice["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["text_offset"]) == 12
    assert all(1 <= len(t) <= 3 for t in found["top_logprobs"])
    for token, own, top in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True
    ):
        assert top[token] >= own
    got = joined(server.events(PATH, body | {"stream": True}))
    assert got["tokens"] == found["tokens"]
    assert got["offsets"] == found["text_offset"]
    assert got["text"] == choice["text"]
    assert server.post(PATH, ask(logprobs=0))["choices"][0]["logprobs"]["tokens"][0] == "Hel"


def test_a_batch_with_several_answers(server: Endpoint) -> None:
    body = {"model": "random", "prompt": ["a", "b"], "n": 2, "seed": 7, "max_tokens": 8}
    body |= {"ignore_eos": True}
    whole = server.post(PATH, body)
    texts = [c["text"] for c in whole["choices"]]
    assert [c["index"] for c in whole["choices"]] == [0, 1, 2, 3]
    assert len(set(texts)) > 1
    assert whole["usage"]["completion_tokens"] == 32
    assert whole["usage"]["prompt_tokens"] == 2 * len(server.llm("random").tokenize("a"))
    alone = server.post(PATH, body | {"prompt": "b"})
    assert [c["text"] for c in alone["choices"]] == texts[2:]
    more = {"stream": True, "stream_options": {"include_usage": True}}
    events = server.events(PATH, body | more)
    assert [joined(events, i)["text"] for i in range(4)] == texts
    assert events[-2]["usage"]["completion_tokens"] == 32
    assert events[-2]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]


def test_one_bad_prompt_of_several_fails_them_all_before_the_first_event(server: Endpoint) -> None:
    body = ask(model="small", prompt=["a", "b " * 100, "c"], stream=True)
    assert server.refused(PATH, body)["code"] == "context_length_exceeded"
    server.settled("small")
