"""Bodies of llama.cpp's own routes, and what they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edgerun.errors import RequestError
from edgerun.server.asked import TextAsked
from edgerun.server.bodies import ChoicesBody, limit, sampling_params
from edgerun.server.infill import infill
from edgerun.text.fim import Extra

if TYPE_CHECKING:
    from edgerun.llm import LLM

__all__ = ["CompletionBody", "InfillBody", "parse_completion", "parse_infill"]

_MOST_PROBS = 20
#: Tokens of an answer that room is kept for where a request does not say.
_ANSWER = 256


class CompletionBody(ChoicesBody):
    """What ``/completion`` takes beside sampling. ``cache_prompt``, ``id_slot`` and
    ``t_max_prompt_ms`` are ignored: starts of prompts are always reused, and there are no slots."""

    model: str | None = None
    prompt: str | list[Any] | dict[str, Any] | None = None
    parse_special: bool | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    n_cmpl: int | None = None
    n_probs: int | None = None
    post_sampling_probs: bool | None = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None
    response_fields: list[str] | None = None
    t_max_predict_ms: int | None = None


class InfillBody(CompletionBody):
    """What ``/infill`` takes beside that."""

    input_prefix: str | None = None
    input_suffix: str | None = None
    input_extra: list[dict[str, Any]] | None = None


def parse_completion(body: CompletionBody) -> TextAsked:
    """What ``/completion`` is asked for.

    Control tokens that the prompt spells are read as such, unless ``parse_special`` is false: its
    callers have rendered a conversation themselves, by ``/apply-template`` or their own templates.
    No other route reads a caller's text this way.

    Raises:
        RequestError: a value is out of range, or the prompt has none of llama.cpp's forms.
    """
    if body.prompt is None:
        raise _bad("prompt is missing: send text, or a list of token ids", "prompt")
    several, special = _prompts(body.prompt), body.parse_special is not False
    asked = _asked(body)

    def prepare(llm: LLM) -> TextAsked:
        ids = [_ids(llm, prompt, special, f"prompt[{i}]") for i, prompt in enumerate(several)]
        return replace(asked, prompts=ids, prepare=None)

    return replace(asked, prompts=[""] * len(several), prepare=prepare)


def parse_infill(body: InfillBody) -> TextAsked:
    """What ``/infill`` is asked for. The text of ``prompt`` stands right before the hole.

    Raises:
        RequestError: a value is out of range or of the wrong kind; names the field.
    """
    if body.input_prefix is None and body.input_suffix is None:
        raise _bad("input_prefix and input_suffix are missing: send one at least", "input_prefix")
    prompt = body.prompt or ""
    if not isinstance(prompt, str):
        raise _bad("prompt of an infill must be text", "prompt")
    extra = [_extra(e, f"input_extra[{i}]") for i, e in enumerate(body.input_extra or [])]
    asked = _asked(body)
    most = asked.params.max_tokens
    prefix, suffix = (body.input_prefix or "") + prompt, body.input_suffix or ""
    return infill(asked, prefix, suffix, extra, _ANSWER if most is None else most)


def _asked(body: CompletionBody) -> TextAsked:
    if body.post_sampling_probs:
        raise _bad(
            "post_sampling_probs is not supported: probabilities are the model's own, before "
            "sampling; leave it out",
            "post_sampling_probs",
        )
    if body.n_probs is not None and not 0 <= body.n_probs <= _MOST_PROBS:
        raise _bad(f"n_probs must be from 0 to {_MOST_PROBS}, not {body.n_probs}", "n_probs")
    milliseconds = body.t_max_predict_ms or 0
    params = sampling_params(
        body,
        max_tokens=limit(n_predict=body.n_predict, max_tokens=body.max_tokens),
        n=body.n_cmpl,
        logprobs=body.n_probs or None,
        time_limit=min(milliseconds / 1000, 1e9) if milliseconds > 0 else None,
    )
    return TextAsked(body.model, [""], params, stream=bool(body.stream))


def _extra(given: dict[str, Any], at: str) -> Extra:
    text, filename = given.get("text"), given.get("filename")
    if not isinstance(text, str):
        raise _bad(f"{at}.text must be text", f"{at}.text")
    if filename is not None and not isinstance(filename, str):
        raise _bad(f"{at}.filename must be text", f"{at}.filename")
    return Extra(text, filename or "")


# -- prompts: text, ids, both mixed, or several of these ----------------------------------------


def _prompts(given: Any) -> list[Any]:
    """The prompts that ``prompt`` holds."""
    if isinstance(given, list):
        if not given:
            raise _bad("prompt is an empty list", "prompt")
        if not any(_is_id(p) for p in given):
            return given
    return [given]


def _ids(llm: LLM, prompt: Any, special: bool, at: str) -> list[int]:
    if isinstance(prompt, dict):
        if prompt.get("multimodal_data"):
            raise _bad(f"{at} has images or sound, which this model cannot take", at)
        prompt = prompt.get("prompt_string")
    parts: Sequence[Any] = prompt if isinstance(prompt, list) else [prompt]
    ids: list[int] = []
    for n, part in enumerate(parts):
        if isinstance(part, str):
            ids += llm.tokenize(part, add_bos=n == 0, special=special)
        elif _is_id(part) and isinstance(prompt, list):
            ids.append(part)
        else:
            raise _bad(f"{at} must be text, or a list of token ids and texts", at)
    return ids


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(message: str, param: str) -> RequestError:
    return RequestError(message, param=param)
