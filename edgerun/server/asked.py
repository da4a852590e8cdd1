"""What any API's body comes down to, before a model is chosen for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from edgerun.chat import ChatOptions
from edgerun.core import SamplingParams

if TYPE_CHECKING:
    from edgerun.llm import LLM

__all__ = ["Asked", "ChatAsked", "TextAsked"]


@dataclass(frozen=True)
class ChatAsked:
    """An answer to a conversation.

    Attributes:
        model: as the client named it; None = the default one.
        messages: in OpenAI's shape, as :meth:`.LLM.start_chat` takes them.
        stream: as events, instead of whole.
        include_usage: a stream is to end with its token counts.
        prepare: called off the event loop once the model is there; what it returns is asked
            instead. For what depends on the model's tokens.
    """

    model: str | None
    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams
    options: ChatOptions
    stream: bool = False
    include_usage: bool = False
    prepare: Callable[[LLM], ChatAsked] | None = None


@dataclass(frozen=True)
class TextAsked:
    """Text that goes on from each of ``prompts``, which are text or token ids.

    ``params.n`` answers come to each; ``echo`` has them begin with their prompt; ``cut``: not all
    of what was sent found room in one. The rest is as in :class:`ChatAsked`.
    """

    model: str | None
    prompts: Sequence[str | Sequence[int]]
    params: SamplingParams
    stream: bool = False
    include_usage: bool = False
    echo: bool = False
    cut: bool = False
    prepare: Callable[[LLM], TextAsked] | None = None


Asked: TypeAlias = "ChatAsked | TextAsked"
