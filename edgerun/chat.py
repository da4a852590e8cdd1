"""The frozen value types of a conversation: how it is to be answered, and calls of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["ChatOptions", "ToolCall", "ToolCallDelta"]


@dataclass(frozen=True)
class ToolCall:
    """A call the model made. ``arguments`` is JSON text, an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class ToolCallDelta:
    """A piece of a streamed call: the first of each ``index`` has ``id`` and ``name``, the others
    only more of ``arguments``, which join to JSON text."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class ChatOptions:
    """How a conversation is turned into a prompt, and its answer read.

    Attributes:
        tools: ``{"type": "function", "function": {"name", "description", "parameters"}}`` each,
            as in OpenAI's API.
        tool_choice: ``"auto"``, ``"none"``, ``"required"``, or ``{"name": ...}`` to force one.
        parallel_tool_calls: whether one answer may make several calls.
        reasoning_effort: ``"none"``, ``"minimal"``, ``"low"``, ``"medium"``, ``"high"``;
            ``None`` = the model's own way. Reaches the template as it wants it; ``"none"`` turns
            reasoning off where the template can.
        reasoning_budget: most tokens of reasoning; then the block is closed and the answer begins.
            0 = none; ``None`` = no bound.
        continue_final: leave the last message, the assistant's, open to be continued.
        template_args: further variables for the chat template.
    """

    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    continue_final: bool = False
    template_args: Mapping[str, Any] = field(default_factory=dict)
