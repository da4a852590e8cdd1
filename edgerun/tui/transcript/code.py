"""Code in colours, by Pygments; a lexer is loaded when the first block of its language comes."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from edgerun.tui.transcript.lines import Run, Style

if TYPE_CHECKING:
    from pygments.lexer import Lexer

__all__ = ["highlight", "language"]

#: A piece of code that is longer, in characters, stays plain: lines of that length are data.
_MAX_TEXT = 12_000

#: Pygments' kinds of token, more special ones first.
_STYLES: tuple[tuple[str, Style], ...] = (
    ("Token.Keyword", ("keyword",)),
    ("Token.Operator.Word", ("keyword",)),
    ("Token.Name.Tag", ("keyword",)),
    ("Token.Name.Function", ("name",)),
    ("Token.Name.Class", ("name",)),
    ("Token.Name.Namespace", ("name",)),
    ("Token.Name.Decorator", ("name",)),
    ("Token.Name.Attribute", ("name",)),
    ("Token.Name.Builtin", ("builtin",)),
    ("Token.Name.Exception", ("builtin",)),
    ("Token.Name.Variable", ("builtin",)),
    ("Token.Name.Constant", ("builtin",)),
    ("Token.Literal.String", ("string",)),
    ("Token.Literal", ("number",)),
    ("Token.Comment.Preproc", ("keyword",)),
    ("Token.Comment", ("comment",)),
    ("Token.Generic.Deleted", ("deleted",)),
    ("Token.Generic.Inserted", ("inserted",)),
    ("Token.Generic.Heading", ("name",)),
    ("Token.Generic.Subheading", ("name",)),
    ("Token.Generic.Prompt", ("comment",)),
    ("Token.Generic.Error", ("deleted",)),
)
#: What may run over the end of a line.
_OPEN: tuple[Style, ...] = (("string",), ("comment",))


@lru_cache(256)
def _style(kind: str) -> Style:
    return next((style for name, style in _STYLES if kind.startswith(name)), ())


@lru_cache(1)
def _aliases() -> frozenset[str]:
    from pygments.lexers import get_all_lexers

    # Without plugins: looking for them reads the metadata of everything that is installed.
    return frozenset(a.lower() for _, names, *_ in get_all_lexers(plugins=False) for a in names)


@lru_cache(64)
def _lexer(name: str) -> Lexer | None:
    """The lexer called ``name``; None = there is none, or it cannot be loaded."""
    if name not in _aliases():
        return None
    from pygments.lexers import get_lexer_by_name

    try:
        return get_lexer_by_name(name, stripnl=False, ensurenl=False)
    except Exception:
        return None  # no colour is worth an answer


def language(info: str) -> str:
    """The language that a fence names: ``py``, ``{.py}``, ``py:file``, ``py{1,3}``."""
    name = info.lower().removeprefix("{").removeprefix(".")
    for end in "{},:;=":
        name = name.split(end, 1)[0]
    return name[:32]


def highlight(text: str, info: str, *, partial: bool = False) -> list[tuple[Run, ...]]:
    """The lines of ``text``, without their ends.

    Args:
        info: the language, as the fence names it. An unknown one leaves the text plain.
        partial: the last line is not complete. It is coloured for itself, so that a growing line
            costs no more than its own length.
    """
    lines = text.removesuffix("\n").split("\n")
    lexer = _lexer(language(info)) if info else None
    if lexer is None or len(text) > _MAX_TEXT:
        return [(Run(x.expandtabs(4)),) for x in lines]
    if not partial:
        return list(_lines(text, lexer))
    last = lines.pop()
    if not lines:
        return list(_lines(last, lexer))
    done = _lines("\n".join(lines) + "\n", lexer)
    still = next((r.style for r in reversed(done[-1]) if r.text), ())
    if still in _OPEN and _runs_on("\n".join(lines) + "\n", lexer):
        return [*done, (Run(last.expandtabs(4), still),)]
    return [*done, *_lines(last, lexer)]


@lru_cache(32)
def _lines(text: str, lexer: Lexer) -> tuple[tuple[Run, ...], ...]:
    """The coloured lines of ``text``."""
    out: list[list[Run]] = [[]]
    for style, value in _tokens(text, lexer):
        first, *rest = value.split("\n")
        for i, part in enumerate((first, *rest)):
            if i:
                out.append([])
            if part:
                column = sum(len(r.text) for r in out[-1])
                shown = (" " * column + part).expandtabs(4)[column:] if "\t" in part else part
                out[-1].append(Run(shown, style))
    if text.endswith("\n") and not out[-1]:
        out.pop()
    return tuple(tuple(x) for x in out)


def _runs_on(text: str, lexer: Lexer) -> bool:
    """Whether a string or a comment is open at the end of ``text``."""
    *_, (style, value) = _tokens(text, lexer)
    if style == ("comment",):
        return value.count("\n") > 1
    return style in _OPEN and value.endswith("\n")


@lru_cache(32)
def _tokens(text: str, lexer: Lexer) -> tuple[tuple[Style, str], ...]:
    try:
        found = tuple((_style(str(k)), v) for _, k, v in lexer.get_tokens_unprocessed(text))
    except Exception:
        return (((), text),)
    # A lexer that lost or made up something must not change what the model wrote.
    return found if "".join(v for _, v in found) == text else (((), text),)
