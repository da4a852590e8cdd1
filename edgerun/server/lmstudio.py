"""``/api/v0/models``: LM Studio's list, by which some editors find local models."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request

from edgerun.llm import LLM
from edgerun.server.registry import Registry, UnknownModelError
from edgerun.server.sources import ModelCard

__all__ = ["router"]

router = APIRouter(tags=["LM Studio"])


def described(card: ModelCard, llm: LLM | None) -> dict[str, Any]:
    """A model as LM Studio describes it."""
    out: dict[str, Any] = {
        "id": card.id,
        "object": "model",
        "type": "llm",
        "publisher": "local",
        "arch": card.architecture,
        "compatibility_type": "gguf",
        "quantization": card.file_type,
        "state": "not-loaded" if llm is None else "loaded",
        "max_context_length": card.n_ctx_train,
    }
    if llm is not None:
        out["loaded_context_length"] = llm.n_ctx
    return out


@router.get("/api/v0/models")
async def models(request: Request) -> dict[str, Any]:
    """All models that can be served, loaded or not."""
    registry: Registry = request.app.state.registry
    cards, loaded = await asyncio.to_thread(registry.cards), registry.loaded()
    return {"object": "list", "data": [described(c, loaded.get(c.id)) for c in cards]}


@router.get("/api/v0/models/{model:path}")
async def model(request: Request, model: str) -> dict[str, Any]:
    """One of them."""
    registry: Registry = request.app.state.registry
    cards, loaded = await asyncio.to_thread(registry.cards), registry.loaded()
    for card in cards:
        if card.id == model:
            return described(card, loaded.get(card.id))
    raise UnknownModelError(model, [card.id for card in cards])
