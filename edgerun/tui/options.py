"""What the command line says about a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from edgerun.core import SamplingParams

__all__ = ["Options"]


class Options(NamedTuple):
    """What the command line says.

    Attributes:
        model: a name or path; None = the last one, or the default.
        question: asked at once.
        resume: which chat to go on with: "" = the latest; None = a new one.
        save: whether anything is kept on disk.
        params: how answers are asked for; None = as they are by default.
        given: the fields of ``params`` that it names; the others may be as they were last time.
        where: the address of the server that answers; "" = this process.
    """

    model: str | None = None
    question: str = ""
    resume: str | None = None
    save: bool = True
    system: str | None = None
    theme: str | None = None
    params: SamplingParams | None = None
    given: frozenset[str] = frozenset()
    where: str = ""
