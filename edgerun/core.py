"""The frozen value types that cross layers: what is asked, and what comes back."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from edgerun import checks
from edgerun.chat import ToolCall, ToolCallDelta
from edgerun.errors import RequestError, printable

__all__ = [
    "CONSTRAINT_KINDS",
    "DEFAULT_SAMPLERS",
    "Chunk",
    "Completion",
    "Constraint",
    "FinishReason",
    "SamplingParams",
    "Timings",
    "TokenLogprob",
    "Usage",
]

#: llama.cpp's default chain, in its order. ``penalties`` and ``dry`` look at earlier tokens, the
#: middle ones drop candidates, ``temperature`` comes last.
DEFAULT_SAMPLERS = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
)


class FinishReason(str, enum.Enum):
    """Why a generation ended; the values are OpenAI's where they have one."""

    STOP = "stop"  # an end-of-generation token or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    TOOL_CALLS = "tool_calls"  # the answer ends with calls of tools
    ABORT = "abort"  # cancelled by the caller
    ERROR = "error"  # this request failed; others go on

    def __str__(self) -> str:
        return self.value


#: What :class:`Constraint` takes.
CONSTRAINT_KINDS = ("json_schema", "json_object", "regex", "lark", "gbnf")


@dataclass(frozen=True)
class Constraint:
    """What a generated text must look like, from its first to its last character.

    The model chooses among the tokens that can still lead to such a text; once it is complete, it
    ends with ``stop``. A text cut short by ``max_tokens`` or a stop string is a valid beginning.

    Attributes:
        kind: what ``source`` is:

            - ``json_schema``: JSON Schema, draft 2020-12, as JSON text or as what ``json.loads``
              makes of it. A keyword that cannot be enforced is refused, never ignored.
            - ``json_object``: any JSON object; ``source`` stays empty.
            - ``regex``: a regular expression for the whole text, Rust's dialect.
            - ``lark``: a grammar in llguidance's dialect of Lark. It may embed schemas
              (``%json {...}``), name special tokens (``<tool_call>``), and begin with free text
              that ends where the model writes a trigger; see :mod:`edgerun.structured`.
            - ``gbnf``: a grammar in llama.cpp's format.
        source: the schema, expression or grammar. A schema is kept as JSON text.
        param: the field of the caller's request that ``source`` came from; errors name it.

    Raises:
        RequestError: an unknown kind, or a source that is not what the kind asks for.
    """

    kind: str
    source: Any = ""
    param: str = "constraint"

    def __post_init__(self) -> None:
        if self.kind not in CONSTRAINT_KINDS:
            raise RequestError(
                f"unknown kind of constraint {printable(repr(self.kind), 40)}; "
                f"known: {', '.join(CONSTRAINT_KINDS)}",
                param=self.param,
            )
        if self.kind == "json_schema" and isinstance(self.source, (Mapping, bool)):
            object.__setattr__(self, "source", self._text())
        if not isinstance(self.source, str):
            raise RequestError(
                f"{self.param}: the source of a {self.kind} constraint must be text, "
                f"not {type(self.source).__name__}",
                param=self.param,
            )
        if self.kind != "json_object" and not self.source.strip():
            raise RequestError(
                f"{self.param}: the {self.kind} constraint is empty", param=self.param
            )

    def _text(self) -> str:
        try:
            return json.dumps(self.source, ensure_ascii=False, allow_nan=False)
        except RecursionError:
            wrong = "it is nested too deep"
        except (TypeError, ValueError) as e:
            wrong = str(e)
        raise RequestError(
            f"{self.param}: the schema is not JSON: {printable(wrong)}", param=self.param
        )


@dataclass(frozen=True)
class SamplingParams:
    """What to generate and how to choose tokens, under llama.cpp's names and with its defaults.

    A setting at its neutral value adds no work to the step. Values out of range raise
    :class:`~edgerun.errors.RequestError` naming the field.

    Attributes:
        max_tokens: most tokens to generate; ``None`` = until the context is full.
        stop: strings that end the text; they are not part of it.
        stop_token_ids: tokens that end the text, like the model's own end tokens.
        ignore_eos: never stop at an end-of-generation token (they are not sampled).
        temperature: 0 or less = greedy.
        dynatemp_range, dynatemp_exponent: entropy-driven temperature in ``temperature ± range``.
        top_k: keep the k likeliest; 0 or less = all.
        top_p: keep the smallest set with this mass; 1 = all.
        min_p: drop tokens below this fraction of the likeliest; 0 = none.
        typical_p: locally typical sampling (arXiv:2202.00666); 1 = off.
        top_n_sigma: keep logits within n standard deviations of the best; 0 or less = off.
        xtc_probability, xtc_threshold: "exclude top choices".
        repeat_last_n: how many of the last tokens, prompt included, ``repeat_penalty`` looks at;
            0 = none, -1 = all.
        repeat_penalty: divide positive and multiply negative logits of those tokens; 1 = off.
        presence_penalty, frequency_penalty: OpenAI's; count generated tokens only.
        dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers:
            the "don't repeat yourself" sampler; multiplier 0 = off.
        mirostat: 0 off, 1 or 2 (arXiv:2007.14966); replaces the truncating samplers.
        mirostat_tau, mirostat_eta: target surprise in bits, and learning rate.
        seed: 64-bit; ``None`` = a fresh one per request.
        samplers: the chain, in order; names from :data:`DEFAULT_SAMPLERS`.
        logit_bias: token id -> addend.
        logprobs: return this many alternatives a token; 0 = the token's own only, ``None`` = none.
        min_keep: truncating samplers leave at least this many candidates.
        n: how many answers to generate, each drawn on its own from the same seed.
        context_shift: when the context is full, drop the older half of it and go on, instead of
            ending with ``length``. What is kept is computed again. Of a conversation that is too
            long to begin with the oldest turns are not sent, see ``Usage.left_out``.
        n_keep: first tokens of the prompt that are never dropped; -1 = the whole prompt, ``None`` =
            what a conversation's prompt begins with, its system prompt and tools, at most three
            quarters of the context. A start token is never dropped.
        priority: of requests that wait, a higher one counts as having come 30 s earlier.
        constraint: what the text must look like. It masks tokens before any of the samplers sees
            them; log-probabilities stay those of the model alone.
        time_limit: seconds after its first token from which on the text ends, with ``length``, at
            the next line break; ``None`` = never. For completions that somebody waits for.
    """

    max_tokens: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    seed: int | None = None
    samplers: Sequence[str] = DEFAULT_SAMPLERS
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    min_keep: int = 1
    n: int = 1
    context_shift: bool = False
    n_keep: int | None = None
    priority: int = 0
    constraint: Constraint | None = None
    time_limit: float | None = None

    def __post_init__(self) -> None:
        _check(self)


_INT_RANGES: dict[str, tuple[int, int]] = {
    "top_k": (-1, 2**31),
    "repeat_last_n": (-1, 2**31),
    "dry_allowed_length": (0, 2**31),
    "dry_penalty_last_n": (-1, 2**31),
    "mirostat": (0, 2),
    "min_keep": (0, 2**31),
    "n": (1, 128),
    "priority": (-1000, 1000),
}
_FLOAT_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (-1.0, 1000.0),
    "dynatemp_range": (0.0, 1000.0),
    "dynatemp_exponent": (0.0, 1000.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "typical_p": (0.0, 1.0),
    "top_n_sigma": (-1.0, 1e6),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "repeat_penalty": (1e-6, 1e6),
    "presence_penalty": (-100.0, 100.0),
    "frequency_penalty": (-100.0, 100.0),
    "dry_multiplier": (0.0, 1e6),
    "dry_base": (0.0, 1e6),
    "mirostat_tau": (0.0, 1e6),
    "mirostat_eta": (0.0, 1e6),
    "time_limit": (0.0, 1e9),
}
_INT_OR_NONE: dict[str, tuple[int, int]] = {
    "max_tokens": (0, 2**63),
    "seed": (-(2**63), 2**64),
    "logprobs": (0, 2**31),
    "n_keep": (-1, 2**31),
}


def _check(p: SamplingParams) -> None:
    for name, (lo, hi) in _INT_RANGES.items():
        checks.whole(name, getattr(p, name), lo, hi)
    for name, (lo, hi) in _INT_OR_NONE.items():
        if getattr(p, name) is not None:
            checks.whole(name, getattr(p, name), lo, hi)
    for name, (flo, fhi) in _FLOAT_RANGES.items():
        if name != "time_limit" or p.time_limit is not None:
            checks.number(name, getattr(p, name), flo, fhi)
    for name in ("stop", "dry_sequence_breakers", "samplers"):
        object.__setattr__(p, name, checks.strings(name, getattr(p, name)))
    # An empty stop string would end every text at once: other runtimes did just that.
    object.__setattr__(p, "stop", tuple(s for s in p.stop if s))
    for s in p.samplers:
        if s not in DEFAULT_SAMPLERS:
            raise RequestError(
                f"unknown sampler {s!r}; known: {', '.join(DEFAULT_SAMPLERS)}", param="samplers"
            )
    for name in ("ignore_eos", "context_shift"):
        checks.truth(name, getattr(p, name))
    checks.token_ids("stop_token_ids", p.stop_token_ids)
    checks.biases("logit_bias", p.logit_bias)
    if p.constraint is not None and not isinstance(p.constraint, Constraint):
        raise RequestError(
            f"constraint must be a Constraint, not {type(p.constraint).__name__}",
            param="constraint",
        )


@dataclass(frozen=True)
class TokenLogprob:
    """One generated token's natural-log probability, before temperature and truncation.

    ``bytes`` are the token's raw bytes (may be part of a character). ``top`` holds the
    likeliest alternatives, best first.
    """

    token_id: int
    bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Usage:
    """Token counts of one request. ``cached_tokens`` of the prompt came from the prefix cache;
    ``reasoning_tokens`` of the completion were reasoning. With ``SamplingParams.context_shift``
    ``left_out`` messages of the conversation are not in the prompt, for want of room, and its first
    ``kept_tokens`` stay in the context whenever that is full."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    left_out: int = 0
    kept_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and completion together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds of one request. ``prefill`` ends when the first token is known;
    ``prefill_tokens`` are those of the prompt that were not cached."""

    queued: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0

    @property
    def prefill_per_second(self) -> float:
        """Tokens; 0 if nothing was timed."""
        return self.prefill_tokens / self.prefill if self.prefill > 0 else 0.0

    @property
    def decode_per_second(self) -> float:
        """Tokens after the first; 0 if there was one at most."""
        return self.decode_tokens / self.decode if self.decode > 0 else 0.0


@dataclass(frozen=True)
class Chunk:
    """A piece of a streamed answer. ``text`` holds whole characters only and may be empty.

    The last chunk has ``finish_reason`` set, and ``usage`` and ``timings`` with it. Of several
    answers (``SamplingParams.n``) each has a last chunk; ``index`` tells whose a chunk is.
    In answers to conversations ``reasoning`` and ``tool_calls`` stand apart from ``text``.
    ``stop_string`` of the last chunk is the one of ``SamplingParams.stop`` that ended the text.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    timings: Timings | None = None
    index: int = 0
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    stop_string: str | None = None


@dataclass(frozen=True)
class Completion:
    """A finished answer; ``others`` are the further ones if ``SamplingParams.n`` is above 1.

    ``stop_string`` is the one of ``SamplingParams.stop`` that ended the text, if one did.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings
    logprobs: tuple[TokenLogprob, ...] | None = None
    others: tuple[Completion, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    stop_string: str | None = None

    @property
    def choices(self) -> tuple[Completion, ...]:
        """This answer and the others, in order."""
        return (self, *self.others)

    @property
    def total_usage(self) -> Usage:
        """Of all answers: the prompt counts once."""
        return Usage(
            self.usage.prompt_tokens,
            sum(c.usage.completion_tokens for c in self.choices),
            self.usage.cached_tokens,
            sum(c.usage.reasoning_tokens for c in self.choices),
            self.usage.left_out,
            self.usage.kept_tokens,
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict: enums as strings, bytes as lists of ints."""

        def plain(v: Any) -> Any:
            if isinstance(v, (Usage, Timings, TokenLogprob, ToolCall, Completion)):
                return {f.name: plain(getattr(v, f.name)) for f in fields(v)}
            if isinstance(v, bytes):
                return list(v)
            if isinstance(v, tuple):
                return [plain(x) for x in v]
            return str(v) if isinstance(v, FinishReason) else v

        out: dict[str, Any] = plain(self)
        return out
