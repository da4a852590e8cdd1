"""Conversations: what a caller gives for one, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edgerun.chat import ChatOptions

__all__ = ["split_overrides"]

_OPTIONS = frozenset(f.name for f in dataclasses.fields(ChatOptions))


def split_overrides(
    options: ChatOptions | None, overrides: Mapping[str, Any]
) -> tuple[ChatOptions, dict[str, Any]]:
    """``options`` or the defaults, with the fields in ``overrides`` replaced; the rest of
    ``overrides``, which are sampling parameters."""
    ours = {k: v for k, v in overrides.items() if k in _OPTIONS}
    rest = {k: v for k, v in overrides.items() if k not in _OPTIONS}
    if options is None:
        return ChatOptions(**ours), rest
    return dataclasses.replace(options, **ours) if ours else options, rest
