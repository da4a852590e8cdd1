"""What the sampling panel sets: names, how they are written, read, and stepped. No widget."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from edgerun.chat import ChatOptions
from edgerun.core import SamplingParams
from edgerun.errors import RequestError, printable

__all__ = [
    "KNOBS",
    "Knob",
    "Settings",
    "changed",
    "default",
    "put",
    "read",
    "reset",
    "shown",
    "step",
]

#: What a turn is asked for with: both are frozen, so that a panel hands out new ones.
Settings: TypeAlias = tuple[SamplingParams, ChatOptions]

Kind: TypeAlias = Literal["float", "int", "int or none", "switch", "effort"]

_EFFORTS = ("auto", "none", "minimal", "low", "medium", "high")


@dataclass(frozen=True)
class Knob:
    """One setting. ``by``: what one step changes; ``none``: how None is written; ``start``: where
    stepping up from None begins."""

    name: str
    label: str
    kind: Kind
    help: str
    by: float = 1
    none: str = ""
    start: int = 0
    of_chat: bool = False


KNOBS = (
    Knob("temperature", "temperature", "float", "0 always takes the likeliest", 0.05),
    Knob("top_k", "top k", "int", "keep the k likeliest; 0 = all", 5),
    Knob("top_p", "top p", "float", "keep this much mass; 1 = all", 0.05),
    Knob("min_p", "min p", "float", "drop below this share; 0 = none", 0.01),
    Knob("repeat_penalty", "repeat penalty", "float", "above 1 repeats less; 1 = off", 0.05),
    Knob("max_tokens", "max tokens", "int or none", "of one answer", 64, "no limit", 256),
    Knob("seed", "seed", "int or none", "same seed, same draw", 1, "random"),
    Knob("context_shift", "context shift", "switch", "when full, forget the oldest"),
    Knob("reasoning_effort", "reasoning", "effort", "how hard to think first", of_chat=True),
    Knob(
        "reasoning_budget", "reasoning budget", "int or none", "most tokens of thinking",
        64, "no limit", 512, of_chat=True,
    ),
)  # fmt: skip


def default(knob: Knob) -> Any:
    """What it is when nobody set it."""
    return getattr(ChatOptions() if knob.of_chat else SamplingParams(), knob.name)


def value(knob: Knob, settings: Settings) -> Any:
    return getattr(settings[1] if knob.of_chat else settings[0], knob.name)


def changed(knob: Knob, settings: Settings) -> bool:
    return bool(value(knob, settings) != default(knob))


def written(knob: Knob, v: Any) -> str:
    if knob.kind == "switch":
        return "on" if v else "off"
    if knob.kind == "effort":
        return v or "auto"
    if v is None:
        return knob.none
    return f"{v:g}" if knob.kind == "float" else str(v)


def shown(knob: Knob, settings: Settings) -> str:
    """The value as the panel shows it; :func:`read` takes it back."""
    return written(knob, value(knob, settings))


def read(knob: Knob, text: str) -> Any:
    """The value that ``text`` stands for; its range is checked by :func:`put`.

    Raises:
        RequestError: it is not of the kind.
    """
    text = text.strip().lower()
    if knob.kind == "switch":
        if text in ("on", "yes", "true", "1", "off", "no", "false", "0"):
            return text in ("on", "yes", "true", "1")
        raise RequestError(f"{knob.name} is on or off", param=knob.name)
    if knob.kind == "effort":
        if text in _EFFORTS:
            return None if text == "auto" else text
        raise RequestError(f"{knob.name} is one of {', '.join(_EFFORTS)}", param=knob.name)
    if knob.kind == "int or none" and text in ("", "none", knob.none):
        return None
    try:
        return float(text) if knob.kind == "float" else int(text)
    except ValueError:
        kind = "a number" if knob.kind == "float" else "a whole number"
        quoted = printable(repr(text), 24) if text else "nothing"
        raise RequestError(f"{knob.name} must be {kind}, not {quoted}", param=knob.name) from None


def put(knob: Knob, settings: Settings, v: Any) -> Settings:
    """``settings`` with the knob at ``v``.

    Raises:
        RequestError: of the wrong kind or out of range, as :class:`SamplingParams` says.
    """
    params, options = settings
    if knob.kind == "switch" and not isinstance(v, bool):
        raise RequestError(f"{knob.name} is on or off", param=knob.name)
    if not knob.of_chat:
        return replace(params, **{knob.name: v}), options
    if knob.kind == "effort" and (v or "auto") not in _EFFORTS:
        raise RequestError(f"{knob.name} is one of {', '.join(_EFFORTS)}", param=knob.name)
    if knob.name == "reasoning_budget" and v is not None:
        if isinstance(v, bool) or not isinstance(v, int):
            raise RequestError(f"{knob.name} must be a whole number, not {v!r}", param=knob.name)
        if v < 0:
            raise RequestError(f"{knob.name} must be 0 or more, not {v}", param=knob.name)
    return params, replace(options, **{knob.name: v})


def step(knob: Knob, settings: Settings, way: int) -> Settings:
    """One step up (1) or down (-1); as it was where that leaves the range."""
    v = value(knob, settings)
    if knob.kind == "switch":
        new: Any = not v
    elif knob.kind == "effort":
        i = _EFFORTS.index(v or "auto") + way
        new = _EFFORTS[i % len(_EFFORTS)]
        new = None if new == "auto" else new
    elif v is None:
        new = knob.start if way > 0 else None
    elif knob.kind == "int or none" and way < 0 and v - knob.by < 0:
        new = None
    elif knob.kind == "float":
        new = round(v + way * knob.by, 6)
    else:
        new = int(v + way * knob.by)
    try:
        return put(knob, settings, new)
    except RequestError:
        return _edge(knob, settings, way)


def _edge(knob: Knob, settings: Settings, way: int) -> Settings:
    """The end of the range, when a whole step would leave it."""
    ends = {"top_p": (0.0, 1.0), "min_p": (0.0, 1.0), "top_k": (0, None)}.get(knob.name)
    end = ends[way > 0] if ends else None
    return put(knob, settings, end) if end is not None else settings


def reset(settings: Settings) -> Settings:
    """Every knob as nobody set it; what the panel does not show stays."""
    for knob in KNOBS:
        settings = put(knob, settings, default(knob))
    return settings
