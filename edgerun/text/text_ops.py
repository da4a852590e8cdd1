"""What a template may do to text: the string methods and filters, bounded and mark-keeping.

Sizes are worked out and charged before the text is made. A method that is not listed here cannot
be called from a template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from string import Formatter
from typing import Any

from edgerun.text.limits import Budget, LimitExceeded
from edgerun.text.marked import Marked, concat, join, mark

__all__ = ["add", "call_str_method", "format_braces", "format_percent", "text_of"]

# None of these can make more than it is given. The first group makes no text at all.
_ASKING = frozenset(
    [
        "count",
        "endswith",
        "find",
        "index",
        "isalnum",
        "isalpha",
        "isascii",
        "isdecimal",
        "isdigit",
        "isidentifier",
        "islower",
        "isnumeric",
        "isprintable",
        "isspace",
        "istitle",
        "isupper",
        "startswith",
    ]
)
_PLAIN = frozenset(
    [
        "capitalize",
        "casefold",
        "lower",
        "lstrip",
        "partition",
        "removeprefix",
        "removesuffix",
        "rstrip",
        "split",
        "splitlines",
        "strip",
        "swapcase",
        "title",
        "upper",
    ]
)
# CPython searches backwards in O(text * pattern).
_BACKWARD = frozenset(["rfind", "rindex", "rpartition", "rsplit"])
_SPLITTING = frozenset(["rsplit", "split", "splitlines"])
_BYTES_PER_PART = 24
_PADDING = frozenset(["center", "ljust", "rjust", "zfill"])
_MAX_BACKWARD_WORK = 1 << 26

_FIELD = re.compile(r"(?:\d{1,3}|[A-Za-z]\w{0,99})?", re.ASCII)
_SPEC = re.compile(r"(?:.?[<>^])?[-+ ]?0?\d{0,3},?(?:\.\d{1,2})?[bcdeEfFgGnosxX%]?")
_PERCENT_WIDTH = re.compile(r"%[^%a-zA-Z]*(?:\*|\d{4,})")


def text_of(value: Any) -> str:
    """``value`` as the template would print it."""
    return value if isinstance(value, str) else str(value)


def add(budget: Budget, left: str, right: str) -> str:
    """``left + right``."""
    budget.charge(len(left) + len(right))
    return concat((left, right))


def call_str_method(
    budget: Budget, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """``text.name(*args, **kwargs)``; ``AttributeError`` for a method templates do not have."""
    if name in _ASKING:
        return getattr(text, name)(*args, **kwargs)
    if name in _BACKWARD:
        pattern = args[0] if args and isinstance(args[0], str) else ""
        if len(text) * len(pattern) > _MAX_BACKWARD_WORK and len(pattern) > 16:
            raise LimitExceeded(f"its {name} would take too long")
    if name in _SPLITTING and len(text) > 4096:
        budget.charge(_BYTES_PER_PART * len(getattr(str, name)(text, *args, **kwargs)))
    if name in _PLAIN or name in _BACKWARD:
        budget.charge(len(text))
        return _counted(budget, getattr(text, name)(*args, **kwargs))
    if name in _PADDING:
        budget.charge(max(len(text), int(args[0]) if args else 0))
        return getattr(text, name)(*args, **kwargs)
    special = _SPECIAL.get(name)
    if special is None:
        raise AttributeError(f"templates have no method {name!r} of text")
    return special(budget, text, *args, **kwargs)


def _counted(budget: Budget, result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        budget.weigh(result)
    return result


def replace(budget: Budget, text: str, old: str, new: str, count: int = -1) -> str:
    hits = text.count(old) if count is None or count < 0 else min(text.count(old), count)
    budget.charge(len(text) + hits * len(new))
    if not hits:
        return text
    if old and isinstance(new, Marked) and not isinstance(text, Marked):
        text = Marked(text, ())
    return text.replace(old, new, -1 if count is None else count)


def join_items(budget: Budget, sep: str, items: Iterable[Any]) -> str:
    texts = [text_of(x) for x in items]
    budget.charge(sum(map(len, texts)) + len(sep) * len(texts))
    return join(sep, texts)


def _str_join(budget: Budget, sep: str, items: Iterable[Any], /) -> str:
    items = list(items)
    if not all(isinstance(x, str) for x in items):
        raise TypeError("join() takes a list of texts")
    return join_items(budget, sep, items)


def format_braces(budget: Budget, text: str, args: tuple[Any, ...], kwargs: Any) -> str:
    """``text.format(*args, **kwargs)`` without attribute and item access, widths under 1000."""
    # Which of its characters a literal came from is not told, so all or none are trusted.
    trusted = isinstance(text, Marked) and text.spans == ((0, len(text)),)
    parts: list[str] = []
    auto = 0
    for literal, field, spec, conversion in Formatter().parse(text):
        parts.append(mark(literal) if trusted else literal)
        if field is None:
            continue
        if not _FIELD.fullmatch(field):
            raise LimitExceeded("its format string may hold only plain field names")
        if not _SPEC.fullmatch(spec or "") or conversion not in (None, "s"):
            raise LimitExceeded("its format string holds a field format templates may not use")
        if not field:
            field, auto = str(auto), auto + 1
        value = args[int(field)] if field.isdigit() else kwargs[field]
        if isinstance(value, str) and not spec:
            parts.append(value)
        else:
            budget.weigh([value])
            parts.append(format(value, spec or ""))
        budget.charge(len(parts[-1]))
    budget.charge(sum(map(len, parts)))
    return concat(parts)


def _format(budget: Budget, text: str, /, *args: Any, **kwargs: Any) -> str:
    return format_braces(budget, text, args, kwargs)


def format_percent(budget: Budget, text: str, values: Any) -> str:
    """``text % values``; widths under 1000."""
    if _PERCENT_WIDTH.search(text):
        raise LimitExceeded("its format string holds a field format templates may not use")
    held = values if isinstance(values, (tuple, dict)) else (values,)
    budget.charge(len(text) + text.count("%") * (1000 + 4 * budget.weigh(held)))
    return str.__mod__(text, values)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "replace": replace,
    "join": _str_join,
    "format": _format,
}
