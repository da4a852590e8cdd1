"""Conversations: from messages and options to a prompt, and what to expect of its answer."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from edgerun.chat import ChatOptions
from edgerun.core import Constraint
from edgerun.engine.sampling.gate import Gate
from edgerun.errors import RequestError, TemplateError, printable
from edgerun.gating import Choice, gate_of
from edgerun.text.answer.reader import AnswerShape
from edgerun.text.answer.reasoning import ReasoningTags, open_tags, tags_of
from edgerun.text.answer.tools import Tools
from edgerun.text.effort import EFFORTS, effort_variables
from edgerun.text.messages import parse_tools
from edgerun.text.template import ChatTemplate, Segment
from edgerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgerun.calling import Spelling
    from edgerun.text.answer.call_format import CallFormat
    from edgerun.text.answer.syntax import Syntax

__all__ = ["Conversation", "check_options", "prepare", "split_overrides"]

_OPTIONS = frozenset(f.name for f in dataclasses.fields(ChatOptions))
_ASSISTANT = "<|start|>assistant"  # where harmony's messages begin


def split_overrides(
    options: ChatOptions | None, overrides: Mapping[str, Any]
) -> tuple[ChatOptions, dict[str, Any]]:
    """``options`` or the defaults, with the fields in ``overrides`` replaced; the rest of
    ``overrides``, which are sampling parameters."""
    if options is not None and not isinstance(options, ChatOptions):
        raise RequestError(
            f"options must be ChatOptions, not {type(options).__name__}", param="options"
        )
    ours = {k: v for k, v in overrides.items() if k in _OPTIONS}
    rest = {k: v for k, v in overrides.items() if k not in _OPTIONS}
    if options is None:
        return ChatOptions(**ours), rest
    return dataclasses.replace(options, **ours) if ours else options, rest


@dataclass(frozen=True)
class Conversation:
    """A conversation ready to be answered.

    Attributes:
        ids: the prompt's tokens.
        shape: what the answer may consist of; None = nothing but text.
        constraint: what it must look like, after its reasoning; None = anything.
        gate: what bounds its reasoning, or has it come before the constraint; None = nothing.
        left_out: how many of the oldest messages are not in it. See :mod:`.shifting`.
        head: how many of ``ids`` are the system prompt, tools and what goes with them; 0 where
            nobody needs to know.
    """

    ids: list[int]
    shape: AnswerShape | None = None
    constraint: Constraint | None = None
    gate: Gate | None = None
    left_out: int = 0
    head: int = 0


def check_options(options: ChatOptions, tools: Sequence[Mapping[str, Any]]) -> Choice:
    """What ``options`` ask of ``tools``, which are checked.

    Raises:
        RequestError: an option is not one of its values, or names a tool that is not there.
    """
    effort, budget = options.reasoning_effort, options.reasoning_budget
    if effort is not None and effort not in EFFORTS:
        raise RequestError(
            f"reasoning_effort must be one of {', '.join(EFFORTS)}, not "
            f"{printable(repr(effort), 40)}",
            param="reasoning_effort",
        )
    if budget is not None and (isinstance(budget, bool) or not isinstance(budget, int)):
        raise RequestError(
            f"reasoning_budget must be a whole number of tokens, not {printable(repr(budget), 40)}",
            param="reasoning_budget",
        )
    if budget is not None and budget < 0:
        raise RequestError(
            f"reasoning_budget must be 0 or more, not {budget}", param="reasoning_budget"
        )
    if not isinstance(options.parallel_tool_calls, bool):
        raise RequestError(
            "parallel_tool_calls must be true or false, not "
            f"{printable(repr(options.parallel_tool_calls), 40)}",
            param="parallel_tool_calls",
        )
    return _choice(options.tool_choice, [t["function"]["name"] for t in tools])


def _choice(asked: Any, names: Sequence[str]) -> Choice:
    if asked in ("auto", "none"):
        return Choice(offered=asked == "auto" and bool(names))
    if isinstance(asked, Mapping):
        named = asked.get("function", asked)
        name = named.get("name") if isinstance(named, Mapping) else None
        if name in names:
            return Choice(offered=True, forced=True, name=name)
        known = ", ".join(map(repr, names)) or "none"
        raise RequestError(
            f"tool_choice names {printable(repr(name), 80)}, which is not among the tools: "
            f"{printable(known, 200)}",
            param="tool_choice",
        )
    if asked != "required":
        raise RequestError(
            "tool_choice must be 'auto', 'none', 'required' or the name of a function, not "
            f"{printable(repr(asked), 80)}",
            param="tool_choice",
        )
    if not names:
        raise RequestError("tool_choice is 'required', but there are no tools", param="tool_choice")
    return Choice(offered=True, forced=True)


def prepare(
    messages: Sequence[Mapping[str, Any]],
    options: ChatOptions,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    spelling: Callable[[], Spelling],
    constraint: Constraint | None = None,
) -> Conversation:
    """Render a conversation, and find out what its answer may and must consist of.

    Args:
        spelling: the model's; asked for where a grammar is needed.
        constraint: what the caller wants the answer's text to look like.

    Raises:
        TemplateError: the model's template refuses the conversation; its own words.
        RequestError: a message, a tool or an option is wrong; names it.
    """
    tools = parse_tools(options.tools or None) or []
    choice = check_options(options, tools)
    if choice.name is not None:  # one that is named is called once, as in OpenAI's API
        options = replace(options, parallel_tool_calls=False)
    offered = tools if choice.offered else []
    prompt = _rendered(messages, options, template, offered)
    shape, syntax = _shape(options, template, tokenizer, prompt, offered)
    if offered:
        from edgerun.calling import constrain_calls, tool_schemas

        schemas = tool_schemas(offered)
        # A harmony answer's calls cannot be told from text before they are read, and a model that
        # must call is free to say how: only its own grammar could follow both.
        constraint = constrain_calls(
            syntax, schemas, choice, spelling(), parallel=shape.most_calls is None, text=constraint
        )
        shape = _sure(shape, syntax, choice, constraint)
    budget = options.reasoning_budget
    if options.reasoning_effort == "none" and budget is None:
        budget = 0
    gate = gate_of(
        shape,
        spelling,
        budget,
        constrained=constraint is not None,
        calls_forced=choice.forced,
    )
    ids = tokenizer.encode_segments(prompt)
    return Conversation(ids, None if shape.plain else shape, constraint, gate)


def _shape(
    options: ChatOptions,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    prompt: Sequence[Segment],
    tools: Sequence[Mapping[str, Any]],
) -> tuple[AnswerShape, Syntax | None]:
    """What the answer may consist of, and how calls in it are written."""
    harmony = "<|channel|>" in template.source and "<|message|>" in template.source
    tags = () if harmony else _tags(template, tokenizer)
    written = "\0".join(s.text for s in prompt if s.trusted)
    form, syntax = _calls(template, tokenizer) if tools else (None, None)
    shape = AnswerShape(
        tags=tags,
        opened=open_tags(tags, written),
        format=None if harmony else form,
        tools=Tools(tools) if tools else None,
        harmony=harmony,
        begun=_begun(prompt) if harmony else "",
        most_calls=None if options.parallel_tool_calls else 1,
    )
    return shape, syntax


def _calls(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[CallFormat | None, Syntax | None]:
    """How the model writes calls of tools: what reads them, and what a grammar is made of."""
    from edgerun.text.answer.formats import FORMATS, pick_format
    from edgerun.text.answer.syntax import syntax_of

    name = pick_format(
        template.source,
        offers_tools=template.supports_tools,
        has_token=tokenizer.vocab.ids.__contains__,
    )
    return (None, None) if name is None else (FORMATS[name], syntax_of(name, template.source))


def _sure(
    shape: AnswerShape, syntax: Syntax | None, choice: Choice, constraint: Constraint | None
) -> AnswerShape:
    """``shape`` with the marks after which the grammar leaves a call no other way."""
    if constraint is None:
        return shape
    form = shape.format
    if choice.forced and syntax is None:  # in the generic way, whatever the model's own is
        from edgerun.text.answer.formats import FORMATS

        form = FORMATS["generic"]
    sure: tuple[str, ...] = ("",) if choice.forced else ()
    if syntax is not None and syntax.trigger and constraint.param == "tools":
        sure += tuple(
            m for m in (form.marks if form else ()) if syntax.trigger.strip().startswith(m)
        )
    return dataclasses.replace(shape, format=form, sure=sure)


def _rendered(
    messages: Sequence[Mapping[str, Any]],
    options: ChatOptions,
    template: ChatTemplate,
    tools: Sequence[Mapping[str, Any]],
) -> list[Segment]:
    effort = options.reasoning_effort
    sets = [{}] if effort is None else effort_variables(template.source, effort)
    first: TemplateError | None = None
    for variables in sets:
        try:
            return template.render(
                messages,
                tools=tools or None,
                add_generation_prompt=not options.continue_final,
                continue_final=options.continue_final,
                **{**variables, **options.template_args},
            )
        except TemplateError as e:  # perhaps it knows this effort by another name
            first = first or e
    assert first is not None
    raise first


def _tags(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[ReasoningTags, ...]:
    """The tags the template names; else those a reasoning model's vocabulary has tokens for."""
    found = tags_of(template.source)
    if found or not {"<think>", "</think>"} <= tokenizer.vocab.ids.keys():
        return found
    return (ReasoningTags("<think>", "</think>"),)


def _begun(prompt: Sequence[Segment]) -> str:
    """What the prompt says already of the message that is to be gone on with."""
    for i in range(len(prompt) - 1, -1, -1):
        segment = prompt[i]
        at = segment.text.rfind(_ASSISTANT) if segment.trusted else -1
        if at >= 0:
            rest = segment.text[at + len(_ASSISTANT) :]
            return rest + "".join(s.text for s in prompt[i + 1 :])
    return ""
