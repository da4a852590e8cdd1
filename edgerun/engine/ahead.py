"""One step ahead: a step that starts before the host knows the ids it computes.

While every sequence generates greedily, the device has the next step's ids as soon as the host
might. So the next step is started before the last one is waited for, and the device computes while
the host samples, delivers and prepares. What the host then finds out otherwise (a text has ended, a
request was cancelled) makes a row of that step useless: it is thrown away, and nothing else of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgerun.backends.base import I32, Batch, Program, Started
from edgerun.engine.admission import Pager
from edgerun.engine.rows import Row, guess
from edgerun.engine.sequence import Sequence as EngineSequence
from edgerun.errors import EdgerunError

__all__ = ["Ahead", "Flight"]

log = logging.getLogger(__name__)

#: Steps without a draft after which drafts are rare enough: the first step of one comes later when
#: another was started already.
_QUIET = 16


@dataclass(eq=False)
class Flight:
    """A step under way, of one token of each of ``sequences``.

    Attributes:
        n_past: of each sequence, when the step is its next one.
        tokens: what each computes; None until the step before it was waited for.
        sources: which of that step's ids they are.
        asked: whether drafters had their say about this step.
    """

    step: Started
    sequences: list[EngineSequence]
    n_past: list[int]
    tokens: list[int] | None = None
    sources: list[int] = field(default_factory=list)
    asked: bool = False
    began: float = field(default_factory=time.perf_counter)

    def know(self, best: I32) -> None:
        """The step before it gave these ids."""
        self.tokens = [int(best[i]) for i in self.sources]

    def standing(self) -> list[int]:
        """The rows that are still what their sequences need next."""
        assert self.tokens is not None
        return [
            i
            for i, (s, n, token) in enumerate(
                zip(self.sequences, self.n_past, self.tokens, strict=True)
            )
            # Whoever ended or had to leave has no pages; others sampled something else.
            if s.pages and s.n_past == n and s.ids[-1] == token
        ]


class Ahead:
    """Starts steps on a program that can; where it cannot, :meth:`suits` is False.

    Attributes:
        flight: the step that was started behind the last one.
    """

    def __init__(self, program: Program, pager: Pager) -> None:
        self._program = program
        self._pager = pager
        self._quiet = 0
        self.flight: Flight | None = None

    def take(self) -> Flight | None:
        flight, self.flight = self.flight, None
        return flight

    def suits(self, rows: Sequence[Row]) -> bool:
        """Whether a scheduled step is one that another may be started behind."""
        if len(rows) > self._program.ahead:
            return False
        if any(r.draft for r in rows):
            self._quiet = 0
            return False
        if not all(r.n == 1 and r.wants and _plain(r.sequence) for r in rows):
            return False
        self._quiet += 1
        return True

    def begin(self, rows: Sequence[Row]) -> Flight:
        """Start a step that suits."""
        sequences = [r.sequence for r in rows]
        step = self._program.start(Batch.pack([r.pack() for r in rows], want_best=True))
        tokens = [s.ids[-1] for s in sequences]
        return Flight(step, sequences, [s.n_past for s in sequences], tokens, asked=True)

    def follow(self, flight: Flight, n_sequences: int) -> Flight | None:
        """Start the step behind ``flight``; None if it must wait for its ids.

        Args:
            n_sequences: how many the engine has. All must take part, or somebody wants to come in.
        """
        rows = flight.standing()
        if len(rows) != n_sequences:
            return None
        going_on = [i for i in rows if flight.sequences[i].room > 1]
        sequences = [flight.sequences[i] for i in going_on]
        if not sequences or not self._undrafted(flight, sequences):
            return None
        if not all(self._pager.grow(s, 2) for s in sequences):
            return None
        n_past = [s.n_past + 1 for s in sequences]
        packed = [
            ([-1 - i], n, s.pages, range(1))
            for i, n, s in zip(going_on, n_past, sequences, strict=True)
        ]
        try:
            step = self._program.start(Batch.pack(packed, want_best=True), flight.step)
        except EdgerunError as e:  # the step that waits for the ids will say what is wrong
            log.debug("no step could be started behind another: %s", e)
            return None
        self._quiet += 1
        return Flight(step, sequences, n_past, sources=going_on)

    def _undrafted(self, flight: Flight, sequences: Sequence[EngineSequence]) -> bool:
        """Whether no drafter would rather have several tokens verified."""
        drafting = [s for s in sequences if s.drafter is not None]
        if not drafting:
            return True
        if self._quiet < _QUIET:
            return False
        if not flight.asked and any(guess(s, 1).tokens for s in drafting):
            self._quiet = 0
            return False
        return True


def _plain(s: EngineSequence) -> bool:
    """Whether what ``s`` says next is the likeliest token, whatever it is, and a drafter, if there
    is one, can be asked at any time."""
    # What leads shares its page next, which must hold nothing behind the prompt.
    return s.sampler.plain and not s.leads and (s.drafter is None or s.drafter.quick)
