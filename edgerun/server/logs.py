"""One line a request, and the id that finds it."""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from typing import TYPE_CHECKING, Any

from edgerun.core import Usage
from edgerun.errors import printable

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["JSONLines", "RequestLog", "request_line"]

log = logging.getLogger("edgerun.server.requests")

_POLLED = frozenset({"/health", "/v1/health", "/metrics"})
_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestLog:
    """ASGI: gives every request an id, taken from ``X-Request-Id`` if that has one, sends it back,
    and logs and counts the request once its last byte has left."""

    def __init__(self, app: ASGIApp, owner: FastAPI) -> None:
        self._app, self._owner = app, owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        state = scope.setdefault("state", {})
        request_id = state["request_id"] = _given_id(scope) or secrets.token_hex(12)
        facts: dict[str, Any] = {"began": began}
        state["facts"] = facts
        metrics = self._owner.state.metrics
        metrics.begun()

        complete = False

        async def tagged(message: Message) -> None:
            nonlocal complete
            complete = message["type"] == "http.response.body" and not message.get("more_body")
            if message["type"] == "http.response.start":
                facts.setdefault("status", message["status"])
                headers = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
                message = {**message, "headers": headers}
            await send(message)

        try:
            await self._app(scope, receive, tagged)
        except Exception:
            if not complete:
                raise
            # Starlette answers with the error and raises it again; it is logged by then.
        finally:
            seconds = time.perf_counter() - began
            route = getattr(scope.get("route"), "path", None)
            status = facts.get("status", 500)
            metrics.ended(route or "other", status, seconds)
            # Those who look every few seconds would bury everything else.
            level = logging.DEBUG if route in _POLLED and status < 400 else logging.INFO
            if log.isEnabledFor(level):
                line = request_line(scope, facts, seconds)
                log.log(level, "%s", _worded(line), extra={"fields": line})


def _given_id(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            text = value.decode("latin-1")
            return text if _ID.fullmatch(text) else None
    return None


def request_line(scope: Scope, facts: dict[str, Any], seconds: float) -> dict[str, Any]:
    """What is logged of a request; absent where it does not apply. No text of anybody's."""
    line: dict[str, Any] = {
        "id": scope["state"]["request_id"],
        "method": scope["method"],
        "route": getattr(scope.get("route"), "path", None) or printable(scope["path"], 100),
        "status": facts.get("status", 500),
        "seconds": round(seconds, 4),
    }
    if "model" in facts:
        line["model"] = printable(facts["model"], 100)
    usage = facts.get("usage")
    if isinstance(usage, Usage):
        line["prompt_tokens"] = usage.prompt_tokens
        line["cached_tokens"] = usage.cached_tokens
        line["completion_tokens"] = usage.completion_tokens
    if "ttft" in facts:
        line["ttft"] = round(facts["ttft"], 4)
    for name in ("finish", "error"):
        if name in facts:
            line[name] = facts[name]
    return line


def _worded(line: dict[str, Any]) -> str:
    text = f"{line['method']} {line['route']} {line['status']} {line['seconds']:.3f} s"
    if "completion_tokens" in line:
        text += f" · {line['prompt_tokens']} in ({line['cached_tokens']} cached), "
        text += f"{line['completion_tokens']} out"
    if "ttft" in line:
        text += f" · first after {line['ttft']:.3f} s"
    for name in ("model", "finish", "error"):
        if name in line:
            text += f" · {line[name]}"
    return f"{text} · {line['id']}"


class JSONLines(logging.Formatter):
    """One JSON object a line: time, level, message; of requests their fields."""

    def format(self, record: logging.LogRecord) -> str:
        out: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
        }
        fields = getattr(record, "fields", None)
        if fields is not None:
            out |= fields
        else:
            out["message"] = record.getMessage()
        if record.exc_info:
            out["exception"] = self.formatException(record.exc_info)
        return json.dumps(out)
