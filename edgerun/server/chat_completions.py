"""``POST /v1/chat/completions``: OpenAI's conversations."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from edgerun.server.chat_in import ChatBody, parse
from edgerun.server.chat_out import ChatTranslator, whole
from edgerun.server.documents import choices
from edgerun.server.wire import respond

__all__ = ["router"]

router = APIRouter(tags=["OpenAI"])


@router.post("/chat/completions", include_in_schema=False)
@router.post(
    "/v1/chat/completions",
    responses=choices("The answer", "chat.completion"),
    response_class=Response,
    summary="Answer a conversation",
)
async def chat_completions(request: Request, body: ChatBody) -> Response:
    """OpenAI's chat completions, with llama.cpp's sampling fields beside OpenAI's own."""
    asked = parse(body)
    legacy = body.functions is not None and body.tools is None
    return await respond(
        request, asked, partial(ChatTranslator, legacy=legacy), partial(whole, legacy=legacy)
    )
