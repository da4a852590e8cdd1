"""How hard to reason, as each chat template wants it said."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["EFFORTS", "effort_variables"]

EFFORTS = ("none", "minimal", "low", "medium", "high")

#: An effort -> what templates may call it, nearest first; some know three levels, some two.
_SPELLINGS = {
    "none": ("none", "no_think", "low"),
    "minimal": ("minimal", "low"),
    "low": ("low",),
    "medium": ("medium", "high"),
    "high": ("high",),
}


def effort_variables(source: str, effort: str) -> list[dict[str, Any]]:
    """Variables that ask the chat template ``source`` for ``effort``, one of :data:`EFFORTS`.

    Several sets where the template may refuse one: the first that it takes is meant. An empty
    set: it has no such variable.
    """
    words = set(re.findall(r"\w+", source))
    thinks = effort != "none"
    switches: dict[str, Any] = {
        "enable_thinking": thinks,  # Qwen 3, GLM, Gemma 4, Nemotron, SmolLM3
        "thinking": thinks,  # DeepSeek V3.1, Granite 3.3, Kimi
        "thinking_mode": "enabled" if thinks else "disabled",  # MiniMax M3
        "reasoning": thinks,  # Cohere
        **({} if thinks else {"thinking_budget": 0}),  # Seed OSS
    }
    given = {k: v for k, v in switches.items() if k in words}
    if "reasoning_effort" not in words:
        return [given]
    spelled = [e for e in _SPELLINGS[effort] if f'"{e}"' in source or f"'{e}'" in source]
    spelled += [e for e in _SPELLINGS[effort] if e not in spelled]
    return [{**given, "reasoning_effort": e} for e in spelled]
