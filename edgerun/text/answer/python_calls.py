"""Calls written as Python: ``[get_weather(city="Rome", days=3)]``."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from typing import Any

from edgerun.text.answer.call_format import CallFormat, done
from edgerun.text.answer.pieces import Out
from edgerun.text.answer.source import Malformed, Marks, Source, Steps
from edgerun.text.answer.tools import Tools

__all__ = ["PythonCalls"]

_MAX_CHARS = 1 << 20
_MAX_DEPTH = 64
_WORDS = {"true": True, "false": False, "null": None}


class PythonCalls(CallFormat):
    """A call, or a list of calls, with keyword arguments that are literals."""

    def __init__(self, name: str, marks: Sequence[str], closers: Sequence[str]) -> None:
        self.name = name
        self.marks, self.tokens = tuple(marks), tuple(closers)
        self._ends = Marks(closers)

    def read(self, s: Source, out: Out, tools: Tools, mark: str) -> Steps[None]:
        parts: list[str] = []
        # The end of the answer closes a block, too.
        yield from s.until(self._ends, parts.append)
        for name, arguments in _calls("".join(parts).strip(), tools):
            out.begin(name)
            out.arguments(arguments)
        done(s, out)


def _calls(text: str, tools: Tools) -> list[tuple[str, str]]:
    """Names and arguments as JSON.

    Raises:
        Malformed: it is anything but calls of ``tools`` with literals.
    """
    found = []
    for node in _parsed(text):
        if not isinstance(node, ast.Call):
            raise Malformed
        name = tools.known(ast.unparse(node.func))
        if name is None or any(k.arg is None for k in node.keywords):
            raise Malformed
        properties = (tools.parameters.get(name) or {}).get("properties") or {}
        keys = [k for k in properties if isinstance(k, str)]
        if len(node.args) > len(keys):
            raise Malformed
        pairs = [*zip(keys, node.args, strict=False)]
        pairs += [(k.arg, k.value) for k in node.keywords if k.arg is not None]
        values = {key: _literal(value, 0) for key, value in pairs}
        try:
            found.append((name, json.dumps(values, ensure_ascii=False, allow_nan=False)))
        except ValueError:
            raise Malformed from None
    if not found:
        raise Malformed
    return found


def _parsed(text: str) -> list[ast.expr]:
    """The expressions in ``text``, those of lists one by one."""
    # A stranger's text: the parser must not meet what is huge or nested without end.
    depth = deepest = 0
    for c in text:
        depth += (c in "([{") - (c in ")]}")
        deepest = max(deepest, depth)
    if len(text) > _MAX_CHARS or deepest > _MAX_DEPTH:
        raise Malformed
    try:
        body = ast.parse(text, mode="exec").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise Malformed from None
    found: list[ast.expr] = []
    for statement in body:
        if not isinstance(statement, ast.Expr):
            raise Malformed
        value = statement.value
        found += value.elts if isinstance(value, (ast.List, ast.Tuple)) else [value]
    return found


def _literal(node: ast.expr, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise Malformed
    if isinstance(node, ast.Constant) and (
        node.value is None or isinstance(node.value, (str, int, float))
    ):
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        value = _literal(node.operand, depth + 1)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(x, depth + 1) for x in node.elts]
    if isinstance(node, ast.Dict):
        keys = [k.value if isinstance(k, ast.Constant) else None for k in node.keys]
        if all(isinstance(k, str) for k in keys):
            return {k: _literal(v, depth + 1) for k, v in zip(keys, node.values, strict=True)}
    raise Malformed
