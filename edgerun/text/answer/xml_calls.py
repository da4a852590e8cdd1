"""Formats that write each parameter between tags of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from edgerun.text.answer.call_format import MAX_NAME, CallFormat, call_after_call
from edgerun.text.answer.json_text import json_value
from edgerun.text.answer.pieces import Out
from edgerun.text.answer.source import Malformed, Marks, Source, Steps
from edgerun.text.answer.tools import Tools, as_json

__all__ = ["Tags", "XmlCalls"]


class Tags(NamedTuple):
    """The markup of one such format.

    Attributes:
        outer, closers: what may stand around all calls.
        call, call_end: what stands around a call.
        name_end: what ends its name; where one of them is ``param`` or ``call_end`` it counts as
            that, too.
        param, key_end: what stands around a parameter's name; attributes may follow it.
        value: what comes between the name and the value, but white space.
        value_end: what ends the value.
        newlines: a value has a newline before and after it that are not part of it.
    """

    outer: Sequence[str]
    closers: Sequence[str]
    call: str
    name_end: Sequence[str]
    param: str
    key_end: str
    value_end: str
    call_end: str
    value: str = ""
    newlines: bool = False


class XmlCalls(CallFormat):
    """Calls of tags; a parameter is JSON or bare text, as the tool's schema says."""

    def __init__(self, name: str, tags: Tags) -> None:
        t = self.tags = tags
        self.name = name
        # An outer tag may be missing, but not one that is part of the call's own.
        self.marks = tuple(dict.fromkeys([*t.outer, t.call]))
        all_ = (*t.closers, *t.name_end, t.param, t.key_end, t.value, t.value_end, t.call_end)
        self.tokens = tuple(x for x in all_ if "<" in x)
        self._name_end = Marks(t.name_end)
        self._key_end = Marks([t.key_end])
        ends = [t.value_end, "\n" + t.param, "\n" + t.call_end]
        self._value_end = Marks([*ends, "\n" + t.value_end] if t.newlines else [t.value_end])

    def read(self, s: Source, out: Out, tools: Tools, mark: str) -> Steps[None]:
        t = self.tags
        call = partial(self._call, s, out, tools)
        yield from call_after_call(s, out, mark == t.call, (t.call,), t.closers, call)

    def _call(self, s: Source, out: Out, tools: Tools) -> Steps[None]:
        t = self.tags
        head, mark = yield from s.before(self._name_end, MAX_NAME)
        name = tools.known(_unquoted(head)[0])
        if name is None:
            raise Malformed
        out.begin(name)
        out.arguments("{")
        first = True
        while mark != t.call_end:
            if mark != t.param:
                yield from s.spaces()
                mark = yield from s.expect(t.param, t.call_end)
                continue
            out.arguments("" if first else ", ")
            first = False
            mark = yield from self._parameter(s, out, tools, name)
        out.arguments("}")

    def _parameter(self, s: Source, out: Out, tools: Tools, name: str) -> Steps[str]:
        """Read a parameter's name and value; the mark that ended it."""
        t = self.tags
        head, _ = yield from s.before(self._key_end, MAX_NAME)
        key, attributes = _unquoted(head)
        out.arguments(json.dumps(key, ensure_ascii=False) + ": ")
        if t.value:
            yield from s.spaces()
            yield from s.expect(t.value)
        if t.newlines:
            yield from s.literal("\n")
        schema = tools.schema_of(name, key)
        if 'string="true"' in attributes:
            schema = {"type": "string"}
        if isinstance(schema, dict) and schema.get("type") == "string":
            out.arguments('"')
            mark = yield from s.until(self._value_end, _quoted(out.arguments))
            out.arguments('"')
        else:
            parts: list[str] = []
            mark = yield from s.until(self._value_end, parts.append)
            while mark is not None and _unfinished("".join(parts)):
                parts.append(mark)  # markup inside a string of JSON
                mark = yield from s.until(self._value_end, parts.append)
            if mark is not None:
                out.arguments(as_json("".join(parts), schema))
        if mark is None:
            raise Malformed
        mark = mark.removeprefix("\n") if t.newlines else mark
        return "" if mark == t.value_end else mark


def _unfinished(raw: str) -> bool:
    """Whether ``raw`` is the beginning of a JSON object or list, and not all of it."""
    s = Source()
    s.add(raw.lstrip())
    try:
        return raw.lstrip()[:1] in ("{", "[") and next(json_value(s, lambda _: None), 0) is None
    except Malformed:
        return False


def _unquoted(head: str) -> tuple[str, str]:
    """A name, in quotes or not, and the attributes after it."""
    head = head.strip()
    if not head.startswith('"'):
        return head, ""
    name, _, attributes = head[1:].partition('"')
    return name, attributes


def _quoted(sink: Callable[[str], None]) -> Callable[[str], None]:
    return lambda text: sink(json.dumps(text, ensure_ascii=False)[1:-1])
