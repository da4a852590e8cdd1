"""Answers of ``/completion`` and ``/infill`` as llama.cpp's clients read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from edgerun.core import Chunk, Completion, FinishReason, SamplingParams, TokenLogprob, Usage
from edgerun.llm import LLM
from edgerun.server.asked import TextAsked
from edgerun.server.llama_cpp_in import CompletionBody
from edgerun.server.wire import Answering, Event, timings_fields

__all__ = ["CompletionEvents", "settings", "whole"]

Json = dict[str, Any]

_SAME = (
    "temperature", "dynatemp_range", "dynatemp_exponent", "top_k", "top_p", "min_p", "top_n_sigma",
    "typical_p", "xtc_probability", "xtc_threshold", "repeat_last_n", "repeat_penalty",
    "presence_penalty", "frequency_penalty", "dry_multiplier", "dry_base", "dry_allowed_length",
    "dry_penalty_last_n", "dry_sequence_breakers", "mirostat", "mirostat_tau", "mirostat_eta",
    "ignore_eos", "min_keep", "samplers", "stop",
)  # fmt: skip
assert set(_SAME) <= {f.name for f in fields(SamplingParams)}


def settings(params: SamplingParams) -> Json:
    """Sampling settings under llama.cpp's names; -1 is no limit, and a fresh seed."""
    most = -1 if params.max_tokens is None else params.max_tokens
    out: Json = {"n_predict": most, "max_tokens": most}
    out["seed"] = -1 if params.seed is None else params.seed
    for name in _SAME:
        value = getattr(params, name)
        out[name] = list(value) if isinstance(value, tuple) else value
    out["n_keep"] = params.n_keep or 0
    out["n_probs"] = params.logprobs or 0
    out["logit_bias"] = [[i, b if b > -1e30 else False] for i, b in params.logit_bias.items()]
    out["grammar"] = "" if params.constraint is None else params.constraint.source
    return out


def _probs(logprobs: Iterable[TokenLogprob]) -> list[Json]:
    def entry(p: TokenLogprob) -> Json:
        token = p.bytes.decode("utf-8", "replace")
        value = max(p.logprob, -9999.0)
        return {"id": p.token_id, "token": token, "bytes": list(p.bytes), "logprob": value}

    return [entry(p) | {"top_logprobs": [entry(t) for t in p.top]} for p in logprobs]


def _prompt(llm: LLM, asked: TextAsked, index: int) -> str:
    prompt = asked.prompts[index // asked.params.n]
    return prompt if isinstance(prompt, str) else llm.detokenize(prompt, special=True)


def _end(answering: Answering, body: CompletionBody, last: Chunk, has_new_line: bool) -> Json:
    """What only the end of an answer tells."""
    asked, usage = answering.asked, last.usage or Usage()
    assert isinstance(asked, TextAsked)
    kind = "word" if last.stop_string is not None else "eos"
    if last.finish_reason is FinishReason.LENGTH:
        kind = "limit"
    full = usage.prompt_tokens + usage.completion_tokens >= answering.llm.n_ctx
    more: Json = {
        "model": answering.model,
        "tokens_predicted": usage.completion_tokens,
        "tokens_evaluated": usage.prompt_tokens,
        "generation_settings": {
            "n_ctx": answering.llm.n_ctx,
            **settings(asked.params),
            "stream": asked.stream,
            "t_max_predict_ms": body.t_max_predict_ms or 0,
        },
        "prompt": _prompt(answering.llm, asked, last.index),
        "has_new_line": has_new_line,
        "truncated": asked.cut or (kind == "limit" and full),
        "stop_type": kind,
        "stopping_word": last.stop_string or "",
        "tokens_cached": usage.cached_tokens,
    }
    if last.timings is not None:
        more["timings"] = timings_fields(usage, last.timings)
    return more


def _chosen(result: Json, body: CompletionBody) -> Json:
    """Only ``response_fields``, under the names they were asked for by; "a/b" is b of a."""
    if not body.response_fields:
        return result
    out: Json = {}
    for path in body.response_fields:
        value: Any = result
        for name in path.split("/"):
            if not isinstance(value, Mapping) or name not in value:
                break
            value = value[name]
        else:
            out[path] = value
    return out


def _result(index: int, content: str, tokens: Sequence[int], stop: bool) -> Json:
    return {"index": index, "content": content, "tokens": list(tokens), "id_slot": 0, "stop": stop}


def whole(body: CompletionBody, answering: Answering, done: Completion) -> Json | list[Json]:
    """The answer; a list, where several were asked for."""
    results: list[Json] = []
    for i, c in enumerate(done.choices):
        result = _result(i, c.text, c.token_ids if body.return_tokens else (), True)
        # The usage of the first sums up the prompts of all.
        last = Chunk(
            finish_reason=c.finish_reason,
            usage=c.usage,
            timings=c.timings,
            index=i,
            stop_string=c.stop_string,
        )
        result |= _end(answering, body, last, "\n" in c.text)
        if c.logprobs is not None:
            result["completion_probabilities"] = _probs(c.logprobs)
        results.append(_chosen(result, body))
    return results if len(results) > 1 else results[0]


class CompletionEvents:
    """Streamed answers. Each ends with an event that has ``stop`` true; no ``[DONE]`` follows."""

    def __init__(self, body: CompletionBody, answering: Answering) -> None:
        self._body, self._answering = body, answering
        self._counts = [0] * answering.n_answers
        self._lines = [False] * answering.n_answers

    def start(self) -> Iterable[Event]:
        return ()

    def chunk(self, chunk: Chunk) -> Iterable[Event]:
        i = chunk.index
        self._counts[i] += len(chunk.token_ids)
        self._lines[i] = self._lines[i] or "\n" in chunk.text
        if chunk.text or chunk.token_ids:
            result = _result(i, chunk.text, chunk.token_ids, False)
            result["tokens_predicted"] = self._counts[i]
            result["tokens_evaluated"] = self._answering.known.prompt_tokens
            if chunk.logprobs:
                result["completion_probabilities"] = _probs(chunk.logprobs)
            yield Event(result)
        if chunk.finish_reason is not None:
            result = _result(i, "", (), True)
            result |= _end(self._answering, self._body, chunk, self._lines[i])
            yield Event(_chosen(result, self._body))

    def end(self) -> Iterable[Event]:
        return ()

    def error(self, error: Mapping[str, Any]) -> Iterable[Event]:
        return [Event({"error": dict(error)})]
