"""The body of a request for a chat completion, and what of it a server would rather not have."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.chat import ChatOptions
from edgerun.core import SamplingParams

__all__ = ["Wanted", "body_of"]

#: Fields without which there is no answer.
_NEEDED = {"model", "messages", "stream"}
#: OpenAI's own fields of SamplingParams that are sent always: the chat shows what they are.
_ALWAYS = ("temperature", "top_p")
#: Of OpenAI, and of llama.cpp and others beyond it: sent where they are not as they are anyway.
_STANDARD = ("max_tokens", "presence_penalty", "frequency_penalty", "seed", "stop")
_BEYOND = (
    "top_k", "min_p", "typical_p", "top_n_sigma", "dynatemp_range", "dynatemp_exponent",
    "xtc_probability", "xtc_threshold", "repeat_last_n", "repeat_penalty", "dry_multiplier",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "mirostat",
    "mirostat_tau", "mirostat_eta", "samplers", "min_keep", "n_keep", "ignore_eos",
    "context_shift",
)  # fmt: skip


def body_of(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    params: SamplingParams,
    options: ChatOptions,
) -> dict[str, Any]:
    """The whole body, JSON-ready."""
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(m) for m in messages],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    defaults = {f.name: f.default for f in dataclasses.fields(SamplingParams)}
    for name in _ALWAYS:
        body[name] = getattr(params, name)
    for name in (*_STANDARD, *_BEYOND):
        value = getattr(params, name)
        if value != defaults[name]:
            body[name] = list(value) if isinstance(value, tuple) else value
    if params.logit_bias:
        body["logit_bias"] = {str(k): v for k, v in params.logit_bias.items()}
    if options.reasoning_effort is not None:
        body["reasoning_effort"] = options.reasoning_effort
    if options.reasoning_budget is not None:
        body["reasoning_budget"] = options.reasoning_budget
    if options.template_args:
        body["chat_template_kwargs"] = dict(options.template_args)
    if options.tools:
        body["tools"] = [dict(t) for t in options.tools]
    if options.continue_final:
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    return body


class Wanted:
    """Which fields one server takes: it is asked with all of them, and told less once it refuses
    some."""

    def __init__(self) -> None:
        self.refused: set[str] = set()
        self._renamed = False

    def trim(self, body: dict[str, Any]) -> dict[str, Any]:
        """``body`` as this server takes it."""
        out = {k: v for k, v in body.items() if k not in self.refused}
        if self._renamed and "max_tokens" in body:
            out["max_completion_tokens"] = body["max_tokens"]
        return out

    def learn(self, sent: Mapping[str, Any], said: str, param: object) -> bool:
        """Take a refusal of what was sent into account; whether another try may do better.

        It names a field, or there is something beyond OpenAI's own fields to leave out.
        """
        if not _about_fields(said):
            return False
        optional = [k for k in sent if k not in _NEEDED]
        named = [k for k in optional if k == param or re.search(rf"\b{re.escape(k)}\b", said)]
        if "max_tokens" in named and "max_completion_tokens" in said and not self._renamed:
            self._renamed = True
            self.refused.add("max_tokens")
            return True
        if not named:
            named = [k for k in optional if k in _BEYOND or k in _OTHERS]
        self.refused |= set(named)
        return bool(named)


#: Sent by this chat beyond OpenAI's fields, or newer than many servers.
_OTHERS = {
    "stream_options", "reasoning_budget", "reasoning_effort", "chat_template_kwargs",
    "continue_final_message", "add_generation_prompt",
}  # fmt: skip


def _about_fields(said: str) -> bool:
    """Whether a refusal is of the form of the request, whatever field it means."""
    return (
        re.search(
            r"extra (inputs|fields|input)|unknown|unrecogni[sz]ed|unsupported|not supported"
            r"|unexpected|not permitted|additional propert|invalid (field|parameter|argument)",
            said,
            re.IGNORECASE,
        )
        is not None
        or not said.strip()
    )
