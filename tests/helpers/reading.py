"""What a reader makes of an answer, joined, for comparisons."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from edgerun.text.answer.pieces import Piece
from edgerun.text.answer.reader import AnswerReader, AnswerShape

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}


def tool(name: str, parameters: Any = WEATHER) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": "what it does", "parameters": parameters},
    }


TOOLS = [tool("get_weather"), tool("get_time")]


class Answer(NamedTuple):
    """Arguments are parsed."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, Any], ...] = ()


def joined(pieces: Iterable[Piece]) -> Answer:
    """All of ``pieces``; checks that they are told apart as a stream must."""
    text, reasoning = "", ""
    names: list[str] = []
    arguments: list[str] = []
    ids = set()
    for p in pieces:
        assert (p.text != "") + (p.reasoning != "") + (p.call is not None) == 1
        text += p.text
        reasoning += p.reasoning
        if p.call is None:
            continue
        if p.call.id is not None:
            assert p.call.index == len(names)
            assert p.call.name is not None
            assert p.call.id.startswith("call_")
            ids.add(p.call.id)
            names.append(p.call.name)
            arguments.append("")
        else:
            assert p.call.name is None
            assert p.call.index == len(names) - 1
        arguments[p.call.index] += p.call.arguments
    assert len(ids) == len(names)
    calls = tuple((n, json.loads(a)) for n, a in zip(names, arguments, strict=True))
    return Answer(text, reasoning, calls)


def read(shape: AnswerShape, parts: Sequence[str]) -> Answer:
    reader = AnswerReader(shape)
    pieces = [p for part in parts for p in reader.feed(part)] + reader.finish()
    answer = joined(pieces)
    assert reader.calls == len(answer.calls) or shape.most_calls is not None
    return answer


def cuts(text: str, rng: random.Random, n: int = 5, *, every: bool = False) -> Iterator[list[str]]:
    """Single characters, ``n`` random ways, and with ``every`` all ways to cut ``text`` in two."""
    if every:
        yield from ([text[:i], text[i:]] for i in range(1, len(text)))
    yield list(text)
    for _ in range(n):
        parts, at = [], 0
        while at < len(text):
            step = rng.choice((1, 1, 2, 3, 5, 8, 21))
            parts.append(text[at : at + step])
            at += step
        yield parts
