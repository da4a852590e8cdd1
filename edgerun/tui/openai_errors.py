"""What servers say when they refuse, and what it means: one line, with the way out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edgerun.errors import (
    BackendError,
    BackendUnavailableError,
    ContextLengthError,
    EdgerunError,
    GenerationError,
    ModelNotFoundError,
    RequestError,
    printable,
    why,
)

__all__ = ["error_of", "message_of", "stream_error", "unreachable"]

_CODE = "context_length_exceeded"
#: How servers that have no code for it say that a prompt is too long.
_TOO_LONG = re.compile(
    r"context (length|size|window)|maximum context|exceeds? the (available )?context"
    r"|prompt is too long|too many tokens|input is too long|num_ctx",
    re.IGNORECASE,
)


def message_of(body: bytes) -> tuple[str, Mapping[str, Any]]:
    """A refusal's words in one line, "" = none, and its fields where it has some.

    Known shapes: OpenAI's ``error`` object, Ollama's ``error`` text, FastAPI's ``detail``, vLLM's
    plain ``message``.
    """
    text = body.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        # A page for people, most likely of something that is no such server.
        return "" if "<" in text[:200] else printable(" ".join(text.split())), {}
    while isinstance(data, list) and data:
        data = data[0]
    if not isinstance(data, Mapping):
        return printable(data), {}
    fields: Mapping[str, Any] = data
    inner = data.get("error", data)
    if isinstance(inner, Mapping):
        fields = inner
        inner = inner.get("message") or inner.get("detail") or inner.get("msg") or ""
    if isinstance(inner, list):  # FastAPI's: one entry a field
        inner = "; ".join(
            f"{'.'.join(map(str, e.get('loc', ())))}: {e.get('msg', '')}"
            for e in inner
            if isinstance(e, Mapping)
        )
    return printable(" ".join(str(inner).split()), 400), fields


def error_of(
    url: str, status: int, body: bytes, *, model: str = "", retry_after: str = ""
) -> EdgerunError:
    """The error that an answer with a status other than 200 stands for."""
    said, fields = message_of(body)
    if (full := _too_long(said, fields)) is not None and status in (400, 413, 422, 500):
        return full
    tail = f": {said}" if said else ""
    if status in (401, 403):
        way = "give it an API key that it knows, with --api-key or $EDGERUN_API_KEY"
        return RequestError(f"{url} does not let this chat in{tail}; {way}", code="unauthorized")
    if status == 404 and (model and (model in said or "model" in said.lower())):
        return ModelNotFoundError(f"{url} has no model {printable(model)!r}{tail}")
    if status in (404, 405):
        return BackendUnavailableError(
            f"{url} has no chat completions (HTTP {status}){tail}; is this the address of an "
            "OpenAI-compatible server, such as http://localhost:8080/v1?"
        )
    if 300 <= status < 400:
        return BackendUnavailableError(
            f"{url} has moved{tail}: start the chat with the new address"
        )
    if status == 429:
        when = f"in {printable(retry_after, 20)} s" if retry_after.isdigit() else "later"
        return _coded(
            BackendError(f"{url} takes no more requests at present{tail}; ask again {when}"),
            "rate_limited",
        )
    if status in (502, 503, 504):
        return BackendUnavailableError(
            f"{url} is not ready (HTTP {status}){tail}; ask again in a moment"
        )
    if status >= 500:
        return BackendError(f"{url} failed (HTTP {status}){tail}; its log may say more")
    return RequestError(said or f"{url} refused the request (HTTP {status}) without a reason")


def stream_error(url: str, data: Any) -> EdgerunError:
    """The error that an event within a stream stands for."""
    said, fields = message_of(json.dumps(data).encode())
    full = _too_long(said, fields)
    if full is not None:
        return full
    return GenerationError(f"{url} ended the answer: {said or 'it does not say why'}; ask again")


def unreachable(url: str, error: Exception) -> EdgerunError:
    """What an error of the connection means, in people's words."""
    kind = type(error).__name__
    said = printable(why(" ".join(str(error).split())), 160)
    if kind in ("InvalidURL", "UnsupportedProtocol", "LocalProtocolError"):
        return RequestError(f"{printable(url)} is not a usable address: {said}", param="url")
    if kind in ("ConnectTimeout", "PoolTimeout"):
        reason = "does not answer: is it the right address, and is the machine on?"
    elif kind == "ReadTimeout":
        reason = "has said nothing for a long time: ask again, or look at its log"
    elif kind == "ConnectError" and "CERTIFICATE" in said.upper():
        reason = f"shows a certificate that is not trusted ({said})"
    elif kind == "ConnectError" and re.search(r"name|getaddrinfo|nodename|resolve", said, re.I):
        reason = f"cannot be found ({said}): is the name right?"
    elif kind == "ConnectError":
        reason = f"cannot be reached ({said}): is the server running there?"
    else:
        reason = f"broke the connection ({said or kind}): ask again, or look at its log"
    return BackendUnavailableError(f"{url} {reason}")


def _too_long(said: str, fields: Mapping[str, Any]) -> EdgerunError | None:
    known = fields.get("code") == _CODE or fields.get("type") == "exceed_context_size_error"
    if not known and not _TOO_LONG.search(said):
        return None
    n, n_ctx = fields.get("n_prompt_tokens"), fields.get("n_ctx")
    if type(n) is int and type(n_ctx) is int:
        return ContextLengthError(n, n_ctx)
    return RequestError(said or "the conversation is longer than the context", code=_CODE)


def _coded(error: EdgerunError, code: str) -> EdgerunError:
    error.code = code
    return error
