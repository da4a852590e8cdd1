"""``/v1/responses``: OpenAI's newer API, whose answers a later request can go on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request, Response

from edgerun.core import Completion
from edgerun.errors import RequestError, printable
from edgerun.server.asked import ChatAsked
from edgerun.server.errors import ERRORS, error_response, refusal
from edgerun.server.responses_in import ResponsesBody, Wanted, parse
from edgerun.server.responses_items import as_items, find_references
from edgerun.server.responses_out import ResponseEvents, whole
from edgerun.server.responses_store import Kept, ResponseStore
from edgerun.server.wire import JSON, Answering, respond
from edgerun.shifting import fitted

if TYPE_CHECKING:
    from edgerun.llm import LLM

__all__ = ["router"]

router = APIRouter(tags=["OpenAI"])


def _store(request: Request) -> ResponseStore:
    state = request.app.state
    if not hasattr(state, "responses"):
        state.responses = ResponseStore()
    store: ResponseStore = state.responses
    return store


def _wanted(body: ResponsesBody, store: ResponseStore) -> Wanted:
    if body.input is None:
        raise RequestError("input is missing: send text or a list of items", param="input")
    earlier: list[Mapping[str, Any]] = []
    if (previous := body.previous_response_id) is not None:
        kept = store.get(previous)
        if kept is None:
            raise RequestError(
                f"previous response {printable(previous, 80)!r} is not kept here (answers are, "
                "until the server ends, unless they were asked for with store false)",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        earlier = kept.conversation
    wanted = parse(body, [*earlier, *find_references(as_items(body.input), store.item)])
    if body.truncation == "auto":
        return replace(wanted, asked=replace(wanted.asked, prepare=partial(_fitted, wanted.asked)))
    return wanted


def _fitted(asked: ChatAsked, llm: LLM) -> ChatAsked:
    """Without the oldest turns, if the conversation would not fit otherwise. Its answer ends where
    the context does, unless the body asks for a shift of its own."""
    params = replace(asked.params, context_shift=True)
    if not asked.params.context_shift:
        prompt = fitted(llm, asked.messages, asked.options, params).ids
        room = max(llm.n_ctx - len(prompt), 1)
        most = params.max_tokens
        params = replace(params, max_tokens=room if most is None else min(most, room))
    return replace(asked, params=params, prepare=None)


@router.post("/responses", include_in_schema=False)
@router.post(
    "/v1/responses",
    responses=ERRORS,
    response_class=Response,
    summary="Answer, and remember it",
)
async def create(request: Request, body: ResponsesBody) -> Response:
    """The answer as one response, or with `stream` as OpenAI's events. It is kept in memory, unless
    `store` is false, and `previous_response_id` goes on from it."""
    store = _store(request)
    wanted = _wanted(body, store)

    def keep(response: Mapping[str, Any]) -> None:
        if body.store is not False:
            store.put(response, wanted.items)

    def done(answering: Answering, completion: Completion) -> Mapping[str, Any]:
        response = whole(wanted, answering, completion)
        keep(response)
        return response

    return await respond(
        request, wanted.asked, lambda answering: ResponseEvents(wanted, answering, keep), done
    )


def _kept(request: Request, response_id: str) -> Kept | Response:
    kept = _store(request).get(response_id)
    return _unknown(request, response_id) if kept is None else kept


def _unknown(request: Request, response_id: str) -> Response:
    message = f"there is no response {printable(response_id, 80)!r} here"
    return error_response(request.scope, 404, refusal(404, message))


@router.get("/v1/responses/{response_id}", responses=ERRORS, summary="An answer that is kept")
async def retrieve(request: Request, response_id: str) -> Response:
    kept = _kept(request, response_id)
    return kept if isinstance(kept, Response) else JSON(kept.response)


@router.get(
    "/v1/responses/{response_id}/input_items",
    responses=ERRORS,
    summary="What led to an answer",
)
async def input_items(request: Request, response_id: str) -> Response:
    """All items, the newest first."""
    kept = _kept(request, response_id)
    if isinstance(kept, Response):
        return kept
    items = [{"id": f"item_{i}", "type": "message", **item} for i, item in enumerate(kept.items)][
        ::-1
    ]
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return JSON({"object": "list", "data": items, "has_more": False, **ends})


@router.delete("/v1/responses/{response_id}", responses=ERRORS, summary="Forget an answer")
async def delete(request: Request, response_id: str) -> Response:
    if not _store(request).delete(response_id):
        return _unknown(request, response_id)
    return JSON({"id": response_id, "object": "response", "deleted": True})
