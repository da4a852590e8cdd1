"""``/v1/responses``: what a client asks for, as a conversation. Pure translation.

Tools of the client's own are ``function`` and ``custom`` ones; a custom tool reaches the model as a
function with one text, and its call leaves in the custom shape. Tools that run on OpenAI's servers
cannot be used here: those that Codex sends with every request are left out, which the ``tools`` of
the response show; others are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgerun.chat import ChatOptions
from edgerun.core import Constraint, SamplingParams
from edgerun.errors import RequestError, printable
from edgerun.server.asked import ChatAsked
from edgerun.server.bodies import SamplingBody, limit, sampling_params
from edgerun.server.responses_items import to_messages

__all__ = ["ResponsesBody", "Tool", "Wanted", "parse"]

#: Sent by default, and harmless to leave out.
LEFT_OUT = ("web_search", "web_search_preview", "local_shell", "image_generation", "tool_search")
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_LOGPROBS = "message.output_text.logprobs"


class ResponsesBody(SamplingBody):
    """What ``/v1/responses`` takes."""

    model: str | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = None
    store: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = None
    metadata: dict[str, Any] | None = None
    background: bool | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None


@dataclass(frozen=True)
class Tool:
    """A tool as the client knows it, beside the name by which the model does."""

    given: Mapping[str, Any]
    name: str
    custom: bool = False
    namespace: str | None = None


@dataclass(frozen=True)
class Wanted:
    """A request, read.

    Attributes:
        asked: the conversation to answer.
        body: as it came.
        tools: those in force, by the model's name for them.
        items: all that led to the answer, references resolved.
    """

    asked: ChatAsked
    body: ResponsesBody
    tools: Mapping[str, Tool]
    items: Sequence[Mapping[str, Any]]


def parse(body: ResponsesBody, items: Sequence[Mapping[str, Any]]) -> Wanted:
    """``items`` are those of earlier answers and of ``body.input``, references resolved.

    Raises:
        RequestError: something is malformed, or cannot be done here; names it.
    """
    for name in ("conversation", "prompt"):
        if getattr(body, name) is not None:
            raise _bad(f"{name} lives on OpenAI's servers: send input instead", name)
    if body.background:
        raise _bad("background answers are not kept here: send background false", "background")
    if body.truncation not in (None, "auto", "disabled"):
        raise _bad("truncation must be auto or disabled", "truncation")
    tools = _tools(body.tools or [])
    choice, tools = _choice(body.tool_choice, tools)
    asked = ChatAsked(
        model=body.model,
        messages=to_messages(items, body.instructions),
        params=_params(body),
        options=ChatOptions(
            tools=[_function(t) for t in tools.values()],
            tool_choice=choice,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning_effort=_effort(body.reasoning or {}),
        ),
        stream=bool(body.stream),
    )
    return Wanted(asked, body, tools, items)


def _params(body: ResponsesBody) -> SamplingParams:
    if body.max_output_tokens is not None and body.max_output_tokens < 0:
        raise _bad("max_output_tokens must be 0 or more", "max_output_tokens")
    top = body.top_logprobs
    if top is not None and not 0 <= top <= 20:
        raise _bad(f"top_logprobs must be between 0 and 20, not {top}", "top_logprobs")
    wanted = top or _LOGPROBS in (body.include or [])
    return sampling_params(
        body,
        max_tokens=limit(max_output_tokens=body.max_output_tokens, n_predict=body.n_predict),
        constraint=_format(body.text or {}),
        logprobs=(top or 0) if wanted else None,
    )


def _format(text: Mapping[str, Any]) -> Constraint | None:
    wanted = text.get("format")
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return Constraint("json_object", param="text.format")
    if kind == "json_schema":
        return Constraint("json_schema", wanted.get("schema"), param="text.format.schema")
    raise _bad("text.format.type must be text, json_schema or json_object", "text.format.type")


def _effort(reasoning: Mapping[str, Any]) -> str | None:
    effort = reasoning.get("effort")
    if effort is not None and effort not in _EFFORTS:
        raise _bad(f"reasoning.effort must be one of {', '.join(_EFFORTS)}", "reasoning.effort")
    return "high" if effort in ("xhigh", "max") else effort


# -- tools --------------------------------------------------------------------------------------


def _tools(given: Sequence[Mapping[str, Any]]) -> dict[str, Tool]:
    out: dict[str, Tool] = {}
    for i, tool in enumerate(given):
        at, kind = f"tools[{i}]", tool.get("type")
        if kind in LEFT_OUT:
            continue
        if kind == "namespace":
            space, inner = _named(tool, at), tool.get("tools")
            if not isinstance(inner, list):
                raise _bad(f"{at}.tools must be a list of functions", f"{at}.tools")
            for j, t in enumerate(inner):
                where = f"{at}.tools[{j}]"
                if not isinstance(t, Mapping) or t.get("type") != "function":
                    raise _bad(f"{where} must be a function", where)
                name = f"{space}__{_named(t, where)}"
                out[name] = Tool(t, name, namespace=space)
        elif kind in ("function", "custom"):
            name = _named(tool, at)
            if not isinstance(tool.get("parameters") or {}, Mapping):
                raise _bad(f"{at}.parameters must be a JSON Schema", f"{at}.parameters")
            out[name] = Tool(tool, name, custom=kind == "custom")
        else:
            raise _bad(
                f"{at} is of type {printable(repr(kind), 60)}, which runs on OpenAI's servers: "
                "only function and custom tools can be used here",
                f"{at}.type",
            )
    return out


def _named(tool: Mapping[str, Any], at: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise _bad(f"{at}.name must be text", f"{at}.name")
    return name


def _function(tool: Tool) -> dict[str, Any]:
    """The tool as a model reads it."""
    given, description = tool.given, str(tool.given.get("description") or "")
    if not tool.custom:
        function = {"name": tool.name, "parameters": given.get("parameters") or {"type": "object"}}
        if description:
            function["description"] = description
        if given.get("strict") is not None:
            function["strict"] = given["strict"]
        return {"type": "function", "function": function}
    form = given.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        syntax = f"{form.get('syntax')} grammar:\n{form.get('definition')}"
        description = f"{description}\n\nThe input follows this {syntax}".strip()
    parameters = {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    function = {"name": tool.name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _choice(
    choice: str | Mapping[str, Any] | None, tools: dict[str, Tool]
) -> tuple[str | Mapping[str, Any], dict[str, Tool]]:
    """``ChatOptions.tool_choice``, and the tools that may be chosen."""
    if choice is None:
        return "auto", tools
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("tools")
        names = [t.get("name") for t in allowed if isinstance(t, Mapping)] if allowed else []
        tools = {n: t for n, t in tools.items() if n in names}
        choice = str(choice.get("mode"))
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise _bad("tool_choice must be auto, none, required or name a tool", "tool_choice")
        if choice == "required" and not tools:
            raise _bad("tool_choice is required, but there are no tools", "tool_choice")
        return choice, tools
    name = choice.get("name")
    kind = choice.get("type")
    if kind not in ("function", "custom") or not isinstance(name, str) or name not in tools:
        shown = printable(repr(name or kind), 60)
        raise _bad(f"tool_choice names {shown}, which is none of the tools here", "tool_choice")
    return {"name": name}, tools


def _bad(message: str, param: str) -> RequestError:
    return RequestError(message, param=param)
