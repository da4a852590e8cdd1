"""The gate before all routes: Host header, web origins, API keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import Response

from edgerun.errors import printable
from edgerun.server.errors import error_response, refusal
from edgerun.server.security import Keys, given_key, host_allowed, origin_allowed

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from edgerun.server.options import ServerOptions

__all__ = ["PUBLIC", "Gate"]

#: Open without a key: whether the server is up, and pages that ask for the key themselves.
PUBLIC = frozenset({"/", "/docs", "/favicon.ico", "/health", "/openapi.json", "/v1/health"})

_EXPOSED = b"X-Request-Id, Retry-After"


class Gate:
    """ASGI: lets in who may come in, and answers browsers that ask first (CORS)."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app, self._options = app, options
        self._keys = Keys(options.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        host, origin = headers.get("host"), headers.get("origin")
        if not host_allowed(host, self._options):
            await self._refuse(
                scope, receive, send, 403, "host_not_allowed",
                f"the Host header names {printable(repr(host), 80)}, which this server does not "
                "answer to: start it with --allowed-host NAME if it should",
            )  # fmt: skip
            return
        trusted = origin is not None and origin_allowed(origin, host, self._options)
        if trusted:
            assert origin is not None
            send = _with_cors(send, origin)
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await _preflight(headers, trusted)(scope, receive, send)
        elif origin is not None and not trusted and scope["method"] not in ("GET", "HEAD"):
            # A page need not be able to read the answer to keep a machine busy.
            await self._refuse(
                scope, receive, send, 403, "origin_not_allowed",
                f"pages from {printable(repr(origin), 80)} may not use this server: "
                "start it with --cors-origin ORIGIN if they should",
            )  # fmt: skip
        elif _public(scope["path"]) or self._keys.open_to(given_key(headers)):
            await self._app(scope, receive, send)
        else:
            wrong = "this API key is not one of the server's"
            missing = "this server wants an API key, as Authorization: Bearer KEY"
            message = missing if given_key(headers) is None else wrong
            await self._refuse(scope, receive, send, 401, "invalid_api_key", message)

    async def _refuse(
        self, scope: Scope, receive: Receive, send: Send, status: int, code: str, message: str
    ) -> None:
        headers = {"www-authenticate": "Bearer"} if status == 401 else {}
        response = error_response(scope, status, refusal(status, message, code), headers)
        await response(scope, receive, send)


def _public(path: str) -> bool:
    return path in PUBLIC or path.startswith("/page/")


def _preflight(headers: dict[str, str], trusted: bool) -> Response:
    if not trusted:
        return Response(status_code=403)
    wanted = headers.get("access-control-request-headers", "authorization, content-type")
    allow = {
        "access-control-allow-methods": "GET, POST, DELETE, OPTIONS",
        "access-control-allow-headers": printable(wanted, 1000),
        "access-control-max-age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        allow["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=allow)


def _with_cors(send: Send, origin: str) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            cors = [
                (b"access-control-allow-origin", origin.encode("latin-1")),
                (b"access-control-expose-headers", _EXPOSED),
                (b"vary", b"Origin"),
            ]
            message = {**message, "headers": [*message.get("headers", ()), *cors]}
        await send(message)

    return sent
