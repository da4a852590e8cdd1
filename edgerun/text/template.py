"""Chat templates: a conversation becomes the prompt its model was trained on.

``ChatTemplate`` renders the jinja2 program that model files carry, as ``transformers`` does, with
four differences:

- it is bounded in time, size and memory (:mod:`edgerun.text.limits`);
- the prompt comes in segments that say which text the template wrote, so that special tokens are
  read from those alone (:mod:`edgerun.text.marked`). One exception: the tags that open and close
  reasoning count as the template's in an assistant's content, where they are the model's own and
  can do no more than start or end its reasoning;
- what the template has no place for is not dropped: tools, tool calls and results, and a system
  prompt it ignores, go in as ordinary text (:mod:`edgerun.text.tool_prompt`). What it refuses, it
  refuses, in its own words;
- ``|safe`` and ``|escape`` make plain text, never HTML-escaping what they are added to.

What a template can do is found by rendering a small conversation with it, once, when it first
matters.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from edgerun.errors import RequestError, TemplateError, printable
from edgerun.text.marked import Segment, mark, segments
from edgerun.text.messages import Message, ToolCall, parse_messages, parse_tools, plain_json
from edgerun.text.template_input import (
    REASONING_TAGS,
    Style,
    check_continues,
    count_chars,
    developer_to_system,
    shaped,
    short_id,
    with_sentinel,
)
from edgerun.text.tool_prompt import fold_history, fold_system, fold_tools

if TYPE_CHECKING:
    from edgerun.text.template_program import Program

__all__ = ["REASONING_TAGS", "ChatTemplate", "Segment", "open_reasoning_tag"]

_RESERVED = frozenset(["messages", "tools", "bos_token", "eos_token", "add_generation_prompt"])


class ChatTemplate:
    """A model's chat template, compiled once; safe to share between threads.

    Args:
        source: the jinja2 text.
        bos_token, eos_token: the texts of these tokens, for templates that name them.
        name: what errors call it.
        clock: the time that ``strftime_now`` tells.
        seconds: CPU time one rendering may take.
        is_fallback: the model file had no template and this generic one stands in.

    Raises:
        TemplateError: malformed; the message has the line.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        name: str = "the chat template",
        clock: Callable[[], datetime] = datetime.now,
        seconds: float = 5.0,
        is_fallback: bool = False,
    ) -> None:
        from edgerun.text.template_program import Program  # imports jinja2: 50 ms

        self.source = source
        self.name = printable(name, 80)
        self.is_fallback = is_fallback
        self._program: Program = Program(source, name, clock)
        self._seconds = seconds
        self._clock = clock
        self._base = {
            "bos_token": mark(bos_token),
            "eos_token": mark(eos_token),
            "documents": None,
        }
        self._tags = [t for pair in REASONING_TAGS for t in pair if t in source]

    def render(
        self,
        messages: Any,
        *,
        tools: Any = None,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        **kwargs: Any,
    ) -> list[Segment]:
        """The prompt of a conversation.

        Args:
            messages: dicts in OpenAI's shape, or :class:`~edgerun.text.messages.Message` values.
            tools: dicts in OpenAI's shape.
            add_generation_prompt: end where the assistant's answer begins.
            continue_final: end exactly after the text of the last message, an assistant's, which
                the model is to go on with; no generation prompt then.
            kwargs: further variables for the template, such as ``enable_thinking``.

        Returns:
            Non-empty segments, no two neighbours of one trust; together they are the prompt. It
            may begin with the BOS token's text: a tokenizer must not add a second one.

        Raises:
            TemplateError: the template refused, in its own words; or failed, with the line.
            RequestError: the messages, tools or variables are wrong.
        """
        conversation = parse_messages(messages)
        tool_list = parse_tools(tools)
        variables = {k: self._variable(k, v) for k, v in kwargs.items() if v is not None}
        variables["add_generation_prompt"] = add_generation_prompt and not continue_final
        if continue_final:
            check_continues(conversation[-1])
        conversation, tool_list, style = self._adapted(conversation, tool_list)
        if not continue_final:
            return segments(self._render(conversation, tool_list, variables, style))
        conversation, sentinel = with_sentinel(
            conversation, [self.source, conversation, tool_list, variables]
        )
        text = self._render(conversation, tool_list, variables, style)
        end = text.rfind(sentinel)
        if end < 0:
            raise TemplateError(
                f"{self.name} leaves out the last message, so it cannot be continued: "
                "send it as a finished message",
                param="messages",
            )
        return segments(text[:end])

    def render_text(self, messages: Any, **kwargs: Any) -> str:
        """:meth:`render` as one string, for people to read."""
        return "".join(s.text for s in self.render(messages, **kwargs))

    # What the template can do -----------------------------------------------------------------

    @cached_property
    def supports_tools(self) -> bool:
        """Whether a tool that is offered shows in the prompt."""
        found = self._probe([_USER], [_TOOL])
        return found is None or _NAME in found

    @property
    def supports_tool_history(self) -> bool:
        """Whether calls and results of earlier turns show in the prompt."""
        return self._style_of_calls is not None and self._style_of_commented_calls is not None

    @cached_property
    def _style_of_calls(self) -> Style | None:
        """The style in which calls without text show, and no object as Python's repr."""
        return self._history_style(_CALL)

    @cached_property
    def _style_of_commented_calls(self) -> Style | None:
        return self._history_style(replace(_CALL, content=_SYSTEM_TEXT))

    @cached_property
    def _shows_results(self) -> bool:
        """Whether a result shows where the call before it is a text of the assistant's."""
        found = self._probe([_USER, _ANSWER, _RESULT, _ANSWER, _USER], [_TOOL]) or ""
        return (_RESULT.content or "") in found

    def _history_style(self, call: Message) -> Style | None:
        for null in ("absent", "empty", "none") if call.content is None else ("absent",):
            for string_arguments in (False, True):
                style = Style(string_arguments, null)
                found = self._probe([_USER, call, _RESULT, _ANSWER, _USER], [_TOOL], style) or ""
                wanted = (_NAME, _ARGUMENT, _RESULT.content or "")  # many drop a call's text
                if all(w in found for w in wanted) and f"'{_KEY}': '{_ARGUMENT}'" not in found:
                    return style
        return None

    @cached_property
    def supports_system(self) -> bool:
        """Whether a system prompt shows in the prompt, or is refused in so many words."""
        found = self._probe([_SYSTEM, _USER])
        return found is None or _SYSTEM_TEXT in found

    @cached_property
    def refuses_system(self) -> bool:
        """Whether the template refuses a system prompt but not a conversation without one."""
        return self._probe([_SYSTEM, _USER]) is None and self._probe([_USER]) is not None

    @cached_property
    def supports_developer(self) -> bool:
        """Whether the template knows the role ``developer``."""
        if "developer" not in self.source:
            return False
        return _SYSTEM_TEXT in (self._probe([replace(_SYSTEM, role="developer"), _USER]) or "")

    def _probe(
        self, messages: Sequence[Message], tools: Any = None, style: Style | None = None
    ) -> str | None:
        """The prompt, or ``None`` where the template refuses or fails."""
        try:
            variables = {"add_generation_prompt": True}
            return self._render(messages, tools, variables, style, min(self._seconds, 0.5))
        except TemplateError:
            return None

    # From messages to the template's variables --------------------------------------------------

    def _adapted(
        self, messages: list[Message], tools: list[dict[str, Any]] | None
    ) -> tuple[list[Message], list[dict[str, Any]] | None, Style | None]:
        """Move into ordinary text what the template would drop."""
        if any(m.role == "developer" for m in messages) and not self.supports_developer:
            messages = developer_to_system(messages)
        style = None
        if any(m.role == "tool" or m.tool_calls for m in messages):
            style = self._style_of_history(messages)
            generic = bool(tools) and not self.supports_tools
            if style is None or generic:
                style = None  # calls as the generic prompt below asks for them
                messages = fold_history(messages, results=generic or not self._shows_results)
        if tools and not self.supports_tools:
            has_system = messages[0].role == "system"
            into_system = has_system or (self.supports_system and not self.refuses_system)
            messages, tools = fold_tools(messages, tools, into_system=into_system), None
        if any(m.role == "system" for m in messages) and not self.supports_system:
            messages = fold_system(messages)
        return messages, tools, style

    def _style_of_history(self, messages: Sequence[Message]) -> Style | None:
        calls = [m for m in messages if m.tool_calls]
        if any(m.content for m in calls) and self._style_of_commented_calls is None:
            return None
        if all(m.content for m in calls) and calls:
            return self._style_of_commented_calls
        return self._style_of_calls

    def _render(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]] | None,
        variables: Mapping[str, Any],
        style: Style | None = None,
        seconds: float | None = None,
    ) -> str:
        """Render in ``style``, or, without one, in the first style that does not break."""
        from edgerun.text.template_program import BrokenTemplateError

        first: TemplateError | None = None
        end = time.thread_time() + (seconds or self._seconds)
        for s in (style,) if style else self._styles(messages, tools):
            values = {**self._base, **self._aliases(tools), **variables}
            values["messages"] = [shaped(m, s, self._tags) for m in map(self._with_ids, messages)]
            values["tools"] = [] if tools is None and s.empty_tools else tools
            size = count_chars(values)
            try:
                left = max(end - time.thread_time(), 0.01)
                return self._program.run(values, size, len(messages), left)
            except BrokenTemplateError as e:
                first = first or e
        assert first is not None
        raise first

    def _with_ids(self, m: Message) -> Message:
        """``m`` with call ids of nine letters and digits, where the template takes no others:
        Mistral's."""
        if not (m.tool_calls or m.tool_call_id) or "length 9" not in self.source:
            return m
        calls = tuple(replace(c, id=c.id and short_id(c.id)) for c in m.tool_calls)
        return replace(
            m, tool_calls=calls, tool_call_id=m.tool_call_id and short_id(m.tool_call_id)
        )

    def _styles(self, messages: Sequence[Message], tools: Any) -> Iterator[Style]:
        nulls = ("absent", "empty", "none") if any(m.content is None for m in messages) else ("",)
        for empty_tools in (False, True) if tools is None else (False,):
            for null in nulls:
                yield Style(False, null or "absent", empty_tools)

    @cached_property
    def _wants(self) -> frozenset[str]:
        """Other names some templates know tools and the date by."""
        words = set(re.findall(r"\w+", self.source))
        wants = {"datetime", "xml_tools"} | (set() if "tools" in words else {"functions"})
        return frozenset(wants & words)

    def _aliases(self, tools: list[dict[str, Any]] | None) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if "xml_tools" in self._wants:
            out["xml_tools"] = tools
        if "functions" in self._wants:
            functions = [t.get("function", t) for t in tools or ()]
            out["functions"] = json.dumps(functions, ensure_ascii=False)
        if "datetime" in self._wants:
            out["datetime"] = self._clock().strftime("%Y-%m-%d")
        return out

    def _variable(self, name: str, value: Any) -> Any:
        if name in _RESERVED or name.startswith("_"):
            raise RequestError(
                f"chat_template_kwargs may not set {printable(name, 60)!r}",
                param="chat_template_kwargs",
            )
        at = f"chat_template_kwargs.{printable(name, 60)}"
        return plain_json(value, at, "chat_template_kwargs")


def open_reasoning_tag(prompt: Sequence[Segment]) -> tuple[str, str] | None:
    """The (open, close) tags of the reasoning block that ``prompt`` ends inside of, if any."""
    text = "\0".join(s.text for s in prompt if s.trusted)
    best: tuple[int, tuple[str, str]] | None = None
    for pair in REASONING_TAGS:
        at = text.rfind(pair[0])
        if at > text.rfind(pair[1]) and (best is None or at > best[0]):
            best = at, pair
    return best[1] if best else None


_SYSTEM_TEXT = "edgerun_system_text"
_NAME = "edgerun_tool"
_KEY = "edgerun_key"
_ARGUMENT = "edgerun_argument"
_SYSTEM = Message("system", _SYSTEM_TEXT)
_USER = Message("user", "edgerun_user_text")
_CALL = Message(
    "assistant",
    tool_calls=(ToolCall(_NAME, {_KEY: _ARGUMENT}, json.dumps({_KEY: _ARGUMENT}), id="edgerun01"),),
)
_RESULT = Message("tool", "edgerun_result", name=_NAME, tool_call_id="edgerun01")
_ANSWER = Message("assistant", "edgerun_answer")
_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "edgerun_description",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "string", "description": "a value"}},
            "required": [_KEY],
        },
    },
}
