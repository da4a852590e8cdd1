"""The Python API: one object that owns a model, an engine thread and a tokenizer."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from edgerun.backends.base import Backend
from edgerun.chat import ChatOptions
from edgerun.conversing import Conversation, prepare, split_overrides
from edgerun.core import Completion, Constraint, SamplingParams, Usage
from edgerun.coroutines import Begun, Coroutines, Message, Prompt
from edgerun.delivery import ChunkStream, Item, Mailbox, collect
from edgerun.engine import Engine, Limits, Metrics, Worker
from edgerun.engine.draft_source import whole_drafts
from edgerun.engine.sampling.constraint import TokenConstraint
from edgerun.engine.sampling.gate import Gate, ReasoningGate
from edgerun.errors import RequestError
from edgerun.kv_disk import open_disk, parse_limit
from edgerun.kv_swap import open_swap
from edgerun.loading import LoadedModel, find, load, open_model
from edgerun.placing import check_layers
from edgerun.requests import a_text, check_count, check_seconds, chosen_params, sequences, token_ids
from edgerun.shifting import fitted
from edgerun.speculating import check_choice, open_speculation
from edgerun.text.template import ChatTemplate
from edgerun.text.template_pick import pick_template
from edgerun.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from edgerun.backends.split import SplitBackend
    from edgerun.calling import Spelling
    from edgerun.embedding import Embedder, Embeddings
    from edgerun.structured.grammars import Grammars

__all__ = ["LLM"]


class LLM(Coroutines):
    """A model, ready to generate. Safe to use from any number of threads; their requests run as
    one batch. A process forked from the one that loaded it has none of its threads: calls there
    raise :class:`~edgerun.errors.ClosedError`.

    ::

        with LLM("smollm2-135m") as llm:
            print(llm.generate("The capital of France is", max_tokens=8).text)
            for chunk in llm.stream_chat([{"role": "user", "content": "Hello"}]):
                print(chunk.text, end="", flush=True)

    Args:
        model: a catalogue name (pulled if missing), a GGUF file's path, or ``None`` for the
            default model.
        backend: ``"auto"``, ``"cuda"``, ``"mlx"``, ``"cpu"``, ``"reference"``, ``"llama_cpp"``, or
            a :class:`~edgerun.backends.base.Backend`, which :meth:`close` then leaves open.
            ``"auto"`` takes an NVIDIA GPU if one is there and the model fits, else the CPU, and
            leaves files that edgerun does not run itself to llama.cpp.
        n_ctx: context in tokens, prompt and answer together; ``None`` = as trained, as far as
            memory reaches.
        threads: ``None`` = physical cores.
        kv_type: how K and V are stored: ``"f16"``, ``"q8_0"`` (half of that), ``"q4r"`` (a
            quarter, at a loss that is too much for models below 2 billion parameters;
            ``"q4r:force"`` for any) or ``"f32"``; ``None`` = the backend's default (cpu
            and cuda f16, reference f32).
        max_batch: most sequences in one step; others wait.
        token_gap: seconds from one token of an answer to its next that the prompts of other
            requests may stretch it to.
        speculation: ``"ngram"`` computes several tokens in one step where the text repeats
            itself; it changes the speed, never the text. ``"auto"`` = that, on backends where it
            holds bit for bit (cpu, cuda); ``"off"``.
        draft: a second, much smaller model with the same tokens (as ``model``) that drafts too.
        kv_disk: most bytes on disk for K and V of long texts, which need not be computed again
            after a restart then: a number, ``"2G"``, ``"off"``, or ``"auto"`` =
            ``$EDGERUN_KV_DISK``, else 2 GiB or a tenth of the free disk. Texts can be read back
            from it, so it is for the application to choose. See :mod:`.kv_disk`.
        exact: keep to kernels whose results do not depend on what else is computed, where a backend
            has others: mlx. Slower there, and then it speculates.
        gpu_layers: how many of the model's last layers, with the output head, a GPU of its own
            memory (cuda) gets; the CPU runs the others. ``None`` = as many as fit; 0 = none.
        progress: called with bytes loaded and bytes in all.

    Raises:
        ModelNotFoundError, DownloadError: the model cannot be found or fetched.
        ModelFileError: the file cannot be used.
        BackendError: the backend cannot be used, or memory does not suffice.
        RequestError: ``n_ctx``, ``threads`` or ``max_batch`` is below 1, ``token_gap`` not
            above 0, ``backend``, ``kv_type`` or ``speculation`` unknown, ``kv_type`` not for so
            small a model, ``draft`` has other tokens, ``kv_disk`` is no size, or ``gpu_layers`` are
            asked of a backend without a memory of its own.
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
        exact: bool = False,
        gpu_layers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        for key, number in (("n_ctx", n_ctx), ("threads", threads), ("max_batch", max_batch)):
            check_count(key, number)
        check_seconds("token_gap", token_gap)
        check_choice(speculation, draft)
        parse_limit(kv_disk)
        resolved = find(model)
        if isinstance(backend, str):
            loaded = open_model(
                resolved.path, backend, threads, n_ctx, kv_type, progress, exact, gpu_layers
            )
        elif isinstance(backend, Backend):
            check_layers(gpu_layers)
            loaded = load(resolved.path, backend, n_ctx, kv_type, progress, gpu_layers, threads)
        else:
            raise RequestError(
                f"backend must be a name or a Backend, not {backend!r}", param="backend"
            )
        self._model: LoadedModel = loaded
        used, ours = loaded.backend, isinstance(backend, str)
        close = used.close if ours else partial(_keep, used)
        if not ours and used is not backend:  # split: its front is not the caller's
            close = cast("SplitBackend", used).close_front
        try:
            self._speculation = open_speculation(self._model, speculation, draft)
            disk = open_disk(self._model, kv_disk)
        except BaseException:
            close()
            raise
        self.name: str = resolved.name
        self._templates: dict[bool, ChatTemplate] = {}
        self._template_lock = threading.Lock()
        self._spelling: Spelling | None = None
        kv = self._model.kv
        limits = Limits(max_rows=max_batch, gap=token_gap)
        program, widths = self._model.program, whole_drafts
        if self._speculation is not None:
            program = self._speculation.timed(program)
            widths = self._speculation.widths
        engine = Engine(
            program, kv.n_pages, kv.page_size, limits, copy_page=kv.copy_page, widths=widths,
            disk=disk, swap=open_swap(self._model),
        )  # fmt: skip
        # The worker's thread frees the backend, after its last step: nothing else may.
        self._worker = Worker(engine, close if disk is None else partial(_both, disk.close, close))
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
        return self._model.tokenizer.encode(a_text(text), add_bos=add_bos, parse_special=special)

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

    def conversation(
        self,
        messages: Sequence[Message],
        options: ChatOptions | None = None,
        constraint: Constraint | None = None,
    ) -> Conversation:
        """What :meth:`chat` makes of a conversation, without answering it: the prompt's token ids,
        how the answer is read, and what it must look like; its text as ``constraint`` says.

        Raises:
            TemplateError: the model's template refuses the conversation; its own words.
            RequestError: a message or an option is wrong; names it.
        """
        options = options or ChatOptions()
        template = self.chat_template(tools=bool(options.tools) and options.tool_choice != "none")
        tokenizer = self._model.tokenizer
        return prepare(messages, options, template, tokenizer, self._spelled, constraint)

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
        return collect(self.stream(prompt, chosen), chosen)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, **overrides: Any
    ) -> ChunkStream:
        """:meth:`generate` piece by piece. The request starts at once; closing or abandoning the
        iterator frees its place."""
        mailbox, chosen = Mailbox(), chosen_params(params, overrides)
        begun = self._begin(prompt, chosen, mailbox.put)
        return ChunkStream(mailbox, begun.cancel, self, chosen.n)

    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: ChatOptions | None = None,
        **overrides: Any,
    ) -> Completion:
        """Answer a conversation of ``{"role": ..., "content": ...}`` messages.

        ``overrides`` are fields of :class:`SamplingParams` or of
        :class:`~edgerun.chat.ChatOptions`. With ``context_shift`` the oldest turns of a long
        conversation are not sent; ``usage.left_out`` says how many messages.
        """
        asked, rest = split_overrides(options, overrides)
        chosen = chosen_params(params, rest)
        return collect(self.stream_chat(messages, chosen, asked), chosen)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        options: ChatOptions | None = None,
        **overrides: Any,
    ) -> ChunkStream:
        """:meth:`chat` piece by piece."""
        asked, rest = split_overrides(options, overrides)
        mailbox, chosen = Mailbox(), chosen_params(params, rest)
        begun = self._begin_chat(messages, asked, chosen, mailbox.put)
        return ChunkStream(mailbox, begun.cancel, self, chosen.n)

    # -- vectors ------------------------------------------------------------------------------

    def embed(
        self,
        texts: str | Sequence[str | Sequence[int]],
        *,
        pooling: str | None = None,
        dimensions: int | None = None,
    ) -> Embeddings:
        """A vector for each text, of length 1.

        Args:
            texts: one text or several; lists of token ids are taken as they are.
            pooling: ``"mean"``, ``"cls"`` or ``"last"``: which tokens' hidden states make the
                vector. ``None`` = as the file says, else ``"mean"``.
            dimensions: keep the first values only, of models trained for that.

        Raises:
            RequestError: a text is empty, an option unusable, or llama.cpp runs the model.
            ContextLengthError: a text is longer than the context.
            GenerationError: the model's output is not a number.
            ClosedError: the LLM was closed.
        """
        return self._embedder.begin(texts, pooling, dimensions).result()

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

    def _spelled(self) -> Spelling:
        with self._template_lock:
            if self._spelling is None:
                from edgerun.calling import Spelling

                self._spelling = Spelling(self._model.tokenizer)
            return self._spelling

    @cached_property
    def _embedder(self) -> Embedder:
        from edgerun.embedding import Embedder

        return Embedder(self._model, self._worker)

    @cached_property
    def _grammars(self) -> Grammars:
        from edgerun.structured.grammars import Grammars

        return Grammars(self._model.tokenizer)

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        return self.tokenize(prompt) if isinstance(prompt, str) else self._ids(prompt)

    def _constraints(self, params: SamplingParams, gate: Gate | None) -> Sequence[TokenConstraint]:
        """Those of the answers, one each; none where they are free."""
        matchers: Sequence[TokenConstraint] = ()
        if params.constraint is not None:
            can_end = not params.ignore_eos
            matchers = self._grammars.matchers(params.constraint, params.n, can_end=can_end)
        if gate is None:
            return matchers
        tokenizer = self._model.tokenizer
        return [
            ReasoningGate(
                gate,
                tokenizer.n_vocab,
                tokenizer.eog_ids,
                partial(tokenizer.token_bytes, special=True),
                then,
            )
            for then in (*matchers, *[None] * (params.n - len(matchers)))
        ]

    def _ids(self, ids: Sequence[int]) -> list[int]:
        return token_ids(ids, self._model.tokenizer.n_vocab)

    def _begin_chat(
        self,
        messages: Sequence[Message],
        options: ChatOptions,
        params: SamplingParams,
        emit: Callable[[Item], None],
    ) -> Begun:
        found = fitted(self, messages, options, params)
        if found.constraint is not params.constraint:
            params = replace(params, constraint=found.constraint)
        return self._begin(found.ids, params, emit, found)

    def _begin(
        self,
        prompt: Prompt,
        params: SamplingParams,
        emit: Callable[[Item], None],
        said: Conversation | None = None,
    ) -> Begun:
        """Start ``params.n`` answers to a prompt, or to what was ``said``, whose prompt it is."""
        drafter = self._speculation.drafter if self._speculation is not None else None
        ids, tokenizer = self._prompt_ids(prompt), self._model.tokenizer
        constraints = self._constraints(params, said.gate if said is not None else None)
        found = sequences(ids, params, tokenizer, self.n_ctx, emit, drafter, constraints, said)
        self._worker.submit(*found)
        known = Usage(
            found[0].n_prompt,
            left_out=said.left_out if said is not None else 0,
            kept_tokens=found[0].n_keep,
        )
        return Begun(partial(self._worker.cancel, *found), known)


def _token_text(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.token_text(token_id)


def _both(first: Callable[[], None], then: Callable[[], None]) -> None:
    try:
        first()
    finally:
        then()


def _keep(backend: Backend) -> None:
    """The caller closes ``backend``; until the worker ends, it must not be collected."""
