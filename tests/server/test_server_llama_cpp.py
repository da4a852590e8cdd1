"""llama.cpp's own routes: completions, tokens, templates, facts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers import answers
from helpers import gguf_build as gb
from helpers.http import Endpoint

TEXT = "".join(answers.TALK)
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("secret-folder")
    files = answers.models(folder)
    files["chatml"] = gb.scripted_model(
        folder / "chatml.gguf",
        {"<|im_start|>": "yes", "yes": "</s>"},
        ["<|im_end|>", " "],
        n_ctx=256,
        extra={"tokenizer.chat_template": CHATML},
    )
    with Endpoint(files) as endpoint:
        yield endpoint


def ask(**fields: Any) -> dict[str, Any]:
    return {"model": "talk", "prompt": "Hi", "temperature": 0} | fields


# -- completions --------------------------------------------------------------------------------


def test_a_completion(server: Endpoint) -> None:
    prompt = server.post("/tokenize", {"model": "talk", "content": "Hi", "add_special": True})
    out = server.post("/completion", ask())
    assert (out["content"], out["stop"], out["model"]) == (TEXT, True, "talk")
    assert (out["stop_type"], out["stopping_word"]) == ("eos", "")
    assert out["tokens_predicted"] == len(answers.TALK)
    assert out["tokens_evaluated"] == len(prompt["tokens"])
    assert out["prompt"] == "<s>Hi"
    assert out["tokens"] == []
    assert out["has_new_line"] is True
    assert out["truncated"] is False
    assert out["timings"]["predicted_n"] == len(answers.TALK)
    assert out["index"] == 0
    chosen = out["generation_settings"]
    assert (chosen["n_predict"], chosen["temperature"], chosen["n_ctx"]) == (-1, 0, 4096)


@pytest.mark.parametrize(
    ("fields", "kind", "word"),
    [
        ({"n_predict": 2}, "limit", ""),
        ({"n_predict": 0}, "limit", ""),
        ({"stop": ["zz", "wor"]}, "word", "wor"),
        ({"n_predict": -1}, "eos", ""),
    ],
)
def test_why_it_ended_streamed_or_not(
    server: Endpoint, fields: dict[str, Any], kind: str, word: str
) -> None:
    whole = server.post("/completion", ask(**fields, n_probs=1, return_tokens=True))
    assert (whole["stop_type"], whole["stopping_word"]) == (kind, word)
    *parts, last = server.events("/completion", ask(**fields, n_probs=1, stream=True))
    assert all(p["stop"] is False for p in parts)
    assert "".join(p["content"] for p in parts) == whole["content"]
    assert [i for p in parts for i in p["tokens"]] == whole["tokens"]
    probs = [x for p in parts for x in p["completion_probabilities"]]
    assert probs == whole["completion_probabilities"]
    assert parts == [] or parts[-1]["tokens_predicted"] == whole["tokens_predicted"]
    differ = {"content", "tokens", "timings", "completion_probabilities", "tokens_cached"}
    for key in whole.keys() - differ - {"generation_settings"}:
        assert last[key] == whole[key], key
    assert last["content"] == ""
    assert last["timings"]["predicted_n"] == whole["timings"]["predicted_n"]


def test_probabilities(server: Endpoint) -> None:
    out = server.post("/completion", ask(n_probs=3, n_predict=2))
    first, second = out["completion_probabilities"]
    assert bytes(first["bytes"] + second["bytes"]).decode() == out["content"]
    assert first["token"] == "Hel"
    assert first["logprob"] > -0.01
    assert len(first["top_logprobs"]) == 3
    assert first["top_logprobs"][0]["id"] == first["id"]


def test_chosen_fields(server: Endpoint) -> None:
    fields = ["content", "timings/prompt_n", "generation_settings/n_predict", "nothing", "a/b"]
    out = server.post("/completion", ask(response_fields=fields, n_predict=3))
    assert out.keys() == {"content", "timings/prompt_n", "generation_settings/n_predict"}
    assert out["generation_settings/n_predict"] == 3
    last = server.events("/completion", ask(response_fields=fields, n_predict=3, stream=True))[-1]
    assert last.keys() == out.keys()


def test_several_prompts_and_answers(server: Endpoint) -> None:
    several = server.post("/completion", ask(prompt=["Hi", [1, 5, 6], [1, "x"]]))
    assert [o["content"] for o in several] == [TEXT] * 3
    assert [o["index"] for o in several] == [0, 1, 2]
    two = server.post("/completion", ask(n_cmpl=2, n_predict=2))
    assert [o["index"] for o in two] == [0, 1]
    stream = server.events("/completion", ask(prompt=["Hi", "Ho"], stream=True))
    assert sorted(e["index"] for e in stream if e["stop"]) == [0, 1]


def test_forms_of_prompts(server: Endpoint) -> None:
    ids = server.post("/tokenize", {"model": "talk", "content": "Hi x", "add_special": True})
    tokens = ids["tokens"]
    plain = server.post("/completion", ask(prompt="Hi x"))
    assert server.post("/completion", ask(prompt=tokens))["prompt"] == plain["prompt"]
    mixed = server.post("/completion", ask(prompt=[*tokens[:-1], "x"]))
    assert mixed["tokens_evaluated"] >= len(tokens)
    wrapped = server.post("/completion", ask(prompt={"prompt_string": "Hi x"}))
    assert wrapped["prompt"] == plain["prompt"]


def test_a_rendered_conversation_is_read_as_one(server: Endpoint) -> None:
    """The prompt that /apply-template gives, and the answer that comes to it."""
    messages = [{"role": "user", "content": "Hi <|im_end|>"}]
    body = {"model": "chatml", "messages": messages}
    prompt = server.post("/apply-template", body)["prompt"]
    assert prompt == "<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    chat = server.post("/v1/chat/completions", body | {"max_tokens": 1})
    out = server.post("/completion", {"model": "chatml", "prompt": prompt, "n_predict": 1})
    text = server.post(
        "/completion",
        {"model": "chatml", "prompt": prompt, "n_predict": 1, "parse_special": False},
    )
    n = chat["usage"]["prompt_tokens"]
    assert out["tokens_evaluated"] <= n < text["tokens_evaluated"]


SAMPLERS = ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (["top_k", "top_p", "infill"], ["top_k", "top_p"]),
        (["top_k", "infill"], ["top_k"]),
        ([], []),
        ("edkypmxt", SAMPLERS),
        (["typical_p", "temp"], ["typ_p", "temperature"]),
    ],
)
def test_samplers_as_editors_name_them(server: Endpoint, given: Any, used: list[str]) -> None:
    out = server.post("/completion", ask(samplers=given))
    assert out["generation_settings"]["samplers"] == used
    chat = {"model": "talk", "messages": [{"role": "user", "content": "Hi"}], "samplers": given}
    assert server.post("/v1/chat/completions", chat)["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["x"]}}, "prompt[0]"),
        ({"n_probs": 21}, "n_probs"),
        ({"n_predict": 1.5}, "n_predict"),
        ({"n_predict": "3"}, "n_predict"),
        ({"post_sampling_probs": True}, "post_sampling_probs"),
        ({"samplers": ["banana"]}, "samplers"),
        ({"temperature": "x"}, "temperature"),
    ],
)
def test_bad_requests(server: Endpoint, fields: dict[str, Any], param: str) -> None:
    for stream in (False, True):
        assert server.refused("/completion", ask(stream=stream) | fields)["param"] == param


def test_no_field_is_needed_but_the_prompt(server: Endpoint) -> None:
    nulls = dict.fromkeys(
        ["n_predict", "stop", "samplers", "seed", "stream", "n_probs", "response_fields"]
    )
    assert server.post("/completion", ask(**nulls, cache_prompt=True, id_slot=3))["content"] == TEXT


# -- tokens and templates -----------------------------------------------------------------------


def test_tokens_and_back(server: Endpoint) -> None:
    body = {"model": "chatml", "content": "<|im_start|>á"}
    ids = server.post("/tokenize", body)["tokens"]
    text = server.post("/tokenize", body | {"parse_special": False})["tokens"]
    start = server.post("/tokenize", body | {"add_special": True})["tokens"]
    assert len(ids) <= len(text)
    assert start[0] == gb.BOS_ID
    assert start[1:] == ids
    out = server.post("/detokenize", {"model": "chatml", "tokens": ids})
    assert out == {"content": "<|im_start|>á"}
    pieces = server.post("/tokenize", body | {"with_pieces": True})["tokens"]
    assert [p["id"] for p in pieces] == ids
    halves = [p["piece"] for p in pieces if isinstance(p["piece"], list)]
    assert halves == [[0xC3], [0xA1]]


def test_bad_tokens(server: Endpoint) -> None:
    for tokens in ([-1], [2**33]):
        error = server.refused("/detokenize", {"model": "talk", "tokens": tokens})
        assert error["param"] == "tokens"
    assert server.refused("/tokenize", {"model": "talk"})["param"] == "content"
    assert server.refused("/tokenize", {"model": "x", "content": ""}, 404)["param"] == "model"


def test_props(server: Endpoint) -> None:
    response = server.client.get("/props", params={"model": "talk"})
    assert response.status_code == 200
    props = response.json()
    assert props["default_generation_settings"]["n_ctx"] == 4096
    assert props["default_generation_settings"]["params"]["temperature"] == 0.8
    assert props["total_slots"] == 16
    assert props["model_path"] == "talk.gguf"
    assert props["chat_template"] == answers.TEMPLATE
    assert props["modalities"] == {"vision": False, "audio": False}
    assert (props["bos_token"], props["eos_token"]) == ("<s>", "</s>")
    assert props["supports_infill"] is False
    assert "secret-folder" not in response.text
    assert server.client.get("/props", params={"model": "x"}).status_code == 404
