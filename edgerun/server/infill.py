"""Prompts with a hole: the part of a request that depends on the model's own marks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgerun.core import SamplingParams
from edgerun.errors import RequestError
from edgerun.server.asked import TextAsked
from edgerun.text.fim import Extra, FimPrompt, fim_prompt, raw_prompt

if TYPE_CHECKING:
    from edgerun.llm import LLM

__all__ = ["infill", "with_fim"]


def with_fim(asked: TextAsked, suffix: str | None) -> TextAsked:
    """``asked`` with what follows the hole, or as it is where there is none. Without ``suffix``, a
    prompt that spells the model's FIM marks is read as its writer means it.

    Raises:
        RequestError: ``suffix`` cannot be had with what else is asked.
    """
    if suffix:
        if not all(isinstance(p, str) for p in asked.prompts):
            raise RequestError("suffix needs a prompt that is text", param="suffix")
        if asked.echo:
            raise RequestError("echo cannot be had together with suffix", param="echo")
    elif not any(isinstance(p, str) and ("<" in p or "[" in p) for p in asked.prompts):
        return asked

    def prepare(llm: LLM) -> TextAsked:
        tokenizer = llm.model.tokenizer
        found: list[FimPrompt | None] = []
        for p in asked.prompts:
            if not isinstance(p, str):
                found.append(None)
            elif suffix:
                found.append(fim_prompt(tokenizer, p, suffix))
            else:
                found.append(raw_prompt(tokenizer, p))
        if asked.echo and any(f is not None for f in found):
            raise RequestError("echo cannot be had with a FIM prompt", param="echo")
        return _filled(asked, found)

    return replace(asked, prepare=prepare)


def infill(
    asked: TextAsked, prefix: str, suffix: str, extra: Sequence[Extra], room_for: int
) -> TextAsked:
    """What belongs between ``prefix`` and ``suffix``. What the context cannot hold beside an answer
    of ``room_for`` tokens is left out."""

    def prepare(llm: LLM) -> TextAsked:
        # An answer needs no more than a quarter of a small context.
        room = llm.n_ctx - max(1, min(room_for, llm.n_ctx // 4))
        found = fim_prompt(
            llm.model.tokenizer, prefix, suffix, extra, room=room, param="input_suffix"
        )
        return _filled(asked, [found])

    return replace(asked, prepare=prepare)


def _filled(asked: TextAsked, found: Sequence[FimPrompt | None]) -> TextAsked:
    prompts: list[str | Sequence[int]] = []
    stops: tuple[int, ...] = ()
    for prompt, fim in zip(asked.prompts, found, strict=True):
        prompts.append(prompt if fim is None else fim.ids)
        stops = stops if fim is None else fim.stop_ids
    params: SamplingParams = replace(asked.params, stop_token_ids=stops)
    cut = any(f is not None and f.cut for f in found)
    return replace(asked, prompts=prompts, params=params, prepare=None, cut=cut)
