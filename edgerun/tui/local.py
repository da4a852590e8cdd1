"""A model in this process: loaded, asked, changed for another, let go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from edgerun.chat import ChatOptions
from edgerun.core import Chunk, SamplingParams
from edgerun.errors import (
    ClosedError,
    EdgerunError,
    NotPulledError,
    OutOfMemoryError,
    printable,
)
from edgerun.tui.jobs import Job
from edgerun.tui.partner import About, Choice, Live, Partner, Progress

if TYPE_CHECKING:
    import psutil

    from edgerun.llm import LLM
    from edgerun.tui.shelf import Shelf

__all__ = ["LocalPartner"]

T = TypeVar("T")

#: Seconds that closing waits for what cannot be stopped at once: a step, a disk.
_CLOSING = 1.5


class LocalPartner(Partner):
    """See :class:`~edgerun.tui.partner.Partner`. Everything heavy is imported, and done, on other
    threads.

    Args:
        options: :class:`edgerun.LLM`'s keywords, for each model that is loaded: backend, n_ctx,
            threads, kv_type, speculation, draft, kv_disk.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._llm: LLM | None = None
        self._load: Job[tuple[LLM, About]] | None = None
        self._jobs: set[Job[Any]] = set()
        self._process: psutil.Process | None = None
        self._shelf: Shelf | None = None
        self._closed = False

    # -- models -------------------------------------------------------------------------------

    async def load(self, model: str | None, progress: Progress) -> About:
        """As :meth:`Partner.load`. One that cannot be found or fetched leaves the one before in
        its place."""
        if self._load is not None:
            self._load.give_up()
            await self._load.ended.wait()
        if self._closed:
            raise ClosedError("the chat is closing")
        self._load = job = self._start(
            partial(self._open, model), progress, lambda got: got[0].close()
        )
        try:
            self._llm, self.about = await job.result()
        finally:
            if self._load is job and job.ended.is_set():
                self._load = None
        return self.about

    def _open(self, model: str | None, job: Job[Any]) -> tuple[LLM, About]:
        """On the job's thread."""
        import psutil

        from edgerun.llm import LLM
        from edgerun.loading import find

        self._process = psutil.Process()
        found = find(model, partial(job.tell, "pull"))
        draft = self._options.get("draft")
        if draft is not None:
            find(draft, partial(job.tell, "pull"))
        job.tell("load", 0, None)
        old, self._llm = self._llm, None
        if old is not None:
            job.call(self._forget)
            old.close()
            del old
        job.check()
        try:
            llm = LLM(found.path, progress=partial(job.tell, "load"), **self._options)
        except MemoryError as e:
            raise OutOfMemoryError(f"{found.name} does not fit in memory: {printable(e)}") from e
        try:
            # The first question need not wait for it; what is wrong with it, that will say.
            with contextlib.suppress(EdgerunError):
                llm.chat_template()
            job.check()
            return llm, _about(llm, found.name)
        except BaseException:
            llm.close()
            raise

    def _forget(self) -> None:
        if self._llm is None:
            self.about = None

    async def check(self, model: str) -> None:
        def work(_: Job[None]) -> None:
            from edgerun import catalog

            with contextlib.suppress(NotPulledError):
                catalog.resolve(model, pull=False)

        await self._start(work).result()

    async def pull(self, target: str, progress: Progress) -> None:
        def work(job: Job[None]) -> None:
            from edgerun.loading import find

            find(target, partial(job.tell, "pull"))

        await self._start(work, progress).result()

    async def choices(self) -> list[Choice]:
        def work(_: Job[list[Choice]]) -> list[Choice]:
            from edgerun.tui.shelf import Shelf

            if self._shelf is None:
                self._shelf = Shelf()
            llm = self._llm
            return self._shelf.choices(None if llm is None else llm.model, self._options)

        return await self._start(work).result()

    # -- answers ------------------------------------------------------------------------------

    async def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        options: ChatOptions,
    ) -> AsyncGenerator[Chunk, None]:
        llm = self._llm
        if llm is None or self._closed:
            raise ClosedError("no model is loaded: choose one first")
        async with aclosing(await llm.start_chat(messages, params, options)) as chunks:
            yield Chunk(usage=chunks.known)
            async for chunk in chunks:
                yield chunk

    async def count(self, text: str) -> int | None:
        llm = self._llm
        if llm is None:
            return None
        work = partial(llm.tokenize, text, add_bos=False)
        return await self._start(lambda _: len(work())).result()

    async def count_prompt(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> int | None:
        llm = self._llm
        if llm is None or not messages:
            return None

        def work(_: Job[int]) -> int:
            from edgerun.shifting import fitted

            return len(fitted(llm, messages, None, params or SamplingParams()).ids)

        try:
            return await self._start(work).result()
        except EdgerunError:  # asking will say what is wrong
            return None

    def live(self) -> Live:
        memory = None
        if self._process is not None:
            with contextlib.suppress(Exception):  # it is gone from /proc in some sandboxes
                memory = int(self._process.memory_info().rss)
        llm = self._llm
        if llm is None:
            return Live(memory)
        m = llm.metrics()
        drafted = sum(d.drafted for d in m.drafts.values())
        accepted = sum(d.accepted for d in m.drafts.values())
        return Live(
            memory=memory,
            acceptance=accepted / drafted if drafted else None,
            computed=m.step_tokens,
            cached=(m.pages_used + m.pages_cached) * llm.model.kv.page_size,
        )

    # -- the end ------------------------------------------------------------------------------

    async def close(self) -> None:
        self._closed = True
        for job in self._jobs:
            job.give_up()
        llm, self._llm, self.about = self._llm, None, None
        if llm is not None:
            end = llm.close
            self._start(lambda _: end())
        ends = [asyncio.ensure_future(job.ended.wait()) for job in self._jobs]
        if ends:
            _, late = await asyncio.wait(ends, timeout=_CLOSING)
            for task in late:
                task.cancel()

    @property
    def ended(self) -> bool:
        return all(job.ended.is_set() for job in self._jobs)

    def _start(
        self,
        work: Callable[[Job[T]], T],
        progress: Progress | None = None,
        undo: Callable[[T], None] | None = None,
    ) -> Job[T]:
        job = Job(work, progress, undo, "edgerun-chat")
        self._jobs = {j for j in self._jobs if not j.ended.is_set()} | {job}
        return job


def _about(llm: LLM, name: str) -> About:
    backend, model = llm.backend, llm.model
    facts = backend.describe()
    fallback = None
    if backend.name == "llama_cpp":
        family = printable(model.facts.get("general.architecture"))
        fallback = f"llama.cpp {printable(facts.get('version'), 40)} runs {family} models here"
    detail = facts.get("isa") or facts.get("device") or facts.get("version") or ""
    if "layers" in facts:
        detail = f"{detail}, {facts['layers']}"
    return About(
        model=name,
        backend=f"{backend.name} {printable(detail, 64)}".strip(),
        n_ctx=llm.n_ctx,
        size=model.size,
        fallback=fallback,
        n_ctx_max=model.config.n_ctx_train if model.config is not None else None,
    )
