"""Bytes of answers: JSON bodies and server-sent events."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi.responses import JSONResponse

__all__ = ["COMMENT", "DONE", "EVENT_HEADERS", "JSON", "Event", "encode", "to_json"]

#: Keeps a connection alive while nothing else is to be said.
COMMENT = b": keep-alive\n\n"

EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


@dataclass(frozen=True)
class Event:
    """One event: an object, or a bare word such as ``[DONE]``; ``name`` where the API names its
    events."""

    data: Mapping[str, Any] | str
    name: str | None = None


#: How OpenAI's streams end.
DONE = Event("[DONE]")


def to_json(value: Any) -> bytes:
    """Compact JSON on one line. Halves of surrogate pairs, which no UTF-8 holds, become ``?``."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def encode(events: Iterable[Event]) -> bytes:
    """``events`` as they go over the wire."""
    out = bytearray()
    for event in events:
        if event.name is not None:
            out += b"event: %s\n" % event.name.encode()
        data = event.data.encode() if isinstance(event.data, str) else to_json(event.data)
        out += b"data: %s\n\n" % data
    return bytes(out)


class JSON(JSONResponse):
    """A JSON body."""

    def render(self, content: Any) -> bytes:
        return to_json(content)
