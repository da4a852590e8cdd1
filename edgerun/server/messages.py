"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's API."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request, Response

from edgerun.llm import LLM
from edgerun.server.errors import ERRORS
from edgerun.server.messages_in import CountBody, MessagesBody, count, parse, wants_thinking
from edgerun.server.messages_out import MessageEvents, whole
from edgerun.server.wire import JSON, respond, with_model

__all__ = ["router"]

router = APIRouter(tags=["Anthropic"])


@router.post(
    "/v1/messages",
    responses=ERRORS,
    response_class=Response,
    summary="Answer a conversation, Anthropic's way",
)
async def messages(request: Request, body: MessagesBody) -> Response:
    """The answer as one message, or with `stream` as Anthropic's events. Errors have Anthropic's
    shape."""
    thinking = wants_thinking(body)
    return await respond(
        request,
        parse(body),
        partial(MessageEvents, thinking=thinking),
        partial(whole, thinking=thinking),
    )


@router.post(
    "/v1/messages/count_tokens",
    responses=ERRORS,
    response_class=Response,
    summary="Count the tokens of a conversation",
)
async def count_tokens(request: Request, body: CountBody) -> Response:
    """How many tokens `/v1/messages` would read, tools and template included."""
    asked = count(body)

    def work(llm: LLM) -> int:
        return len(llm.conversation(asked.messages, asked.options).ids)

    return JSON({"input_tokens": await with_model(request, asked.model, work)})
