"""OpenAI's ``functions``, which came before ``tools``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["as_tools", "with_calls"]


def as_tools(functions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same functions as ``tools``."""
    return [{"type": "function", "function": dict(f)} for f in functions]


def with_calls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """``messages`` in which each ``function_call`` is a tool's call, and each message of the role
    ``function`` its result."""
    out: list[Mapping[str, Any]] = []
    last = ""
    for i, message in enumerate(messages):
        m = dict(message)
        call = m.pop("function_call", None)
        if isinstance(call, Mapping):
            last = f"call_{i}"
            m["tool_calls"] = [{"id": last, "type": "function", "function": dict(call)}]
        if m.get("role") == "function":
            m["role"] = "tool"
            m["tool_call_id"] = last or f"call_{i}"
        out.append(m)
    return out
