"""Text that arrives in pieces, read as if all of it were there.

Parsers are generators: they ``yield`` where they need more text than has come, so that each is
written once, for whole and for streamed answers alike, and gives the same for every cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias, TypeVar

__all__ = ["Malformed", "Marks", "Source", "Steps"]

T = TypeVar("T")
#: A parser that yields whenever it waits for more text, and returns a T.
Steps: TypeAlias = Generator[None, None, T]


class Malformed(Exception):
    """What was read is not what it began as."""


class Marks:
    """Literal texts to look for; the earliest counts, of those at one place the longest."""

    def __init__(self, marks: Sequence[str]) -> None:
        self.all = tuple(sorted(set(filter(None, marks)), key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self.all)) or r"(?!)")
        self._firsts = frozenset(m[0] for m in self.all)
        self._longest = max(map(len, self.all), default=0)

    def find(self, text: str, start: int, ended: bool) -> tuple[re.Match[str] | None, int]:
        """The first mark from ``start`` on that is certain, and where the uncertain text begins:
        up to there no mark starts."""
        found = self._pattern.search(text, start)
        if ended:
            return found, len(text)
        maybe = self._unsure(text, start)
        # A longer mark, or one that starts earlier, may yet be completed.
        return (found if found and found.start() < maybe else None), maybe

    def _unsure(self, text: str, start: int) -> int:
        """Where the longest end of ``text`` starts that more text could make a longer mark."""
        for at in range(max(start, len(text) - self._longest + 1), len(text)):
            if text[at] in self._firsts:
                end = text[at:]
                if any(len(m) > len(end) and m.startswith(end) for m in self.all):
                    return at
        return len(text)


class Source:
    """The text so far, and how far it was read."""

    def __init__(self) -> None:
        self.ended = False
        self._text = ""
        self._at = 0
        self._held: int | None = None

    def add(self, text: str) -> None:
        """More text."""
        keep = self._at if self._held is None else self._held
        self._text = self._text[keep:] + text
        self._at -= keep
        if self._held is not None:
            self._held = 0

    def end(self) -> None:
        """No more text will come."""
        self.ended = True

    # -- going back ---------------------------------------------------------------------------

    def hold(self, back: int = 0) -> None:
        """Remember the place ``back`` characters before this one."""
        self._held = self._at - back

    def rewind(self) -> None:
        """Go back to the remembered place."""
        if self._held is not None:
            self._at, self._held = self._held, None

    def release(self) -> None:
        """Forget the remembered place."""
        self._held = None

    # -- reading ------------------------------------------------------------------------------

    def peek(self) -> Steps[str]:
        """The next character; "" at the end."""
        while self._at >= len(self._text):
            if self.ended:
                return ""
            yield
        return self._text[self._at]

    def skip(self, n: int = 1) -> str:
        """Read ``n`` characters that are known to be there."""
        text = self._text[self._at : self._at + n]
        self._at += n
        return text

    def literal(self, *texts: str) -> Steps[str | None]:
        """Read the longest of ``texts`` that comes next; None, and nothing read, if none does."""
        while True:
            rest = self._text[self._at : self._at + max(map(len, texts))]
            longer = [t for t in texts if len(t) > len(rest) and t.startswith(rest)]
            if longer and not self.ended:
                yield
                continue
            found = max((t for t in texts if rest.startswith(t)), key=len, default=None)
            if found is not None:
                self._at += len(found)
            return found

    def ahead(self, *texts: str) -> Steps[bool]:
        """Whether one of ``texts`` comes next; nothing is read."""
        found = yield from self.literal(*texts)
        self._at -= len(found or "")
        return found is not None

    def expect(self, *texts: str) -> Steps[str]:
        """:meth:`literal`, or Malformed."""
        found = yield from self.literal(*texts)
        if found is None:
            raise Malformed
        return found

    def run(self, pattern: re.Pattern[str], limit: int | None = None) -> Steps[str]:
        """Read all that ``pattern``, a class of characters with ``+``, matches.

        Raises:
            Malformed: it goes on for more than ``limit`` characters.
        """
        out: list[str] = []
        n = 0
        while True:
            found = pattern.match(self._text, self._at)
            if found:
                self._at = found.end()
                out.append(found.group())
                n += len(out[-1])
            if limit is not None and n > limit:
                raise Malformed
            if self._at < len(self._text) or self.ended:
                return "".join(out)
            yield

    def rest_of(self, pattern: re.Pattern[str]) -> str:
        """Read what is there already of what ``pattern``, a class with ``+``, matches."""
        found = pattern.match(self._text, self._at)
        return self.skip(len(found.group())) if found else ""

    def spaces(self) -> Steps[str]:
        """Read white space."""
        return self.run(_SPACE)

    def until(self, marks: Marks, sink: Callable[[str], None]) -> Steps[str | None]:
        """Read up to and including one of ``marks``; the text before it goes to ``sink`` as soon
        as it is sure to be no mark. None at the end of the text."""
        while True:
            found, sure = marks.find(self._text, self._at, self.ended)
            stop = found.start() if found else sure
            if stop > self._at:
                sink(self._text[self._at : stop])
                self._at = stop
            if found:
                self._at = found.end()
                return found.group()
            if self.ended:
                return None
            yield

    def before(self, marks: Marks, limit: int | None = None) -> Steps[tuple[str, str]]:
        """The text up to one of ``marks``, and that mark.

        Raises:
            Malformed: the text ends, or goes on for more than ``limit`` characters, without it.
        """
        parts: list[str] = []

        def sink(text: str) -> None:
            parts.append(text)
            if limit is not None and sum(map(len, parts)) > limit:
                raise Malformed

        mark = yield from self.until(marks, sink)
        if mark is None:
            raise Malformed
        return "".join(parts), mark


_SPACE = re.compile(r"\s+")
