"""Values that callers give, in any type that Python has: each function takes the right ones, and
raises a RequestError that names the parameter and the value for all others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from edgerun.errors import RequestError

__all__ = ["biases", "number", "strings", "token_ids", "truth", "whole"]


def whole(name: str, v: Any, lo: int, hi: int) -> None:
    if isinstance(v, bool) or not isinstance(v, int):
        raise RequestError(f"{name} must be a whole number, not {v!r}", param=name)
    if not lo <= v <= hi:
        span = f"{lo} or more" if v < lo and hi >= 2**31 else f"between {lo} and {hi}"
        raise RequestError(f"{name} must be {span}, not {v!r}", param=name)


def number(name: str, v: Any, lo: float, hi: float) -> None:
    if not _is_number(v) or (isinstance(v, float) and not math.isfinite(v)):
        raise RequestError(f"{name} must be a finite number, not {v!r}", param=name)
    if not lo <= v <= hi:
        raise RequestError(f"{name} must be between {lo} and {hi}, not {v!r}", param=name)


def truth(name: str, v: Any) -> None:
    if not isinstance(v, bool):
        raise RequestError(f"{name} must be true or false, not {v!r}", param=name)


def strings(name: str, v: Any) -> tuple[str, ...]:
    """One string stands for a list of one."""
    if isinstance(v, str):
        return (v,)
    if not isinstance(v, Sequence) or not all(isinstance(s, str) for s in v):
        raise RequestError(f"{name} must be a string or a list of strings", param=name)
    return tuple(v)


def token_ids(name: str, v: Any) -> None:
    if isinstance(v, (str, bytes)) or not isinstance(v, Sequence) or not all(map(_is_id, v)):
        raise RequestError(f"{name} must be a list of token ids, not {v!r}", param=name)


def biases(name: str, v: Any) -> None:
    if not isinstance(v, Mapping):
        raise RequestError(f"{name} must map token ids to numbers, not {v!r}", param=name)
    for key, bias in v.items():
        if not _is_id(key):
            raise RequestError(f"{name} keys are token ids, not {key!r}", param=name)
        huge = isinstance(bias, int) and abs(bias) >= 2**1000  # which no float holds
        if not _is_number(bias) or bias != bias or huge:
            raise RequestError(f"{name}[{key}] must be a number, not {bias!r}", param=name)


def _is_number(v: Any) -> bool:
    return isinstance(v, (int, float)) and not isinstance(v, bool)


def _is_id(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool) and v >= 0
