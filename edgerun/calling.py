"""Calls of tools as what the sampler must keep to: grammars. Imported where tools are offered."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.core import Constraint
from edgerun.errors import RequestError
from edgerun.gating import Choice
from edgerun.structured.closing import closed
from edgerun.structured.schema import prepare_schema
from edgerun.structured.vocabulary import lark_free, special_ids
from edgerun.text.answer.grammar import Speller, calls_grammar
from edgerun.text.answer.syntax import SYNTAXES, Syntax
from edgerun.text.tokenizer import Tokenizer

__all__ = ["Spelling", "constrain_calls", "tool_schemas"]


def tool_schemas(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Names of tools and the schemas of their parameters.

    Raises:
        RequestError: two have one name, or a schema is none, is not of an object, or has what
            cannot be enforced; names the field.
    """
    out: dict[str, Any] = {}
    for i, tool in enumerate(tools):
        function = tool["function"]
        if function["name"] in out:
            raise RequestError(
                f"tools[{i}].function.name: there are two tools named {function['name']!r}",
                param=f"tools[{i}].function.name",
            )
        param = f"tools[{i}].function.parameters"
        given = function.get("parameters")
        schema = {} if given is None else given
        if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
            raise RequestError(f"{param} must be the JSON Schema of an object", param=param)
        schema = {"type": "object", **schema}
        source = json.dumps(schema, ensure_ascii=False)
        out[function["name"]] = closed(prepare_schema(source, param), empty=True)
    return out


class Spelling:
    """How texts are spelled in grammars for one model. Made once for a model: it looks at the
    whole vocabulary."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        tokens = tokenizer.vocab.tokens
        self._special = {tokens[i]: i for i in special_ids(tokenizer) if tokens[i]}
        longest_first = sorted(self._special, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")
        self.speller = Speller(text=self.text, free=self.free)

    def text(self, text: str) -> str:
        """A Lark expression for exactly ``text``, its special tokens as such."""
        parts = self._cut.split(text) if self._special else [text]
        return " ".join(
            f"<[{self._special[p]}]>" if p in self._special else json.dumps(p, ensure_ascii=False)
            for p in parts
            if p
        )

    def ids(self, text: str) -> tuple[int, ...]:
        """The tokens of ``text`` where it goes on from other text, special ones as such."""
        out: list[int] = []
        for part in self._cut.split(text) if self._special else [text]:
            if part in self._special:
                out.append(self._special[part])
            elif part:
                out += self._tokenizer.encode_more(part)
        return tuple(out)

    def free(self, name: str, end: str) -> str | None:
        """Lark rules named ``name`` for any text up to the special token that ``end`` starts with;
        None if it starts with none."""
        found = self._cut.match(end) if self._special else None
        if found is None:
            return None
        return lark_free(self._tokenizer, name, (self._special[found.group()],)).rstrip()


def constrain_calls(
    syntax: Syntax | None,
    schemas: Mapping[str, Any],
    choice: Choice,
    spelling: Spelling,
    *,
    parallel: bool,
    text: Constraint | None,
) -> Constraint | None:
    """What an answer must look like where tools are offered; None = anything.

    Args:
        syntax: how the model writes calls; None = as the generic prompt asks for, if they must
            come.
        text: what an answer without calls must look like.

    Raises:
        RequestError: ``text`` is a grammar, which cannot be joined with calls.
    """
    if choice.name is not None:
        schemas = {choice.name: schemas[choice.name]}
    if text is not None and not choice.forced:
        return _or_text(syntax, schemas, spelling, parallel, text)
    if syntax is None:
        if not choice.forced:
            return None
        syntax = SYNTAXES["generic"]
    lark = calls_grammar(syntax, schemas, spelling.speller, forced=choice.forced, parallel=parallel)
    return None if lark is None else Constraint("lark", lark, param="tools")


def _or_text(
    syntax: Syntax | None,
    schemas: Mapping[str, Any],
    spelling: Spelling,
    parallel: bool,
    text: Constraint,
) -> Constraint:
    """Either calls or the text that was asked for."""
    if text.kind not in ("json_schema", "json_object", "regex"):
        raise RequestError(
            f"{text.param}: a {text.kind} grammar and tools cannot go together: "
            "leave out one of them, or set tool_choice",
            param=text.param,
        )
    if syntax is None or not syntax.trigger:
        return text
    calls = calls_grammar(syntax, schemas, spelling.speller, forced=True, parallel=parallel)
    assert calls is not None
    if text.kind == "regex":
        other = "/" + text.source.replace("/", r"\/") + "/"
    else:
        schema = json.loads(text.source) if text.kind == "json_schema" else {"type": "object"}
        if not isinstance(schema, dict):
            return text
        schema = prepare_schema(json.dumps(schema, ensure_ascii=False), text.param)
        other = "%json " + json.dumps(schema, ensure_ascii=False)
    both = calls.replace("start: ", "calls: ", 1)
    return Constraint("lark", f"start: calls | other\nother: {other}\n{both}", param=text.param)
