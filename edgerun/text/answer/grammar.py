"""A grammar, in llguidance's dialect of Lark, for answers whose calls follow the tools' schemas."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from edgerun.text.answer.syntax import Syntax

__all__ = ["Speller", "calls_grammar"]

#: Calls in a block, and where calls must come, blocks: weak models never stop by themselves.
_MOST = 16
_PART = re.compile(r"(%[NnAIS])")


class Speller(NamedTuple):
    """How texts are spelled for one model's tokens.

    Attributes:
        text: a text as a Lark expression, its special tokens as such.
        free: Lark rules, named by the argument, for any text up to the special token that the
            second argument starts with; None if that is not one.
    """

    text: Callable[[str], str]
    free: Callable[[str, str], str | None]


def calls_grammar(
    syntax: Syntax,
    tools: Mapping[str, Any],
    speller: Speller,
    *,
    forced: bool,
    parallel: bool,
) -> str | None:
    """The grammar of an answer.

    Args:
        tools: names and the schemas of their parameters, objects all.
        forced: the answer is calls and nothing else; otherwise text, in which calls may stand.
        parallel: whether there may be several.

    Returns:
        Lark text, or None where calls cannot be told from text before they are read.
    """
    return _Grammar(syntax, tools, speller).answer(forced, parallel)


class _Grammar:
    def __init__(self, syntax: Syntax, tools: Mapping[str, Any], speller: Speller) -> None:
        self._syntax, self._tools, self._speller = syntax, tools, speller
        self._rules: list[str] = []
        self._count = 0

    def answer(self, forced: bool, parallel: bool) -> str | None:
        s = self._syntax
        if not forced and not s.trigger:
            return None
        start = self._forced(parallel) if forced else self._auto(parallel)
        return "\n".join([f"start: {start}", *self._rules, ""])

    def _forced(self, parallel: bool) -> str:
        s = self._syntax
        block = self._rule(self._block(parallel))
        if not parallel or s.again is None:
            return block
        return f"{block} ({self._text(s.again)} {block}){{0,{_MOST - 1}}}"

    def _auto(self, parallel: bool) -> str:
        s = self._syntax
        free = self._speller.free("free", s.trigger)
        repeat = "*" if parallel else "?"
        if free is not None:
            self._rules.append(free)
            block = self._rule(self._block(parallel))
            after = " free" if parallel else ""
            return f"free ({block}{after}){repeat}"
        self._rules.append(f"head[lazy]: TEXT {self._text(s.trigger)}\nTEXT: /(.|\\n)*/")
        tail = self._rule(self._block(parallel, cut=len(s.trigger)))
        if parallel:
            return f"(head {tail})* TEXT"
        return f"TEXT | head {tail}"

    # -- blocks and calls ---------------------------------------------------------------------

    def _block(self, parallel: bool, cut: int = 0) -> str:
        """A block of calls, without its first ``cut`` characters."""
        s = self._syntax
        begin_cut = min(cut, len(s.begin))
        first = self._rule(self._calls(cut - begin_cut))
        parts = [self._text(s.begin[begin_cut:]), first]
        if parallel and s.between is not None:
            more = first if cut == begin_cut else self._rule(self._calls(0))
            parts.append(f"({self._text(s.between)} {more}){{0,{_MOST - 1}}}")
        return " ".join(filter(None, [*parts, self._text(s.end)]))

    def _calls(self, cut: int) -> str:
        return " | ".join(self._rule(self._call(name, cut)) for name in self._tools)

    def _call(self, name: str, cut: int) -> str:
        out: list[str] = []
        pieces = _PART.split(self._syntax.call[cut:])
        text = ""
        for piece in pieces:
            if piece == "%n":
                text += name
            elif piece == "%N":
                text += json.dumps(name, ensure_ascii=False)
            elif piece in ("%A", "%I"):
                out.append(self._text(text))
                text = ""
                out.append(self._arguments(name) if piece == "%A" else "/[0-9]{1,3}/")
            else:
                text += piece
        return " ".join(filter(None, [*out, self._text(text)]))

    def _arguments(self, name: str) -> str:
        schema = self._tools[name]
        notation = self._syntax.notation
        if notation == "json":
            return _json(schema)
        properties = schema.get("properties")
        properties = properties if isinstance(properties, Mapping) else {}
        required = schema.get("required")
        required = set(required) if isinstance(required, list) else set()
        if not properties:
            return ""
        value = {"xml": self._xml, "python": self._keyword, "gemma": self._pair}[notation]
        rules = [
            (self._rule(value(key, sub, schema)), key in required)
            for key, sub in properties.items()
        ]
        if notation == "xml":
            return " ".join(rule if needed else f"{rule}?" for rule, needed in rules)
        return self._listed(rules, ", " if notation == "python" else ",")

    def _listed(self, rules: Sequence[tuple[str, bool]], comma: str) -> str:
        """The rules in order with commas between; those not required may be left out."""
        behind = first = ""  # what may come after something, and after nothing
        for rule, needed in reversed(rules):
            more = f"{self._text(comma)} {rule} {behind}".rstrip()
            start = f"{rule} {behind}".rstrip()
            if needed:
                behind, first = self._rule(more), self._rule(start)
            else:
                behind = self._rule(f"{more} | {behind}") if behind else self._rule(more) + "?"
                first = self._rule(f"{start} | {first}") if first else self._rule(start) + "?"
        return first

    # -- parameters ---------------------------------------------------------------------------

    def _xml(self, key: str, sub: Any, root: Mapping[str, Any]) -> str:
        xml = self._syntax.xml
        assert xml is not None
        strings = _only_strings(sub)
        choices = sub.get("enum") if strings and isinstance(sub, Mapping) else None
        mid = xml.mid.replace("%S", "true" if strings else "false")
        head = self._text(f"{xml.open}{key}{mid}")
        if choices:
            options = [self._text(c) for c in choices if c]
            return f"{head} ({' | '.join(options)}) {self._text(xml.close)}"
        if strings:
            # Some models leave out the line's end before the tag, which is no part of the value.
            return f"{head} {self._until(xml.close.lstrip())}"
        return f"{head} {_json(_within(sub, root))} {self._text(xml.close)}"

    def _until(self, close: str) -> str:
        """Any text and then ``close``."""
        name = self._name()
        free = self._speller.free(name, close)
        if free is not None:
            self._rules.append(free)
            return f"{name} {self._text(close)}"
        # The text ends at the first tag; what follows it is fixed.
        at = close.rfind(">") + 1
        self._rules.append(
            f"{name}[lazy]: {name.upper()} {self._text(close[:at])}\n{name.upper()}: /(.|\\n)*/"
        )
        return " ".join(filter(None, [name, self._text(close[at:])]))

    def _keyword(self, key: str, sub: Any, root: Mapping[str, Any]) -> str:
        return f"{self._text(key + '=')} {_json(_within(sub, root))}"

    def _pair(self, key: str, sub: Any, root: Mapping[str, Any]) -> str:
        return f"{self._text(key + ':')} {self._gemma(sub, 0)}"

    def _gemma(self, sub: Any, depth: int) -> str:
        """A value in Gemma's notation; what its schema leaves open is any value."""
        quote = self._text(self._syntax.quote)
        kind = sub.get("type") if isinstance(sub, Mapping) else None
        if isinstance(sub, Mapping) and depth < 8:
            choices = sub.get("enum")
            if isinstance(choices, list) and choices and all(isinstance(c, str) for c in choices):
                return f"{quote} ({' | '.join(self._text(c) for c in choices if c)}) {quote}"
            if kind == "string":
                return f"{quote} {self._until(self._syntax.quote)}"
            if kind in ("integer", "number", "boolean", "null"):
                bounds = {k: v for k, v in sub.items() if k != "enum" or choices}
                return _json(bounds)
            if kind == "array":
                item = self._rule(self._gemma(sub.get("items"), depth + 1))
                return f'"[" ({item} ("," {item})*)? "]"'
            if kind == "object" and isinstance(sub.get("properties"), Mapping):
                needed = set(sub.get("required") or ())
                rules = [
                    (self._rule(f"{self._text(k + ':')} {self._gemma(v, depth + 1)}"), k in needed)
                    for k, v in sub["properties"].items()
                ]
                return f'"{{" {self._listed(rules, ",") if rules else ""} "}}"'
        return self._any_gemma()

    def _any_gemma(self) -> str:
        if not any(r.startswith("anything:") for r in self._rules):
            quote = self._text(self._syntax.quote)
            self._rules.append(
                "anything: anystring | anyobject | anylist | "
                '%json {"type": ["number", "boolean", "null"]}\n'
                f"anystring: {quote} {self._until(self._syntax.quote)}\n"
                'anyobject: "{" (anypair ("," anypair)*)? "}"\n'
                "anypair: /[A-Za-z_][A-Za-z0-9_]*:/ anything\n"
                'anylist: "[" (anything ("," anything)*)? "]"'
            )
        return "anything"

    # -- rules --------------------------------------------------------------------------------

    def _name(self) -> str:
        self._count += 1
        return f"r{self._count}"

    def _rule(self, body: str) -> str:
        name = self._name()
        self._rules.append(f"{name}: {body or chr(34) * 2}")
        return name

    def _text(self, text: str) -> str:
        return self._speller.text(text) if text else ""


def _json(schema: Any) -> str:
    # The braces tell where the schema ends: true and false are spelled as objects.
    schema = {} if schema is None or schema is True else {"not": {}} if schema is False else schema
    return "%json " + json.dumps(schema, ensure_ascii=False)


def _within(sub: Any, root: Mapping[str, Any]) -> Any:
    """A parameter's schema with the definitions it may refer to."""
    if not isinstance(sub, Mapping):
        return sub
    defs = {k: root[k] for k in ("$defs", "definitions") if k in root and k not in sub}
    return {**defs, **sub} if '"$ref"' in json.dumps(sub) else sub


def _only_strings(sub: Any) -> bool:
    if not isinstance(sub, Mapping):
        return False
    choices = sub.get("enum")
    if isinstance(choices, list):
        return bool(choices) and all(isinstance(c, str) for c in choices)
    return sub.get("type") == "string"
