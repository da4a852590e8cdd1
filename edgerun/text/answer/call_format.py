"""What every format of tool calls has, and the formats that write arguments as JSON."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from edgerun.text.answer.json_text import json_string, json_value
from edgerun.text.answer.pieces import Out
from edgerun.text.answer.source import Malformed, Marks, Source, Steps
from edgerun.text.answer.tools import Tools

__all__ = ["MAX_NAME", "CallFormat", "Either", "JsonCalls", "NamedCalls", "skip_any"]

MAX_NAME = 256
_NAME_KEYS = ("name", "tool_name", "function_name")
_ARGUMENT_KEYS = ("arguments", "parameters", "args")
_BETWEEN = re.compile(r"[\s,;]+")
_FENCES = ("```json", "```")


class CallFormat(ABC):
    """How a family of models writes calls.

    Attributes:
        name: what tests and logs call it.
        marks: literal texts a call begins with, wherever in the answer.
        bare: texts a call begins with where it is the answer's first.
        tokens: further texts of the format that may be control tokens, which do not show in text
            unless asked for.
    """

    name: str
    marks: tuple[str, ...] = ()
    bare: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()

    @abstractmethod
    def read(self, s: Source, out: Out, tools: Tools, mark: str) -> Steps[None]:
        """Read the calls that follow ``mark``, which has been read (a bare one has not).

        Each complete one is committed, and the place after it held.

        Raises:
            Malformed: from the held place on it is no call.
        """

    @property
    def texts(self) -> tuple[str, ...]:
        """All markup that may be control tokens."""
        return (*self.marks, *self.tokens)


def skip_any(s: Source, texts: Sequence[str]) -> Steps[None]:
    """Read white space and ``texts``, as often as they come."""
    while True:
        yield from s.spaces()
        if not texts or (yield from s.literal(*texts)) is None:
            return


def done(s: Source, out: Out) -> None:
    """A call is complete."""
    out.commit()
    s.hold()


def call_after_call(
    s: Source,
    out: Out,
    opened: bool,
    opens: Sequence[str],
    closers: Sequence[str],
    call: Callable[[], Steps[None]],
) -> Steps[None]:
    """Read what ``call`` reads, and again behind each further one of ``opens``; ``opened`` if the
    first was read already. ``closers`` may come at the end.

    Raises:
        Malformed: there was none.
    """
    before = out.calls
    while True:
        if not opened:
            yield from s.spaces()
            if (yield from s.literal(*opens)) is None:
                break
        opened = False
        yield from call()
        done(s, out)
    if out.calls == before:
        raise Malformed
    if closers:
        yield from skip_any(s, closers)


class JsonCalls(CallFormat):
    """JSON objects that hold a name and arguments, alone, in a row, or in a list."""

    def __init__(
        self,
        name: str,
        marks: Sequence[str] = (),
        closers: Sequence[str] = (),
        *,
        bare: Sequence[str] = (),
        keyed: bool = False,
    ) -> None:
        """
        Args:
            closers: what may come after the calls.
            keyed: objects are ``{name: arguments}``.
        """
        self.name = name
        self.marks, self.bare, self.tokens = tuple(marks), tuple(bare), tuple(closers)
        self._closers = tuple(closers)
        self._keyed = keyed

    def read(self, s: Source, out: Out, tools: Tools, mark: str) -> Steps[None]:
        yield from s.spaces()
        fenced = (yield from s.literal(*_FENCES)) is not None
        yield from s.spaces()
        in_list = (yield from s.literal("[")) is not None
        before = out.calls
        while True:
            yield from s.run(_BETWEEN)
            if (yield from s.peek()) != "{":
                break
            yield from read_object(s, out, tools, keyed=self._keyed)
            done(s, out)
        if out.calls == before:
            raise Malformed
        yield from skip_any(s, (("]",) if in_list else ()) + (_FENCES[1:] if fenced else ()))
        if self._closers:
            yield from skip_any(s, self._closers)


def read_object(s: Source, out: Out, tools: Tools, *, keyed: bool = False) -> Steps[None]:
    """Read one call as a JSON object.

    Raises:
        Malformed: it is none, or its name is not among the tools.
    """
    call = _Object(out, tools, keyed)
    yield from call.read(s)
    call.close()


class _Object:
    """One call's name and arguments, in the order they come."""

    def __init__(self, out: Out, tools: Tools, keyed: bool) -> None:
        self._out, self._tools, self._keyed = out, tools, keyed
        self._name: str | None = None
        self._begun = False
        self._early: list[str] = []  # arguments that came before the name

    def read(self, s: Source, nested: bool = False) -> Steps[None]:
        yield from s.expect("{")
        while True:
            yield from s.spaces()
            if (yield from s.literal("}")):
                return
            key = yield from json_string(s)
            yield from s.spaces()
            yield from s.expect(":")
            yield from s.spaces()
            yield from self._field(s, key, nested)
            yield from s.spaces()
            if (yield from s.expect(",", "}")) == "}":
                return

    def _field(self, s: Source, key: str, nested: bool) -> Steps[None]:
        if self._keyed:
            self._named(key)
            yield from self._arguments(s)
        elif key == "function" and not nested and (yield from s.peek()) == "{":
            yield from self.read(s, nested=True)
        elif key in (*_NAME_KEYS, "function") and self._name is None:
            self._named((yield from json_string(s)))
        elif key in _ARGUMENT_KEYS and not self._begun and not self._early:
            yield from self._arguments(s)
        else:
            yield from json_value(s, lambda _: None)

    def _named(self, name: str) -> None:
        self._name = self._tools.known(name)
        if self._name is None:
            raise Malformed

    def _arguments(self, s: Source) -> Steps[None]:
        sink = self._early.append
        if self._name is not None:
            self._out.begin(self._name)
            self._begun = True
            sink = self._out.arguments
        yield from read_arguments(s, sink)

    def close(self) -> None:
        if self._name is None:
            raise Malformed
        if not self._begun:
            self._out.begin(self._name)
            self._out.arguments("".join(self._early) or "{}")


def read_arguments(s: Source, sink: Callable[[str], None]) -> Steps[None]:
    """Read arguments: an object, one that is written as JSON text, or null for none."""
    first = yield from s.peek()
    if first == '"':
        text = yield from json_string(s)
        inner = Source()
        inner.add(text)
        inner.end()
        yield from inner.spaces()
        if (yield from inner.peek()):
            yield from json_value(inner, sink, "{")
        else:
            sink("{}")
    elif first == "n":
        yield from s.expect("null")
        sink("{}")
    else:
        yield from json_value(s, sink, "{")


class NamedCalls(CallFormat):
    """A name between marks, then arguments as JSON."""

    def __init__(
        self,
        name: str,
        *,
        outer: Sequence[str] = (),
        opens: Sequence[str],
        seps: Sequence[str],
        ends: Sequence[str] = (),
        closers: Sequence[str] = (),
        clean: Callable[[str], str] = str.strip,
        bare: bool = False,
    ) -> None:
        """
        Args:
            outer, closers: what may stand around all calls.
            opens, ends: what stands around each call; ``ends`` may be missing.
            seps: what ends a name.
            clean: from the text before a sep to the function's name.
            bare: the prompt already holds the first of ``opens``.
        """
        self.name = name
        self.marks = (*outer, *opens)
        self.tokens = (*(t for t in (*seps, *ends, *closers) if t.strip()),)
        self.bare = ("",) if bare else ()
        self._opens, self._seps = tuple(opens), Marks(seps)
        self._ends, self._closers, self._clean = tuple(ends), tuple(closers), clean

    def read(self, s: Source, out: Out, tools: Tools, mark: str) -> Steps[None]:
        opened = mark in self._opens or not mark
        call = partial(self._call, s, out, tools)
        yield from call_after_call(s, out, opened, self._opens, self._closers, call)

    def _call(self, s: Source, out: Out, tools: Tools) -> Steps[None]:
        head, _ = yield from s.before(self._seps, MAX_NAME)
        name = tools.known(self._clean(head))
        fence: str | None = None
        if name is None:
            # DeepSeek R1: the kind of tool, a line with its name, and arguments in a fence.
            line, _ = yield from s.before(_LINE, MAX_NAME)
            name = tools.known(line)
        if name is None:
            raise Malformed
        yield from s.spaces()
        fence = yield from s.literal(*_FENCES)
        yield from s.spaces()
        out.begin(name)
        yield from json_value(s, out.arguments, "{")
        if fence:
            yield from skip_any(s, _FENCES[1:])
        if self._ends:
            yield from s.spaces()
            yield from s.literal(*self._ends)


class Either(CallFormat):
    """Two formats of one family: the first where ``first`` characters come next."""

    def __init__(self, name: str, first: str, a: CallFormat, b: CallFormat) -> None:
        self.name = name
        self.marks = tuple(dict.fromkeys((*a.marks, *b.marks)))
        self.bare = tuple(dict.fromkeys((*a.bare, *b.bare)))
        self.tokens = (*a.tokens, *b.tokens)
        self._first, self._a, self._b = first, a, b

    def read(self, s: Source, out: Out, tools: Tools, mark: str) -> Steps[None]:
        only_b = mark in self._b.marks and mark not in self._a.marks
        if not only_b:
            yield from s.spaces()
            c = yield from s.peek()
            only_b = not c or c not in self._first
        yield from (self._b if only_b else self._a).read(s, out, tools, mark)


_LINE = Marks(["\n"])


def plain_json(text: str) -> str:
    """``text`` as JSON, as short as it gets; for arguments put together here."""
    return json.dumps(text, ensure_ascii=False)
