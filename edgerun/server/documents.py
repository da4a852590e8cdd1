"""What a route's document says of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.server.errors import ERRORS

__all__ = ["answers", "choices"]


def answers(
    description: str, properties: Mapping[str, Any], *, streamed: bool = False
) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a FastAPI route: errors, and a JSON object that has all ``properties``;
    ``streamed``: or an event stream."""
    schema = {"type": "object", "required": list(properties), "properties": dict(properties)}
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if streamed:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    return {**ERRORS, 200: {"description": description, "content": content}}


def choices(description: str, kind: str) -> dict[int | str, dict[str, Any]]:
    """:func:`answers` of a route that gives OpenAI's ``choices``, in an object of ``kind``."""
    properties = {
        "id": {"type": "string"},
        "object": {"const": kind},
        "created": {"type": "integer"},
        "model": {"type": "string"},
        "choices": {"type": "array", "minItems": 1, "items": {"type": "object"}},
        "usage": {"type": "object"},
    }
    events = "whole, or with `stream` as events that end with `[DONE]`."
    return answers(f"{description}: {events}", properties, streamed=True)
