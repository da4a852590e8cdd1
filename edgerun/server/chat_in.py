"""Bodies of OpenAI's chat completions: what they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.chat import ChatOptions
from edgerun.core import Constraint, SamplingParams
from edgerun.errors import RequestError, printable
from edgerun.server.asked import ChatAsked
from edgerun.server.bodies import ChoicesBody, StreamOptions, limit, refuse, sampling_params
from edgerun.server.legacy_functions import as_tools, with_calls

__all__ = ["ChatBody", "parse", "response_format"]

MAX_TOP_LOGPROBS = 20

#: What the chat template gets from elsewhere.
_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final", "self"})


class ChatBody(ChoicesBody):
    model: str | None = None
    messages: list[dict[str, Any]]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    reasoning_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    modalities: list[str] | None = None
    web_search_options: dict[str, Any] | None = None


#: Of the fields not read here, those are ignored that change no answer (store, metadata,
#: service_tier, prediction, prompt_cache_key, verbosity, user); these would be missed in it.
_ELSEWHERE = {
    "web_search_options": "nothing is searched here: give a tool of your own in tools",
}


def parse(body: ChatBody) -> ChatAsked:
    """What ``body`` asks for.

    Raises:
        RequestError: a value is out of range, contradicts another or cannot be had here; names
            the field.
    """
    refuse(body, _ELSEWHERE)
    _only_text(body.modalities or ["text"])
    messages: Sequence[Mapping[str, Any]] = body.messages
    tools, choice, parallel = body.tools, body.tool_choice, body.parallel_tool_calls
    if body.functions is not None and tools is None:
        tools, choice, parallel = as_tools(body.functions), body.function_call, False
    if body.functions is not None or any(m.get("role") == "function" for m in messages):
        messages = with_calls(messages)
    stream_options = body.stream_options
    return ChatAsked(
        model=body.model,
        messages=messages,
        params=_params(body),
        options=ChatOptions(
            tools=tools or (),
            tool_choice=_tool_choice(choice, tools or ()),
            parallel_tool_calls=parallel is not False,
            reasoning_effort=_effort(body.reasoning_effort),
            reasoning_budget=_budget(body.reasoning_budget),
            continue_final=_continues(body),
            template_args=_template_args(body.chat_template_kwargs or {}),
        ),
        stream=bool(body.stream),
        include_usage=stream_options is not None and bool(stream_options.include_usage),
    )


def _only_text(modalities: Sequence[str]) -> None:
    for kind in modalities:
        if kind != "text":
            raise RequestError(
                f'modalities must be ["text"]: answers of kind {printable(repr(kind), 40)} '
                "cannot be given here",
                param="modalities",
            )


def _params(body: ChatBody) -> SamplingParams:
    most = limit(
        max_tokens=body.max_tokens,
        max_completion_tokens=body.max_completion_tokens,
        n_predict=body.n_predict,
    )
    constraint = response_format(body.response_format)
    if constraint is not None and (body.grammar or body.json_schema is not None):
        raise RequestError(
            "response_format excludes grammar and json_schema", param="response_format"
        )
    return sampling_params(body, max_tokens=most, constraint=constraint, logprobs=_logprobs(body))


def _logprobs(body: ChatBody) -> int | None:
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_TOP_LOGPROBS:
        raise RequestError(
            f"top_logprobs must be from 0 to {MAX_TOP_LOGPROBS}, not {top}", param="top_logprobs"
        )
    if top and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return (top or 0) if body.logprobs else None


def response_format(given: Mapping[str, Any] | None) -> Constraint | None:
    """What ``response_format`` asks the text to look like; None if it is free.

    Raises:
        RequestError: it is not well formed.
    """
    if given is None:
        return None
    kind = given.get("type")
    param = "response_format"
    if kind == "text":
        return None
    if kind == "json_object":
        schema = given.get("schema")  # llama.cpp's
        if schema is None:
            return Constraint("json_object", param=param)
        return _schema(schema, f"{param}.schema")
    if kind == "json_schema":
        named = given.get("json_schema")
        if isinstance(named, Mapping) and named.get("schema") is not None:
            return _schema(named["schema"], f"{param}.json_schema.schema")
        if given.get("schema") is not None:  # llama.cpp's
            return _schema(given["schema"], f"{param}.schema")
        raise RequestError(
            "response_format.json_schema.schema is missing",
            param=f"{param}.json_schema",
        )
    if kind in ("regex", "lark"):
        return Constraint(kind, given.get(kind, ""), f"{param}.{kind}")
    raise RequestError(
        f"response_format.type must be text, json_object, json_schema, regex or lark, "
        f"not {printable(repr(kind), 40)}",
        param=f"{param}.type",
    )


def _schema(schema: Any, param: str) -> Constraint:
    if not isinstance(schema, (Mapping, bool)):
        raise RequestError(
            f"{param} must be a JSON Schema, not {printable(repr(schema), 40)}", param=param
        )
    return Constraint("json_schema", schema, param)


def _tool_choice(given: Any, tools: Sequence[Any]) -> str | Mapping[str, Any]:
    """OpenAI's ``tool_choice`` as :class:`ChatOptions` has it."""
    if given is None:
        return "auto"
    if isinstance(given, str):
        choice = "required" if given == "any" else given
        if choice not in ("auto", "none", "required"):
            raise _bad_choice(f"must be auto, none, required or a function, not {given!r}")
        if choice == "required" and not tools:
            raise _bad_choice("is required, but there are no tools")
        return choice
    function = given.get("function", given)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise _bad_choice('must name a function: {"type": "function", "function": {"name": ...}}')
    return {"name": name}


def _bad_choice(what: str) -> RequestError:
    return RequestError(f"tool_choice {printable(what)}", param="tool_choice")


_EFFORTS = {e: e for e in ("none", "minimal", "low", "medium", "high")} | {
    "xhigh": "high", "max": "high",
}  # fmt: skip


def _effort(given: str | None) -> str | None:
    if given is None:
        return None
    if given not in _EFFORTS:
        raise RequestError(
            f"reasoning_effort must be one of {', '.join(_EFFORTS)}, "
            f"not {printable(repr(given), 40)}",
            param="reasoning_effort",
        )
    return _EFFORTS[given]


def _budget(given: int | None) -> int | None:
    return limit(reasoning_budget=given)


def _continues(body: ChatBody) -> bool:
    """Whether the last message is to be continued: asked for, or the assistant's."""
    if body.continue_final_message is not None:
        return body.continue_final_message
    last = body.messages[-1] if body.messages else {}
    if body.add_generation_prompt or last.get("tool_calls"):
        return False
    return last.get("role") == "assistant" and bool(last.get("content"))


def _template_args(given: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in given:
        if name in _RESERVED:
            raise RequestError(
                f"chat_template_kwargs cannot set {name}", param="chat_template_kwargs"
            )
    return given
