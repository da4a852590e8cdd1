"""A model file's key-value pairs, with getters that name the key when a value is wrong."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from edgerun.errors import GGUFError, printable
from edgerun.gguf.strings import StringArray

__all__ = ["MetaType", "Metadata", "ValueType"]

T = TypeVar("T")
Array = np.ndarray[Any, np.dtype[Any]]
_REQUIRED: Any = object()


class ValueType(enum.IntEnum):
    """Ids of GGUF's metadata value types."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


@dataclass(frozen=True)
class MetaType:
    """How a value is stored: its type and, for an array, its element type and length."""

    kind: ValueType
    element: ValueType | None = None
    count: int = 0

    def __str__(self) -> str:
        if self.element is None:
            return self.kind.name.lower()
        return f"array[{self.element.name.lower()}, {self.count}]"


class Metadata(Mapping[str, Any]):
    """Read-only ``key -> value``.

    Numbers are int, float or bool; strings are str (invalid UTF-8 as surrogate escapes); arrays
    of numbers are read-only numpy arrays of the stored dtype; arrays of strings are ``list[str]``,
    decoded when first asked for; arrays of arrays are lists of those.

    The getters take ``default``; without one, an absent key raises.

    Raises:
        GGUFError: from every getter, when the key is absent without a default, or holds a value
            of another type. The message names the key, the expected type and the value found.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        types: Mapping[str, MetaType] | None = None,
        where: str = "",
    ) -> None:
        self._values = dict(values)
        self._where = where
        self.types: dict[str, MetaType] = dict(types or {})

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, StringArray):
            value = self._values[key] = value.decode()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def head(self, key: str, n: int) -> Any:
        """The first ``n`` entries of an array, without decoding the rest."""
        value = self._values[key]
        return value.decode(n) if isinstance(value, StringArray) else value[:n]

    def _fail(self, key: str, wanted: str) -> GGUFError:
        where = f"{self._where}: " if self._where else ""
        name = printable(key)
        if key not in self._values:
            return GGUFError(f"{where}metadata key '{name}' is missing; it must hold {wanted}")
        kind = self.types.get(key)
        found = f"{kind} " if kind is not None else ""
        if kind is None or kind.element is None:
            found += printable(repr(self[key]), 60)
        return GGUFError(f"{where}metadata key '{name}' must hold {wanted}, not {found.rstrip()}")

    def _absent(self, key: str, default: object, wanted: str) -> bool:
        if key in self._values:
            return False
        if default is _REQUIRED:
            raise self._fail(key, wanted)
        return True

    def get_int(self, key: str, default: int | T = _REQUIRED) -> int | T:
        """A whole number of any stored width; not a bool."""
        wanted = "a whole number"
        if self._absent(key, default, wanted):
            return default
        value = self[key]
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise self._fail(key, wanted)

    def get_float(self, key: str, default: float | T = _REQUIRED) -> float | T:
        """A number; whole ones are converted. May be NaN or infinite if the file says so."""
        wanted = "a number"
        if self._absent(key, default, wanted):
            return default
        value = self[key]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        raise self._fail(key, wanted)

    def get_str(self, key: str, default: str | T = _REQUIRED) -> str | T:
        wanted = "a string"
        if self._absent(key, default, wanted):
            return default
        value = self[key]
        if isinstance(value, str):
            return value
        raise self._fail(key, wanted)

    def get_bool(self, key: str, default: bool | T = _REQUIRED) -> bool | T:
        wanted = "true or false"
        if self._absent(key, default, wanted):
            return default
        value = self[key]
        if isinstance(value, bool):
            return value
        raise self._fail(key, wanted)

    def get_str_array(self, key: str, default: list[str] | T = _REQUIRED) -> list[str] | T:
        wanted = "an array of strings"
        if self._absent(key, default, wanted):
            return default
        value = self[key]
        kind = self.types.get(key)
        known = kind is not None and kind.element is ValueType.STRING
        if isinstance(value, list) and (known or all(isinstance(s, str) for s in value)):
            return value
        raise self._fail(key, wanted)

    def get_int_array(self, key: str, default: Array | T = _REQUIRED) -> Array | T:
        """An array of whole numbers, of the stored integer dtype."""
        return self._array(key, default, "an array of whole numbers", "iu")

    def get_float_array(self, key: str, default: Array | T = _REQUIRED) -> Array | T:
        """An array of numbers, of the stored dtype (whole ones are not converted)."""
        return self._array(key, default, "an array of numbers", "fiu")

    def get_bool_array(self, key: str, default: Array | T = _REQUIRED) -> Array | T:
        return self._array(key, default, "an array of true or false", "b")

    def _array(self, key: str, default: Array | T, wanted: str, kinds: str) -> Array | T:
        if self._absent(key, default, wanted):
            return default
        value = self[key]
        if isinstance(value, np.ndarray) and value.dtype.kind in kinds:
            return value
        raise self._fail(key, wanted)

    def get_per_layer(self, key: str, n_layers: int, default: int | T = _REQUIRED) -> list[int] | T:
        """``n_layers`` whole numbers: one number stands for all layers, an array gives each.

        Files store, e.g., ``{arch}.attention.head_count_kv`` either way.
        """
        wanted = f"a whole number or an array of {n_layers} of them"
        if self._absent(key, default, wanted):
            return [default] * n_layers if isinstance(default, int) else default
        value = self[key]
        if isinstance(value, int) and not isinstance(value, bool):
            return [value] * n_layers
        if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and len(value) == n_layers:
            return [int(v) for v in value]
        raise self._fail(key, wanted)
