"""The Python API: one object that owns a model, an engine thread and a tokenizer."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from edgerun import catalog
from edgerun.backends.base import PAGE_SIZE, Backend
from edgerun.core import Chunk, Completion, SamplingParams
from edgerun.delivery import AsyncMailbox, Collector, Delivery, Item, Mailbox
from edgerun.engine import Engine, Limits, Sequence as EngineSequence, Worker
from edgerun.engine.sampling import Sampler
from edgerun.errors import ClosedError, ContextLengthError, RequestError
from edgerun.loading import LoadedModel, load, open_backend
from edgerun.text.template import ChatTemplate
from edgerun.text.template_pick import pick_template
from edgerun.text.tokenizer import Tokenizer

__all__ = ["LLM"]

Prompt: TypeAlias = "str | Sequence[int]"
Message: TypeAlias = Mapping[str, Any]


class LLM:
    """A model, ready to generate. Safe to use from any number of threads; their requests run as
    one batch.

    ::

        with LLM("smollm2-135m") as llm:
            print(llm.generate("The capital of France is", max_tokens=8).text)
            for chunk in llm.stream_chat([{"role": "user", "content": "Hello"}]):
                print(chunk.text, end="", flush=True)

    Args:
        model: a catalogue name (pulled if missing), a GGUF file's path, or ``None`` for the
            default model.
        backend: ``"auto"``, ``"cpu"``, ``"reference"``, or a
            :class:`~edgerun.backends.base.Backend`, which :meth:`close` then leaves open.
        n_ctx: context in tokens, prompt and answer together; ``None`` = as trained, as far as
            memory reaches.
        threads: ``None`` = physical cores.
        kv_type: how K and V are stored; ``None`` = the backend's default.
        max_batch: most sequences in one step; others wait.
        progress: called with bytes loaded and bytes in all.

    Raises:
        ModelNotFoundError, DownloadError: the model cannot be found or fetched.
        ModelFileError: the file cannot be used.
        BackendError: the backend cannot be used, or memory does not suffice.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        backend: str | Backend = "auto",
        n_ctx: int | None = None,
        threads: int | None = None,
        kv_type: str | None = None,
        max_batch: int = 16,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        resolved = catalog.resolve(None if model is None else str(model))
        opened = open_backend(backend, threads) if isinstance(backend, str) else None
        used = opened if opened is not None else backend
        assert isinstance(used, Backend)
        try:
            self._model: LoadedModel = load(resolved.path, used, n_ctx, kv_type, progress)
        except BaseException:
            if opened is not None:
                opened.close()
            raise
        self.name: str = resolved.name
        self._templates: dict[bool, ChatTemplate] = {}
        self._template_lock = threading.Lock()
        engine = Engine(
            self._model.program, self._model.kv.n_pages, PAGE_SIZE, Limits(max_rows=max_batch)
        )
        self._worker = Worker(engine)
        self._close = weakref.finalize(self, _shut_down, self._worker, opened)

    # -- facts --------------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds, prompt and answer together."""
        return self._model.n_ctx

    @property
    def path(self) -> Path:
        return self._model.path

    @property
    def backend(self) -> Backend:
        return self._model.backend

    @property
    def model(self) -> LoadedModel:
        """File facts, configuration, tokenizer and program, for tools that look closer."""
        return self._model

    # -- text ---------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of ``text``. ``special`` parses control tokens: only for trusted text."""
        return self._model.tokenizer.encode(text, add_bos=add_bos, parse_special=special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ``ids``; control tokens are left out unless ``special``."""
        self._check_ids(ids)
        return self._model.tokenizer.decode(ids, special=special)

    def apply_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final: bool = False,
        **template_args: Any,
    ) -> list[int]:
        """The prompt's token ids for a conversation.

        ``continue_final`` leaves the last message, the assistant's, open to be continued.

        Raises:
            TemplateError: the model's template refuses the conversation; its own words.
            RequestError: a message is malformed; names it.
        """
        segments = self.chat_template(tools=bool(tools)).render(
            messages,
            tools=tools,
            add_generation_prompt=not continue_final,
            continue_final=continue_final,
            **template_args,
        )
        return self._model.tokenizer.encode_segments(segments)

    def chat_template(self, *, tools: bool = False) -> ChatTemplate:
        """The model's chat template, compiled on first use; some files have one more for tools."""
        with self._template_lock:
            if tools not in self._templates:
                tokenizer = self._model.tokenizer
                self._templates[tools] = pick_template(
                    self._model.facts,
                    has_token=tokenizer.has_control,
                    tools=tools,
                    bos_token=_token_text(tokenizer, tokenizer.bos_id),
                    eos_token=_token_text(tokenizer, tokenizer.eos_id),
                )
            return self._templates[tools]

    # -- generation ---------------------------------------------------------------------------

    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> Completion:
        """Complete a prompt: text, or token ids taken as they are.

        ``overrides`` are :class:`SamplingParams` fields that replace those of ``params``.

        Raises:
            RequestError: the prompt or a parameter is unusable; names it.
            ContextLengthError: the prompt does not leave room for one token.
            GenerationError: the model's output is not a number.
            ClosedError: the LLM was closed.
        """
        return _collect(self.stream(prompt, params, **overrides), _params(params, overrides))

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> Iterator[Chunk]:
        """:meth:`generate` piece by piece. The request starts at once; abandoning the iterator
        frees its place."""
        return self._stream(self._prompt_ids(prompt), _params(params, overrides))

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final: bool = False,
        **overrides: Any,
    ) -> Completion:
        """Answer a conversation of ``{"role": ..., "content": ...}`` messages."""
        ids = self.apply_template(messages, tools=tools, continue_final=continue_final)
        return self.generate(ids, params, **overrides)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        continue_final: bool = False,
        **overrides: Any,
    ) -> Iterator[Chunk]:
        """:meth:`chat` piece by piece."""
        ids = self.apply_template(messages, tools=tools, continue_final=continue_final)
        return self.stream(ids, params, **overrides)

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> Completion:
        """:meth:`generate` for coroutines; cancelling the task frees its place."""
        collector = Collector(_params(params, overrides).logprobs is not None)
        async for chunk in self.astream(prompt, params, **overrides):
            if (done := collector.add(chunk)) is not None:
                return done
        raise ClosedError("the stream ended without a last chunk")

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> AsyncIterator[Chunk]:
        """:meth:`stream` for coroutines."""
        mailbox = AsyncMailbox()
        sequence = self._submit(self._prompt_ids(prompt), _params(params, overrides), mailbox.put)
        try:
            while True:
                chunk = await mailbox.get()
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            self._worker.cancel(sequence)

    async def achat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> Completion:
        """:meth:`chat` for coroutines; ``options`` as there."""
        ids, overrides = self._chat_ids(messages, options)
        return await self.agenerate(ids, params, **overrides)

    def astream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> AsyncIterator[Chunk]:
        """:meth:`stream_chat` for coroutines; ``options`` as there."""
        ids, overrides = self._chat_ids(messages, options)
        return self.astream(ids, params, **overrides)

    def close(self) -> None:
        """End running requests with ClosedError and free threads and memory. Idempotent."""
        self._close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- inside -------------------------------------------------------------------------------

    def _chat_ids(
        self, messages: Sequence[Message], options: dict[str, Any]
    ) -> tuple[list[int], dict[str, Any]]:
        ids = self.apply_template(
            messages,
            tools=options.pop("tools", None),
            continue_final=options.pop("continue_final", False),
        )
        return ids, options

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenize(prompt)
        self._check_ids(prompt)
        return list(prompt)

    def _check_ids(self, ids: Sequence[int]) -> None:
        n_vocab = self._model.tokenizer.n_vocab
        for i in ids:
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < n_vocab:
                raise RequestError(f"{i!r} is not a token id below {n_vocab}", param="prompt")

    def _submit(
        self, ids: list[int], params: SamplingParams, emit: Callable[[Item], None]
    ) -> EngineSequence:
        tokenizer = self._model.tokenizer
        if not ids:
            if tokenizer.bos_id is None:
                raise RequestError(
                    "the prompt is empty and the model has no start token: give it some text",
                    param="prompt",
                )
            ids = [tokenizer.bos_id]
        room = self.n_ctx - len(ids)
        if room < 1:
            raise ContextLengthError(len(ids), self.n_ctx)
        sampler = Sampler(
            params,
            tokenizer.n_vocab,
            eog_ids=tokenizer.eog_ids,
            seed=params.seed if params.seed is not None else secrets.randbits(64),
            token_bytes=tokenizer.token_bytes,
            prompt_ids=ids,
        )
        sequence = EngineSequence(
            ids,
            params,
            sampler,
            Delivery(tokenizer, params, ids[-1], emit),
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            eog_ids=tokenizer.eog_ids,
        )
        self._worker.submit(sequence)
        return sequence

    def _stream(self, ids: list[int], params: SamplingParams) -> Iterator[Chunk]:
        mailbox = Mailbox()
        return _ChunkIterator(self._worker, self._submit(ids, params, mailbox.put), mailbox)


class _ChunkIterator(Iterator[Chunk]):
    """A running request's chunks; closing or dropping it ends the request."""

    def __init__(self, worker: Worker, sequence: EngineSequence, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._done = False
        self.close = weakref.finalize(self, worker.cancel, sequence)

    def __next__(self) -> Chunk:
        if self._done or not self.close.alive:
            raise StopIteration
        try:
            chunk = self._mailbox.get()
        except Exception:
            self._done = True
            raise
        self._done = chunk.finish_reason is not None
        return chunk


def _token_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_text(token_id)


def _params(params: SamplingParams | None, overrides: dict[str, Any]) -> SamplingParams:
    known = {f.name for f in dataclasses.fields(SamplingParams)}
    for name in overrides:
        if name not in known:
            raise RequestError(f"unknown sampling parameter {name!r}", param=name)
    if params is None:
        return SamplingParams(**overrides)
    return dataclasses.replace(params, **overrides) if overrides else params


def _collect(chunks: Iterator[Chunk], params: SamplingParams) -> Completion:
    collector = Collector(params.logprobs is not None)
    for chunk in chunks:
        if (done := collector.add(chunk)) is not None:
            return done
    raise ClosedError("the stream ended without a last chunk")


def _shut_down(worker: Worker, backend: Backend | None) -> None:
    worker.close()
    if backend is not None:
        backend.close()
