"""Who answers: what the chat asks of a model in this process or behind an address."""

from __future__ import annotations

import abc
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from edgerun.chat import ChatOptions
from edgerun.core import Chunk, SamplingParams

__all__ = ["About", "Choice", "Live", "Partner", "Progress"]

#: Called on the event loop with "pull" or "load", and bytes done and in all, None = not known.
Progress: TypeAlias = "Callable[[str, int, int | None], None]"


@dataclass(frozen=True)
class About:
    """The model that answers.

    Attributes:
        model: its name.
        backend: what computes, e.g. "cpu avx512vnni"; of a server what it says of itself, or "".
        n_ctx: tokens its context holds; None = the server does not say.
        where: "" = this process, else the server's address.
        size: bytes of its weights.
        fallback: why another runtime than edgerun's own runs it; None = edgerun's own does.
        n_ctx_max: tokens it was trained for, where ``n_ctx`` can be chosen; None = not known.
    """

    model: str
    backend: str = ""
    n_ctx: int | None = None
    where: str = ""
    size: int | None = None
    fallback: str | None = None
    n_ctx_max: int | None = None


@dataclass(frozen=True)
class Live:
    """What can be said at this moment; None = it cannot.

    Attributes:
        memory: resident bytes of this process.
        acceptance: share of drafted tokens that were right, 0 to 1, since the model was loaded.
        computed: tokens that went through the model so far, of prompts and answers: how far a
            prompt is read is the growth since it was sent.
        cached: tokens of context kept in memory for what comes next.
        refused: fields of a request that the server would not take, and is not sent any more.
    """

    memory: int | None = None
    acceptance: float | None = None
    computed: int | None = None
    cached: int | None = None
    refused: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """A model that could answer.

    Attributes:
        name: to show.
        target: what :meth:`Partner.load` and :meth:`Partner.pull` take.
        size: bytes; None = not known.
        pulled: whether it can be loaded without a download.
        fits: whether it fits in the memory that is free now; None = cannot be told.
        why: why it does not fit or cannot run, or what it needs; one short line.
        source: "catalogue", "file" or "server".
        n_ctx: tokens it was trained for.
        notes: the catalogue's words.
        partial: bytes of it that an interrupted pull has left.
        quant: how its weights are quantized, as in its file's name: "Q4_K_M"; "" = not known.
        tight: it fits, but with less than 4096 tokens of context or little memory to spare.
        runs: whether it could be run at all; False = ``why`` says what is wrong with it.
    """

    name: str
    target: str
    size: int | None = None
    pulled: bool = True
    fits: bool | None = None
    why: str = ""
    source: str = "catalogue"
    n_ctx: int | None = None
    notes: str = ""
    partial: int = 0
    quant: str = ""
    tight: bool = False
    runs: bool = True


class Partner(abc.ABC):
    """All methods belong to one event loop; none of them blocks it.

    Errors are those of :mod:`edgerun.errors`, one line each with the way out.
    """

    #: The model that answers; None while there is none.
    about: About | None = None

    @abc.abstractmethod
    async def load(self, model: str | None, progress: Progress) -> About:
        """Make ``model`` the one that answers, fetched first if need be; None = the default.

        The one before is closed before anything is loaded; one that cannot be found or fetched
        leaves it in its place. Cancelling the task gives up.

        Raises:
            ModelNotFoundError, DownloadError, ModelFileError, BackendError: it cannot be had.
        """

    @abc.abstractmethod
    async def check(self, model: str) -> None:
        """Whether :meth:`load` would find ``model``, at home or as something to fetch. Changes
        nothing.

        Raises:
            ModelNotFoundError, ModelFileError: it would not.
        """

    @abc.abstractmethod
    def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        options: ChatOptions,
    ) -> AsyncGenerator[Chunk, None]:
        """The answer to a conversation, piece by piece.

        A first chunk without text may tell the prompt's size, and how many messages are not in it,
        in ``usage``; the last one has a
        finish reason, usage and timings. ``aclose()``, or cancelling the task that reads, ends the
        work within a step.

        Raises:
            ContextLengthError: the conversation leaves no room for an answer.
            ClosedError: no model is loaded.
        """

    @abc.abstractmethod
    async def count(self, text: str) -> int | None:
        """Tokens of a text; None = cannot be told."""

    @abc.abstractmethod
    async def count_prompt(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> int | None:
        """Tokens of a conversation as it is sent with ``params``; None = cannot be told."""

    @abc.abstractmethod
    async def choices(self) -> list[Choice]:
        """The models that could answer."""

    @abc.abstractmethod
    async def pull(self, target: str, progress: Progress) -> None:
        """Fetch a model for later; cancelling the task ends it, and another try goes on there.

        Raises:
            ModelNotFoundError, DownloadError: it cannot be had.
        """

    @abc.abstractmethod
    def live(self) -> Live:
        """What can be said at this moment; cheap."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End everything within two seconds, whatever goes on. Idempotent."""

    @property
    def ended(self) -> bool:
        """Whether nothing goes on any more after :meth:`close`: a step of a large model may take
        longer than it waits, and an ordinary exit of the process would wait for that."""
        return True
