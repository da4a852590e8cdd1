"""Whether two JSON Schemas can be proved to share no value: then ``oneOf`` is ``anyOf``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["apart", "json_equal"]

_DEPTH = 6
_TYPES = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))

#: A local reference -> what it points to, or None.
Resolve = Callable[[str], Any]
Schema = Mapping[str, Any]


def json_equal(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 is 1.0 but not true."""
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(json_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(json_equal(v, b[k]) for k, v in a.items())
    return bool(a == b)


def apart(a: Any, b: Any, resolve: Resolve, depth: int = _DEPTH) -> bool:
    """True if surely no value matches both; False if that cannot be told."""
    if a is False or b is False:
        return True
    if not isinstance(a, dict) or not isinstance(b, dict) or depth <= 0:
        return False
    left, right = _views(a, resolve, depth), _views(b, resolve, depth)
    types = _types(left) & _types(right)
    if not types:
        return True
    for mine, theirs in ((left, right), (right, left)):
        values = _values(mine)
        others = _values(theirs)
        if values is not None and others is not None:
            return not any(json_equal(x, y) for x in values for y in others)
        if values is not None and not any(_has_type(x, types) for x in values):
            return True
        for v in mine:
            for key in ("anyOf", "oneOf"):
                options = v.get(key)
                if isinstance(options, list) and options:
                    whole = b if mine is left else a
                    if all(apart(o, whole, resolve, depth - 1) for o in options):
                        return True
    return types == {"object"} and _keys_apart(left, right, resolve, depth)


def _views(s: Schema, resolve: Resolve, depth: int) -> list[Schema]:
    """The schemas that must all hold: itself, what it refers to, its allOf."""
    found: list[Schema] = [s]
    if depth > 0:
        more = list(s["allOf"]) if isinstance(s.get("allOf"), list) else []
        if isinstance(s.get("$ref"), str):
            more.append(resolve(s["$ref"]))
        for x in more:
            if isinstance(x, dict):
                found += _views(x, resolve, depth - 1)
    return found


def _types(views: list[Schema]) -> frozenset[str]:
    types = _TYPES
    for v in views:
        t = v.get("type")
        if isinstance(t, (str, list)):
            given = {t} if isinstance(t, str) else {x for x in t if isinstance(x, str)}
            types &= given | ({"integer"} if "number" in given else set())
    return types


def _values(views: list[Schema]) -> list[Any] | None:
    for v in views:
        if "const" in v:
            return [v["const"]]
        if isinstance(v.get("enum"), list):
            return list(v["enum"])
    return None


def _has_type(x: Any, types: frozenset[str]) -> bool:
    if isinstance(x, bool):
        return "boolean" in types
    if isinstance(x, (int, float)):
        return "number" in types or ("integer" in types and x == x // 1)
    kinds: dict[type, str] = {str: "string", list: "array", dict: "object"}
    return kinds.get(type(x), "null") in types


def _keys_apart(left: list[Schema], right: list[Schema], resolve: Resolve, depth: int) -> bool:
    """Of objects: a key that both must have and that differs, or that one must and the other
    may not have."""
    mine, theirs = _required(left), _required(right)
    for key in mine & theirs:
        pairs = [(x, y) for x in _at(left, key) for y in _at(right, key)]
        if any(apart(x, y, resolve, depth - 1) for x, y in pairs):
            return True
    return any(_closed_to(right, k) for k in mine) or any(_closed_to(left, k) for k in theirs)


def _required(views: list[Schema]) -> set[str]:
    lists = [v["required"] for v in views if isinstance(v.get("required"), list)]
    return {k for keys in lists for k in keys if isinstance(k, str)}


def _at(views: list[Schema], key: str) -> list[Any]:
    maps = [v["properties"] for v in views if isinstance(v.get("properties"), dict)]
    return [m[key] for m in maps if key in m]


def _closed_to(views: list[Schema], key: str) -> bool:
    return any(
        v.get("additionalProperties") is False
        and not v.get("patternProperties")
        and key not in (v.get("properties") or {})
        for v in views
    )
