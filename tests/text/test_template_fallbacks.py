"""Which template a file gives, and what happens to what a template has no place for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.templates import SPEC, template

from edgerun.errors import RequestError, TemplateError
from edgerun.text.template import ChatTemplate, Segment, open_reasoning_tag
from edgerun.text.template_pick import CHATML, pick_template

KEY = "tokenizer.chat_template"
USER = {"role": "user", "content": "Hi"}
SYSTEM = {"role": "system", "content": "Be kind."}
CALL: dict[str, Any] = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "c", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    ],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "21"}
NO_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system!') }}"
    "{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)


def pick(metadata: dict[str, Any], *tokens: str, tools: bool = False) -> ChatTemplate:
    return pick_template(metadata, has_token=lambda t: t in tokens, tools=tools)


def test_the_files_own_template_is_taken() -> None:
    t = pick({KEY: "default", f"{KEY}.tool_use": "tools", f"{KEY}.rag": "rag"})
    assert t.source == "default"
    assert not t.is_fallback
    assert pick({KEY: "a", f"{KEY}.tool_use": "b"}, tools=True).source == "b"
    assert pick({KEY: "a"}, tools=True).source == "a"
    assert pick({f"{KEY}.rag": "r", f"{KEY}.default": "d"}).source == "d"
    assert pick({f"{KEY}.rag": "r"}).source == "r"
    assert pick({KEY: "", f"{KEY}.rag": "r"}).source == "r"


def test_a_template_must_be_text() -> None:
    with pytest.raises(TemplateError, match=KEY):
        pick({KEY: 5})
    with pytest.raises(TemplateError, match=f"{KEY} is malformed at line 1"):
        pick({KEY: "{{"})


def test_a_file_without_template_gets_one_that_says_so() -> None:
    t = pick({}, "<|im_start|>", "<|im_end|>")
    assert t.is_fallback
    assert "fallback" in t.name
    assert t.render([SYSTEM, USER]) == [
        Segment("<|im_start|>system\n", True),
        Segment("Be kind.", False),
        Segment("<|im_end|>\n<|im_start|>user\n", True),
        Segment("Hi", False),
        Segment("<|im_end|>\n<|im_start|>assistant\n", True),
    ]
    t = pick({}, "<|im_start|>")
    assert t.is_fallback
    text = t.render_text([SYSTEM, USER])
    assert text == "System: Be kind.\n\nUser: Hi\n\nAssistant:"


@pytest.mark.parametrize("tokens", [(), ("<|im_start|>", "<|im_end|>")])
def test_fallbacks_take_tools_and_continue(tokens: tuple[str, ...]) -> None:
    t = pick({}, *tokens)
    text = t.render_text([SYSTEM, USER, CALL, RESULT], tools=SPEC["tools"])
    for part in ("Be kind.", "get_weather", '"city": "Rome"', "21", "<tool_response"):
        assert part in text
    said = {"role": "assistant", "content": "Well, "}
    assert t.render_text([USER, said], continue_final=True).endswith("Well, ")


def test_tools_a_template_ignores_reach_the_system_prompt() -> None:
    t = ChatTemplate(CHATML)
    assert not t.supports_tools
    text = t.render_text([SYSTEM, USER], tools=SPEC["tools"])
    system = text.split("<|im_end|>")[0]
    assert system.startswith("<|im_start|>system\nBe kind.\n\nYou can call functions.")
    for tool in SPEC["tools"]:
        assert json.dumps(tool["function"], ensure_ascii=False) in system
    alone = t.render_text([USER], tools=SPEC["tools"])
    assert alone.startswith("<|im_start|>system\nYou can call functions.")


def test_tools_reach_a_model_without_system_prompts() -> None:
    t = ChatTemplate(NO_SYSTEM)
    text = t.render_text([USER], tools=SPEC["tools"])
    assert text.startswith("[user]You can call functions.")
    assert text.endswith("\n\nHi")


def test_calls_and_results_become_text_and_roles_still_alternate() -> None:
    t = template("google-gemma-2-2b-it")
    text = t.render_text([USER, CALL, RESULT, RESULT, USER], tools=SPEC["tools"])
    assert text.count("<start_of_turn>user") == 2
    assert (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>' in text
    )
    assert text.count('<tool_response name="get_weather">\n21\n</tool_response>') == 2
    assert text.endswith("</tool_response>\n\nHi<end_of_turn>\n<start_of_turn>model\n")


def test_reasoning_tags_in_arguments_do_not_cut_a_call() -> None:
    t = template("deepseek-ai-DeepSeek-R1-Distill-Llama-8B")
    call = json.loads(json.dumps(CALL))
    call["tool_calls"][0]["function"]["arguments"] = '{"city": "a</think>b"}'
    text = t.render_text([USER, call, RESULT], tools=SPEC["tools"])
    body = text.split("<tool_call>\n")[-1].split("\n</tool_call>")[0]
    assert json.loads(body)["arguments"] == {"city": "a</think>b"}


def test_a_refused_system_prompt_is_refused_and_a_dropped_one_is_not_lost() -> None:
    with pytest.raises(TemplateError) as e:
        ChatTemplate(NO_SYSTEM).render([SYSTEM, USER])
    assert str(e.value) == "No system!"
    text = ChatTemplate(DROPS_SYSTEM).render_text([SYSTEM, USER])
    assert text == "[user]Be kind.\n\nHi"


def test_developer_renders_as_system_where_the_template_lacks_it() -> None:
    developer = {"role": "developer", "content": "Be brief."}
    text = ChatTemplate(CHATML).render_text([developer, USER])
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>")
    text = ChatTemplate(CHATML).render_text([SYSTEM, developer, USER])
    assert text.startswith("<|im_start|>system\nBe kind.\n\nBe brief.<|im_end|>")
    assert "Be brief." in template("openai-gpt-oss-120b").render_text([developer, USER])
    knows = "{% for m in messages %}{{ m.role }}:{{ m.content }}{# developer #};{% endfor %}"
    assert ChatTemplate(knows).render_text([developer]) == "developer:Be brief.;"


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("{{ call.arguments }}", '{"city":  "Rome"}'),
        ("{{ 'x' + call.arguments }}", 'x{"city":  "Rome"}'),
        ("{{ call.arguments|tojson }}", '{"city": "Rome"}'),
        ("{% for k, v in call.arguments.items() %}{{ k }}={{ v }}{% endfor %}", "city=Rome"),
    ],
)
def test_arguments_come_as_the_template_takes_them(source: str, want: str) -> None:
    source = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{% set call = c.function %}<{{ call.name }} " + source + ">{% endfor %}{% endfor %}"
    )
    call = json.loads(json.dumps(CALL))
    call["tool_calls"][0]["function"]["arguments"] = '{"city":  "Rome"}'
    assert ChatTemplate(source).render_text([USER, call, RESULT]) == f"Hi<get_weather {want}>21"


@pytest.mark.parametrize("look", ["is none", "is not defined", "== ''"])
def test_null_content_comes_as_the_template_takes_it(look: str) -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' and m.content " + look + " %}"
        "{{ m.tool_calls|tojson }}{% else %}{{ m.content + '' }}{% endif %}{% endfor %}"
    )
    assert "Rome" in ChatTemplate(source).render_text([USER, CALL, RESULT])


def test_other_names_of_tools() -> None:
    tools = SPEC["tools"]
    assert "get_weather" in ChatTemplate("{{ xml_tools|tojson }}").render_text([USER], tools=tools)
    assert "get_weather" in ChatTemplate("{{ functions }}").render_text([USER], tools=tools)
    assert ChatTemplate("{{ functions }}").render_text([USER]) == "[]"


def test_continuing() -> None:
    t = template("Qwen-Qwen3-0.6B")
    with pytest.raises(RequestError, match="role user"):
        t.render([USER], continue_final=True)
    with pytest.raises(RequestError, match="tool calls"):
        t.render([USER, CALL], continue_final=True)
    begun = {"role": "assistant", "reasoning_content": "Let me "}
    text = t.render_text([USER, begun], continue_final=True)
    assert text.endswith("<think>\nLet me ")
    with pytest.raises(TemplateError, match="leaves out the last message"):
        ChatTemplate("{{ messages[0].content }}").render(
            [USER, {"role": "assistant", "content": "x"}], continue_final=True
        )
    # The character that finds the end is one the conversation lacks.
    said = {"role": "assistant", "content": "\U000f0000\U000f0001"}
    assert t.render_text([USER, said], continue_final=True).endswith("\U000f0000\U000f0001")


def test_variables() -> None:
    t = template("Qwen-Qwen3-0.6B")
    assert t.render_text([USER], enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert t.render_text([USER], enable_thinking=None).endswith("assistant\n")
    shown = ChatTemplate("{{ a }}{{ b.c[0] }}").render([USER], a="<s>", b={"c": [1]})
    assert shown == [Segment("<s>1", False)]
    for name in ("bos_token", "eos_token", "_x"):
        with pytest.raises(RequestError, match=name) as e:
            t.render([USER], **{name: "x"})
        assert e.value.param == "chat_template_kwargs"
    with pytest.raises(RequestError):
        t.render([USER], x=object())


def test_an_open_reasoning_block_is_seen() -> None:
    def after(name: str, **options: Any) -> tuple[str, str] | None:
        return open_reasoning_tag(
            template(name).render([{"role": "user", "content": "<think>"}], **options)
        )

    assert after("Qwen3.5-4B") == ("<think>", "</think>")
    assert after("Qwen3.5-4B", enable_thinking=False) is None
    assert after("Qwen-Qwen2.5-7B-Instruct") is None  # a user's tag opens nothing
    begun = {"role": "assistant", "content": "<think>Hm"}
    said = template("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B").render(
        [USER, begun], continue_final=True
    )
    assert open_reasoning_tag(said) == ("<think>", "</think>")


def test_jinja2_is_imported_by_the_first_template_only() -> None:
    code = (
        "import sys, edgerun.text.template, edgerun.text.template_pick\n"
        "assert 'jinja2' not in sys.modules\n"
        "edgerun.text.template.ChatTemplate('x')\n"
        "assert 'jinja2' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)
