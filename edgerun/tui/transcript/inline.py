"""Inline Markdown as runs: emphasis, code, links, math; whatever is none of these stays text."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from edgerun.tui.text import clean
from edgerun.tui.transcript.lines import Run, Style

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

__all__ = ["MAX_DEPTH", "inline", "parser"]

#: Containers within containers; markdown-it leaves out what lies deeper.
MAX_DEPTH = 20

_STYLES: dict[str, Style] = {
    "em_open": ("em",),
    "strong_open": ("strong",),
    "s_open": ("strike",),
}
_URL = re.compile(r"https?://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}*_]")
#: What is math to most models: ``$a$`` as pandoc reads it, and LaTeX's own delimiters.
_MATH = re.compile(
    r"\$\$[^$]+?\$\$|\$(?![\s$])[^$\n]*?(?<![\s\\])\$(?!\d)|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL
)
_MATH_OPEN, _MATH_CLOSE = ("$$", "\\["), {"$$": "$$", "\\[": "\\]"}


@lru_cache(1)
def parser() -> MarkdownIt:
    """CommonMark with tables, strikethrough and math, without HTML and link reference definitions
    (one at the end would change what has long been shown). ``parse`` finds blocks only."""
    from markdown_it import MarkdownIt

    md = MarkdownIt("commonmark", {"html": False, "maxNesting": MAX_DEPTH})
    md.enable(["table", "strikethrough"])
    md.disable(["reference", "html_block", "html_inline"])
    md.core.ruler.enableOnly(["normalize", "block"])
    md.inline.ruler.before("escape", "math", _inline_math)
    md.block.ruler.before(
        "fence", "math", _block_math, {"alt": ["paragraph", "blockquote", "list"]}
    )
    return md


def _inline_math(state: StateInline, silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    match = _MATH.match(state.src, state.pos)
    if match is None:
        return False
    if not silent:
        state.push("math", "", 0).content = match[0]
    state.pos = match.end()
    return True


def _block_math(state: StateBlock, first: int, end: int, silent: bool) -> bool:
    """``$$`` or ``\\[`` alone on a line, up to its other half, an empty line, or 50 lines."""
    if state.is_code_block(first):
        return False

    def text(n: int) -> str:
        return state.src[state.bMarks[n] + state.tShift[n] : state.eMarks[n]].strip()

    mark = text(first)
    if mark not in _MATH_OPEN:
        return False
    if silent:
        return True
    line, end = first + 1, min(end, first + 50)
    while line < end and state.sCount[line] >= state.blkIndent and not state.isEmpty(line):
        line += 1
        if text(line - 1).endswith(_MATH_CLOSE[mark]):
            break
    state.line = line
    token = state.push("math_block", "", 0)
    token.map = [first, line]
    token.content = state.getLines(first, line, state.blkIndent, False)
    return True


@lru_cache(1024)
def inline(content: str) -> tuple[Run, ...]:
    """Runs of one block's ``content``; a line feed in them is a line break."""
    md = parser()
    tokens: list[Token] = []
    md.inline.parse(content, md, {}, tokens)
    out = _Runs()
    for token in tokens:
        out.take(token)
    return tuple(out.runs)


class _Runs:
    """Inline tokens -> runs."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._styles: list[Style] = []
        self._links: list[tuple[str, int, bool]] = []  # address, first run, shown as it is

    def take(self, token: Token) -> None:
        """The next token."""
        kind = token.type
        if kind in ("text", "text_special"):
            self._text(clean(token.content))
        elif kind in ("softbreak", "hardbreak"):
            self._add("\n")  # models mean the line ends that they write
        elif kind == "code_inline":
            self._add(clean(token.content).replace("\t", " "), ("code",))
        elif kind == "math":
            self._add(clean(token.content).replace("\t", " "), ("math",))
        elif kind == "link_open":
            shown = token.markup in ("autolink", "linkify")
            self._links.append((str(token.attrs.get("href", "")), len(self.runs), shown))
        elif kind == "link_close":
            self._close(*self._links.pop())
        elif kind == "image":
            first = len(self.runs)
            self._add(clean(token.content) or "image", ("link",))
            self._close(str(token.attrs.get("src", "")), first, False)
        elif kind in _STYLES:
            self._styles.append(_STYLES[kind])
        elif kind.endswith("_close") and self._styles:
            self._styles.pop()
        else:
            self._add(clean(token.content))

    def _add(self, text: str, style: Style = (), link: str = "") -> None:
        if text:
            around = sum(self._styles, ())
            if self._links:
                around += ("link",)
                link = _safe(self._links[-1][0])
            self.runs.append(Run(text, around + style, link))

    def _text(self, text: str) -> None:
        text = text.replace("\t", " ")
        if self._links or "://" not in text:
            self._add(text)
            return
        at = 0
        for match in _URL.finditer(text):
            self._add(text[at : match.start()])
            self._add(match[0], ("link",), _safe(match[0]))
            at = match.end()
        self._add(text[at:])

    def _close(self, address: str, first: int, shown: bool) -> None:
        """The end of a link: its address follows, unless the text already says it."""
        said = "".join(r.text for r in self.runs[first:])
        address = clean(address)
        if address and not shown and said not in (address, address.removeprefix("mailto:")):
            self.runs.append(Run(f" ({address})", (*sum(self._styles, ()), "url"), _safe(address)))


def _safe(address: str) -> str:
    """``address`` if a terminal may offer to open it, else nothing."""
    if not re.match("https?://", address) or not address.isascii() or len(address) > 2000:
        return ""
    return address if address.isprintable() and " " not in address and ";" not in address else ""
