"""One turn: an answer from its question to its end, stored piece by piece before it is shown."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from edgerun.chat import ChatOptions, ToolCall, ToolCallDelta
from edgerun.core import Chunk, FinishReason, SamplingParams, Timings, Usage
from edgerun.errors import ContextLengthError, EdgerunError, RequestError, printable
from edgerun.tui.conversation import Conversation, State
from edgerun.tui.partner import About, Partner
from edgerun.tui.store import Store

__all__ = ["Turn"]

log = logging.getLogger(__name__)

#: Seconds that a piece waits for the disk before it is shown all the same.
_DISK = 0.25
#: Seconds that a partner may take to end its work.
_PATIENCE = 1.5

_STATES: dict[FinishReason, State] = {
    FinishReason.STOP: "done",
    FinishReason.TOOL_CALLS: "done",
    FinishReason.LENGTH: "length",
    FinishReason.ABORT: "stopped",
    FinishReason.ERROR: "error",
}


class Turn:
    """The answer to the conversation's head, as it comes::

        turn = Turn(conversation, partner, store, params)
        async for chunk in turn:
            show(turn.message.id, chunk)
        show_end(turn.message)

    ``message`` is in the conversation, and on disk, from the start, the question with it; its
    fields grow with the chunks. Pieces that wait are merged. The loop ends once the message has
    its last state; whatever goes wrong becomes that state, never an exception. Leaving the loop
    stops the turn.

    Args:
        resume: an answer that is gone on with, instead of a new one.

    Raises:
        RequestError: there is nothing to answer or to go on with.
    """

    def __init__(
        self,
        conversation: Conversation,
        partner: Partner,
        store: Store,
        params: SamplingParams | None = None,
        options: ChatOptions | None = None,
        *,
        resume: str | None = None,
    ) -> None:
        self._conversation, self._partner, self._store = conversation, partner, store
        self._params = params or SamplingParams()
        self._options = options or ChatOptions()
        if resume is None:
            path = conversation.path()
            if not path or path[-1].role == "assistant":
                raise RequestError("there is no question to answer: write one first")
            model = partner.about.model if partner.about else ""
            self.message = conversation.add("assistant", state="streaming", model=model)
            store.put(conversation.id, path[-1])
        else:
            self.message = conversation.messages[resume]
            if self.message.role != "assistant" or not self.message.text.strip():
                raise RequestError("there is no text to go on with: ask for another answer instead")
            conversation.show(resume)
            conversation.head = resume
            self._options = replace(self._options, continue_final=True)
            self.message.state, self.message.note, self.message.code = "streaming", "", ""
        self._before = self.message.usage if resume is not None else None
        self._calls: list[ToolCall] = list(self.message.calls)
        store.put(conversation.id, self.message)
        store.save(conversation)
        #: What is known of its usage, None = nothing yet, and tokens of the answer so far.
        self.known: Usage | None = None
        self.tokens = 0
        self._began = time.perf_counter()
        self._first: float | None = None
        self._waiting: list[Chunk] = []
        self._news = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._over = False

    # -- looking ------------------------------------------------------------------------------

    @property
    def reading(self) -> bool:
        """Whether the prompt is still being read."""
        return self._first is None and not self._over

    @property
    def speed(self) -> float | None:
        """Tokens a second since the first; None while that cannot be told."""
        if self._first is None or self.tokens < 2:
            return None
        return (self.tokens - 1) / max(time.perf_counter() - self._first, 1e-6)

    # -- running ------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the turn within a step; what came stays. Idempotent, from any handler."""
        self._end("stopped")
        if self._reader is not None:
            self._reader.cancel()

    def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        return self._run()

    async def _run(self) -> AsyncGenerator[Chunk, None]:
        if not self._over:
            self._reader = asyncio.ensure_future(self._read())
        try:
            while not self._over or self._waiting:
                if not self._over:
                    await self._news.wait()
                self._news.clear()
                merged = self._taken()
                if merged is not None:
                    await self._stored(merged)
                    yield merged
        finally:
            self.stop()
            self._taken()
            self._finish()
            if self._reader is not None:
                await asyncio.wait({self._reader}, timeout=_PATIENCE)

    async def _read(self) -> None:
        """Collect what the partner says, until it ends or the turn does."""
        sent = self._conversation.wire()
        try:
            answer = self._partner.answer(sent, self._params, self._options)
            async with aclosing(answer) as chunks:
                async for chunk in chunks:
                    if self._over:
                        return
                    self._take_in(chunk)
                    if chunk.finish_reason is not None:
                        return
            self._fail("the answer broke off before its end: ask again", "generation_error")
        except asyncio.CancelledError:
            self._end("stopped")
        except EdgerunError as e:
            full = e.code == ContextLengthError.code  # a server's has this code, too
            if full:
                self._fail(_too_long(e, self._partner.about, self._params, sent), e.code)
            else:
                self._fail(str(e), e.code)
        except Exception as e:
            log.exception("a turn failed")
            self._fail(f"unexpected {type(e).__name__}: {e}", "internal_error")

    def _take_in(self, chunk: Chunk) -> None:
        if chunk.text or chunk.reasoning or chunk.tool_calls:
            if self._first is None:
                self._first = time.perf_counter()
            self.tokens += len(chunk.token_ids) or 1
            self._waiting.append(chunk)
            self._news.set()
        if chunk.usage is not None:
            self.known = chunk.usage
        if chunk.finish_reason is not None:
            self.message.usage, self.message.timings = chunk.usage, chunk.timings
            if chunk.finish_reason is FinishReason.LENGTH:
                self.message.note = _cut(chunk.usage, self._params, self._partner.about)
            self._end(_STATES[chunk.finish_reason])

    def _end(self, state: State) -> None:
        """The first end counts."""
        if not self._over:
            self._over = True
            self.message.state = state
            self._news.set()

    def _fail(self, note: str, code: str) -> None:
        if not self._over:
            self.message.note, self.message.code = printable(" ".join(note.split()), 600), code
            self._end("error")

    # -- handing on ---------------------------------------------------------------------------

    def _taken(self) -> Chunk | None:
        """What waits, merged, and now part of the message; None if nothing does."""
        taken, self._waiting = self._waiting, []
        if not taken:
            return None
        deltas = tuple(d for c in taken for d in c.tool_calls)
        merged = Chunk(
            "".join(c.text for c in taken),
            tuple(i for c in taken for i in c.token_ids),
            reasoning="".join(c.reasoning for c in taken),
            tool_calls=deltas,
        )
        self.message.text += merged.text
        self.message.reasoning += merged.reasoning
        if deltas:
            self._add_calls(deltas)
        return merged

    def _add_calls(self, deltas: tuple[ToolCallDelta, ...]) -> None:
        calls = self._calls
        for d in deltas:
            while len(calls) <= d.index:
                calls.append(ToolCall("", "", ""))
            old = calls[d.index]
            calls[d.index] = ToolCall(
                d.id or old.id, d.name or old.name, old.arguments + d.arguments
            )
        self.message.calls = tuple(calls)

    async def _stored(self, chunk: Chunk) -> None:
        """Wait until the disk has it; not long, should the disk be slow."""
        done = self._store.append(self.message.id, chunk.text, chunk.reasoning)
        if not done.done():
            await asyncio.wait({asyncio.wrap_future(done)}, timeout=_DISK)

    def _finish(self) -> None:
        message = self.message
        now = time.perf_counter()
        first = self._first or now
        if message.usage is None:
            message.usage = replace(self.known or Usage(), completion_tokens=self.tokens)
        if message.timings is None and self.tokens:
            # How much of the prompt was cached is not known, so no speed of reading is either.
            message.timings = Timings(
                prefill=first - self._began, decode=now - first, decode_tokens=self.tokens - 1
            )
        if self._before is not None:
            message.usage = _whole(message.usage, self._before.completion_tokens)
        self._store.put(self._conversation.id, message)
        self._store.save(self._conversation)


def _whole(usage: Usage, before: int) -> Usage:
    """Of an answer that was gone on with, whose first ``before`` tokens went along as prompt."""
    prompt = max(usage.prompt_tokens - before, 0)
    return replace(
        usage,
        prompt_tokens=prompt,
        cached_tokens=min(usage.cached_tokens, prompt),
        completion_tokens=before + usage.completion_tokens,
    )


def _too_long(
    error: EdgerunError,
    about: About | None,
    params: SamplingParams,
    sent: Sequence[Mapping[str, Any]],
) -> str:
    """``sent``: the conversation, of which a model here gets the end with context shift."""
    here = about is None or not about.where
    shifted = here and params.context_shift and sent[-1]["role"] == "user"
    said = str(error)
    if isinstance(error, ContextLengthError):
        n, n_ctx = error.n_prompt_tokens, error.n_ctx
        what = "the conversation has"
        if shifted:
            system = sent[0]["role"] == "system"
            what = "the question and the system prompt have" if system else "the question has"
        said = f"{what} {n} tokens and the context holds {n_ctx}"
    out = f"{said}: /undo takes the question back"
    if shifted:
        return out + _larger(about)
    out += f", /new starts afresh{_larger(about)}"
    if here and not params.context_shift and sum(m["role"] == "user" for m in sent) > 1:
        out += "; /set context_shift on, then /retry, leaves out the oldest messages"
    return out


def _larger(about: About | None) -> str:
    """How there would be more context, if there can be."""
    if about is None or about.where or not about.n_ctx or not about.n_ctx_max:
        return ""
    most = about.n_ctx_max
    return f", --ctx N loads the model with up to {most}" if about.n_ctx < most else ""


def _cut(usage: Usage | None, params: SamplingParams, about: About | None) -> str:
    """Why an answer ends before its end, and the way out; "" = not known."""
    if usage is None:
        return ""
    if params.max_tokens is not None and usage.completion_tokens >= params.max_tokens:
        return f"Cut short: max_tokens is {params.max_tokens}. > or /continue goes on."
    if about is None or not about.n_ctx or usage.total_tokens < about.n_ctx - 1:
        return ""
    out = f"Cut short: the context of {about.n_ctx} tokens is full. /new starts afresh"
    if not about.where:
        out += f"{_larger(about)}; /set context_shift on, then /retry, drops the oldest and goes on"
    return f"{out}."
