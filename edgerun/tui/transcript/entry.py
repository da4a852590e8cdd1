"""One message as rows: who says it, its reasoning, text, calls of tools, and how it ended."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence

from edgerun.chat import ToolCall, ToolCallDelta
from edgerun.tui.conversation import Message
from edgerun.tui.text import clean, fit, one_line, width
from edgerun.tui.transcript.code import highlight
from edgerun.tui.transcript.flow import Flow
from edgerun.tui.transcript.layout import paragraph
from edgerun.tui.transcript.lines import BLANK, Line, Run, Style, fold, line, styled

__all__ = ["Entry", "Part"]

#: What of an entry a row belongs to; a click tells by it what to do.
Part = str

#: So many lines of a tool's result, and of a user's message, are shown before it is opened.
_PREVIEW, _LONG = 6, 60


class Entry:
    """The rows of one message.

    Attributes:
        message: what it shows. Text comes by :meth:`feed` while it streams.
        place: (i, n): it is the i-th of n messages that answer, or ask, the same.
        streaming: more of it may come.
        open: parts that are folded out: "reasoning", "calls", "rest".
        height: rows, in ``cells`` columns.
        cells: the width that its rows were made for; 0 = they were not.
    """

    def __init__(
        self,
        message: Message,
        place: tuple[int, int] = (1, 1),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.message = message
        self.place = place
        self.open: set[Part] = set()
        self._clock = clock
        self._began: float | None = None  # reasoning
        self._thought: float | None = None
        self._calls: list[ToolCall] = list(message.calls)
        self.height = 0
        self.cells = 0
        self._steady = 0  # rows at the start that stay if only text comes
        self._label = ""
        self._dirty = self._all = True
        self._sections: list[tuple[Part, Sequence[Line]]] = []
        self._start(message)

    def _start(self, message: Message) -> None:
        """Begin with what there is of ``message``."""
        self.streaming = message.state == "streaming"
        ended = not self.streaming
        assistant = message.role == "assistant"
        self._body = Flow(message.text, ended=ended) if assistant else None
        self._reasoning = Flow(message.reasoning, ("reasoning",), ended=ended)

    @property
    def thinking(self) -> bool:
        """Whether it reasons at this moment: its first row tells for how long."""
        return self._began is not None and self._thought is None

    def feed(
        self, text: str = "", reasoning: str = "", calls: Iterable[ToolCallDelta | ToolCall] = ()
    ) -> None:
        """More of the message."""
        if reasoning:
            if self._began is None:
                self._began = self._clock()
            self._thought = None
            self._reasoning.feed(reasoning)
            self._all = True
        calls = list(calls)
        if text or calls:
            self._stop_thinking()
            self._all = self._all or bool(calls)
        if text and self._body is not None:
            self._body.feed(text)
        for call in calls:
            self._call(call)
        self._dirty = True

    def _call(self, call: ToolCallDelta | ToolCall) -> None:
        if isinstance(call, ToolCall):
            self._calls.append(call)
            return
        while len(self._calls) <= call.index:
            self._calls.append(ToolCall("", "", ""))
        old = self._calls[call.index]
        self._calls[call.index] = ToolCall(
            call.id or old.id, call.name or old.name, old.arguments + call.arguments
        )

    def _stop_thinking(self) -> None:
        if self.thinking:
            self._thought = self._clock() - (self._began or 0.0)
            self._all = True

    def finish(self, message: Message) -> None:
        """The message is complete. If its text is not what was fed, all is made anew."""
        self._stop_thinking()
        self.message, self.streaming = message, False
        self._calls = list(message.calls)
        if self._body is not None and not self._body.end(message.text):
            self._body = Flow(message.text, ended=True)
        if not self._reasoning.end(message.reasoning):
            self._reasoning = Flow(message.reasoning, ("reasoning",), ended=True)
        self._dirty = self._all = True

    def update(self, message: Message, place: tuple[int, int]) -> None:
        """Show ``message`` instead; what has not changed is kept."""
        if message.state == "streaming" and not self.streaming:
            self._start(message)
        self.message, self.place = message, place
        self._dirty = self._all = True
        if message.state != "streaming":
            self.finish(message)

    def toggle(self, part: Part | None = None) -> bool:
        """Fold ``part`` in or out, or all of them; False if there is nothing to fold."""
        known = self._foldable()
        if part is None:
            parts = known
            opening = not (set(known) & self.open)
        else:
            parts = [part] if part in known else []
            opening = part not in self.open
        for p in parts:
            (self.open.add if opening else self.open.discard)(p)
        if parts:
            self._dirty = self._all = True
        return bool(parts)

    def _foldable(self) -> list[Part]:
        out = []
        if not self._reasoning.empty:
            out.append("reasoning")
        if self._calls:
            out.append("calls")
        if self._body is None:
            out.append("rest")
        return out

    @property
    def text(self) -> str:
        """What there is to copy: the text as it was written."""
        if self._body is not None:
            return self._body.source
        return self.message.text

    def codes(self) -> list[str]:
        """The code blocks of the message, in order."""
        return self._body.codes() if self._body is not None else []

    # -- rows ---------------------------------------------------------------------------------

    def stale(self, cells: int) -> bool:
        """Whether :meth:`lay` would make other rows than the last time."""
        if self._dirty or cells != self.cells:
            return True
        return self.thinking and self._label != self._thought_label()

    def guess(self, cells: int) -> int:
        """About how many rows there will be."""
        text = self.message.text
        return 3 + text.count("\n") + len(text) // max(cells, 1)

    def lay(self, cells: int) -> int:
        """Make the rows for ``cells`` columns; the first one that may differ from the last time."""
        if not self.stale(cells):
            return self.height
        anew = self._all or cells != self.cells or self.thinking
        first = 0 if anew else self._steady
        self.cells, self._dirty, self._all = cells, False, False
        self._label = self._thought_label() if self.thinking else ""
        self._sections = [(part, rows) for part, rows in self._make(cells) if rows]
        self.height = self._steady = 0
        for part, rows in self._sections:
            if part == "text" and self._body is not None:
                self._steady = self.height + self._body.steady
            self.height += len(rows)
        return first

    def row(self, y: int) -> tuple[Part, Line]:
        """The y-th row, and what it belongs to."""
        for part, rows in self._sections:
            if y < len(rows):
                return part, rows[y]
            y -= len(rows)
        return "", BLANK

    def _make(self, cells: int) -> Iterable[tuple[Part, Sequence[Line]]]:
        yield "head", [self._head(cells)]
        yield "files", self._files(cells)
        yield from self._thoughts(cells)
        if self._body is not None:
            yield "text", self._body.lay(cells)
        else:
            yield "rest", self._written(cells)
        yield "calls", self._called(cells)
        yield "note", self._note(cells)
        yield "", [BLANK]

    def _head(self, cells: int) -> Line:
        m = self.message
        name = (
            {"user": "You", "tool": "Tool result"}.get(m.role) or one_line(m.model) or "Assistant"
        )
        marks = ""
        if self.place[1] > 1:
            marks = f"‹ {self.place[0]}/{self.place[1]} ›"
        name = fit(name, max(cells - width(marks) - 2, 1))
        runs = [Run(name, (m.role,)), Run("  "), Run(marks, ("muted",))]
        shown = line(runs if marks else runs[:1])
        return shown._replace(indent=len(shown.text))

    def _files(self, cells: int) -> list[Line]:
        out = []
        for file in self.message.attachments:
            size = f" · {file.n_tokens:,} tokens".replace(",", " ") if file.n_tokens else ""
            name = fit(f"@{one_line(file.path)}", max(cells - width(size), 1))
            out.append(line([Run(name, ("link",)), Run(size, ("muted",))]))
        return out

    def _thoughts(self, cells: int) -> Iterable[tuple[Part, Sequence[Line]]]:
        if self._reasoning.empty:
            return
        is_open = "reasoning" in self.open
        label = f"{'▾' if is_open else '▸'} {self._thought_label()}"
        yield "reasoning", [self._fold_row(label, cells)]
        if is_open:
            yield "thoughts", self._reasoning.lay(cells)
        yield "thoughts", [BLANK]

    def _thought_label(self) -> str:
        if self.thinking:
            return f"Thinking… {self._clock() - (self._began or 0.0):.0f} s"
        parts = ["Thought" if self._thought is None else f"Thought for {self._thought:.0f} s"]
        usage = self.message.usage
        if usage is not None and usage.reasoning_tokens:
            parts.append(f"{usage.reasoning_tokens:,} tokens".replace(",", " "))
        return " · ".join(parts)

    def _called(self, cells: int) -> list[Line]:
        out: list[Line] = []
        is_open = "calls" in self.open
        for call in self._calls:
            name = one_line(call.name) or "…"
            label = f"{'▾' if is_open else '▸'} {name}"
            short = "" if is_open else one_line(call.arguments[:1000])
            shown = fit(f"{label}({short})" if not is_open else label, cells)
            out.append(line([Run(shown, ("fold",))]))
            if is_open:
                out += _json(call.arguments, cells)
        parted = bool(out) and self._body is not None and not self._body.empty
        return [BLANK, *out] if parted else out

    def _written(self, cells: int) -> list[Line]:
        """What a user or a tool wrote, as it is; of much, the beginning."""
        tool = self.message.role == "tool"
        style: Style = ("muted",) if tool else ()
        lines = clean(self.message.text).strip("\n").expandtabs(4).split("\n")
        shown = _PREVIEW if tool else _LONG
        hidden = len(lines) - shown
        if hidden > 1 and "rest" not in self.open:
            rows = paragraph([Run("\n".join(lines[:shown]), style)], cells)
            return [*rows, self._fold_row(f"▸ {hidden} more lines", cells)]
        rows = paragraph([Run("\n".join(lines), style)], cells) if any(lines) else []
        return [*rows, self._fold_row("▾ less", cells)] if hidden > 1 else rows

    def _fold_row(self, label: str, cells: int) -> Line:
        row = line([Run(fit(label, cells), ("fold",))])
        return row._replace(indent=len(row.text))

    def _note(self, cells: int) -> list[Line]:
        m = self.message
        style: Style = ("muted",)
        if m.state == "error":
            style, text = ("error",), f"Error: {one_line(m.note) or 'the answer failed'}"
        elif m.state == "stopped":
            text = "Stopped."
        elif m.state == "length":
            text = one_line(m.note) or "Cut short: the context or the limit on tokens is full."
        else:
            return []
        return paragraph([Run(text, style)], cells)


def _json(text: str, cells: int) -> list[Line]:
    """Arguments of a call, indented if they are JSON already."""
    with contextlib.suppress(ValueError, RecursionError):  # incomplete, or no JSON: as it is
        text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    out = []
    for runs in highlight(clean(text), "json"):
        for row, glue in fold(runs, max(cells - 4, 4), words=False):
            shown = (Run("  "), *styled(row, ()))
            out.append(line(shown, joined=glue, indent=2))
    return out
