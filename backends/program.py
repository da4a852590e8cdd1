"""What the engine calls: a forward pass bound to weights and pages, and the steps of it."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, NamedTuple, Protocol, overload

import numpy as np

if TYPE_CHECKING:
    from edgerun.backends.base import F32, I32, Batch

__all__ = ["Program", "Rows", "Started", "Top", "filled"]


class Rows(Protocol):
    """Logits that may still lie on a device: a slice is of the same kind, a row is an array."""

    @overload
    def __getitem__(self, at: int) -> F32: ...
    @overload
    def __getitem__(self, at: slice) -> Rows: ...


class Top(NamedTuple):
    """The largest logits behind some tokens, best first, of equals (-0 is 0) the lowest id first.

    Attributes:
        ids: int32 [n, at least as many as were asked for]. Behind the last logit above -inf they
            are -1; so are all of a row where some logit is NaN or +inf, or cannot be ranked.
        logits: float32, theirs, with the bits of the whole row's; -inf where the id is -1.
    """

    ids: I32
    logits: F32


class Started(abc.ABC):
    """A step that may still be under way; whoever does not need it may drop it.

    Attributes:
        best: as :attr:`Program.best`, once the step was waited for.
    """

    best: I32

    @abc.abstractmethod
    def wait(self) -> Rows:
        """Wait for this step, not for one started behind it; returns its logits. They may be asked
        for until the next step was waited for, or one more was started or run.

        Raises:
            BackendError: the device failed.
        """


class Program(abc.ABC):
    """A forward pass bound to weights and a KV pool."""

    n_vocab: int
    #: After a run whose batch asked for it: int32 [n_outputs], the id with the largest logit, the
    #: lowest of equals, -1 where some logit is not finite; where :attr:`top` was asked for as well,
    #: -inf may be a logit as others. ``None`` if the backend leaves it out.
    best: I32 | None = None
    #: After a run whose batch asked for it, until the next one: of each output. Else ``None``.
    top: Top | None = None
    #: Most logits of a row that :attr:`top` can hold; 0 = it is not there.
    n_top: int = 0
    #: Most rows of a step that :meth:`start` takes, so that a device computes while the host is
    #: busy with the step before; 0 = it is not there.
    ahead: int = 0

    def width(self, most: int) -> int:
        """How many of ``most`` tokens a step had better compute: fewer where it gets dearer by more
        than the further ones are worth."""
        return most

    @abc.abstractmethod
    def run(self, batch: Batch) -> F32:
        """Run one step; returns logits float32 [n_outputs, n_vocab], valid until the next run.

        For a batch that wants the best ids or the largest logits, they may be :class:`Rows` that
        are fetched only when a row is asked for.
        """

    def start(self, batch: Batch, after: Started | None = None) -> Started:
        """Begin a step of rows of one token, each with an output, that wants the best ids.

        Args:
            batch: in its ``tokens``, ``-1 - j`` stands for ``after.best[j]``, which nobody may know
                yet. Where that is no token, the row computes anything, without harm to others.
            after: the step started last, or one before it.

        Steps, copies of pages and whatever else takes place in the order asked for.

        Raises:
            RequestError, BackendError, OutOfMemoryError: as :meth:`run`.
        """
        raise NotImplementedError("this program starts no steps")


def filled(batch: Batch, best: I32) -> Batch:
    """``batch`` with the ids that its tokens stand for; 0 where there is none."""
    tokens = batch.tokens
    named = best[np.where(tokens < 0, -1 - tokens, 0)] if len(best) else tokens
    return dataclasses.replace(
        batch, tokens=np.where(tokens < 0, np.maximum(named, 0), tokens).astype(np.int32)
    )
