"""Vectors over HTTP, as OpenAI's client reads them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import gguf_build as gb
from helpers.http import Endpoint

TEXTS = ["the rain", "a tin hat", "the"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    path: Path = gb.random_model(tmp_path_factory.mktemp("m") / "tiny.gguf", seed=3)
    with Endpoint({"tiny": path}) as endpoint:
        yield endpoint


def test_formats_agree_with_each_other_and_with_python(server: Endpoint) -> None:
    want = server.llm().embed(TEXTS)
    client = server.openai()
    for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
        got: Any = client.embeddings.create(model="tiny", input=TEXTS, **encoding)  # type: ignore[arg-type]
        assert [d.index for d in got.data] == [0, 1, 2]
        assert got.usage.prompt_tokens == got.usage.total_tokens == want.prompt_tokens
        for d, vector in zip(got.data, want.vectors, strict=True):
            value = d.embedding
            if isinstance(value, str):
                value = np.frombuffer(base64.b64decode(value), "<f4")
            assert np.array_equal(np.array(value, np.float32), vector)


def test_base64_is_little_endian_float32(server: Endpoint) -> None:
    body = {"model": "tiny", "input": "the", "encoding_format": "base64"}
    raw = base64.b64decode(server.post("/v1/embeddings", body)["data"][0]["embedding"])
    assert np.array_equal(np.frombuffer(raw, "<f4"), server.llm().embed("the").vectors[0])
    plain = server.post("/v1/embeddings", {**body, "encoding_format": None})
    assert np.array_equal(
        np.array(plain["data"][0]["embedding"], np.float32), np.frombuffer(raw, "<f4")
    )


def test_token_ids(server: Endpoint) -> None:
    ids = server.llm().tokenize("the rain")
    one = server.post("/v1/embeddings", {"input": ids})["data"]
    several = server.post("/v1/embeddings", {"input": [ids, "the rain"]})["data"]
    assert len(one) == 1
    assert one[0]["embedding"] == several[0]["embedding"] == several[1]["embedding"]


def test_dimensions_and_pooling(server: Endpoint) -> None:
    cut = server.post("/v1/embeddings", {"input": "the", "dimensions": 8, "pooling": "last"})
    assert np.array_equal(
        np.array(cut["data"][0]["embedding"], np.float32),
        server.llm().embed("the", dimensions=8, pooling="last").vectors[0],
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a", "encoding_format": "hex"}, "encoding_format"),
        ({"input": []}, "input"),
        ({"input": [[]]}, "input"),
        ({"input": [1, 2**40]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [1.5]}, "input"),
        ({"input": ["a", {"text": "b"}]}, "input"),
        ({"input": None}, "input"),
        ({}, "input"),
        ({"input": "a", "dimensions": 65}, "dimensions"),
        ({"input": "a", "dimensions": "8"}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": ["a"] * 2049}, "input"),
    ],
)
def test_refusals_name_the_field(server: Endpoint, body: dict[str, Any], param: str) -> None:
    error = server.refused("/v1/embeddings", body)
    assert error["param"] == param
    assert server.post("/v1/embeddings", {"input": "the"})


def test_an_empty_text_is_what_the_model_makes_of_it(server: Endpoint) -> None:
    """This one has a start token: a vector for that alone."""
    assert server.post("/v1/embeddings", {"input": ""})["usage"]["prompt_tokens"] == 1


def test_a_text_too_long(server: Endpoint) -> None:
    error = server.refused("/v1/embeddings", {"input": [[5] * 600]})
    assert error["code"] == "context_length_exceeded"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (600, 512)


def test_unknown_model(server: Endpoint) -> None:
    error = server.refused("/v1/embeddings", {"model": "ada", "input": "a"}, 404)
    assert error["code"] == "model_not_found"
    assert "tiny" in error["message"]
