"""Where a model's reasoning starts and ends in its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgerun.text.template_input import REASONING_TAGS

__all__ = ["ReasoningTags", "open_tags", "tags_of"]


class ReasoningTags(NamedTuple):
    """What stands around reasoning; ``after`` is markup between it and the answer."""

    open: str
    close: str
    after: tuple[str, ...] = ()


_OTHERS = (
    ReasoningTags("<|channel>thought", "<channel|>"),  # Gemma 4
    ReasoningTags("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ReasoningTags("<|think|>", "<|end|>", ("<|begin|>assistant", "<|content|>")),  # Solar Open
    ReasoningTags("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),  # Apriel
)
_ALL = (*(ReasoningTags(*pair) for pair in REASONING_TAGS), *_OTHERS)


def tags_of(source: str) -> tuple[ReasoningTags, ...]:
    """Those that a chat template's text names, both of them."""
    if "<think{}>" in source and "':opensource'" in source:  # Hunyuan 3 puts them together
        source = source.replace("{}", ":opensource")
    return tuple(t for t in _ALL if t.open in source and t.close in source)


def open_tags(tags: Sequence[ReasoningTags], written: str) -> ReasoningTags | None:
    """The tags of the block that a prompt ends inside of, if any.

    ``written`` is what the template itself wrote of it.
    """
    best: tuple[int, ReasoningTags] | None = None
    for t in tags:
        at = written.rfind(t.open)
        if at > written.rfind(t.close) and (best is None or at > best[0]):
            best = at, t
    return best[1] if best else None
