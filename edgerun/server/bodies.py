"""Bodies of requests: strict types, null for "not given", and what they say about sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from edgerun.core import Constraint, SamplingParams
from edgerun.errors import RequestError, printable

__all__ = [
    "Body",
    "ChoicesBody",
    "SamplingBody",
    "StreamOptions",
    "limit",
    "logit_bias",
    "refuse",
    "sampling_params",
]

_HUGE = 2**62


class Body(BaseModel):
    """A JSON object: ``"3"`` is no number, unknown fields do not matter, null means omitted."""

    model_config = ConfigDict(strict=True, extra="ignore")

    @field_validator("*", mode="before")
    @classmethod
    def _whole(cls, value: Any) -> Any:
        """JSON has one kind of number: 3.0 is 3, and what is no whole number is refused."""
        return int(value) if type(value) is float and value.is_integer() else value


class StreamOptions(Body):
    include_usage: bool | None = None


class SamplingBody(Body):
    """What OpenAI's bodies say about sampling, and llama.cpp's under its names.

    The defaults are llama.cpp's and ``edgerun run``'s (temperature 0.8, top_k 40, top_p 0.95,
    min_p 0.05), so that one prompt gets the same kind of answer everywhere.
    """

    stop: str | list[str] | None = None
    seed: int | None = None
    logit_bias: dict[str, Any] | list[Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    # llama.cpp's
    n_predict: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_last_n: int | None = None
    repeat_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    samplers: list[str] | None = None
    min_keep: int | None = None
    n_keep: int | None = None
    ignore_eos: bool | None = None
    context_shift: bool | None = None
    grammar: str | None = None
    json_schema: dict[str, Any] | bool | None = None
    # Cannot be had here, see _ELSEWHERE.
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    lora: Any = None

    @field_validator("samplers", mode="before")
    @classmethod
    def _read_samplers(cls, given: Any) -> Any:
        """llama.cpp's other spellings: a letter each, and names of old."""
        if isinstance(given, str):
            given = [_SAMPLER_LETTERS.get(c, c) for c in given]
        if not isinstance(given, list):
            return given
        names = [_SAMPLER_NAMES.get(s, s) if isinstance(s, str) else s for s in given]
        return [s for s in names if s != "infill"]


class ChoicesBody(SamplingBody):
    """Of an API that can give several answers to one prompt."""

    n: int | None = None


# "infill" picks among the tokens that others have left; nothing here stands for it, and editors
# name it in every request.
_SAMPLER_LETTERS = {
    "e": "penalties", "d": "dry", "s": "top_n_sigma", "k": "top_k", "y": "typ_p", "p": "top_p",
    "m": "min_p", "x": "xtc", "t": "temperature", "i": "infill",
}  # fmt: skip
_SAMPLER_NAMES = {"typical_p": "typ_p", "typical": "typ_p", "temp": "temperature"}

_CONSTRAIN = "constrain the text with response_format, json_schema or grammar"

#: Other servers' fields that decide what a text may be, and what to do instead. Ignored, the text
#: would pass for what was asked for; so they are refused.
_ELSEWHERE = {
    "guided_json": _CONSTRAIN,
    "guided_regex": _CONSTRAIN,
    "guided_choice": _CONSTRAIN,
    "guided_grammar": _CONSTRAIN,
    "structured_outputs": _CONSTRAIN,
    "lora": "adapters cannot be applied here: name a model that has the adapter merged",
}

#: Fields that have the same name and meaning in :class:`~edgerun.core.SamplingParams`.
_SAME = frozenset(ChoicesBody.model_fields) - {
    "seed", "logit_bias", "n_predict", "grammar", "json_schema", *_ELSEWHERE,
}  # fmt: skip


def refuse(body: Body, ways: Mapping[str, str]) -> None:
    """Raise RequestError if ``body`` has one of the fields ``ways``, which maps a field that
    cannot be had here to the way out; an empty list asks for nothing."""
    for name, way in ways.items():
        if getattr(body, name, None) not in (None, []):
            raise RequestError(f"{name} is not supported: {way}", param=name)


def sampling_params(body: SamplingBody, **more: Any) -> SamplingParams:
    """The fields that were given, over the defaults; ``more`` are further ones, None = not given.

    Raises:
        RequestError: a value is out of range, or cannot be had here; names the field.
    """
    refuse(body, _ELSEWHERE)
    given = {name: getattr(body, name, None) for name in _SAME}
    given["constraint"] = _constraint(body)
    if body.seed is not None and body.seed >= 0:  # llama.cpp's -1 asks for a fresh one
        given["seed"] = body.seed
    if body.logit_bias is not None:
        given["logit_bias"] = logit_bias(body.logit_bias)
    if (most := limit(n_predict=body.n_predict)) is not None:
        given["max_tokens"] = most
    given |= {k: v for k, v in more.items() if v is not None}
    return SamplingParams(**{k: v for k, v in given.items() if v is not None})


def limit(**given: int | None) -> int | None:
    """The smallest of the limits that were given, clamped to what fits; -1 is none, as LM Studio's
    and llama.cpp's clients have it.

    Raises:
        RequestError: one is below -1; names it.
    """
    found = None
    for name, value in given.items():
        if value is None or value == -1:
            continue
        if value < 0:
            raise RequestError(
                f"{name} must be 0 or more, or -1 for no limit, not {value}", param=name
            )
        found = min(value, _HUGE if found is None else found)
    return found


def logit_bias(given: Mapping[str, Any] | Sequence[Any]) -> dict[int, float]:
    """OpenAI's ``{"1234": -100}`` or llama.cpp's ``[[1234, -100]]``, in which false bans a token.

    Raises:
        RequestError: a key is no token id, or a value no number.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else list(given)
    out: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise _bad_bias(f"must hold [token id, number] pairs, not {printable(repr(pair), 40)}")
        key, value = pair
        if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 20:
            key = int(key)
        if isinstance(key, bool) or not isinstance(key, int) or key < 0:
            raise _bad_bias(f"keys are token ids, not {printable(repr(key), 40)}")
        if value is False:
            value = float("-inf")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _bad_bias(f"[{key}] must be a number, not {printable(repr(value), 40)}")
        if abs(value) > 1e30 and value != float("-inf"):
            raise _bad_bias(f"[{key}] is out of range")
        out[key] = float(value)
    return out


def _bad_bias(what: str) -> RequestError:
    return RequestError(f"logit_bias {what}", param="logit_bias")


def _constraint(body: SamplingBody) -> Constraint | None:
    if body.grammar and body.json_schema is not None:
        raise RequestError("grammar and json_schema exclude each other", param="grammar")
    if body.grammar:
        return Constraint("gbnf", body.grammar, "grammar")
    if body.json_schema is not None:
        return Constraint("json_schema", body.json_schema, "json_schema")
    return None
