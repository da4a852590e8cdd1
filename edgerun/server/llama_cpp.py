"""llama.cpp's own routes: ``/completion``, ``/infill``, tokens, templates and ``/props``.

https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md describes them. There are
no slots here: requests need none, and ``/slots`` does not exist.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response

from edgerun import __version__
from edgerun.core import SamplingParams
from edgerun.errors import RequestError
from edgerun.llm import LLM
from edgerun.server import chat_in
from edgerun.server.bodies import Body
from edgerun.server.errors import ERRORS
from edgerun.server.llama_cpp_in import (
    CompletionBody,
    InfillBody,
    parse_completion,
    parse_infill,
)
from edgerun.server.llama_cpp_out import CompletionEvents, settings, whole
from edgerun.server.wire import JSON, respond, with_model
from edgerun.text.fim import fim_marks

__all__ = ["router"]

router = APIRouter(tags=["llama.cpp"])

T = TypeVar("T")


@router.post(
    "/completion", responses=ERRORS, response_class=Response, summary="Continue a raw prompt"
)
async def completion(request: Request, body: CompletionBody) -> Response:
    """The answer, or with `stream` its pieces. Control tokens that the prompt spells are read as
    such; `parse_special: false` leaves them text."""
    asked = parse_completion(body)
    return await respond(request, asked, partial(CompletionEvents, body), partial(whole, body))


@router.post("/infill", responses=ERRORS, response_class=Response, summary="Fill in the middle")
async def infill(request: Request, body: InfillBody) -> Response:
    """What belongs between `input_prefix` and `input_suffix`. All of it is plain text, whatever it
    spells. What the context cannot hold is left out: files of `input_extra` first."""
    asked = parse_infill(body)
    return await respond(request, asked, partial(CompletionEvents, body), partial(whole, body))


class TokenizeBody(Body):
    model: str | None = None
    content: str
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None


@router.post("/tokenize", responses=ERRORS, summary="Text to token ids")
async def tokenize(request: Request, body: TokenizeBody) -> Response:
    """Ids, or with `with_pieces` ids and what each stands for: text, or a list of bytes where it is
    a part of a character."""

    def work(llm: LLM) -> list[Any]:
        special = body.parse_special is not False
        ids = llm.tokenize(body.content, add_bos=bool(body.add_special), special=special)
        if not body.with_pieces:
            return list(ids)
        raw = llm.model.tokenizer.token_bytes
        return [{"id": i, "piece": _piece(raw(i, special=True))} for i in ids]

    return JSON({"tokens": await with_model(request, body.model, work)})


def _piece(raw: bytes) -> str | list[int]:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return list(raw)


class DetokenizeBody(Body):
    model: str | None = None
    tokens: list[int]


@router.post("/detokenize", responses=ERRORS, summary="Token ids to text")
async def detokenize(request: Request, body: DetokenizeBody) -> Response:
    """The text, control tokens spelled out."""

    def work(llm: LLM) -> str:
        try:
            return llm.detokenize(body.tokens, special=True)
        except RequestError as e:
            raise RequestError(str(e), param="tokens") from None

    return JSON({"content": await with_model(request, body.model, work)})


@router.post("/apply-template", responses=ERRORS, summary="A conversation as a prompt")
async def apply_template(request: Request, body: chat_in.ChatBody) -> Response:
    """The text that `/completion` would go on from, without the model's start token, which it
    adds."""
    asked = chat_in.parse(body)

    def work(llm: LLM) -> str:
        ids, tokenizer = llm.conversation(asked.messages, asked.options).ids, llm.model.tokenizer
        if tokenizer.add_bos and ids[:1] == [tokenizer.bos_id]:
            ids = ids[1:]
        return llm.detokenize(ids, special=True)

    return JSON({"prompt": await with_model(request, asked.model, work)})


@router.get("/props", responses=ERRORS, summary="Facts about a model")
async def props(request: Request, model: str | None = None) -> Response:
    """Of the default model, or the one that `model` names; it is loaded for that. `model_path` is
    the file's name: where it lies is nobody's business."""

    def work(llm: LLM) -> dict[str, Any]:
        tokenizer = llm.model.tokenizer

        def text(token_id: int | None) -> str:
            return "" if token_id is None else tokenizer.token_text(token_id)

        return {
            "default_generation_settings": {
                "n_ctx": llm.n_ctx,
                "params": settings(SamplingParams()),
            },
            "total_slots": request.app.state.options.places,
            "model_alias": llm.name,
            "model_path": llm.path.name,
            "modalities": {"vision": False, "audio": False},
            "chat_template": tokenizer.chat_template or llm.chat_template().source,
            "bos_token": text(tokenizer.bos_id),
            "eos_token": text(tokenizer.eos_id),
            "supports_infill": fim_marks(tokenizer) is not None,
            "build_info": f"edgerun-{__version__}",
            "is_sleeping": False,
        }

    return JSON(await with_model(request, model, work))
