"""``POST /v1/completions``: OpenAI's plain text completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from edgerun.core import Chunk, Completion, TokenLogprob
from edgerun.errors import RequestError
from edgerun.server.asked import TextAsked
from edgerun.server.bodies import ChoicesBody, StreamOptions, limit, sampling_params
from edgerun.server.chat_in import response_format
from edgerun.server.documents import choices
from edgerun.server.infill import with_fim
from edgerun.server.wire import (
    DONE,
    FINGERPRINT,
    Answering,
    Event,
    UsageSum,
    respond,
    timings_fields,
    usage_fields,
)

__all__ = ["CompletionBody", "TextTranslator", "parse", "prompts_of", "router", "whole"]

router = APIRouter(tags=["OpenAI"])

MAX_LOGPROBS = 20


class CompletionBody(ChoicesBody):
    model: str | None = None
    prompt: str | list[Any] | None = None
    suffix: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    response_format: dict[str, Any] | None = None


def parse(body: CompletionBody) -> TextAsked:
    """What ``body`` asks for.

    Raises:
        RequestError: a value is out of range or contradicts another; names the field.
    """
    if body.best_of is not None and body.best_of > (body.n or 1):
        raise RequestError(
            f"best_of is not supported: it must not be above n, not {body.best_of}",
            param="best_of",
        )
    logprobs, echo = body.logprobs, bool(body.echo)
    if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
        raise RequestError(
            f"logprobs must be from 0 to {MAX_LOGPROBS}, not {logprobs}", param="logprobs"
        )
    if logprobs is not None and echo:
        raise RequestError("echo cannot be had together with logprobs", param="echo")
    most = limit(max_tokens=body.max_tokens, max_completion_tokens=body.max_completion_tokens)
    if (other := limit(n_predict=body.n_predict)) is not None:
        most = other if most is None else min(most, other)
    params = sampling_params(
        body,
        max_tokens=most,
        logprobs=logprobs,
        constraint=response_format(body.response_format),
    )
    options = body.stream_options
    return TextAsked(
        model=body.model,
        prompts=prompts_of(body.prompt),
        params=params,
        stream=bool(body.stream),
        include_usage=options is not None and bool(options.include_usage),
        echo=echo,
    )


def prompts_of(given: str | Sequence[Any] | None) -> list[str | list[int]]:
    """The prompts that one of OpenAI's four forms holds: text, texts, ids, lists of ids; None is
    the empty text, which stands for the start of a document.

    Raises:
        RequestError: it is none of them.
    """
    if given is None:
        return [""]
    if isinstance(given, str):
        return [given]
    if not given:
        raise RequestError("prompt is an empty list", param="prompt")
    prompts: list[str | list[int]] = []
    if _all_ids(given):
        return [[*given]]
    for i, item in enumerate(given):
        if isinstance(item, str) or (isinstance(item, list) and item and _all_ids(item)):
            prompts.append(item)
        else:
            raise RequestError(
                f"prompt[{i}] must be text or a list of token ids", param=f"prompt[{i}]"
            )
    return prompts


def _all_ids(items: Sequence[Any]) -> bool:
    return all(isinstance(i, int) and not isinstance(i, bool) for i in items)


# -- answers -------------------------------------------------------------------------------------


def _prompt_text(answering: Answering, index: int) -> str:
    """What ``echo`` puts before answer ``index``."""
    asked = answering.asked
    assert isinstance(asked, TextAsked)
    prompt = asked.prompts[index // asked.params.n]
    return prompt if isinstance(prompt, str) else answering.llm.detokenize(prompt)


def logprobs_fields(tokens: Sequence[TokenLogprob], offset: int) -> dict[str, Any]:
    """Token probabilities in the completions API's shape; ``offset`` characters came before."""
    texts = [t.bytes.decode("utf-8", "replace") for t in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [_value(t) for t in tokens],
        "top_logprobs": [_top(t) for t in tokens],
        "text_offset": offsets,
    }


def _value(t: TokenLogprob) -> float:
    return max(t.logprob, -9999.0)


def _top(token: TokenLogprob) -> dict[str, float]:
    """By text; of tokens that look alike, such as halves of a character, the likeliest."""
    out: dict[str, float] = {}
    for t in (*token.top, token):
        text = t.bytes.decode("utf-8", "replace")
        out[text] = max(out.get(text, -9999.0), _value(t))
    return out


def whole(answering: Answering, done: Completion) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    choices = []
    echo = isinstance(answering.asked, TextAsked) and answering.asked.echo
    for i, c in enumerate(done.choices):
        text = (_prompt_text(answering, i) if echo else "") + c.text
        logprobs = None if c.logprobs is None else logprobs_fields(c.logprobs, 0)
        choices.append(_choice(i, text, logprobs, str(c.finish_reason)))
    return {
        **_head(answering),
        "choices": choices,
        "usage": usage_fields(done.total_usage),
        "timings": timings_fields(done.usage, done.timings),
    }


def _head(answering: Answering) -> dict[str, Any]:
    return {
        "id": f"cmpl-{answering.id}",
        "object": "text_completion",
        "created": answering.created,
        "model": answering.model,
        "system_fingerprint": FINGERPRINT,
    }


def _choice(
    index: int, text: str, logprobs: dict[str, Any] | None, finish: str | None
) -> dict[str, Any]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


class TextTranslator:
    """Chunks to ``text_completion`` events."""

    def __init__(self, answering: Answering) -> None:
        asked = answering.asked
        self._answering, self._head = answering, _head(answering)
        self._echo = isinstance(asked, TextAsked) and asked.echo
        self._logprobs = asked.params.logprobs is not None
        self._include_usage = asked.include_usage
        self._sum = UsageSum(asked.params.n)
        self._offsets = [0] * answering.n_answers
        self._last: dict[str, Any] = {}

    def start(self) -> Iterable[Event]:
        if self._echo:
            for i in range(self._answering.n_answers):
                yield self._event(_choice(i, _prompt_text(self._answering, i), None, None))

    def chunk(self, chunk: Chunk) -> Iterable[Event]:
        self._sum.add(chunk)
        logprobs = None
        if self._logprobs and chunk.logprobs:
            logprobs = logprobs_fields(chunk.logprobs, self._offsets[chunk.index])
            self._offsets[chunk.index] += sum(len(t) for t in logprobs["tokens"])
        if chunk.text or logprobs is not None:
            yield self._event(_choice(chunk.index, chunk.text, logprobs, None))
        if chunk.finish_reason is None:
            return
        if chunk.usage is not None and chunk.timings is not None:
            self._last = {"timings": timings_fields(chunk.usage, chunk.timings)}
        more = {} if self._include_usage else self._last
        yield self._event(_choice(chunk.index, "", None, str(chunk.finish_reason)), more)

    def end(self) -> Iterable[Event]:
        if self._include_usage:
            usage = usage_fields(self._sum.usage)
            yield Event({**self._head, "choices": [], "usage": usage, **self._last})
        yield DONE

    def error(self, error: Mapping[str, Any]) -> Iterable[Event]:
        yield Event({"error": dict(error)})

    def _event(self, choice: dict[str, Any], more: Mapping[str, Any] | None = None) -> Event:
        data = {**self._head, "choices": [choice], **(more or {})}
        if self._include_usage:
            data["usage"] = None
        return Event(data)


@router.post("/completions", include_in_schema=False)
@router.post(
    "/v1/completions",
    responses=choices("The text", "text_completion"),
    response_class=Response,
    summary="Continue text",
)
async def completions(request: Request, body: CompletionBody) -> Response:
    """OpenAI's completions, with llama.cpp's sampling fields beside OpenAI's own. With `suffix`, or
    a prompt in the model's own FIM format, what belongs into the middle."""
    return await respond(request, with_fim(parse(body), body.suffix), TextTranslator, whole)
