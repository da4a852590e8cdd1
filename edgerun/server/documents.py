"""What a route's document says of its answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgerun.server.errors import ERRORS

__all__ = ["answers"]


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
