"""Gemma's own notation: ``call:get_weather{city:<|"|>Rome<|"|>,days:3}``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from edgerun.text.answer.call_format import MAX_NAME, CallFormat, done
from edgerun.text.answer.pieces import Out
from edgerun.text.answer.source import Malformed, Marks, Source, Steps
from edgerun.text.answer.tools import Tools

__all__ = ["GemmaCalls"]

_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORDS = {"true": "true", "false": "false", "null": "null", "None": "null"}
_MAX_DEPTH = 64


class GemmaCalls(CallFormat):
    """Objects with bare keys; strings stand between marks of their own, so nothing is escaped."""

    def __init__(self, name: str, mark: str, quote: str, end: str) -> None:
        self.name = name
        self.marks, self.tokens = (mark,), (quote, end)
        self._quote, self._end = quote, end
        self._quotes = Marks([quote])

    def read(self, s: Source, out: Out, tools: Tools, mark: str) -> Steps[None]:
        while True:
            yield from s.spaces()
            yield from s.expect("call:")
            head, _ = yield from s.before(_BRACE, MAX_NAME)
            name = tools.known(head)
            if name is None:
                raise Malformed
            out.begin(name)
            yield from self._object(s, out.arguments, 0)
            yield from s.spaces()
            yield from s.literal(self._end)
            done(s, out)
            yield from s.spaces()
            if (yield from s.literal(*self.marks)) is None:
                return

    def _object(self, s: Source, sink: Callable[[str], None], depth: int) -> Steps[None]:
        """The rest of an object whose brace was read."""
        sink("{")
        first = True
        while True:
            yield from s.spaces()
            if (yield from s.literal("}")):
                sink("}")
                return
            if not first:
                yield from s.expect(",")
                yield from s.spaces()
            sink("" if first else ", ")
            first = False
            key = ""
            if (yield from s.literal(self._quote)):
                key, _ = yield from s.before(self._quotes)
                yield from s.expect(":")
            else:
                key, _ = yield from s.before(_COLON, MAX_NAME)
            sink(json.dumps(key.strip(), ensure_ascii=False) + ": ")
            yield from s.spaces()
            yield from self._value(s, sink, depth + 1)

    def _value(self, s: Source, sink: Callable[[str], None], depth: int) -> Steps[None]:
        if depth > _MAX_DEPTH:
            raise Malformed
        if (yield from s.literal(self._quote)):
            sink('"')
            found = yield from s.until(
                self._quotes, lambda t: sink(json.dumps(t, ensure_ascii=False)[1:-1])
            )
            if found is None:
                raise Malformed
            sink('"')
        elif (yield from s.literal("{")):
            yield from self._object(s, sink, depth)
        elif (yield from s.literal("[")):
            yield from self._list(s, sink, depth)
        else:
            word = yield from s.run(_WORD, MAX_NAME)
            if word not in _WORDS and not _NUMBER.fullmatch(word):
                raise Malformed
            sink(_WORDS.get(word, word))

    def _list(self, s: Source, sink: Callable[[str], None], depth: int) -> Steps[None]:
        sink("[")
        first = True
        while True:
            yield from s.spaces()
            if (yield from s.literal("]")):
                sink("]")
                return
            if not first:
                yield from s.expect(",")
                sink(", ")
                yield from s.spaces()
            first = False
            yield from self._value(s, sink, depth + 1)


_BRACE, _COLON = Marks(["{"]), Marks([":"])
