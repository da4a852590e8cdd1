"""The tools a conversation offers, as the reader of its answer needs them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["Tools", "as_json"]

_JSON_TYPES = {
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}


class Tools:
    """Names of functions, and the JSON Schemas of their parameters."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """``tools`` are in OpenAI's shape, checked."""
        functions = [t.get("function", t) for t in tools]
        self.parameters: dict[str, Any] = {f["name"]: f.get("parameters") for f in functions}

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def known(self, name: str) -> str | None:
        """The tool that a model means by ``name``; None if there is none."""
        name = name.strip()
        for known in (name, name.removeprefix("functions.")):
            if known in self.parameters:
                return known
        return None

    def schema_of(self, name: str, key: str) -> Any:
        """The schema of one parameter; None where the tool does not say."""
        properties = (self.parameters.get(name) or {}).get("properties")
        return properties.get(key) if isinstance(properties, Mapping) else None


def as_json(raw: str, schema: Any) -> str:
    """The JSON of a parameter that a model wrote as bare text.

    It is a string unless the schema says otherwise; without a schema, unless it is other JSON.
    """
    types = _types(schema, 0)
    if types != {"string"}:
        try:
            value = json.loads(raw)
        except (ValueError, RecursionError):
            value = raw
        fits = not types or any(_is(value, t) for t in types - {"string"})
        if not isinstance(value, str) and (fits or "string" not in types):
            return raw.strip()
        if isinstance(value, str) and value != raw and "string" not in types:
            return raw.strip()
    return json.dumps(raw, ensure_ascii=False)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    known = _JSON_TYPES.get(kind)
    return known is not None and isinstance(value, known)  # type: ignore[arg-type]


def _types(schema: Any, depth: int) -> set[str]:
    """The JSON types a schema names; empty where it leaves them open."""
    if not isinstance(schema, Mapping) or depth > 8:
        return set()
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return {t for t in kind if isinstance(t, str)}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        return {next((t for t in _JSON_TYPES if _is(v, t)), "string") for v in values}
    for key in ("anyOf", "oneOf"):
        branches = schema.get(key)
        if isinstance(branches, list) and branches:
            found = [_types(b, depth + 1) for b in branches]
            return set().union(*found) if all(found) else set()
    return set()
