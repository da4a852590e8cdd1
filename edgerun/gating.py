"""What is asked of an answer before its text: which calls of tools, and how much reasoning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from edgerun.engine.sampling.gate import Gate
from edgerun.text.answer.reader import AnswerShape
from edgerun.text.answer.reasoning import ReasoningTags

if TYPE_CHECKING:
    from edgerun.calling import Spelling

__all__ = ["Choice", "gate_of"]


class Choice(NamedTuple):
    """``tool_choice``, checked: whether calls are read, must come, and of which tool alone."""

    offered: bool
    forced: bool = False
    name: str | None = None


def gate_of(
    shape: AnswerShape,
    spelling: Callable[[], Spelling],
    budget: int | None,
    *,
    constrained: bool,
    calls_forced: bool,
) -> Gate | None:
    """What lets the model reason before its answer; None where nothing needs to.

    Args:
        budget: most tokens of reasoning; None = no bound.
        constrained: whether the answer is.
        calls_forced: whether it is calls alone.
    """
    tags = shape.opened or next(iter(shape.tags), None)
    if (budget is None and not constrained) or not (tags or shape.harmony):
        return None
    ids = spelling().ids
    if tags is None:
        return _harmony_gate(shape, ids, budget, constrained, calls_forced)
    return Gate(
        opened=shape.opened is not None,
        open=tags.open.encode(),
        close=tags.close.encode(),
        open_ids=ids(tags.open),
        close_ids=ids(_closing(tags)),
        after_ids=ids("".join(tags.after)) if tags.after else (),
        budget=budget,
    )


def _closing(tags: ReasoningTags) -> str:
    """The end of a block that is cut short, as models that think in lines of their own have it."""
    return f"\n{tags.close}\n\n" if tags.close.startswith("</") else tags.close


def _harmony_gate(
    shape: AnswerShape,
    ids: Callable[[str], tuple[int, ...]],
    budget: int | None,
    constrained: bool,
    calls_forced: bool,
) -> Gate | None:
    """Harmony's analysis channel; an answer that is constrained is the final one."""
    analysis, final = "<|channel|>analysis<|message|>", "<|channel|>final"
    next_one = "<|end|><|start|>assistant"
    if "<|message|>" in shape.begun and "analysis" not in shape.begun:
        return None  # the answer is under way
    opened = "analysis" in shape.begun
    if constrained and not calls_forced:
        start = "" if budget == 0 and not opened else next_one
        return Gate(
            opened=True,
            open=analysis.encode(),
            close=final.encode(),
            open_ids=(),
            close_ids=ids(start + final),
            after_ids=ids("<|message|>"),
            budget=budget,
        )
    return Gate(
        opened=opened,
        open=analysis.encode(),
        close=b"<|end|>",
        open_ids=ids(analysis),
        close_ids=ids("<|end|>"),
        after_ids=ids("<|start|>assistant") if constrained else (),
        budget=budget,
        again=not constrained,
        lead=b"<|start|>assistant",
    )
