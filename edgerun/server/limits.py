"""How large a body may be, how deep its JSON, and how long it may take to arrive."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from edgerun.errors import printable
from edgerun.server.errors import error_response, refusal

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from edgerun.server.options import ServerOptions

__all__ = ["Limits", "too_deep"]

#: Bodies above this many bytes are looked through on another thread.
_LONG = 1 << 18

# A string, also one that never ends: after it no quote is left to begin at, so this is linear.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)
_NO_BRACKETS = bytes(b for b in range(256) if b not in b"[]{}")


def too_deep(body: bytes, most: int) -> bool:
    """Whether JSON text nests objects and lists deeper than ``most``. Linear, and no recursion."""
    if body.count(b"[") + body.count(b"{") <= most:
        return False
    depth = 0
    for b in _STRING.sub(b"", body).translate(None, _NO_BRACKETS):
        depth += 1 if b in b"[{" else -1
        if depth > most:
            return True
    return False


class Limits:
    """ASGI: reads the body of each request as far as it may go, and hands it on in one piece."""

    def __init__(self, app: ASGIApp, options: ServerOptions) -> None:
        self._app, self._options = app, options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        if scope["method"] == "HEAD":  # GET without its body, which the connection leaves out
            inner = {**scope, "method": "GET"}
            try:
                await self._app(inner, receive, send)
            finally:
                scope["route"] = inner.get("route")
            return
        most = self._options.max_body
        refused = None
        body = b""
        if (coding := _header(scope, b"content-encoding")) not in (b"", b"identity"):
            said = printable(coding.decode("latin-1"), 40)
            refused = 415, f"the body is compressed ({said}): send it as it is"
        elif _length(scope) > most:
            refused = 413, f"the body is larger than {most} bytes, the server's --max-body"
        else:
            try:
                got = await _read(receive, most, self._options.body_timeout)
            except asyncio.TimeoutError:
                refused = 408, "the body did not arrive in time"
            else:
                if got is None:
                    facts = scope.setdefault("state", {}).setdefault("facts", {})
                    facts |= {"status": 499, "error": "the connection ended before the body did"}
                    return
                body = got
                if len(body) > most:
                    refused = 413, f"the body is larger than {most} bytes, the server's --max-body"
                elif await self._deep(body):
                    refused = 400, f"the JSON nests deeper than {self._options.max_depth} levels"
        if refused is not None:
            status, message = refused
            code = "json_too_deep" if status == 400 else None
            # What is left of the body is not read: the connection cannot serve another request.
            headers = {} if status == 400 else {"connection": "close"}
            response = error_response(scope, status, refusal(status, message, code), headers)
            await response(scope, receive, send)
            return
        if body:
            # curl and others say form where they send JSON; who may send it is not decided by that.
            others = [(k, v) for k, v in scope["headers"] if k != b"content-type"]
            scope["headers"] = [*others, (b"content-type", b"application/json")]
        await self._app(scope, _replay(body, receive), send)

    async def _deep(self, body: bytes) -> bool:
        if len(body) > _LONG:
            return await asyncio.to_thread(too_deep, body, self._options.max_depth)
        return too_deep(body, self._options.max_depth)


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((bytes(v).strip().lower() for k, v in scope["headers"] if k == wanted), b"")


def _length(scope: Scope) -> int:
    value = _header(scope, b"content-length")
    return int(value[:20]) if value.isdigit() else 0


async def _read(receive: Receive, most: int, seconds: float) -> bytes | None:
    """The body, or a bit more than ``most`` bytes of it; None if the client went away."""
    ends = time.monotonic() + seconds
    body = bytearray()
    while True:
        message = await asyncio.wait_for(receive(), ends - time.monotonic())
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > most or not message.get("more_body", False):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
