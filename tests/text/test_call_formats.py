"""Each real template gets its model's format of calls, and reads back what it writes itself."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.paths import SHARED
from helpers.reading import TOOLS, Answer, read
from helpers.templates import template

from edgerun.errors import TemplateError
from edgerun.text.answer.formats import FORMATS, HARMONY, pick_format
from edgerun.text.answer.reader import AnswerShape
from edgerun.text.answer.reasoning import open_tags, tags_of
from edgerun.text.answer.syntax import SYNTAXES, syntax_of
from edgerun.text.answer.tools import Tools
from edgerun.text.effort import EFFORTS, effort_variables

pytestmark = pytest.mark.skipif(not (SHARED / "templates").is_dir(), reason="no shared templates")

FORMAT_OF = {
    "Apertus-8B-Instruct": "apertus",
    "Apriel-1.6-15b-Thinker-fixed": "tool_calls",
    "Bielik-11B-v3.0-Instruct": "hermes",
    "ByteDance-Seed-OSS": "seed",
    "Cohere2MoE": "cohere",
    "CohereForAI-c4ai-command-r-plus-tool_use": "command_r",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": "cohere",
    "GLM-4.6": "glm",
    "GLM-4.7-Flash": "glm",
    "GigaChat3-10B-A1.8B": "gigachat",
    "GigaChat3.1-10B-A1.8B": "gigachat",
    "HuggingFaceTB-SmolLM3-3B": "generic",
    "Kimi-K2-Instruct": "kimi",
    "Kimi-K2-Thinking": "kimi",
    "LFM2-8B-A1B": "lfm2",
    "LFM2.5-8B-A1B": "lfm2",
    "LFM2.5-Instruct": "lfm2",
    "MiMo-VL": "hermes",
    "MiniMax-M1": "tool_calls",
    "MiniMax-M2": "minimax",
    "Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "qwen3_coder",
    "NVIDIA-Nemotron-Nano-v2": "nemotron",
    "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use": "hermes",
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": "hermes",
    "Qwen-QwQ-32B": "hermes",
    "Qwen-Qwen2.5-7B-Instruct": "hermes",
    "Qwen-Qwen3-0.6B": "hermes",
    "Qwen3-Coder": "qwen3_coder",
    "Qwen3.5-4B": "qwen3_coder",
    "Reka-Edge": "hermes",
    "Spark2.5": "glm",
    "StepFun3.5-Flash": "qwen3_coder",
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": "generic",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": "generic",
    "deepseek-ai-DeepSeek-V3.1": "generic",
    "deepseek-ai-DeepSeek-V3.2": "deepseek_dsml",
    "deepseek-ai-DeepSeek-V4": "deepseek_dsml",
    "deepseek-ai-DeepSeek-V4-Flash-0731": "deepseek_dsml",
    "fireworks-ai-llama-3-firefunction-v2": "firefunction",
    "google-gemma-2-2b-it": "generic",
    "google-gemma-4-31B-it": "gemma4",
    "google-gemma-4-31B-it-interleaved": "gemma4",
    "ibm-granite-granite-3.3-2B-Instruct": "granite",
    "ibm-granite-granite-4.0": "hermes",
    "ibm-granite-granite-4.1": "hermes",
    "inclusionai-ling-3.0-flash": "glm",
    "llama-cpp-deepseek-r1": "deepseek",
    "llama-cpp-rwkv-world": "generic",
    "meetkai-functionary-medium-v3.1": "llama3",
    "meetkai-functionary-medium-v3.2": "functionary",
    "meta-llama-Llama-3.1-8B-Instruct": "llama3",
    "meta-llama-Llama-3.2-3B-Instruct": "llama3",
    "meta-llama-Llama-3.3-70B-Instruct": "llama3",
    "microsoft-Phi-3.5-mini-instruct": "generic",
    "mistralai-Ministral-3-14B-Reasoning-2512": "mistral",
    "mistralai-Mistral-Nemo-Instruct-2407": "mistral",
    "moonshotai-Kimi-K2": "kimi",
    "openai-gpt-oss-120b": HARMONY,
    "openbmb-MiniCPM5-1B": "minicpm",
    "poolside-Laguna-S-2.1": "glm",
    "poolside-Laguna-XS-2.1": "glm",
    "poolside-Laguna-XS.2": "glm",
    "tencent-Hy3": "hunyuan",
    "unsloth-Apriel-1.5": "tool_calls",
    "unsloth-mistral-Devstral-Small-2507": "mistral",
    "upstage-Solar-Open-100B": "solar",
}
USER = {"role": "user", "content": "Hi"}
ROME: Any = ("get_weather", {"city": "Rome", "days": 3})
QUOTE: Any = ("get_time", {"city": 'a"b'})


def picked(name: str) -> str:
    t = template(name)
    tokens = {"<|tool_call_start|>"} if name.startswith("LFM2") else set()
    return pick_format(t.source, offers_tools=t.supports_tools, has_token=tokens.__contains__)


@pytest.mark.parametrize("name", FORMAT_OF)
def test_format(name: str) -> None:
    assert picked(name) == FORMAT_OF[name]


def test_every_format_can_be_forced() -> None:
    for name in (*FORMATS, HARMONY):
        assert syntax_of(name, "") is not None
    assert {s.notation for s in SYNTAXES.values()} == {"json", "xml", "python", "gemma"}


#: Templates that show the calls of earlier turns in the model's own way. Three refuse two calls.
WRITERS = sorted(
    set(FORMAT_OF)
    - {
        "CohereForAI-c4ai-command-r-plus-tool_use",  # another prompt altogether
        "LFM2-8B-A1B", "LFM2.5-Instruct", "ibm-granite-granite-3.3-2B-Instruct",  # no calls
        "llama-cpp-deepseek-r1",
    }
)  # fmt: skip


def call(i: int, name: str, arguments: str) -> dict[str, Any]:
    return {
        "id": f"callcall{i}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


@pytest.mark.parametrize("name", WRITERS)
def test_what_a_template_writes_is_read_back(name: str) -> None:
    t = template(name)
    two = [call(1, *map_json(ROME)), call(2, *map_json(QUOTE))]
    for calls, want in ((two, (ROME, QUOTE)), (two[:1], (ROME,))):
        said = {"role": "assistant", "content": None, "tool_calls": calls}
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "RESULT"} for c in calls]
        try:
            before = t.render_text([USER], tools=TOOLS, add_generation_prompt=False)
            after = t.render_text([USER, said, *results], tools=TOOLS)
        except TemplateError:
            continue
        start = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), len(before)
        )
        # What follows the calls, up to the first result, is no part of the answer.
        answer = after[start : after.index("RESULT", start)]
        form = picked(name)
        if form in ("llama3", "functionary"):
            heads = ("<|end_header_id|>\n\n>>>", "<|end_header_id|>\n\n")
            head = next(h for h in heads if h in answer)
            answer = answer.split(head, 1)[1].split("<|e", 1)[0]
            answer = answer.removeprefix("all\n>>>")
        elif form == HARMONY:
            answer = answer.split("<|start|>assistant", 1)[1]
        shape = AnswerShape(format=FORMATS.get(form), tools=Tools(TOOLS), harmony=form == HARMONY)
        got = read(shape, [answer]).calls
        if len(want) == 2 and got == (ROME,):
            continue  # a model of one call at a time
        assert got == want
        return
    raise AssertionError("the template shows no calls")


def map_json(c: Any) -> tuple[str, str]:
    import json

    return c[0], json.dumps(c[1])


@pytest.mark.parametrize("name", FORMAT_OF)
@pytest.mark.parametrize("effort", EFFORTS)
def test_every_template_takes_every_effort(name: str, effort: str) -> None:
    t = template(name)
    for variables in effort_variables(t.source, effort):
        try:
            t.render_text([USER], **variables)
        except TemplateError:
            continue
        return
    raise AssertionError("none was taken")


@pytest.mark.parametrize(
    ("name", "opens"),
    [
        ("Qwen-Qwen3-0.6B", False),
        ("Qwen3.5-4B", True),
        ("GLM-4.7-Flash", True),
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", True),
        ("deepseek-ai-DeepSeek-V3.1", True),
        ("Spark2.5", True),
    ],
)
def test_effort_turns_reasoning_on_and_off(name: str, opens: bool) -> None:
    t = template(name)

    def opened(effort: str) -> bool:
        (variables,) = effort_variables(t.source, effort)
        prompt = t.render([USER], **variables)
        return (
            open_tags(tags_of(t.source), "\0".join(s.text for s in prompt if s.trusted)) is not None
        )

    assert opened("high") == opens
    assert not opened("none")


def test_an_answer_of_a_model_that_reasons_first() -> None:
    source = template("Qwen-Qwen3-0.6B").source
    shape = AnswerShape(tags=tags_of(source))
    assert read(shape, ["<think>\nHm.\n</think>\n\nHi"]) == Answer("Hi", "Hm.")
    solar = AnswerShape(tags=tags_of(template("upstage-Solar-Open-100B").source))
    text = "<|think|>Hm.<|end|><|begin|>assistant<|content|>Hi"
    assert read(solar, [text]) == Answer("Hi", "Hm.")


@pytest.mark.parametrize(
    "name", ["mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"]
)
def test_ids_that_a_template_would_refuse_are_replaced(name: str) -> None:
    calls = [{**call(1, *map_json(ROME)), "id": "call_0123456789abcdef"}]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "RESULT"}
    text = template(name).render_text([USER, said, result], tools=TOOLS)
    assert "call_0123" not in text
    assert "RESULT" in text
