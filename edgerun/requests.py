"""What a caller asks for, checked, as sequences for the engine."""

from __future__ import annotations

import dataclasses
import math
import operator
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from edgerun.conversing import Conversation
from edgerun.core import SamplingParams
from edgerun.delivery import Delivery, Item
from edgerun.engine import Sequence as EngineSequence
from edgerun.engine.draft_source import Drafter
from edgerun.engine.sampling import Sampler
from edgerun.engine.sampling.constraint import TokenConstraint
from edgerun.errors import ContextLengthError, RequestError, printable
from edgerun.text.tokenizer import Tokenizer

__all__ = ["a_text", "check_count", "check_seconds", "chosen_params", "sequences", "token_ids"]

_ENDLESS = 2**63


def check_count(name: str, value: int | None) -> None:
    """Raise RequestError unless ``value`` is None or a whole number above 0."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise RequestError(f"{name} must be a whole number above 0, not {value!r}", param=name)


def check_seconds(name: str, value: float) -> None:
    """Raise RequestError unless ``value`` is a finite number above 0."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf:
        raise RequestError(f"{name} must be a number of seconds above 0, not {value!r}", param=name)


def a_text(value: str) -> str:
    """``value``; raises RequestError unless it is text."""
    if not isinstance(value, str):
        raise RequestError(f"expected text, not {type(value).__name__}", param="text")
    return value


def chosen_params(params: SamplingParams | None, overrides: Mapping[str, Any]) -> SamplingParams:
    """``params`` or the defaults, with the fields in ``overrides`` replaced.

    Raises:
        RequestError: there is no such field, a value is out of range, or ``params`` is none.
    """
    if params is not None and not isinstance(params, SamplingParams):
        raise RequestError(
            f"params must be SamplingParams, not {type(params).__name__}", param="params"
        )
    known = {f.name for f in dataclasses.fields(SamplingParams)}
    for name in overrides:
        if name not in known:
            raise RequestError(f"unknown sampling parameter {name!r}", param=name)
    if params is None:
        return SamplingParams(**overrides)
    return dataclasses.replace(params, **overrides) if overrides else params


def token_ids(ids: Sequence[int], n_vocab: int, param: str = "prompt") -> list[int]:
    """``ids`` as plain ints; numpy's integers are welcome. ``param`` names them in errors.

    Raises:
        RequestError: one of them is no token id.
    """
    if isinstance(ids, (str, bytes, bytearray)) or not isinstance(ids, Iterable):
        raise RequestError(
            f"expected text or a list of token ids, not {type(ids).__name__}", param=param
        )
    out = []
    for i in ids:
        try:
            n = -1 if isinstance(i, bool) else operator.index(i)
        except TypeError:
            n = -1
        if not 0 <= n < n_vocab:
            raise RequestError(
                f"{printable(repr(i), 40)} is not a token id from 0 to {n_vocab - 1}",
                param=param,
            )
        out.append(n)
    return out


def sequences(
    ids: list[int],
    params: SamplingParams,
    tokenizer: Tokenizer,
    n_ctx: int,
    emit: Callable[[Item], None],
    drafter: Callable[[TokenConstraint | None], Drafter] | None = None,
    constraints: Sequence[TokenConstraint] = (),
    said: Conversation | None = None,
) -> list[EngineSequence]:
    """The ``params.n`` answers to a prompt; the first leads, the others go on from its prompt.
    ``drafter`` makes each one's own. ``constraints`` are theirs, or empty. ``said`` is the
    conversation that they answer, if it is one.

    Raises:
        RequestError: the prompt or a parameter is unusable.
        ContextLengthError: the prompt leaves no room for one token.
    """
    ids = ids or _start(tokenizer)
    room = n_ctx - len(ids)
    if room < 1:
        raise ContextLengthError(len(ids), n_ctx)
    shift = params.context_shift
    wanted = _ENDLESS if params.max_tokens is None else params.max_tokens
    n_keep = _n_keep(ids, params, n_ctx, said, tokenizer.bos_id) if shift else 0
    seed = params.seed if params.seed is not None else secrets.randbits(64)
    ends = tokenizer.eog_ids
    if params.stop_token_ids:
        ends = ends.union(params.stop_token_ids)
    found: list[EngineSequence] = []
    for index in range(params.n):
        constraint = constraints[index] if constraints else None
        sampler = Sampler(
            params,
            tokenizer.n_vocab,
            eog_ids=tokenizer.eog_ids,
            seed=seed,
            stream=index,
            token_bytes=tokenizer.token_bytes,
            prompt_ids=ids,
            constraint=constraint,
        )
        sequence = EngineSequence(
            list(ids),
            params,
            sampler,
            Delivery(tokenizer, params, ids[-1], emit, index, said),
            max_tokens=wanted if shift else min(wanted, room),
            eog_ids=ends,
            priority=params.priority,
            n_ctx=n_ctx if shift else 0,
            n_keep=n_keep,
            drafter=drafter(constraint) if drafter is not None else None,
            leader=found[0] if found else None,
        )
        found.append(sequence)
    return found


def _start(tokenizer: Tokenizer) -> list[int]:
    """What stands for an empty prompt.

    Raises:
        RequestError: the model has nothing that does.
    """
    if tokenizer.bos_id is None:
        raise RequestError(
            "the prompt is empty and the model has no start token: give it some text",
            param="prompt",
        )
    return [tokenizer.bos_id]


def _n_keep(
    ids: Sequence[int],
    params: SamplingParams,
    n_ctx: int,
    said: Conversation | None,
    bos_id: int | None,
) -> int:
    """How many tokens a shift keeps: what was asked for, or else a conversation's beginning; a
    start token always, since the model knows no text without it.

    Raises:
        RequestError: so many that a shift would make little room.
    """
    least = int(ids[0] == bos_id)
    if params.n_keep is None:
        return max(least, min(said.head if said else 0, n_ctx * 3 // 4))
    n_keep = len(ids) if params.n_keep < 0 else min(params.n_keep, len(ids))
    if n_keep > n_ctx // 2:
        raise RequestError(
            f"context_shift cannot keep {n_keep} tokens of a context of {n_ctx}: "
            f"n_keep may be at most half of it, {n_ctx // 2}",
            param="n_keep",
        )
    return max(least, n_keep)
