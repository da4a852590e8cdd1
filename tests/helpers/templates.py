"""The shared chat templates, each compiled once per test run."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache

from edgerun.text.template import ChatTemplate
from helpers.paths import FIXTURES, shared

SPEC = json.loads((FIXTURES / "templates" / "conversations.json").read_text("utf-8"))
GOLDEN: dict[str, dict[str, dict[str, str]]] = json.loads(
    (FIXTURES / "templates" / "golden.json").read_text("utf-8")
)


@cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate(
        shared("templates", f"{name}.jinja").read_text("utf-8"),
        bos_token=SPEC["bos_token"],
        eos_token=SPEC["eos_token"],
        clock=lambda: datetime.fromisoformat(SPEC["now"]),
    )


def one_message(source: str, content: str = "hi", **options: object) -> str:
    """``source`` rendered for one user message."""
    t = ChatTemplate(source)
    return t.render_text([{"role": "user", "content": content}], **options)
