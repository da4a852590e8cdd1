"""JSON Schema as llguidance takes it: what it would ignore or get wrong is refused, by name.

Checked against draft 2020-12 (https://json-schema.org/draft/2020-12) whatever ``$schema`` says, so
that a keyword newer than the draft named is not dropped in silence. Annotations and keywords that
the specification does not know are left out. Targets of references move to ``$defs`` of the root.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from edgerun.errors import RequestError, printable
from edgerun.structured.disjoint import apart, json_equal
from edgerun.structured.patterns import check_pattern

__all__ = ["MAX_BYTES", "MAX_DEPTH", "prepare_schema"]

#: UTF-8 bytes of a schema's text.
MAX_BYTES = 1 << 20
#: Lists and objects inside each other, in a schema's text.
MAX_DEPTH = 100
_MAX_NODES = 20_000
_MAX_PROPERTIES = 1000
_MAX_REFS = 1000
_MAX_MULTIPLE = 10_000

_NOTHING = object()
_TYPES = ("null", "boolean", "object", "array", "number", "string", "integer")
_REFUSED = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems",
    "propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "unevaluatedItems",
    "unevaluatedProperties", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
#: Values with which such a keyword demands nothing.
_IDLE: dict[str, tuple[Any, ...]] = {
    "uniqueItems": (False,),
    "not": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
    "unevaluatedItems": (True, {}),
    "unevaluatedProperties": (True, {}),
}
_SCHEMAS = ("items", "additionalItems", "additionalProperties")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "patternProperties")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
#: Those that llguidance has.
_FORMATS = (
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
)  # fmt: skip
_HINTS = ("password", "float", "double")  # say how to show or store a value, not which
#: Integers wider than a double's are kept to 18 digits, which every 64-bit type holds.
_WIDE = 10**18
_INTEGERS: dict[str, tuple[int, int]] = {
    **{f"int{n}": (-(2 ** (n - 1)), 2 ** (n - 1) - 1) for n in (8, 16, 32)},
    **{f"uint{n}": (0, 2**n - 1) for n in (8, 16, 32)},
    **dict.fromkeys(("int64", "int128", "int"), (-_WIDE, _WIDE)),
    **dict.fromkeys(("uint64", "uint128", "uint"), (0, _WIDE)),
}


def prepare_schema(text: str, param: str) -> dict[str, Any]:
    """The schema in ``text``, checked and reduced to what a grammar is made of.

    Args:
        text: JSON.
        param: the request's field it came from.

    Raises:
        RequestError: it is no JSON Schema, too large, or has something that cannot be enforced;
            names the keyword and where it stands.
    """
    root = _parse(text, param)
    if root is True:
        return {}
    if not isinstance(root, dict):
        what = "allows nothing" if root is False else f"is {type(root).__name__}, not an object"
        raise RequestError(f"{param}: the schema {what}", param=param)
    return _Checker(root, param).run()


def _parse(text: str, param: str) -> Any:
    try:
        if len(text.encode()) > MAX_BYTES:
            raise RequestError(f"{param}: the schema is larger than 1 MiB", param=param)
        value = json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise _too_deep(param) from None
    except ValueError as e:  # UnicodeEncodeError is one
        raise RequestError(
            f"{param}: the schema is not JSON: {printable(e)}", param=param
        ) from None
    level, depth = [value], 0
    while level := [
        x for v in level if isinstance(v, (dict, list))
        for x in (v.values() if isinstance(v, dict) else v)
    ]:  # fmt: skip
        depth += 1
        if depth > MAX_DEPTH:
            raise _too_deep(param)
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _too_deep(param: str) -> RequestError:
    return RequestError(f"{param}: the schema is nested deeper than {MAX_DEPTH}", param=param)


class _Checker:
    """One schema's walk. Paths are JSON pointers with a leading ``#``."""

    def __init__(self, root: dict[str, Any], param: str) -> None:
        self._root, self._param = root, param
        self._nodes = 0
        self._names: dict[str, str] = {}  # reference -> its name in $defs
        self._waiting: list[tuple[str, Any]] = []

    def run(self) -> dict[str, Any]:
        out = self._schema(self._root, "#")
        assert isinstance(out, dict)
        defs = {}
        while self._waiting:
            ref, target = self._waiting.pop()
            defs[self._names[ref]] = self._schema(target, ref)
        return {**out, "$defs": defs} if defs else out

    def _refuse(self, path: str, key: str, why: str) -> RequestError:
        where = f"{printable(key, 60)} at {printable(path, 120)}" if key else printable(path, 120)
        return RequestError(f"{self._param}: {where} {why}", param=self._param)

    def _schema(self, s: Any, path: str) -> dict[str, Any] | bool:
        self._nodes += 1
        if self._nodes > _MAX_NODES:
            raise self._refuse(path, "", f"is one of more than {_MAX_NODES} schemas: too many")
        if isinstance(s, bool):
            return s
        if not isinstance(s, dict):
            raise self._refuse(path, "", "must be a schema: an object, true or false")
        out: dict[str, Any] = {}
        types = self._types(s, path)
        for key, v in s.items():
            if key in _REFUSED and not any(json_equal(v, idle) for idle in _IDLE.get(key, ())):
                raise self._refuse(path, key, "cannot be enforced by a grammar: leave it out")
            if (value := self._keyword(key, v, path, s, types)) is not _NOTHING:
                name = "anyOf" if key == "oneOf" else key
                if name in out:  # both anyOf and oneOf: each must hold
                    out.setdefault("allOf", []).append({"anyOf": value})
                elif name == "allOf":
                    out[name] = value + out.get(name, [])
                else:
                    out[name] = value
        self._properties(s, path)
        self._integer_format(s, out, types)
        return out

    def _types(self, s: Mapping[str, Any], path: str) -> tuple[str, ...]:
        t = s.get("type", _TYPES)
        types = (t,) if isinstance(t, str) else tuple(t) if isinstance(t, (list, tuple)) else ()
        if not types or not all(isinstance(x, str) and x in _TYPES for x in types):
            raise self._refuse(
                path, "type", f"must be one of {', '.join(_TYPES)}, or a list of them"
            )
        return types

    def _keyword(
        self, key: str, v: Any, path: str, s: Mapping[str, Any], types: tuple[str, ...]
    ) -> Any:
        """What becomes of a keyword."""
        if key == "type":
            return v
        if key in _LISTS or (key == "items" and isinstance(v, list)):
            return self._list(key, v, path)
        if key in _SCHEMAS:
            return self._schema(v, f"{path}/{key}")
        if key in _MAPS:
            return self._map(key, v, path)
        if key in ("const", "enum"):
            return self._values(key, v, path)
        if key in _COUNTS:
            if isinstance(v, bool) or not isinstance(v, (int, float)) or v != v // 1 or v < 0:
                raise self._refuse(path, key, "must be a whole number, 0 or above")
            return int(v)
        if key in _BOUNDS or key == "multipleOf":
            return self._number(key, v, path, types)
        if key == "pattern":
            return self._pattern(key, v, path)
        if key == "required":
            if not isinstance(v, list) or not all(isinstance(x, str) for x in v):
                raise self._refuse(path, key, "must be a list of property names")
            return v
        if key == "$ref":
            return self._ref(v, path)
        if key == "format":
            return self._format(v, path, types)
        if key == "$id" and path != "#" and isinstance(v, str):
            raise self._refuse(path, key, "is only understood at the root")
        return _NOTHING

    def _list(self, key: str, v: Any, path: str) -> list[Any]:
        if not isinstance(v, list) or (not v and key != "items"):
            raise self._refuse(path, key, "must be a list of schemas")
        if key == "oneOf":
            for i, a in enumerate(v):
                for j in range(i):
                    if not apart(v[j], a, self._resolve):
                        raise self._refuse(
                            path, key, f"cannot be enforced: options {j} and {i} may both match; "
                            "use anyOf, or give each option a required property with its own const"
                        )  # fmt: skip
        return [self._schema(x, f"{path}/{key}/{i}") for i, x in enumerate(v)]

    def _map(self, key: str, v: Any, path: str) -> dict[str, Any]:
        if not isinstance(v, dict):
            raise self._refuse(path, key, "must be an object of schemas")
        if len(v) > _MAX_PROPERTIES:
            raise self._refuse(path, key, f"has {len(v)} entries, at most {_MAX_PROPERTIES} work")
        if key == "patternProperties":
            for pattern in v:
                self._pattern(key, pattern, path)
        return {k: self._schema(x, f"{path}/{key}/{_escaped(k)}") for k, x in v.items()}

    def _values(self, key: str, v: Any, path: str) -> Any:
        if key == "enum" and (not isinstance(v, list) or not v):
            raise self._refuse(path, key, "must be a list of values, one at least")
        todo = [v]
        while todo:
            x = todo.pop()
            if isinstance(x, (list, dict)):
                todo += x if isinstance(x, list) else x.values()
            elif isinstance(x, str) and any(c < " " and c not in "\n\r\t\b\f" for c in x):
                raise self._refuse(path, key, "holds a control character, which is not written")
            elif isinstance(x, int) and not isinstance(x, bool) and abs(x) > 2**53:
                raise self._refuse(path, key, f"holds {x}, which is beyond 2^53: use a string")
        return v

    def _number(self, key: str, v: Any, path: str, types: tuple[str, ...]) -> Any:
        if isinstance(v, bool) and key.startswith("exclusive"):  # draft 4
            return v
        if isinstance(v, bool) or not isinstance(v, (int, float)) or not math.isfinite(v):
            raise self._refuse(path, key, "must be a number")
        if key == "multipleOf":
            coefficient = int("".join(map(str, Decimal(repr(v)).as_tuple().digits)))
            scale = max(0, int(Decimal(repr(v)).as_tuple().exponent))
            if v <= 0 or coefficient * 10**scale > _MAX_MULTIPLE:
                raise self._refuse(
                    path, key, f"must be above 0 and have no more digits than {_MAX_MULTIPLE}"
                )
            return v
        if "integer" in types and "number" not in types and abs(v) > _WIDE:
            if (v > 0) == ("ax" in key):
                return _WIDE if v > 0 else -_WIDE
            raise self._refuse(path, key, "is beyond 10^18, where nothing is enforced exactly")
        if isinstance(v, int) and (int(float(v)) != v or (abs(v) > 2**53 and "exc" in key)):
            raise self._refuse(path, key, "is beyond 2^53 and cannot be enforced exactly")
        return v

    def _pattern(self, key: str, v: Any, path: str) -> str:
        if not isinstance(v, str):
            raise self._refuse(path, key, "must be a regular expression")
        if (why := check_pattern(v)) is not None:
            raise self._refuse(path, key, why)
        return v

    def _format(self, v: Any, path: str, types: tuple[str, ...]) -> Any:
        if not isinstance(v, str):
            raise self._refuse(path, "format", "must be a string")
        if "string" not in types or v in _HINTS:
            return _NOTHING
        if v not in _FORMATS:
            raise self._refuse(
                path, "format", f"is {printable(repr(v), 40)}, which cannot be enforced; "
                f"known: {', '.join(_FORMATS)}"
            )  # fmt: skip
        return v

    def _properties(self, s: Mapping[str, Any], path: str) -> None:
        # A grammar does not know which of the free keys it has written already: one key twice
        # would count as two.
        least, required = s.get("minProperties", 0), s.get("required", ())
        if least - len(set(required)) > 1:
            raise self._refuse(
                path, "minProperties", "cannot be enforced: name the properties in 'required'"
            )

    def _integer_format(
        self, s: Mapping[str, Any], out: dict[str, Any], types: tuple[str, ...]
    ) -> None:
        """``int32`` and its like are bounds."""
        f = s.get("format")
        if "string" in types or not isinstance(f, str) or f not in _INTEGERS:
            return
        low, high = _INTEGERS[f]
        out.setdefault("allOf", []).append({"type": list(types), "minimum": low, "maximum": high})

    def _ref(self, v: Any, path: str) -> str:
        if not isinstance(v, str) or not v.startswith("#"):
            what = "must point into the same schema, like #/$defs/name"
            raise self._refuse(path, "$ref", f"is {printable(repr(v), 60)}; it {what}")
        if v == "#":
            return v
        if v not in self._names:
            target = self._resolve(v)
            if target is None:
                raise self._refuse(
                    path, "$ref", f"points to {printable(v, 80)}, which is not there"
                )
            if len(self._names) >= _MAX_REFS:
                raise self._refuse(path, "$ref", f"is one of more than {_MAX_REFS}: too many")
            self._names[v] = f"r{len(self._names)}"
            self._waiting.append((v, target))
        return f"#/$defs/{self._names[v]}"

    def _resolve(self, ref: str) -> Any:
        """What a local reference points to; None if nothing."""
        if not ref.startswith("#"):
            return None
        if ref[1:2] not in ("", "/"):
            return _anchored(self._root, ref[1:])
        at: Any = self._root
        for part in unquote(ref[1:]).split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(at, dict) and part in at:
                at = at[part]
            elif isinstance(at, list) and part.isdecimal() and int(part) < len(at):
                at = at[int(part)]
            else:
                return None
        return at


def _anchored(root: Any, name: str) -> Any:
    todo = [root]
    while todo:
        v = todo.pop()
        if isinstance(v, dict):
            if v.get("$anchor") == name:
                return v
            todo += v.values()
        elif isinstance(v, list):
            todo += v
    return None


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
