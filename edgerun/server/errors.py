"""Errors as HTTP: which status, and which words in which API's shape."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from edgerun.errors import (
    BackendError,
    ClosedError,
    ContextLengthError,
    EdgerunError,
    ModelNotFoundError,
    OutOfMemoryError,
    RequestError,
    printable,
    why,
)
from edgerun.server.sse import JSON

if TYPE_CHECKING:
    from starlette.types import Scope

__all__ = [
    "ERRORS",
    "ClientGoneError",
    "OverloadedError",
    "TimeLimitError",
    "add_handlers",
    "body_for",
    "error_fields",
    "error_response",
    "refusal",
    "status_of",
]

log = logging.getLogger(__name__)


class OverloadedError(EdgerunError):
    """Too many requests wait already; ``retry_after`` seconds may help."""

    code = "queue_full"

    def __init__(self, waiting: int, limit: int, retry_after: int = 1) -> None:
        super().__init__(
            f"{waiting} requests are being answered or wait, and no more than {limit} may: "
            "try again later, or start the server with a larger --max-queue"
        )
        self.retry_after = retry_after


class TimeLimitError(EdgerunError):
    """An answer took longer than the server allows."""

    code = "timeout"

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the answer was not complete after {seconds:g} seconds, the server's --timeout"
        )


class ClientGoneError(EdgerunError):
    """The client closed the connection: nobody reads an answer any more."""

    code = "client_closed_request"


#: First match wins. 499 is what proxies log for a client that has gone.
_STATUS: tuple[tuple[type[Exception], int], ...] = (
    (RequestError, 400),
    (ModelNotFoundError, 404),
    (OverloadedError, 429),
    (ClientGoneError, 499),
    (OutOfMemoryError, 503),
    (ClosedError, 503),
    (TimeLimitError, 504),
    (BackendError, 500),
)
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "unavailable_error",
    504: "timeout_error",
}
#: Codes of errors that have no class of their own.
_CODES = {
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    415: "unsupported_media_type",
}


def status_of(error: Exception) -> int:
    """The HTTP status that says what went wrong."""
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


def error_fields(error: Exception) -> dict[str, Any]:
    """``{"message", "type", "code", "param"}`` of an error, as OpenAI's API words it; a prompt that
    is too long has ``n_prompt_tokens`` and ``n_ctx`` as well.

    What is not one of edgerun's own errors keeps its details for the log.
    """
    status = status_of(error)
    if not isinstance(error, EdgerunError):
        log.error("a request failed", exc_info=error)
        message = "the server failed to answer; its log has the details"
        return _fields(message, "server_error", "internal_error", None)
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    param = getattr(error, "param", None)
    if isinstance(error, ModelNotFoundError):
        kind, param = "invalid_request_error", "model"
    fields = _fields(printable(error, 2000), kind, error.code, param)
    if isinstance(error, ModelNotFoundError):
        fields["code"] = "model_not_found"
    if isinstance(error, ContextLengthError):
        fields |= {"n_prompt_tokens": error.n_prompt_tokens, "n_ctx": error.n_ctx}
    return fields


def _fields(message: str, kind: str, code: str | None, param: str | None) -> dict[str, Any]:
    return {"message": message, "type": kind, "code": code, "param": param}


def refusal(status: int, message: str, code: str | None = None) -> dict[str, Any]:
    """The fields of an error that no exception stands for."""
    default = "invalid_request_error" if status < 500 else "server_error"
    return _fields(message, _TYPES.get(status, default), code or _CODES.get(status), None)


def body_for(path: str, fields: Mapping[str, Any], request_id: str | None) -> dict[str, Any]:
    """The body of an error in the shape of the API that ``path`` belongs to."""
    if path.startswith("/v1/messages"):
        kind = fields["type"]
        if fields.get("code") == "model_not_found":
            kind = "not_found_error"
        known = kind if kind in _ANTHROPIC else _ANTHROPIC_OF.get(kind, "api_error")
        error = {**fields, "type": known}
        return {"type": "error", "error": error, "request_id": request_id}
    return {"error": dict(fields)}


_ANTHROPIC = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "timeout_error",
}
_ANTHROPIC_OF = {"unavailable_error": "overloaded_error", "server_error": "api_error"}


def error_response(
    scope: Scope, status: int, fields: Mapping[str, Any], headers: Mapping[str, str] | None = None
) -> Response:
    """An error as a whole response."""
    state: Mapping[str, Any] = scope.get("state", {})
    state.get("facts", {}).setdefault("error", fields["message"])
    return JSON(
        body_for(scope["path"], fields, state.get("request_id")),
        status,
        headers=dict(headers or {}),
    )


async def _own(request: Request, error: Exception) -> Response:
    headers = {}
    if isinstance(error, OverloadedError):
        headers["retry-after"] = str(error.retry_after)
    return error_response(request.scope, status_of(error), error_fields(error), headers)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(request.scope, 400, validation_fields(error.errors()))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, message = error.status_code, str(error.detail)
    if status == 404 and message == HTTPStatus(404).phrase:
        message = f"there is no {request.method} {printable(request.url.path)} here; see /docs"
    elif status == 400 and error.__cause__ is not None:  # of FastAPI, which reads the body
        utf8 = isinstance(error.__cause__, UnicodeDecodeError)
        reason = "it is not UTF-8 text" if utf8 else why(error.__cause__)
        fields = refusal(400, f"the body is not valid JSON: {reason}", "invalid_json")
        return error_response(request.scope, 400, fields, error.headers)
    elif status == 405:
        message = f"{printable(request.url.path)} does not take {request.method}"
    return error_response(request.scope, status, refusal(status, message), error.headers)


_UNION_TAG = re.compile(r"^(str|int|float|bool|list|dict|none)$|[\[\](){}]|-")


def validation_fields(errors: Sequence[Any]) -> dict[str, Any]:
    """The first of pydantic's errors, with the field in ``param``: ``stream_options.x``."""
    first: Any = errors[0] if errors else {"loc": (), "msg": "the request is not valid"}
    loc = [p for p in first["loc"] if p not in ("body", "query", "path")]
    if first.get("type") == "json_invalid":
        reason = str(first.get("ctx", {}).get("error", ""))
        return refusal(400, f"the body is not valid JSON: {printable(reason)}", "invalid_json")
    path = ""
    for part in loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not _UNION_TAG.search(str(part)):
            path += f".{part}" if path else str(part)
    if not path:
        return refusal(400, "the body must be a JSON object", "invalid_json")
    given = first.get("input")
    shown = f", not {printable(repr(given), 60)}" if isinstance(given, (str, int, float)) else ""
    said = first["msg"][:1].lower() + first["msg"][1:]
    fields = refusal(400, f"{printable(path, 100)}: {printable(said)}{shown}", "invalid_request")
    fields["param"] = printable(path, 100)
    return fields


def add_handlers(app: FastAPI) -> None:
    """Have ``app`` answer every error in its API's shape."""
    app.add_exception_handler(EdgerunError, _own)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _own)


_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "code": {"type": ["string", "null"]},
                "param": {"type": ["string", "null"]},
            },
        }
    },
}

#: What a route may answer besides its own: for the ``responses`` argument of FastAPI's routes.
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": what, "content": {"application/json": {"schema": _SCHEMA}}}
    for status, what in {
        400: "The request is wrong; `param` names the field.",
        401: "No API key, or a wrong one.",
        403: "The Host or Origin header is not one that this server trusts.",
        404: "The model is not served here.",
        413: "The body is larger than the server takes.",
        429: "Too many requests wait; see `Retry-After`.",
        500: "The server failed.",
        503: "The server cannot answer now.",
        504: "The answer took too long.",
    }.items()
}
