"""JSON as models write it, read while it comes and passed on as JSON that parses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from edgerun.text.answer.source import Malformed, Source, Steps

__all__ = ["json_string", "json_value"]

Sink = Callable[[str], None]

_SPACE = re.compile(r"[ \t\r\n]+")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = re.compile(r"[0-9a-fA-F]")
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_MAX_DEPTH = 64
_MAX_WORD = 400


def json_value(s: Source, sink: Sink, kind: str = "") -> Steps[None]:
    """Read one JSON value and pass it on piece by piece.

    What ``sink`` gets joins to strict JSON: raw control characters in strings, and backslashes
    that escape nothing, which models write now and then, are escaped.

    Args:
        kind: the character it must start with, such as "{"; "" = any value.

    Raises:
        Malformed: it is no JSON, is nested more than 64 deep, or the text ends inside it.
    """
    if kind and (yield from s.peek()) != kind:
        raise Malformed
    closers: list[str] = []
    want = "value"
    while True:
        c = yield from s.peek()
        if not c:
            raise Malformed
        if c in " \t\r\n":
            sink((yield from s.run(_SPACE)))
            continue
        if want == "colon":
            sink((yield from s.expect(":")))
            want = "value"
        elif want == "next":
            if c == closers[-1]:
                sink(s.skip())
                closers.pop()
            elif c == ",":
                sink(s.skip())
                want = "key" if closers[-1] == "}" else "value"
        elif want in ("key", "key or end"):
            if c == "}" and want == "key or end":
                sink(s.skip())
                closers.pop()
                want = "next"
            elif c == '"':
                yield from _string(s, sink)
                want = "colon"
            else:
                raise Malformed
        elif c == "]" and want == "value or end":
            sink(s.skip())
            closers.pop()
            want = "next"
        else:
            want = yield from _value(s, sink, c, closers)
        if want == "next":
            if not closers:
                return
            c = yield from _next(s, sink)
            if c not in (",", closers[-1]):
                raise Malformed


def _next(s: Source, sink: Sink) -> Steps[str]:
    space = yield from s.run(_SPACE)
    if space:
        sink(space)
    c = yield from s.peek()
    return c


def _value(s: Source, sink: Sink, c: str, closers: list[str]) -> Steps[str]:
    """Read a scalar, or the start of an object or list; what is wanted then."""
    if c in "{[":
        if len(closers) >= _MAX_DEPTH:
            raise Malformed
        closers.append("}" if c == "{" else "]")
        sink(s.skip())
        return "key or end" if c == "{" else "value or end"
    if c == '"':
        yield from _string(s, sink)
        return "next"
    word = yield from s.run(_WORD, _MAX_WORD)
    if not _SCALAR.fullmatch(word):
        raise Malformed
    sink(word)
    return "next"


def _string(s: Source, sink: Sink) -> Steps[None]:
    sink(s.skip())
    while True:
        c = yield from s.peek()
        if not c:
            raise Malformed
        if c == '"':
            sink(s.skip())
            return
        if c == "\\":
            s.skip()
            yield from _escape(s, sink)
        elif c < " ":
            sink(json.dumps(s.skip())[1:-1])
        else:
            sink(s.rest_of(_PLAIN))


def _escape(s: Source, sink: Sink) -> Steps[None]:
    c = yield from s.peek()
    if c == "u":
        s.skip()
        digits = ""
        while len(digits) < 4:
            d = yield from s.peek()
            if not d:
                raise Malformed
            if not _HEX.match(d):
                break
            digits += s.skip()
        sink(("\\u" if len(digits) == 4 else "\\\\u") + digits)
    elif c and c in '"\\/bfnrt':
        sink("\\" + s.skip())
    elif c:
        sink("\\\\")  # the character itself comes as any other
    else:
        raise Malformed


def json_string(s: Source) -> Steps[str]:
    """Read a JSON string and return what it spells.

    Raises:
        Malformed: it is none.
    """
    parts: list[str] = []
    yield from json_value(s, parts.append, '"')
    text: str = json.loads("".join(parts))
    return text
