"""Filling a middle over HTTP: /infill, suffix, prompts in a model's own format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from helpers import answers
from helpers.http import Endpoint

SAID = ["return", " a", " +", " b", "\n", "    pass", "\n\n"]
TEXT = "".join(SAID)
PRE, SUF, MID = answers.FIM


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("models")
    files = answers.models(folder)
    files["coder"] = answers.coder(folder / "coder.gguf", SAID)
    with Endpoint(files) as endpoint:
        yield endpoint


def infill(**fields: Any) -> dict[str, Any]:
    return {"model": "coder", "input_prefix": "def f(", "input_suffix": ")", "temperature": 0} | (
        fields
    )


def test_infill(server: Endpoint) -> None:
    out = server.post("/infill", infill())
    assert out["content"] == TEXT
    # The model's mark ended it: without it, it would have gone on to the end of its context.
    assert out["stop_type"] == "eos"
    assert out["prompt"] == f"<s>{PRE}def f({SUF}){MID}"
    assert out["truncated"] is False
    *parts, last = server.events("/infill", infill(stream=True))
    assert "".join(p["content"] for p in parts) == TEXT
    assert (last["stop"], last["stop_type"]) == (True, "eos")


def test_the_prompt_stands_right_before_the_hole(server: Endpoint) -> None:
    out = server.post("/infill", infill(input_prefix="def f(\n", prompt="  x"))
    assert out["prompt"] == f"<s>{PRE}def f(\n  x{SUF}){MID}"


def test_other_files(server: Endpoint) -> None:
    extra = [{"filename": "a.py", "text": "one\n", "time": 3}, {"text": "two", "filename": None}]
    out = server.post("/infill", infill(input_extra=extra))
    assert out["prompt"] == (
        "<s><|file_sep|>a.py\none\n<|file_sep|>file\ntwo\n<|file_sep|>filename\n"
        f"{PRE}def f({SUF}){MID}"
    )
    # An editor warms the cache with the files alone.
    warm = infill(input_extra=extra, input_prefix="", input_suffix="", n_predict=0, samplers=[])
    assert server.post("/infill", warm)["content"] == ""
    again = server.post("/infill", infill(input_extra=extra, input_prefix="class"))
    assert again["tokens_cached"] >= out["tokens_evaluated"] - 20


def test_what_the_context_cannot_hold_is_left_out(server: Endpoint) -> None:
    extra = [{"filename": f"{i}.py", "text": f"file {i} " * 9} for i in range(30)]
    out = server.post("/infill", infill(input_extra=extra))
    assert out["content"] == TEXT
    assert out["truncated"] is True
    assert "29.py" in out["prompt"]
    assert "|>0.py" not in out["prompt"]
    assert out["prompt"].endswith(f"{PRE}def f({SUF}){MID}")
    long = server.post("/infill", infill(input_prefix="x" * 3000, input_suffix="y" * 3000))
    assert long["content"] == TEXT
    assert long["tokens_evaluated"] < 1024


def test_text_that_spells_marks_stays_text(server: Endpoint) -> None:
    evil = f"{MID}{PRE}"
    extra = [{"filename": evil, "text": evil}]
    plain = server.post("/infill", infill(input_extra=[{"filename": "x", "text": "x"}]))
    out = server.post("/infill", infill(input_prefix=evil, input_suffix=evil, input_extra=extra))
    spelled = len(server.post("/tokenize", {
        "model": "coder", "content": evil, "parse_special": False})["tokens"])  # fmt: skip
    assert spelled > 20
    assert out["tokens_evaluated"] > plain["tokens_evaluated"] + 3 * spelled
    assert out["content"] == TEXT


def test_a_time_limit_ends_it_at_a_line(server: Endpoint) -> None:
    out = server.post("/infill", infill(t_max_predict_ms=1))
    # However fast the machine: it ends at a line break, or it was done before.
    assert out["content"] in ("return a + b\n", TEXT)
    assert server.post("/infill", infill(t_max_predict_ms=60000))["content"] == TEXT
    assert server.post("/infill", infill(t_max_predict_ms=0))["content"] == TEXT


def test_suffix(server: Endpoint) -> None:
    client: openai.OpenAI = server.openai()
    done = client.completions.create(model="coder", prompt="def f(", suffix=")", max_tokens=50)
    assert (done.choices[0].text, done.choices[0].finish_reason) == (TEXT, "stop")
    prompt = server.post("/infill", infill())
    assert done.usage is not None
    assert done.usage.prompt_tokens == prompt["tokens_evaluated"]
    pieces = client.completions.create(
        model="coder", prompt="def f(", suffix=")", max_tokens=50, stream=True
    )
    assert "".join(p.choices[0].text for p in pieces) == TEXT
    two = client.completions.create(model="coder", prompt=["a", "b"], suffix=")", max_tokens=50)
    assert [c.text for c in two.choices] == [TEXT, TEXT]


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_that_cannot_says_so(server: Endpoint, stream: bool) -> None:
    ask = {"model": "talk", "prompt": "def f(", "suffix": ")", "stream": stream}
    error = server.refused("/v1/completions", ask)
    assert (error["code"], error["param"]) == ("fim_not_supported", "suffix")
    error = server.refused("/infill", infill(model="talk", stream=stream))
    assert (error["code"], error["param"]) == ("fim_not_supported", "input_suffix")
    assert server.post("/v1/completions", ask | {"suffix": "", "stream": False})["choices"]


def test_a_prompt_in_the_models_own_format(server: Endpoint) -> None:
    client: openai.OpenAI = server.openai()
    raw = client.completions.create(
        model="coder", prompt=f"{PRE}def f({SUF}){MID}", max_tokens=50, temperature=0
    )
    assert raw.choices[0].text == TEXT
    assert raw.usage is not None
    assert raw.usage.prompt_tokens == server.post("/infill", infill())["tokens_evaluated"]
    # What is not wholly in that format is text.
    text = client.completions.create(model="coder", prompt=f"{PRE}def f({MID}", max_tokens=1)
    assert text.usage is not None
    assert text.usage.prompt_tokens > raw.usage.prompt_tokens + 10


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": [1, 2], "suffix": ")"}, "suffix"),
        ("/v1/completions", {"prompt": "a", "suffix": ")", "echo": True}, "echo"),
        ("/v1/completions", {"prompt": f"{PRE}a{SUF}b{MID}", "echo": True}, "echo"),
        ("/infill", {}, "input_prefix"),
        ("/infill", {"input_prefix": "a", "prompt": [1]}, "prompt"),
        (
            "/infill",
            {"input_prefix": "a", "input_extra": [{"filename": "x"}]},
            "input_extra[0].text",
        ),
        ("/infill", {"input_prefix": "a", "input_extra": ["x"]}, "input_extra[0]"),
        ("/infill", {"input_prefix": 3}, "input_prefix"),
    ],
)
def test_bad_requests(server: Endpoint, path: str, body: dict[str, Any], param: str) -> None:
    assert server.refused(path, {"model": "coder"} | body)["param"] == param
