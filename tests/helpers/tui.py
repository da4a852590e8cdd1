"""A partner that plays a script: chunks, pauses, failures, answers without end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from edgerun.chat import ChatOptions, ToolCallDelta
from edgerun.core import Chunk, FinishReason, SamplingParams, Timings, Usage
from edgerun.errors import ClosedError, ModelNotFoundError
from edgerun.tui.partner import About, Choice, Live, Partner, Progress
from edgerun.tui.turn import Turn

__all__ = ["Endless", "FakePartner", "Gate", "Pause", "Think", "call"]


@dataclass(frozen=True)
class Pause:
    """Seconds until the next item."""

    seconds: float


@dataclass(frozen=True)
class Think:
    """A piece of reasoning."""

    text: str


@dataclass(frozen=True)
class Endless:
    """``text`` again and again, ``seconds`` apart, until the reader stops."""

    text: str = "on and "
    seconds: float = 0.001


@dataclass(eq=False)
class Gate:
    """Holds the answer until the test calls ``open()``; ``reached`` is set when it got there."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        self.opened.set()


def call(name: str, arguments: str, *, index: int = 0) -> ToolCallDelta:
    return ToolCallDelta(index, arguments, f"call_{index}", name)


async def stopped_at(turn: Turn, n: int) -> float:
    """Stop a turn at its ``n``-th chunk; the seconds from there to its end."""
    seen, stopped = 0, 0.0
    async for _ in turn:
        seen += 1
        if seen == n:
            stopped = time.perf_counter()
            turn.stop()
    return time.perf_counter() - stopped


class FakePartner(Partner):
    """Each answer plays the next script; the last one again when they run out.

    A script is text, or a list of: text, :class:`Think`, :class:`Pause`, :class:`Gate`,
    :class:`Endless`, a ToolCallDelta, a whole Chunk, or an exception to raise. A last chunk is
    added unless the script has one or raises.

    Attributes:
        asked: messages, params and options of each answer, in order.
        running: answers that are being read; ``stopped`` those ended by their reader.
        loads, pulls: what was asked for, in order. ``load_script`` and ``pull_script`` hold, by
            target (None = the default; "*" = any other), what is played: (stage, done, total),
            Pause, Gate, or an exception.
        missing: names of models that there are none of.
    """

    def __init__(
        self,
        *scripts: Any,
        about: About | None = None,
        choices: Sequence[Choice] = (),
        live: Live | None = None,
        loaded: bool = False,
    ) -> None:
        self.scripts = list(scripts) or ["Hello."]
        self.model = about or About("fake-1b", "cpu fake", 4096, size=1_000_000_000)
        self.about = self.model if loaded else None
        self.known = list(choices)
        self.now = live or Live(memory=1_500_000_000, acceptance=0.5, computed=0, cached=0)
        self.load_script: dict[str | None, list[Any]] = {}
        self.pull_script: dict[str | None, list[Any]] = {}
        self.asked: list[tuple[list[dict[str, Any]], SamplingParams, ChatOptions]] = []
        self.loads: list[str | None] = []
        self.pulls: list[str] = []
        self.missing: set[str] = set()
        self.running = self.stopped = 0
        self.closed = False

    async def load(self, model: str | None, progress: Progress) -> About:
        self.loads.append(model)
        self.about = None
        await self._play(self.load_script, model, progress, [("load", 1, 1)])
        self.about = self.model if model is None else replace(self.model, model=model)
        return self.about

    async def check(self, model: str) -> None:
        if model in self.missing:
            raise ModelNotFoundError(f"no model or file is called {model!r}")

    async def pull(self, target: str, progress: Progress) -> None:
        self.pulls.append(target)
        await self._play(self.pull_script, target, progress, [("pull", 1, 1)])

    async def _play(
        self,
        scripts: Mapping[str | None, list[Any]],
        target: str | None,
        progress: Progress,
        default: list[Any],
    ) -> None:
        for item in scripts.get(target, scripts.get("*", default)):
            await self._wait(item)
            if isinstance(item, tuple):
                progress(*item)
                await asyncio.sleep(0)

    async def _wait(self, item: Any) -> None:
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Pause):
            await asyncio.sleep(item.seconds)
        elif isinstance(item, Gate):
            item.reached.set()
            await item.opened.wait()

    async def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        options: ChatOptions,
    ) -> AsyncGenerator[Chunk, None]:
        if self.about is None:
            raise ClosedError("no model is loaded")
        self.asked.append(([dict(m) for m in messages], params, options))
        script = self.scripts[min(len(self.asked), len(self.scripts)) - 1]
        items = [script] if isinstance(script, str) else list(script)
        prompt = sum(len(str(m["content"]).split()) for m in messages)
        self.running += 1
        ended, n = False, 0
        try:
            yield Chunk(usage=Usage(prompt_tokens=prompt))
            for item in items:
                if isinstance(item, Endless):
                    while True:
                        n += 1
                        yield Chunk(item.text)
                        await asyncio.sleep(item.seconds)
                await self._wait(item)
                chunk = _chunk(item)
                if chunk is None:
                    continue
                n += 1
                ended = chunk.finish_reason is not None
                yield chunk
                await asyncio.sleep(0)
            if not ended:
                ended = True
                yield Chunk(
                    finish_reason=FinishReason.STOP,
                    usage=Usage(prompt, n, prompt // 2),
                    timings=Timings(0.0, 0.1, 0.5, prompt - prompt // 2, n),
                )
        except (GeneratorExit, asyncio.CancelledError):
            self.stopped += not ended
            raise
        finally:
            self.running -= 1

    async def count(self, text: str) -> int | None:
        return len(text.split())

    async def count_prompt(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> int | None:
        return sum(len(str(m["content"]).split()) for m in messages)

    async def choices(self) -> list[Choice]:
        return list(self.known)

    def live(self) -> Live:
        return self.now

    async def close(self) -> None:
        self.closed = True
        self.about = None


def _chunk(item: Any) -> Chunk | None:
    if isinstance(item, Chunk):
        return item
    if isinstance(item, str):
        return Chunk(item)
    if isinstance(item, Think):
        return Chunk(reasoning=item.text)
    if isinstance(item, ToolCallDelta):
        return Chunk(tool_calls=(item,))
    return None
