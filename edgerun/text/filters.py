"""The filters of chat templates, each bounded by the rendering's budget.

jinja2's own where they cannot enlarge what they are given; our own for the rest. Left out, because
no chat template has a use for them and each would need a bound of its own: ``filesizeformat
forceescape pprint random striptags urlencode urlize wordwrap xmlattr``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import GeneratorType
from typing import Any

from jinja2 import Undefined, filters, pass_environment
from jinja2.environment import Environment

from edgerun.text.limits import LimitExceeded, current
from edgerun.text.marked import Marked, concat, join
from edgerun.text.text_ops import call_str_method, format_percent, join_items, replace, text_of

__all__ = ["FILTERS"]

# min, max and sort compare, unique and groupby hash: all bounded by the weight of what they get.
_STOCK = [
    "abs",
    "attr",
    "d",
    "default",
    "dictsort",
    "float",
    "groupby",
    "items",
    "lower",
    "upper",
    "capitalize",
    "title",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "select",
    "selectattr",
    "sort",
    "reverse",
    "string",
    "truncate",
    "unique",
    "wordcount",
    "last",
    "first",
    "count",
    "length",
    "list",
]
_MAX_COUNT = 100_000


def _guard(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Tick before, charge the result after. Keeps jinja2's ``pass_*`` marks."""

    @wraps(fn)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        budget = current()
        budget.tick()
        result = fn(*args, **kwargs)
        if isinstance(result, (list, tuple, dict)):
            budget.weigh(result)
        elif isinstance(result, str):
            budget.charge(len(result))
        return result

    return guarded


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers': no HTML escapes, and these four options."""
    width = len(indent) if isinstance(indent, str) else indent or 0
    if width > 16 or any(len(s) > 16 for s in separators or ()):
        raise LimitExceeded("its tojson asks for more than 16 characters of indent")
    budget = current()
    if isinstance(value, (list, tuple, dict)):
        budget.weigh(value)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_not_json,
    )
    if indent is None:
        return encoder.encode(value)
    # A deep tree of short values can be mostly indent: count while it is written.
    out: list[str] = []
    for piece in encoder.iterencode(value):
        budget.charge(len(piece))
        out.append(piece)
    return "".join(out)


def _not_json(value: Any) -> Any:
    if isinstance(value, GeneratorType):  # tools|map(attribute="function")|tojson
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _from_json(value: Any) -> Any:
    return json.loads(text_of(value))


def _trim(value: Any, chars: str | None = None) -> str:
    return text_of(value).strip(chars)


def _replace(value: Any, old: Any, new: Any, count: int | None = None) -> str:
    return replace(
        current(), text_of(value), text_of(old), text_of(new), -1 if count is None else count
    )


@pass_environment
def _join(
    environment: Environment, value: Iterable[Any], d: Any = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = map(filters.make_attrgetter(environment, attribute), value)
    return join_items(current(), text_of(d), value)


def _indent(value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    text = text_of(value)
    pad = width if isinstance(width, str) else " " * min(int(width), _MAX_COUNT)
    current().charge(len(text) + (text.count("\n") + 1) * len(pad))
    # As jinja2: the added newline keeps a last empty line; blank lines stay bare unless asked.
    lines = concat((text, "\n")).splitlines()
    rest = [concat((pad, line)) if line or blank else line for line in lines[1:]]
    return join("\n", [concat((pad, lines[0])) if first else lines[0], *rest])


def _center(value: Any, width: int = 80) -> str:
    return str(call_str_method(current(), text_of(value), "center", (width,), {}))


def _format(value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return format_percent(current(), text_of(value), kwargs or args)


def _int(value: Any, default: int = 0, base: int = 10) -> int:
    if isinstance(value, str) and len(value) > 1000:
        return default
    return filters.do_int(value, default, base)


def _round(value: float, precision: int = 0, method: Any = "common") -> float:
    if abs(precision) > 100:
        raise LimitExceeded("it rounds to more than 100 places")
    return filters.do_round(value, precision, method)


@pass_environment
def _sum(
    environment: Environment, iterable: Any, attribute: str | int | None = None, start: float = 0
) -> Any:
    if not isinstance(start, (int, float)):  # adding lists up is quadratic
        raise TypeError("sum adds up numbers only")
    if attribute is not None:
        iterable = map(filters.make_attrgetter(environment, attribute), iterable)
    items = list(iterable)
    if not all(isinstance(x, (int, float)) for x in items):
        raise TypeError("sum adds up numbers only")
    return sum(items, start)


def _batch(value: Iterable[Any], linecount: int, fill_with: Any = None) -> list[Any]:
    if not 0 < linecount <= _MAX_COUNT:
        raise LimitExceeded(f"its batch must be of 1 to {_MAX_COUNT} items")
    return list(filters.do_batch(value, linecount, fill_with))


def _slice(value: Any, slices: int, fill_with: Any = None) -> list[Any]:
    if not 0 < slices <= _MAX_COUNT:
        raise LimitExceeded(f"its slice must be into 1 to {_MAX_COUNT} parts")
    return list(filters.sync_do_slice(value, slices, fill_with))


def _escape(value: Any) -> str:
    import html

    return html.escape(text_of(value))


def _safe(value: Any) -> str:
    # There is no HTML here. jinja2's Markup would escape the text it is later added to.
    return text_of(value)


def _items(value: Any) -> list[Any]:
    if isinstance(value, Undefined):
        return []
    if not isinstance(value, Mapping):
        raise TypeError("Can only get item pairs from a mapping.")
    return list(value.items())


def _keep_marks(value: Any) -> str:
    return value if isinstance(value, Marked) else str(value)


_OWN: dict[str, Callable[..., Any]] = {
    "batch": _batch,
    "center": _center,
    "e": _escape,
    "escape": _escape,
    "format": _format,
    "from_json": _from_json,
    "indent": _indent,
    "int": _int,
    "items": _items,
    "join": _join,
    "replace": _replace,
    "round": _round,
    "safe": _safe,
    "slice": _slice,
    "string": _keep_marks,
    "sum": _sum,
    "tojson": _tojson,
    "trim": _trim,
}

FILTERS: dict[str, Callable[..., Any]] = {
    name: _guard(fn) for name, fn in ({n: filters.FILTERS[n] for n in _STOCK} | _OWN).items()
}
