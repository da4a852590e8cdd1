"""A streamed chat completion, as OpenAI and the many after it send it, read into chunks."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from edgerun.chat import ToolCallDelta
from edgerun.core import Chunk, FinishReason, Timings, Usage
from edgerun.errors import GenerationError, printable
from edgerun.tui.openai_errors import stream_error

__all__ = ["DONE", "AnswerReader", "Lines"]

#: The data of the last event.
DONE = "[DONE]"

#: Bytes of one line at most: a server that sends more has gone wrong.
_LONGEST = 32 << 20

_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "abort": FinishReason.ABORT,
    "cancelled": FinishReason.ABORT,
}


class Lines:
    """The data of server-sent events out of bytes that come in any portions.

    Lines end with LF, CR LF or CR, and nothing else: JSON may hold other line separators as they
    are, at which :meth:`str.splitlines` would cut it.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._cr = False
        self._data: list[str] = []

    def feed(self, block: bytes) -> Iterator[str]:
        """The data of the events that ``block`` completes.

        Raises:
            GenerationError: a line has no end.
        """
        if self._cr:
            block = block.removeprefix(b"\n")
        if block:
            self._cr = block.endswith(b"\r")
        *lines, rest = block.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            whole, self._rest = bytes(self._rest + line), bytearray()
            yield from self._line(whole.decode("utf-8", "replace"))
        self._rest += rest
        if len(self._rest) > _LONGEST:
            raise GenerationError("the server sent a line without end: ask again")

    def end(self) -> Iterator[str]:
        """What the last line holds, though no blank line follows it."""
        yield from self._line(bytes(self._rest).decode("utf-8", "replace"))
        yield from self._line("")
        self._rest.clear()

    def _line(self, line: str) -> Iterator[str]:
        if line.startswith("data:"):
            data = line[5:].removeprefix(" ")
            # Servers that forget the blank line between events are common enough.
            if self._data and _is_whole("\n".join(self._data)):
                yield self._take()
            self._data.append(data)
        elif not line and self._data:
            yield self._take()

    def _take(self) -> str:
        data, self._data = "\n".join(self._data), []
        return data


class _Thinking:
    """Reasoning that a server leaves in the text: an answer that begins with ``<think>`` has it up
    to ``</think>``. What may be half a tag is held back."""

    def __init__(self) -> None:
        self._held = ""
        self._inside: bool | None = None  # None: not known yet; False: over, or never begun
        self._blank = False  # whether the line breaks that go with a tag are still to come

    def split(self, text: str) -> tuple[str, str]:
        """Text and reasoning of the next piece."""
        if self._inside is False:
            text = text.lstrip("\n") if self._blank else text
            self._blank = self._blank and not text
            return text, ""
        held = self._held + text
        if self._inside is None:
            begin = held.lstrip()
            if not begin.startswith("<think>"):
                if "<think>".startswith(begin):
                    self._held = held
                    return "", ""
                self._inside, self._held = False, ""
                return held, ""
            self._inside, self._blank, held = True, True, begin.removeprefix("<think>")
        if self._blank:
            held = held.lstrip("\n")
            self._blank = not held
        reasoning, tag, rest = held.partition("</think>")
        if tag:
            self._inside, self._held, self._blank = False, "", True
            return self.split(rest)[0], reasoning.rstrip("\n")
        keep = next((n for n in range(8, 0, -1) if held.endswith("</think>"[:n])), 0)
        blank = len(held[: len(held) - keep].rstrip("\n"))
        self._held = held[blank:]
        return "", held[:blank]

    def end(self) -> tuple[str, str]:
        """What was held back."""
        held, self._held = self._held, ""
        return ("", held) if self._inside else (held, "")


class AnswerReader:
    """Chunks out of the events of one answer; times them, in case the server does not.

    Attributes:
        ended: why the answer ended, once it has.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._asked = time.perf_counter()
        self._first = self._latest = 0.0
        self._pieces = 0
        self._usage: Usage | None = None
        self._timings: Timings | None = None
        self._calls: list[str] = []
        self._thinking = _Thinking()
        self.ended: FinishReason | None = None

    def read(self, data: Any) -> Chunk | None:
        """What one event adds; None if that is nothing to show.

        Raises:
            EdgerunError: the event says that something went wrong.
        """
        if not isinstance(data, Mapping):
            raise GenerationError(f"{self._url} sent {printable(data, 60)} in place of an event")
        if data.get("error") or data.get("object") == "error":
            raise stream_error(self._url, data)
        self._count(data)
        choices = data.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, Mapping):
            return None
        delta = choice.get("delta") or choice.get("message") or {}
        chunk = self._piece(delta, choice) if isinstance(delta, Mapping) else None
        reason = choice.get("finish_reason")
        if reason == "content_filter":
            raise GenerationError(f"{self._url} ended the answer: its filter of content did")
        if reason in ("error", "failed"):
            raise stream_error(self._url, {"message": choice.get("message") or ""})
        if reason:
            self.ended = _REASONS.get(str(reason), FinishReason.STOP)
        return chunk

    def finish(self) -> Chunk:
        """The last chunk."""
        usage = self._usage or Usage(completion_tokens=self._pieces)
        timings = self._timings
        if timings is None:
            first = self._first or time.perf_counter()
            timings = Timings(
                prefill=first - self._asked,
                decode=max(self._latest - first, 0.0),
                prefill_tokens=max(usage.prompt_tokens - usage.cached_tokens, 0),
                decode_tokens=max(usage.completion_tokens - 1, 0),
            )
        text, reasoning = self._thinking.end()
        reason = self.ended or FinishReason.STOP
        return Chunk(text, (), (), reason, usage, timings, reasoning=reasoning)

    def _piece(self, delta: Mapping[str, Any], choice: Mapping[str, Any]) -> Chunk | None:
        text = _text(delta.get("content")) or _text(choice.get("text"))
        reasoning = _text(delta.get("reasoning_content")) or _text(delta.get("reasoning"))
        if text:
            text, thought = self._thinking.split(text)
            reasoning += thought
        calls = tuple(self._deltas(delta.get("tool_calls")))
        if not (text or reasoning or calls):
            return None
        self._latest = time.perf_counter()
        self._first = self._first or self._latest
        self._pieces += 1
        return Chunk(text, reasoning=reasoning, tool_calls=calls)

    def _deltas(self, items: Any) -> Iterator[ToolCallDelta]:
        for item in items if isinstance(items, list) else ():
            function = item.get("function") if isinstance(item, Mapping) else None
            if not isinstance(function, Mapping):
                continue
            name, arguments = function.get("name"), function.get("arguments")
            if isinstance(arguments, (dict, list)):  # Ollama's, which come whole
                arguments = json.dumps(arguments, ensure_ascii=False)
            index, key = item.get("index"), str(item.get("id") or "")
            if type(index) is not int or not 0 <= index < 1000:
                # Without an index a name begins another call.
                index = len(self._calls) if name else max(len(self._calls) - 1, 0)
            fresh = index >= len(self._calls)
            while index >= len(self._calls):
                self._calls.append(key)
            yield ToolCallDelta(
                index,
                "" if arguments is None else str(arguments),
                (key or f"call_{index}") if fresh else None,
                str(name) if fresh and name else None,
            )

    def _count(self, data: Mapping[str, Any]) -> None:
        usage = data.get("usage")
        if isinstance(usage, Mapping):
            self._usage = Usage(
                _number(usage.get("prompt_tokens")),
                _number(usage.get("completion_tokens")),
                _number(_inside(usage, "prompt_tokens_details", "cached_tokens")),
                _number(_inside(usage, "completion_tokens_details", "reasoning_tokens")),
                _number(usage.get("messages_left_out")),  # edgerun's own
            )
        t = data.get("timings")
        if isinstance(t, Mapping) and "predicted_ms" in t:
            n = _number(t.get("predicted_n"))
            self._timings = Timings(
                prefill=_seconds(t.get("prompt_ms")),
                decode=_seconds(t.get("predicted_ms")),
                prefill_tokens=_number(t.get("prompt_n")),
                decode_tokens=max(n - 1, 0),
            )
            if self._usage is None:
                cached = _number(t.get("cache_n"))
                self._usage = Usage(_number(t.get("prompt_n")) + cached, n, cached)


def _is_whole(data: str) -> bool:
    if data == DONE:
        return True
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def _text(value: Any) -> str:
    """Content as text, also where it comes in parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(p.get("text")) for p in value if isinstance(p, Mapping))
    return ""


def _inside(data: Mapping[str, Any], outer: str, inner: str) -> Any:
    found = data.get(outer)
    return found.get(inner) if isinstance(found, Mapping) else None


def _number(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and 0 <= value < 1e15 else 0


def _seconds(value: Any) -> float:
    return value / 1000 if isinstance(value, (int, float)) and 0 <= value < 1e12 else 0.0
