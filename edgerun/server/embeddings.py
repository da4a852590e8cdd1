"""``POST /v1/embeddings``: OpenAI's vectors for texts."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request, Response

from edgerun.embedding import Embeddings
from edgerun.engine.embedding import Vectors
from edgerun.errors import RequestError
from edgerun.server.bodies import Body
from edgerun.server.documents import answers
from edgerun.server.wire import JSON, while_here

__all__ = ["EmbeddingBody", "router", "texts_of", "whole"]

router = APIRouter(tags=["OpenAI"])

#: Most texts of one request.
MAX_TEXTS = 2048


class EmbeddingBody(Body):
    model: str | None = None
    input: str | list[Any]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    #: llama.cpp's: mean, cls or last.
    pooling: str | None = None


def texts_of(given: str | list[Any]) -> list[str | list[int]]:
    """A text, ids of one, or a list of either, as a list.

    Raises:
        RequestError: something else; names it.
    """
    if isinstance(given, str):
        return [given]
    if given and all(isinstance(x, int) and not isinstance(x, bool) for x in given):
        return [list(given)]
    if len(given) > MAX_TEXTS:
        raise RequestError(
            f"input has {len(given)} texts; one request may have {MAX_TEXTS}", param="input"
        )
    for i, item in enumerate(given):
        ids = isinstance(item, list) and all(
            isinstance(x, int) and not isinstance(x, bool) for x in item
        )
        if not ids and not isinstance(item, str):
            raise RequestError(
                f"input[{i}] must be a text or a list of token ids, not {type(item).__name__}",
                param="input",
            )
    return list(given)


def whole(model: str, done: Embeddings, encoding: str | None) -> dict[str, Any]:
    """The answer. ``base64`` holds each vector as little-endian float32."""
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": i, "embedding": _value(vector, encoding)}
            for i, vector in enumerate(done.vectors)
        ],
        "usage": {"prompt_tokens": done.prompt_tokens, "total_tokens": done.prompt_tokens},
    }


def _value(vector: Vectors, encoding: str | None) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
    # The shortest digits that name the float32: half the bytes of the float64 it widens to.
    return [float(np.format_float_positional(x, unique=True)) for x in vector]


_ANSWERS = answers(
    "One vector of length 1 for each input, in order.",
    {
        "object": {"const": "list"},
        "model": {"type": "string"},
        "data": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
    },
)


@router.post("/embeddings", include_in_schema=False)
@router.post("/v1/embeddings", responses=_ANSWERS, response_class=Response, summary="Embed texts")
async def embeddings(request: Request, body: EmbeddingBody) -> Response:
    """A vector for each text. Pooling is what the model's file says, else the tokens' mean."""
    texts, registry = texts_of(body.input), request.app.state.registry

    async def work() -> dict[str, Any]:
        with await registry.acquire(body.model) as lease:
            done = await lease.llm.aembed(texts, pooling=body.pooling, dimensions=body.dimensions)
            return await asyncio.to_thread(whole, lease.name, done, body.encoding_format)

    return JSON(await while_here(request, work()))
