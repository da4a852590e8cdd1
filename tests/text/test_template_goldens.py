"""All templates against transformers' own renderings (tests/dev/make_template_goldens.py)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from helpers.paths import shared
from helpers.templates import GOLDEN, SPEC, template

from edgerun.errors import TemplateError

# Their |safe makes jinja2 escape the description as HTML; ours does not.
ESCAPES_HTML = {"meetkai-functionary-medium-v3.1"}
# Templates that have no form for tools, for calls, or for calls beside text.
NO_TOOLS = {
    "HuggingFaceTB-SmolLM3-3B",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "deepseek-ai-DeepSeek-V3.1",
    "google-gemma-2-2b-it",
    "llama-cpp-rwkv-world",
    "microsoft-Phi-3.5-mini-instruct",
}
NO_CALLS = NO_TOOLS | {"LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct"}


def arguments(case: str) -> dict[str, Any]:
    spec = SPEC["conversations"][case]
    return {
        "messages": spec["messages"],
        "tools": SPEC["tools"] if spec.get("tools") else None,
        "add_generation_prompt": spec.get("add_generation_prompt", True),
    }


def test_there_are_seventy() -> None:
    assert len(GOLDEN) == 70
    assert {p.stem for p in shared("templates").glob("*.jinja")} == set(GOLDEN)


@pytest.mark.parametrize("case", SPEC["conversations"])
@pytest.mark.parametrize("name", GOLDEN)
def test_renders_as_transformers_does(name: str, case: str) -> None:
    want = GOLDEN[name][case]
    uses_tools = SPEC["conversations"][case].get("tools")
    if "refusal" in want and not (name in NO_TOOLS and case == "null_content"):
        with pytest.raises(TemplateError) as e:
            template(name).render(**arguments(case))
        assert str(e.value) == want["refusal"]
        return
    text = template(name).render_text(**arguments(case))
    if "sha256" in want and not (uses_tools and name in NO_CALLS | ESCAPES_HTML):
        assert hashlib.sha256(text.encode()).hexdigest() == want["sha256"], text
    # Where transformers has no answer, or drops something: all that was sent is there.
    for m in arguments(case)["messages"]:
        content = m["content"] or ""
        if not m.get("tool_calls") and "</think>" not in content:
            assert content.strip() in text or json.dumps(content)[1:-1] in text
    if uses_tools:
        assert "get_weather" in text
        assert "The city's name" in text or "The city\\u0027s name" in text
        assert "Paris" in text.split("Weather in Paris?")[1]  # the call's argument


def test_what_templates_support_is_found() -> None:
    assert {n for n in GOLDEN if not template(n).supports_tools} == NO_TOOLS
    # This one drops a call that comes with text.
    no_calls = {n for n in GOLDEN if not template(n).supports_tool_history}
    assert no_calls - {"llama-cpp-deepseek-r1"} <= NO_CALLS
    assert {n for n in GOLDEN if template(n).refuses_system} == {"google-gemma-2-2b-it"}
    assert all(template(n).supports_system for n in GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_continues_the_last_message_exactly(name: str) -> None:
    tail = "The answer is \t "
    messages = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": tail}]
    text = template(name).render_text(messages, continue_final=True)
    assert text.endswith(tail)
    # What comes before is what an answer to the same question would follow.
    begun = template(name).render_text(messages[:1])
    question = begun.rindex("Q?")
    assert text[:question] == begun[:question]
