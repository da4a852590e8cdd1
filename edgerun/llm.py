"""The Python API: one object that owns a model, an engine thread and a tokenizer."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from edgerun.backends.base import Backend
from edgerun.core import Chunk, Completion, SamplingParams
from edgerun.delivery import (
    AsyncMailbox,
    ChunkStream,
    Collector,
    Item,
    Mailbox,
    off_loop,
)
from edgerun.engine import Engine, Limits, Metrics, Worker
from edgerun.engine import Sequence as EngineSequence
from edgerun.engine.draft_source import whole_drafts
from edgerun.errors import ClosedError, RequestError
from edgerun.kv_disk import open_disk, parse_limit
from edgerun.loading import LoadedModel, find, load, open_model
from edgerun.requests import check_count, check_seconds, chosen_params, sequences, token_ids
from edgerun.speculating import check_choice, open_speculation
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
        backend: ``"auto"``, ``"cpu"``, ``"reference"``, ``"llama_cpp"``, or a
            :class:`~edgerun.backends.base.Backend`, which :meth:`close` then leaves open. Of
            files that edgerun does not run itself, ``"auto"`` leaves the work to llama.cpp.
        n_ctx: context in tokens, prompt and answer together; ``None`` = as trained, as far as
            memory reaches.
        threads: ``None`` = physical cores.
        kv_type: how K and V are stored: ``"f16"``, ``"q8_0"`` (half of that), ``"q4r"`` (a
            quarter, at a loss that is too much for models below 2 billion parameters;
            ``"q4r:force"`` for any) or ``"f32"``; ``None`` = the backend's default (cpu f16,
            reference f32).
        max_batch: most sequences in one step; others wait.
        token_gap: seconds from one token of an answer to its next that the prompts of other
            requests may stretch it to.
        speculation: ``"ngram"`` computes several tokens in one step where the text repeats
            itself; it changes the speed, never the text. ``"auto"`` = that, on backends where it
            holds bit for bit (cpu); ``"off"``.
        draft: a second, much smaller model with the same tokens (as ``model``) that drafts too.
        kv_disk: most bytes on disk for K and V of long texts, which need not be computed again
            after a restart then: a number, ``"2G"``, ``"off"``, or ``"auto"`` =
            ``$EDGERUN_KV_DISK``, else 2 GiB or a tenth of the free disk. Texts can be read back
            from it, so it is for the application to choose. See :mod:`.kv_disk`.
        progress: called with bytes loaded and bytes in all.

    Raises:
        ModelNotFoundError, DownloadError: the model cannot be found or fetched.
        ModelFileError: the file cannot be used.
        BackendError: the backend cannot be used, or memory does not suffice.
        RequestError: ``n_ctx``, ``threads`` or ``max_batch`` is below 1, ``token_gap`` not
            above 0, ``backend``, ``kv_type`` or ``speculation`` unknown, ``kv_type`` not for so
            small a model, ``draft`` has other tokens, or ``kv_disk`` is no size.
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
        token_gap: float = 0.1,
        speculation: str = "auto",
        draft: str | Path | None = None,
        kv_disk: int | str = "off",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        for key, number in (("n_ctx", n_ctx), ("threads", threads), ("max_batch", max_batch)):
            check_count(key, number)
        check_seconds("token_gap", token_gap)
        check_choice(speculation, draft)
        parse_limit(kv_disk)
        resolved = find(model)
        if isinstance(backend, str):
            loaded = open_model(resolved.path, backend, threads, n_ctx, kv_type, progress)
        elif isinstance(backend, Backend):
            loaded = load(resolved.path, backend, n_ctx, kv_type, progress)
        else:
            raise RequestError(
                f"backend must be a name or a Backend, not {backend!r}", param="backend"
            )
        self._model: LoadedModel = loaded
        used, ours = loaded.backend, isinstance(backend, str)
        try:
            self._speculation = open_speculation(self._model, speculation, draft)
            disk = open_disk(self._model, kv_disk)
        except BaseException:
            if ours:
                used.close()
            raise
        self.name: str = resolved.name
        self._templates: dict[bool, ChatTemplate] = {}
        self._template_lock = threading.Lock()
        kv = self._model.kv
        limits = Limits(max_rows=max_batch, gap=token_gap)
        program, widths = self._model.program, whole_drafts
        if self._speculation is not None:
            program = self._speculation.timed(program)
            widths = self._speculation.widths
        engine = Engine(
            program,
            kv.n_pages,
            kv.page_size,
            limits,
            copy_page=kv.copy_page,
            widths=widths,
            disk=disk,
        )
        # The worker's thread frees the backend, after its last step: nothing else may.
        at_end = used.close if ours else partial(_keep, used)
        self._worker = Worker(
            engine, at_end if disk is None else partial(_both, disk.close, at_end)
        )
        self._close = weakref.finalize(self, self._worker.close)

    # -- facts --------------------------------------------------------------------------------

    @property
    def n_ctx(self) -> int:
        """Tokens the context holds, prompt and answer together."""
        return self._model.n_ctx

    @property
    def path(self) -> Path:
        """The file in use; of a split model, the one that was named."""
        return self._model.path

    @property
    def backend(self) -> Backend:
        """What computes."""
        return self._model.backend

    @property
    def model(self) -> LoadedModel:
        """File facts, configuration, tokenizer and program, for tools that look closer.

        Running the program by hand writes over pages that later requests may find cached: do it
        before, or instead of, generating.
        """
        return self._model

    def metrics(self) -> Metrics:
        """What was computed and is being computed: queue, tokens, cache, drafts, step times."""
        return self._worker.metrics()

    # -- text ---------------------------------------------------------------------------------

    def tokenize(self, text: str, *, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of ``text``. ``special`` parses control tokens: only for trusted text."""
        return self._model.tokenizer.encode(text, add_bos=add_bos, parse_special=special)

    def detokenize(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of ``ids``; control tokens are left out unless ``special``."""
        return self._model.tokenizer.decode(self._ids(ids), special=special)

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
        chosen = chosen_params(params, overrides)
        return _collect(self.stream(prompt, chosen), chosen)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> ChunkStream:
        """:meth:`generate` piece by piece. The request starts at once; closing or abandoning the
        iterator frees its place."""
        mailbox = Mailbox()
        ids, chosen = self._prompt_ids(prompt), chosen_params(params, overrides)
        sequences = self._submit(ids, chosen, mailbox.put)
        return ChunkStream(mailbox, partial(self._worker.cancel, *sequences), self, chosen.n)

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
    ) -> ChunkStream:
        """:meth:`chat` piece by piece."""
        ids = self.apply_template(messages, tools=tools, continue_final=continue_final)
        return self.stream(ids, params, **overrides)

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> Completion:
        """:meth:`generate` for coroutines; cancelling the task frees its place."""
        chosen = chosen_params(params, overrides)
        return await _acollect(self.astream(prompt, chosen), chosen)

    async def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> AsyncGenerator[Chunk, None]:
        """:meth:`stream` for coroutines. It starts, and refuses, at the first ``anext``."""
        chosen = chosen_params(params, overrides)
        ids = await off_loop(self._prompt_ids, prompt)  # long texts take a while
        mailbox = AsyncMailbox()
        sequences = self._submit(ids, chosen, mailbox.put)
        left = len(sequences)
        try:
            while left:
                chunk = await mailbox.get()
                left -= chunk.finish_reason is not None
                yield chunk
        finally:
            self._worker.cancel(*sequences)

    async def achat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> Completion:
        """:meth:`chat` for coroutines; ``options`` as there."""
        given = {k: v for k, v in options.items() if k not in _TEMPLATE_OPTIONS}
        chosen = chosen_params(params, given)
        return await _acollect(self.astream_chat(messages, params, **options), chosen)

    async def astream_chat(
        self, messages: Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> AsyncGenerator[Chunk, None]:
        """:meth:`stream_chat` for coroutines; ``options`` as there."""
        template = {k: options.pop(k) for k in _TEMPLATE_OPTIONS if k in options}
        chosen = chosen_params(params, options)
        ids = await off_loop(self.apply_template, messages, **template)
        async with contextlib.aclosing(self.astream(ids, chosen)) as chunks:
            async for chunk in chunks:
                yield chunk

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

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        return self.tokenize(prompt) if isinstance(prompt, str) else self._ids(prompt)

    def _ids(self, ids: Sequence[int]) -> list[int]:
        return token_ids(ids, self._model.tokenizer.n_vocab)

    def _submit(
        self, ids: list[int], params: SamplingParams, emit: Callable[[Item], None]
    ) -> list[EngineSequence]:
        """Start ``params.n`` answers to a prompt."""
        drafter = self._speculation.drafter if self._speculation is not None else None
        found = sequences(ids, params, self._model.tokenizer, self.n_ctx, emit, drafter)
        self._worker.submit(*found)
        return found


#: Options of :meth:`LLM.chat` that are no sampling parameters.
_TEMPLATE_OPTIONS = ("tools", "continue_final")


def _token_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_text(token_id)


def _collect(chunks: ChunkStream, params: SamplingParams) -> Completion:
    collector = Collector(params.logprobs is not None, params.n)
    with contextlib.closing(chunks):  # an interrupt ends the request, too
        for chunk in chunks:
            if (done := collector.add(chunk)) is not None:
                return done
    raise ClosedError("the stream ended without a last chunk")


async def _acollect(chunks: AsyncGenerator[Chunk, None], params: SamplingParams) -> Completion:
    collector = Collector(params.logprobs is not None, params.n)
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            if (done := collector.add(chunk)) is not None:
                return done
    raise ClosedError("the stream ended without a last chunk")


def _both(first: Callable[[], None], then: Callable[[], None]) -> None:
    try:
        first()
    finally:
        then()


def _keep(backend: Backend) -> None:
    """The caller closes ``backend``; until the worker ends, it must not be collected."""
