"""``GET /v1/models``: what is served here."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from edgerun.llm import LLM
from edgerun.server.errors import ERRORS
from edgerun.server.registry import UnknownModelError
from edgerun.server.sources import ModelCard
from edgerun.server.sse import JSON

__all__ = ["model_fields", "router"]

router = APIRouter(tags=["OpenAI"])


def model_fields(card: ModelCard, llm: LLM | None) -> dict[str, Any]:
    """A model as OpenAI lists it, with llama.cpp's ``meta``. ``llm``: where it is loaded; only
    then is its context known, and until then the trained one stands for it."""
    n_ctx = card.n_ctx_train if llm is None else llm.n_ctx
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": "edgerun",
        "context_length": n_ctx,
        "loaded": llm is not None,
        "meta": {
            "n_ctx": n_ctx,
            "n_ctx_train": card.n_ctx_train,
            "n_embd": card.n_embd,
            "n_vocab": card.n_vocab,
            "n_params": card.n_params,
            "size": card.size,
            "ftype": card.file_type,
        },
    }


async def _all(request: Request) -> list[dict[str, Any]]:
    registry = request.app.state.registry
    cards = await asyncio.to_thread(registry.cards)
    loaded = registry.loaded()
    return [model_fields(card, loaded.get(card.id)) for card in cards]


_MODEL = {
    "type": "object",
    "required": ["id", "object", "created", "owned_by"],
    "properties": {"id": {"type": "string"}, "object": {"const": "model"}},
}
_LIST = {
    "type": "object",
    "required": ["object", "data"],
    "properties": {"object": {"const": "list"}, "data": {"type": "array", "items": _MODEL}},
}


def _ok(schema: dict[str, Any], what: str) -> dict[int | str, dict[str, Any]]:
    ok = {"description": what, "content": {"application/json": {"schema": schema}}}
    return {**ERRORS, 200: ok}


@router.get("/models", include_in_schema=False)
@router.get("/v1/models", responses=_ok(_LIST, "The models served."), response_class=JSON)
async def models(request: Request) -> JSON:
    """The models that requests may name, loaded or not."""
    return JSON({"object": "list", "data": await _all(request)})


@router.get("/models/{model:path}", include_in_schema=False)
@router.get("/v1/models/{model:path}", responses=_ok(_MODEL, "The model."), response_class=JSON)
async def model(request: Request, model: str) -> JSON:
    """One model."""
    if not model:  # a slash behind the list's name
        return await models(request)
    found = await _all(request)
    for fields in found:
        if fields["id"] == model:
            return JSON(fields)
    raise UnknownModelError(model, [f["id"] for f in found])
