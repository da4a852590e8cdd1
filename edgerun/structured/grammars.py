"""Constraints compiled for one model: bounded in time and memory, and kept for the next request."""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from edgerun.core import Constraint
from edgerun.errors import GenerationError, RequestError
from edgerun.structured.closing import closed
from edgerun.structured.matcher import Matcher, first_line, panics
from edgerun.structured.patterns import check_pattern
from edgerun.structured.schema import MAX_BYTES, prepare_schema
from edgerun.structured.vocabulary import open_tokenizer
from edgerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Grammars"]

_MOST = 64  # grammars kept
_MOST_BYTES = 4 << 20  # and their sources
_SECONDS = 15.0  # to compile one
_AT_ONCE = 4
_STACK = 64 << 20  # llguidance recurses along chains of rules
_MOST_RULES = 2000

#: Between the parts of a JSON text: one space, or a line's end and some indentation. More would
#: let a model write whitespace until its tokens run out.
_OPTIONS = {
    "whitespace_pattern": r"(?: |\r?\n[ ]{0,40}|\r?\n\t{0,20})",
    # Without \u a key cannot be spelled in two ways, one of which no rule knows.
    "json_allowed_escapes": 'nrbtf\\"',
}
_RULE = re.compile(r"^[ \t]*[?!]?[A-Za-z_][\w-]*[ \t]*(?:\[[^\]\n]*\]|\{[^}\n]*\})*[ \t]*:", re.M)
_JSON = re.compile(r"%json\s*(?=\{)")


class Grammars:
    """Compiles constraints for one model. Safe to use from any thread, and never from one that
    others wait for: a grammar takes milliseconds as a rule, the first one up to two seconds."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._tokens: LLTokenizer | None = None
        self._known: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._free = threading.Semaphore(_AT_ONCE)

    def matchers(
        self, constraint: Constraint, n: int = 1, *, can_end: bool = True
    ) -> list[Matcher]:
        """``n`` matchers, each at the start of its text.

        Args:
            constraint: what the texts must look like.
            n: how many.
            can_end: whether the model may end a text that could also go on.

        Raises:
            RequestError: it is malformed, too complex, or asks for what cannot be enforced; names
                the field, and what is wrong.
        """
        first = self._compiled(constraint)
        size = self._opened().vocab_size
        ends = frozenset(self._opened().eos_tokens)
        can_end = can_end and bool(self._tokenizer.eog_ids)
        n_vocab = self._tokenizer.n_vocab
        return [Matcher(first.deep_copy(), size, n_vocab, ends, can_end) for _ in range(n)]

    def _opened(self) -> LLTokenizer:
        with self._opening:
            if self._tokens is None:
                self._tokens = open_tokenizer(self._tokenizer)
            return self._tokens

    def _compiled(self, constraint: Constraint) -> LLMatcher:
        key = (constraint.kind, constraint.source)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        param = constraint.param
        if len(constraint.source) > MAX_BYTES:
            raise RequestError(f"{param}: the {constraint.kind} is larger than 1 MiB", param=param)
        made = _Compile(self._opened(), constraint).result(self._free)
        with self._lock:
            self._known[key] = made
            while len(self._known) > 1 and (
                len(self._known) > _MOST or sum(len(k[1]) for k in self._known) > _MOST_BYTES
            ):
                self._known.popitem(last=False)
        return made


class _Compile:
    """One compilation, on a thread with a large stack, which cannot be stopped, only left alone."""

    def __init__(self, tokens: LLTokenizer, constraint: Constraint) -> None:
        self._tokens, self._constraint = tokens, constraint
        self._made: LLMatcher | None = None
        self._error: BaseException | None = None

    def result(self, free: threading.Semaphore) -> LLMatcher:
        param = self._constraint.param
        late = RequestError(
            f"{param}: the {self._constraint.kind} takes longer than {_SECONDS:.0f} s to compile: "
            "make it simpler",
            param=param,
        )
        if not free.acquire(timeout=_SECONDS):
            raise late
        done = threading.Event()

        def run() -> None:
            try:
                self._made = _compile(self._tokens, self._constraint)
            except BaseException as e:
                self._error = e
            finally:
                free.release()
                done.set()

        _start(run)
        if not done.wait(_SECONDS):
            raise late
        if self._error is not None:
            raise self._error
        assert self._made is not None
        return self._made


_starting = threading.Lock()


def _start(run: Callable[[], None]) -> None:
    with _starting:  # the stack's size is the process's
        before = threading.stack_size(_STACK)
        try:
            threading.Thread(target=run, name="edgerun-grammar", daemon=True).start()
        finally:
            threading.stack_size(before)


def _compile(tokens: LLTokenizer, c: Constraint) -> LLMatcher:
    from llguidance import LLMatcher, LLParserLimits

    try:
        with panics():
            made = LLMatcher(
                tokens, _grammar(c), log_level=0, limits=LLParserLimits(verbose_errors=False)
            )
            if not made.is_error():
                probe = made.deep_copy()
                probe.compute_bitmask()  # what is slow at all is so at the start
    except GenerationError as e:
        raise RequestError(f"{c.param}: {e}", param=c.param) from None
    if made.is_error() or probe.is_error():
        why = first_line(made.get_error() or probe.get_error())
        raise RequestError(f"{c.param}: the {c.kind} cannot be used: {why}", param=c.param)
    return made


def _grammar(c: Constraint) -> str:
    """What llguidance compiles."""
    from llguidance import LLMatcher

    if c.kind in ("json_schema", "json_object"):
        source = '{"type": "object"}' if c.kind == "json_object" else c.source
        schema = json.dumps(closed(prepare_schema(source, c.param)), ensure_ascii=False)
        return LLMatcher.grammar_from_json_schema(schema, overrides=_OPTIONS)  # type: ignore[arg-type]
    if c.kind == "regex":
        if (why := check_pattern(c.source)) is not None:
            raise RequestError(f"{c.param}: the regex {why}", param=c.param)
        return LLMatcher.grammar_from_regex(c.source)
    lark = c.source
    if c.kind == "gbnf":
        from edgerun.structured.gbnf import to_lark

        lark = to_lark(lark, c.param)
    if len(_RULE.findall(lark)) > _MOST_RULES:
        raise RequestError(
            f"{c.param}: the grammar has more than {_MOST_RULES} rules", param=c.param
        )
    return LLMatcher.grammar_from_lark(_embedded(lark, c.param))


def _embedded(lark: str, param: str) -> str:
    """The grammar with its schemas checked."""
    out, at = [], 0
    for found in _JSON.finditer(lark):
        if found.start() < at:
            continue  # inside the schema before
        try:
            _, end = json.JSONDecoder().raw_decode(lark, found.end())
        except (ValueError, RecursionError) as e:
            raise RequestError(f"{param}: a %json schema is not JSON: {e}", param=param) from None
        schema = {**closed(prepare_schema(lark[found.end() : end], param)), "x-guidance": _OPTIONS}
        out += [lark[at : found.end()], json.dumps(schema, ensure_ascii=False)]
        at = end
    return "".join((*out, lark[at:]))
