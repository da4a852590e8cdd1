"""llama.cpp's grammar format, GBNF, as a Lark grammar.

The format is described in llama.cpp's ``grammars/README.md``
(https://github.com/ggml-org/llama.cpp). What a regular expression can say becomes a terminal, as
large as possible; only what recurs stays a rule. Terminals match as much as they can, as in a
lexer: a grammar without recursion is followed exactly, and of one where a terminal could end in two
places before a rule, the later one is taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from edgerun.errors import RequestError, printable
from edgerun.structured.patterns import MAX_PATTERN

__all__ = ["to_lark"]

_MAX_DEPTH = 60
_MAX_RULES = 2000

_NAME = re.compile(r"[A-Za-z_][\w-]*")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_COUNT = re.compile(r"\{[ \t]*(\d{1,9})[ \t]*(?:(,)[ \t]*(\d{1,9})?[ \t]*)?\}")
_TOKEN = re.compile(r"<\[\d+\]>|<[^<>\s\[\]]+>")
_HEX = {"x": 2, "u": 4, "U": 8}
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


@dataclass(frozen=True)
class _Node:
    """``kind`` is chars (``text`` is Lark), token, ref, seq, alt or repeat."""

    kind: str
    text: str = ""
    parts: tuple[_Node, ...] = ()
    low: int = 1
    high: int | None = 1


def to_lark(source: str, param: str) -> str:
    """The grammar in Lark.

    Raises:
        RequestError: it is malformed; names the line.
    """
    return _Writer(_Reader(source, param).rules(), param).lark()


class _Reader:
    def __init__(self, source: str, param: str) -> None:
        self._s, self._at, self._param = source, 0, param

    def _fail(self, what: str) -> NoReturn:
        line = self._s.count("\n", 0, self._at) + 1
        rest = printable(self._s[self._at : self._at + 20] or "the end")
        raise RequestError(
            f"{self._param}: GBNF line {line}: {what}, found {rest!r}", param=self._param
        )

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self._s, self._at)
        self._at = found.end() if found else self._at

    def _next(self) -> str:
        return self._s[self._at : self._at + 1]

    def _take(self, text: str) -> bool:
        if self._s.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def rules(self) -> dict[str, _Node]:
        found: dict[str, _Node] = {}
        self._skip(_LINES)
        while self._next():
            name = self._name()
            self._skip(_SPACE)
            if not self._take("::="):
                self._fail(f"expected ::= after {name}")
            self._skip(_LINES)
            if name in found:
                self._fail(f"the rule {name} is defined twice")
            found[name] = self._alternatives(0)
            self._skip(_SPACE)
            if self._next() not in ("", "\r", "\n"):
                self._fail("expected the end of the line")
            self._skip(_LINES)
            if len(found) > _MAX_RULES:
                self._fail(f"there are more than {_MAX_RULES} rules")
        return found

    def _name(self) -> str:
        found = _NAME.match(self._s, self._at)
        if found is None:
            self._fail("expected a rule's name")
        self._at = found.end()
        return found[0]

    def _alternatives(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            self._fail(f"parentheses are nested deeper than {_MAX_DEPTH}")
        space = _LINES if depth else _SPACE
        options = [self._sequence(depth, space)]
        while self._take("|"):
            self._skip(_LINES)
            options.append(self._sequence(depth, space))
        return options[0] if len(options) == 1 else _Node("alt", parts=tuple(options))

    def _sequence(self, depth: int, space: re.Pattern[str]) -> _Node:
        parts: list[_Node] = []
        while (c := self._next()) and c not in "|)" and (depth or c not in "\r\n"):
            node = self._item(c, depth)
            self._skip(space)
            while (repeated := self._repeat(node)) is not None:
                node = repeated
                self._skip(space)
            parts.append(node)
        return parts[0] if len(parts) == 1 else _Node("seq", parts=tuple(parts))

    def _item(self, c: str, depth: int) -> _Node:
        if c == '"':
            return self._literal()
        if c == "[":
            return self._class()
        if self._take("."):
            return _Node("chars", "/(?s:.)/")
        if self._take("("):
            self._skip(_LINES)
            node = self._alternatives(depth + 1)
            if not self._take(")"):
                self._fail("expected )")
            return node
        if found := _TOKEN.match(self._s, self._at):
            self._at = found.end()
            return _Node("token", found[0])
        if not _NAME.match(self._s, self._at):
            self._fail("expected a literal, a class, a group or a rule's name")
        return _Node("ref", self._name())

    def _repeat(self, node: _Node) -> _Node | None:
        for sign, low, high in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self._take(sign):
                return _Node("repeat", parts=(node,), low=low, high=high)
        if self._next() != "{":
            return None
        found = _COUNT.match(self._s, self._at)
        if found is None:
            self._fail("expected {m}, {m,} or {m,n}")
        low = int(found[1])
        upto = low if found[2] is None else int(found[3]) if found[3] else None
        if upto is not None and upto < low:
            self._fail("expected a count that is not below the first")
        self._at = found.end()
        return _Node("repeat", parts=(node,), low=low, high=upto)

    def _char(self) -> str:
        c = self._next()
        if not c:
            self._fail("expected a closing quote or bracket")
        self._at += 1
        if c != "\\":
            return c
        c = self._next()
        self._at += 1
        if c in _HEX:
            digits = self._s[self._at : self._at + _HEX[c]]
            if len(digits) < _HEX[c] or not re.fullmatch("[0-9A-Fa-f]+", digits):
                self._fail(f"expected {_HEX[c]} hexadecimal digits")
            self._at += len(digits)
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code < 0xE000:
                self._fail("expected a character's number")
            return chr(code)
        if not c or c not in 'nrt"\\[]-^':
            self._at -= 1
            self._fail("unknown escape")
        return _ESCAPES.get(c, c)

    def _literal(self) -> _Node:
        self._at += 1
        text = ""
        while self._next() != '"':
            text += self._char()
        self._at += 1
        return _Node("chars", json.dumps(text, ensure_ascii=False))

    def _class(self) -> _Node:
        self._at += 1
        sign = "^" if self._take("^") else ""
        ranges = ""
        while self._next() != "]":
            first = last = self._char()
            if self._next() == "-" and self._s[self._at + 1 : self._at + 2] not in ("", "]"):
                self._at += 1
                last = self._char()
                if last < first:
                    self._fail("expected a range that goes up")
            ranges += rf"\u{{{ord(first):x}}}-\u{{{ord(last):x}}}"
        self._at += 1
        if not ranges:
            if not sign:
                self._fail("expected a character in []")
            return _Node("chars", "/(?s:.)/")
        return _Node("chars", f"/[{sign}{ranges}]/")


class _Writer:
    def __init__(self, rules: dict[str, _Node], param: str) -> None:
        self._rules, self._param = rules, param
        self._sizes: dict[str, int] = {}
        if "root" not in rules:
            self._fail("there is no rule 'root'")
        self._check()
        self._regular = self._find_regular()
        self._extra: list[str] = []

    def _fail(self, what: str) -> NoReturn:
        raise RequestError(f"{self._param}: GBNF: {what}", param=self._param)

    def _check(self) -> None:
        for name, rule in self._rules.items():
            for ref in _refs(rule):
                if ref not in self._rules:
                    self._fail(f"the rule {name} names {ref}, which is not there")

    def _find_regular(self) -> list[str]:
        """Rules without recursion or tokens, each behind those it names."""
        found: dict[str, None] = {}
        left = {n: set(_refs(r)) for n, r in self._rules.items() if not _has_token(r)}
        while ready := [n for n, refs in left.items() if refs <= found.keys()]:
            for n in ready:
                found[n] = None
                del left[n]
                self._sizes[n] = self._size(self._rules[n])
        return list(found)

    def _size(self, node: _Node) -> int:
        """Characters of a regular node, its repetitions written out."""
        if node.kind == "ref":
            return self._sizes[node.text]
        size = sum(map(self._size, node.parts)) if node.parts else len(node.text)
        size *= max(1, node.low, node.high or 1)
        if size > 8 * MAX_PATTERN:
            self._fail(f"a rule repeats too much: more than {MAX_PATTERN} positions")
        return size

    def lark(self) -> str:
        lines = ["%llguidance {}", f"start: {self._name('root')}"]
        for name, rule in self._rules.items():
            terminal = name in self._regular
            body = self._text(rule, self._name) if terminal else self._rule(rule)
            lines.append(f"{self._name(name)}: {body}")
        return "\n".join(lines + self._extra) + "\n"

    def _name(self, rule: str) -> str:
        i = list(self._rules).index(rule)
        text = re.sub(r"\W", "_", rule, flags=re.ASCII)
        return f"{text.upper()}_{i}" if rule in self._regular else f"{text.lower()}_{i}"

    def _is_regular(self, node: _Node) -> bool:
        if node.kind == "ref":
            return node.text in self._regular
        return node.kind != "token" and all(map(self._is_regular, node.parts))

    def _rule(self, node: _Node) -> str:
        """A rule's body: what is regular in it, in a row, becomes one terminal."""
        if self._is_regular(node):
            return self._terminal(node)
        if node.kind == "seq":
            out, run = [], list[_Node]()
            for part in (*node.parts, None):
                if part is not None and self._is_regular(part):
                    run.append(part)
                    continue
                if run:
                    out.append(self._terminal(_Node("seq", parts=tuple(run))))
                run = []
                if part is not None:
                    out.append(self._rule(part))
            return " ".join(out)
        if node.kind == "alt":
            return "(" + " | ".join(map(self._rule, node.parts)) + ")"
        if node.kind == "repeat":
            return f"({self._rule(node.parts[0])}){_times(node)}"
        return self._name(node.text) if node.kind == "ref" else node.text

    def _terminal(self, node: _Node) -> str:
        while node.kind == "seq" and len(node.parts) == 1:
            node = node.parts[0]
        if node.kind == "ref" or (node.kind == "chars"):
            return self._name(node.text) if node.kind == "ref" else node.text
        self._size(node)
        name = f"PART_{len(self._extra)}"
        self._extra.append(f"{name}: {self._text(node, self._name)}")
        return name

    def _text(self, node: _Node, name: Callable[[str], str]) -> str:
        if node.kind == "ref":
            return name(node.text)
        if node.kind == "seq":
            return " ".join(self._text(p, name) for p in node.parts) or '""'
        if node.kind == "alt":
            return "(" + " | ".join(self._text(p, name) for p in node.parts) + ")"
        if node.kind == "repeat":
            return f"({self._text(node.parts[0], name)}){_times(node)}"
        return node.text


def _times(node: _Node) -> str:
    known = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    high = "" if node.high is None else str(node.high)
    return known.get((node.low, node.high)) or f"{{{node.low},{high}}}"


def _refs(node: _Node) -> list[str]:
    own = [node.text] if node.kind == "ref" else []
    return own + [r for p in node.parts for r in _refs(p)]


def _has_token(node: _Node) -> bool:
    return node.kind == "token" or any(map(_has_token, node.parts))
