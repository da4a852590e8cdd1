"""Every way to render a template goes through the sandbox."""

from __future__ import annotations

from typing import Any

import pytest

from edgerun.errors import TemplateError
from edgerun.text.template_pick import pick_template

SECRET = "hunter2"
KEY = "tokenizer.chat_template"
CALLED = {
    "role": "assistant",
    "content": "a",
    "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}],
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "the template for tools": {"tools": [{"function": {"name": "f"}}]},
    "continuing": {"messages": [{"role": "assistant", "content": "a"}], "continue_final": True},
    "calls and results": {"messages": [CALLED, {"role": "tool", "content": "1"}]},
    "variables": {"enable_thinking": True, "documents": [{"text": "x"}]},
}
REACHING = [
    "cycler.__init__.__globals__",
    "raise_exception.__globals__",
    "''.__class__.__mro__",
    "raise_exception(cycler.__init__.__globals__)",
    "raise_exception(messages.__class__)",
]


def rendered(way: str, expression: str) -> str:
    source = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ " + expression + " }}"
    metadata = {KEY: source, f"{KEY}.tool_use": source + "{{ tools }}"}
    options = dict(WAYS[way])
    t = pick_template(metadata, has_token=lambda text: False, tools="tools" in options)
    messages = [{"role": "user", "content": SECRET}, *options.pop("messages", [])]
    return t.render_text(messages, **options)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_renders(way: str) -> None:
    assert SECRET in rendered(way, "''")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("expression", REACHING)
def test_every_way_to_render_is_sandboxed(way: str, expression: str) -> None:
    try:
        text = rendered(way, expression)
    except TemplateError as e:
        text = str(e)
        assert SECRET not in text
    for sign in ("<class", "<function", "<module", "builtins", "environ", "0x"):
        assert sign not in text
