"""Random JSON Schemas of what grammars can enforce."""

from __future__ import annotations

import random
from typing import Any

__all__ = ["random_schema"]

_WORDS = ("a", "b", "name", "größe", "x/y", 'q"t', "😀", "two words", "tab\t", "")
_PATTERNS = (r"\S", r"^\d+$", "^[a-f]{2,4}$", "(ab|cd)+", r"^\w{1,3}-\d$", "x.*y", "^$|^z")


def random_schema(rng: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema nested at most ``depth`` deep."""
    makers = [_string, _number, _enum, _simple]
    if depth > 0:
        makers += [_object, _object, _array, _any_of, _one_of, _all_of, _ref]
    schema = rng.choice(makers)(rng, depth - 1)
    if rng.random() < 0.1:
        schema |= {"title": "t", "description": "d", "x-unknown": [1], "default": None}
    return schema


def _string(rng: random.Random, _: int) -> dict[str, Any]:
    s: dict[str, Any] = {"type": "string"}
    kind = rng.randrange(4)
    if kind == 0:
        s["maxLength"] = rng.randrange(0, 9)
        s["minLength"] = rng.randrange(0, s["maxLength"] + 1)
    elif kind == 1:
        s |= {"pattern": rng.choice(_PATTERNS)}
    elif kind == 2:
        s["format"] = rng.choice(("ipv4", "uuid", "date-time", "time", "email"))
    return s


def _number(rng: random.Random, _: int) -> dict[str, Any]:
    s: dict[str, Any] = {"type": rng.choice(("integer", "number"))}
    low = rng.randrange(-300, 300)
    if rng.random() < 0.7:
        s[rng.choice(("minimum", "exclusiveMinimum"))] = low
    if rng.random() < 0.7:
        s[rng.choice(("maximum", "exclusiveMaximum"))] = low + rng.choice((2, 10, 1000, 2.5))
    if rng.random() < 0.3:
        s = {"type": s["type"], "multipleOf": rng.choice((1, 3, 7, 10, 0.5, 0.25, 100))}
    if rng.random() < 0.1:
        s = {"type": "integer", "format": rng.choice(("int32", "uint8", "int64", "uint64"))}
    return s


def _enum(rng: random.Random, _: int) -> dict[str, Any]:
    values = [
        *_WORDS,
        0,
        -1,
        1.5,
        1e-7,
        1e20,
        12345678901,
        True,
        False,
        None,
        [1, ["a"]],
        {"k": []},
    ]
    if rng.random() < 0.3:
        return {"const": rng.choice(values)}
    return {"enum": rng.sample(values, rng.randrange(1, 5))}


def _simple(rng: random.Random, _: int) -> dict[str, Any]:
    types = rng.sample(("null", "boolean", "integer", "string"), rng.randrange(1, 3))
    return {"type": types if len(types) > 1 or rng.random() < 0.5 else types[0], "maxLength": 5}


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(_WORDS, rng.randrange(0, 4))
    s: dict[str, Any] = {
        "type": "object",
        "properties": {n: random_schema(rng, depth) for n in names},
        "required": [n for n in names if rng.random() < 0.6],
    }
    kind = rng.randrange(5)
    if kind == 0:
        s["additionalProperties"] = random_schema(rng, 0)
        if len(s["required"]) == len(names):
            s["maxProperties"] = len(names) + rng.randrange(0, 3)
            s["minProperties"] = min(s["maxProperties"], len(names) + rng.randrange(0, 2))
    elif kind == 1:
        s["patternProperties"] = {"^p": random_schema(rng, 0)}
        s["additionalProperties"] = rng.random() < 0.5
    else:
        s["additionalProperties"] = False
    return s


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    s: dict[str, Any] = {"type": "array", "items": random_schema(rng, depth)}
    s["maxItems"] = rng.randrange(0, 4)
    s["minItems"] = rng.randrange(0, s["maxItems"] + 1)
    if rng.random() < 0.3:
        s["prefixItems"] = [random_schema(rng, depth) for _ in range(rng.randrange(1, 3))]
        s["items"] = rng.choice((s["items"], False, True))
        s.pop("maxItems") if s["items"] is not True else None
        s["minItems"] = min(s["minItems"], len(s["prefixItems"]))
    return s


def _any_of(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(rng, depth) for _ in range(rng.randrange(1, 4))]}


def _one_of(rng: random.Random, depth: int) -> dict[str, Any]:
    options = []
    for kind in rng.sample(("cat", "dog", "fish"), rng.randrange(1, 4)):
        s = _object(rng, depth)
        s["properties"] = {"kind": {"const": kind}, **s["properties"]}
        s["required"].append("kind")
        for key in ("minProperties", "maxProperties"):
            s.pop(key, None)
        options.append(s)
    return {"oneOf": [*options, {"type": "null"}]}


def _all_of(rng: random.Random, depth: int) -> dict[str, Any]:
    a, b = _object(rng, depth), _object(rng, depth)
    for s in (a, b):
        for key in ("minProperties", "maxProperties", "patternProperties"):
            s.pop(key, None)
        s["additionalProperties"] = {"type": ["integer", "null"]}
        s["properties"] = {k: v for k, v in s["properties"].items() if rng.random() < 0.7}
        s["required"] = [n for n in s["required"] if n in s["properties"]]
    return {"allOf": [a, b]}


def _ref(rng: random.Random, depth: int) -> dict[str, Any]:
    node = {
        "type": "object",
        "properties": {"v": random_schema(rng, 0), "next": {"$ref": "#/$defs/a~1b"}},
        "required": ["v"],
        "additionalProperties": False,
    }
    return {"$ref": "#/$defs/a~1b", "$defs": {"a/b": node}}
