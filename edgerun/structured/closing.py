"""Objects that name their properties have no others, unless the schema says so: a model would make
them up, one after the other. What follows the closed schema follows the given one as well."""

from __future__ import annotations

from typing import Any

__all__ = ["closed"]

_OF_OBJECTS = frozenset(
    ["properties", "patternProperties", "additionalProperties", "required", "minProperties"]
)


def closed(schema: dict[str, Any], *, empty: bool = False) -> dict[str, Any]:
    """``schema`` with ``additionalProperties: false`` wherever an object's properties are named
    and nothing is said of others.

    Left as they are: schemas that hold together with another one, as ``allOf``'s do, since each
    would forbid what only the other names; and objects that must have more than they name.

    Args:
        schema: from :func:`~edgerun.structured.schema.prepare_schema`.
        empty: ``properties: {}`` names all there are, as of a tool without parameters.
    """
    walk = _Walk(empty)
    while True:
        known = len(walk.held)
        out: dict[str, Any] = walk.schema(schema, "#" in walk.held)
        if len(walk.held) == known:
            return out


class _Walk:
    def __init__(self, empty: bool) -> None:
        self._empty = empty
        self.held: set[str] = set()  # references to what holds together with another schema

    def schema(self, s: Any, held: bool) -> Any:
        if not isinstance(s, dict):
            return s
        combining = len(s.get("allOf", ())) + ("anyOf" in s) + ("$ref" in s)
        inner = held or combining + (not _OF_OBJECTS.isdisjoint(s)) > 1
        out = {k: self._keyword(k, v, held, inner) for k, v in s.items()}
        if not held and not combining and _names_all(s) and (self._empty or s["properties"]):
            out["additionalProperties"] = False
        return out

    def _keyword(self, key: str, v: Any, held: bool, inner: bool) -> Any:
        if key in ("allOf", "anyOf"):
            return [self.schema(x, inner) for x in v]
        if key in ("prefixItems", "items") and isinstance(v, list):
            return [self.schema(x, held) for x in v]
        if key in ("items", "additionalItems", "additionalProperties"):
            return self.schema(v, held)
        if key in ("properties", "patternProperties"):
            return {name: self.schema(x, held) for name, x in v.items()}
        if key == "$defs":
            return {name: self.schema(x, f"#/$defs/{name}" in self.held) for name, x in v.items()}
        if key == "$ref" and inner:
            self.held.add(v)
        return v


def _names_all(s: dict[str, Any]) -> bool:
    """Whether the object has room for nothing but its named properties, and they suffice."""
    properties = s.get("properties")
    return (
        properties is not None
        and "additionalProperties" not in s
        and "patternProperties" not in s
        and properties.keys() >= set(s.get("required", ()))
        and len(properties) >= s.get("minProperties", 0)
    )
