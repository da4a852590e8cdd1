"""Conversations that have outgrown the context: with ``context_shift`` their oldest turns are not
sent. Plain arithmetic, on what the model's own template and tokenizer make of the messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any, Protocol

from edgerun.errors import TemplateError
from edgerun.text.messages import Message, parse_messages

if TYPE_CHECKING:
    from edgerun.chat import ChatOptions
    from edgerun.conversing import Conversation
    from edgerun.core import Constraint, SamplingParams

__all__ = ["cuts", "fitted", "held", "most_tokens", "turns"]

_SYSTEM = ("system", "developer")
#: A question like no other, to see what stands before any.
_ANY = {"role": "user", "content": "."}
#: Tokens around a message, at least: its role, its start, its end.
_AROUND = 4
#: Tokens that an answer is promised, at most.
_ROOM = 2048


class Model(Protocol):
    """The part of :class:`edgerun.LLM` that is needed here."""

    @property
    def n_ctx(self) -> int: ...
    def tokenize(self, text: str, *, add_bos: bool = True, special: bool = False) -> list[int]: ...
    def conversation(
        self,
        messages: Sequence[Mapping[str, Any]],
        options: ChatOptions | None = None,
        constraint: Constraint | None = None,
    ) -> Conversation: ...


def fitted(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    options: ChatOptions | None,
    params: SamplingParams,
) -> Conversation:
    """:meth:`edgerun.LLM.conversation`; with ``params.context_shift`` of as many messages as leave
    room for an answer, ``left_out`` of it telling how many of the oldest do not go along, and
    ``head`` what its answer keeps if that shifts the context once more.

    Questions go with their answers. System prompts and the last turn stay, even if they do not fit.
    A third to half of the room is made free at once: until it is used up, the prompts of further
    turns begin alike, and the prefix cache knows them.

    Raises:
        TemplateError, RequestError: as :meth:`edgerun.LLM.conversation`.
    """

    whole = model.conversation(messages, options, params.constraint)
    if not params.context_shift:
        return whole
    found = whole
    if len(whole.ids) > most_tokens(model.n_ctx, params):
        found = _shorter(model, messages, options, params) or whole
    left = model.n_ctx - len(found.ids)
    if params.n_keep is None and (params.max_tokens is None or params.max_tokens > left > 0):
        return replace(found, head=_head(model, messages, options, found.ids))
    return found


def _head(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    options: ChatOptions | None,
    ids: Sequence[int],
) -> int:
    """How many of ``ids`` begin any conversation with these system messages and options."""
    first = [m for m in messages if m.get("role") in _SYSTEM]
    plain = replace(options, continue_final=False) if options is not None else None
    try:
        other = model.conversation([*first, _ANY], plain).ids
    except TemplateError:  # which wants more of a conversation than that
        return 0
    same = (i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b)
    return next(same, min(len(ids), len(other)))


def _shorter(
    model: Model,
    messages: Sequence[Mapping[str, Any]],
    options: ChatOptions | None,
    params: SamplingParams,
) -> Conversation | None:
    """``messages`` without the oldest turns; None where there is but one. Of several questions in a
    row the first ones may go as well, if even the last turn does not fit."""
    most = most_tokens(model.n_ctx, params)
    parsed = parse_messages(messages)
    roles = [m.role for m in parsed]
    begins = turns(roles)

    @cache  # the search ends at one that it has looked at
    def without(n_turns: int) -> Conversation:
        start = begins[n_turns]
        some = [m for i, m in enumerate(messages) if i >= start or parsed[i].role in _SYSTEM]
        conversation = model.conversation(some, options, params.constraint)
        return replace(conversation, left_out=len(messages) - len(some))

    if begins and (len(begins) == 1 or len(without(len(begins) - 1).ids) > most):
        begins += takewhile(lambda i: roles[i] == "user", range(begins[-1] + 1, len(roles)))
    if len(begins) < 2:
        return None
    least = without(len(begins) - 1)
    if len(least.ids) >= most:
        return least
    sizes = [
        sum(_size(model, m) for m in parsed[start:end] if m.role not in _SYSTEM)
        for start, end in zip(begins, [*begins[1:], len(parsed)], strict=True)
    ]
    coarse, fine = cuts(sizes, most - len(least.ids) + sizes[-1])
    for n_turns in coarse:
        found = without(n_turns)
        if len(found.ids) <= most:
            return found
    at = bisect_left(fine, True, key=lambda n: len(without(n).ids) <= most)
    return without(fine[at]) if at < len(fine) else least


def most_tokens(n_ctx: int, params: SamplingParams) -> int:
    """Tokens that a prompt may have for the answer to find room: what it asks for, at most a
    quarter of the context. A prompt to be kept whole cannot have more than half of it."""
    room = min(n_ctx // 4, _ROOM)
    if params.max_tokens is not None:
        room = min(room, params.max_tokens)
    most = n_ctx - max(room, 1)
    whole = params.n_keep is not None and params.n_keep < 0
    return min(most, n_ctx // 2) if whole else most


def turns(roles: Sequence[str]) -> list[int]:
    """Where the turns begin, each with what the user says and up to where the user speaks again.
    What comes before the first question belongs to it; system messages belong to none."""
    found: list[int] = []
    before = ""
    for i, role in enumerate(roles):
        if role in _SYSTEM:
            continue
        if not found or (role == "user" and before != "user" and "user" in roles[found[-1] : i]):
            found.append(i)
        before = role
    return found


def cuts(sizes: Sequence[int], space: int) -> tuple[list[int], list[int]]:
    """How many of the oldest turns could be left out, fewest first: in large steps, and one by one
    for where no step does. At least one stays.

    The steps' places depend on the turns before them alone: the conversation grows, and they stay.

    Args:
        sizes: of each turn, in tokens; rather too few than too many.
        space: tokens there are for all of them.
    """
    half = max(space // 2, 1)
    rest = max(half.bit_length() - 2, 0)
    step = half >> rest << rest  # as the space is never quite the same
    starts = [0, *accumulate(sizes)]
    total, last = starts.pop(), len(sizes) - 1
    fine = [j for j in range(1, last) if total - starts[j] <= space]
    coarse = [j for j in fine if starts[j] // step > starts[j - 1] // step]
    if coarse:
        fine = [j for j in fine if j > coarse[-1]]
    return coarse, fine


def held(prompt: int, generated: int, n_ctx: int, kept: int = 0) -> int:
    """Tokens that are in the context after an answer of ``generated`` tokens: whenever it was full,
    half of what was behind the ``kept`` ones went. See :meth:`~edgerun.engine.Sequence.shift`."""
    total = prompt + generated
    if total <= n_ctx or not 0 < prompt < n_ctx:
        return min(total, n_ctx)
    keep = min(kept, prompt, n_ctx - 1)
    dropped = max(1, (n_ctx - keep) // 2)
    return n_ctx - dropped + (total - n_ctx - 1) % dropped + 1


def _size(model: Model, m: Message) -> int:
    calls = "".join(c.name + c.raw for c in m.tool_calls)
    return len(model.tokenize((m.content or "") + calls, add_bos=False)) + _AROUND
