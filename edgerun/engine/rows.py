"""The rows of one step, and the drafts that some of them verify."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from edgerun.backends.base import Batch, Program
from edgerun.engine.draft_source import Draft, Drafter, Widths
from edgerun.engine.sequence import Sequence as EngineSequence

__all__ = ["Row", "add_drafts", "feed", "guess", "pack"]

log = logging.getLogger(__name__)

_NOTHING = Draft()


class Row:
    """One sequence's part of a step: ``n`` of its pending tokens, and a draft behind them."""

    __slots__ = ("draft", "n", "origins", "sequence", "wants")

    def __init__(self, sequence: EngineSequence, n: int) -> None:
        self.sequence = sequence
        self.n = n
        self.draft: tuple[int, ...] = ()
        #: Which sources drafted how many of them; may reach past the draft's end.
        self.origins: tuple[tuple[str, int], ...] = ()
        #: Whether a token is sampled behind it.
        self.wants = n == sequence.pending and sequence.room > 0

    def pack(self) -> tuple[list[int], int, list[int], range]:
        """The row as :meth:`edgerun.backends.base.Batch.pack` takes it."""
        s = self.sequence
        ids = s.ids[s.n_past : s.n_past + self.n]
        end = self.n + len(self.draft)
        return [*ids, *self.draft], s.n_past, s.pages, range(self.n - 1 if self.wants else end, end)


def pack(rows: Sequence[Row], program: Program) -> Batch:
    """A step's batch, which asks ``program`` for no more of its logits than some row can use."""
    samplers = [r.sequence.sampler for r in rows if r.wants]
    greedy = any(s.greedy_fast for s in samplers)
    n_top = program.n_top
    top = max([s.leading(n_top) for s in samplers], default=0) if n_top else 0
    return Batch.pack([r.pack() for r in rows], want_best=greedy, want_top=top)


def add_drafts(
    rows: Sequence[Row],
    most: int,
    widths: Widths,
    reserve: Callable[[EngineSequence, int], int],
) -> None:
    """Let rows that generate verify what their drafters guess.

    A guess that cannot be had never stops a step: a drafter that fails is asked no more.

    Args:
        rows: the step.
        most: most tokens of a draft.
        widths: shares the step's width among the drafts.
        reserve: finds pages for a sequence and so many tokens of a draft; returns for how many.
    """
    asked = [r for r in rows if r.wants and r.n == 1]
    drafts = [guess(r.sequence, most) for r in asked]
    if not any(d.tokens for d in drafts):
        return
    for r, d, width in zip(asked, drafts, widths(drafts, sum(r.n for r in rows)), strict=True):
        width = min(width, len(d.tokens))
        if width > 0 and (source := r.sequence.drafter) is not None:
            r.draft = d.tokens[: reserve(r.sequence, width)]
            r.origins = d.origins or ((source.name, width),)


def guess(s: EngineSequence, most: int) -> Draft:
    """What the drafter of ``s`` expects next: at most ``most`` tokens, fewer near its end."""
    limit = min(s.room - 1, most)
    # What leads shares its page next, which must hold nothing behind the prompt.
    if s.drafter is None or limit < 1 or s.leads:
        return _NOTHING
    try:
        d = s.drafter.draft(limit)
        if len(d.tokens) > limit:
            d = d._replace(tokens=d.tokens[:limit], probs=d.probs[:limit])
        return d
    except Exception:
        _give_up_drafting(s, s.drafter)
        return _NOTHING


def feed(s: EngineSequence, ids: Sequence[int]) -> None:
    """Tell the drafter of ``s`` what was generated."""
    if s.drafter is None:
        return
    try:
        s.drafter.extend(ids)
    except Exception:
        _give_up_drafting(s, s.drafter)


def _give_up_drafting(s: EngineSequence, drafter: Drafter) -> None:
    log.exception("the %s drafter failed; its sequence goes on without", drafter.name)
    s.drafter = None
