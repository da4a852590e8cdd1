"""Conversations end to end: reasoning, calls of tools, forced and free, speculation on and off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers import gguf_build as gb
from helpers.models import smollm2
from helpers.reading import TOOLS, WEATHER, tool

from edgerun import LLM, Completion, FinishReason, SamplingParams
from edgerun.chat import ChatOptions, ToolCallDelta
from edgerun.core import Constraint
from edgerun.errors import RequestError

GREEDY = SamplingParams(temperature=0)
USER = [{"role": "user", "content": "What is the weather in Rome?"}]
#: A template of Llama 3's kind, whose calls no grammar follows before they are read.
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}"
    "{% if tools %}{{ tools|tojson }}{% endif %}{# <think> </think> <|python_tag|> #}"
)
ROME = '{"city": "Rome"}'
CALL = ["<|python_tag|>", '{"name": "get_weather", ', '"parameters": ', ROME, "}"]
TIME = ["; ", '{"name": "get_time", "parameters": ', '{"city": "Oslo"}}']


def scripted(path: Path, pieces: list[str], template: str = TEMPLATE) -> Path:
    extra = {"tokenizer.chat_template": template}
    return gb.scripted_model(path, pieces, vocab=[" "], extra=extra)


def talk(path: Path, speculation: str = "auto", **options: Any) -> Completion:
    """The answer, which must be the same in one piece, streamed, and for coroutines."""
    with LLM(path, speculation=speculation) as llm:
        whole = llm.chat(USER, GREEDY, **options)
        chunks = list(llm.stream_chat(USER, GREEDY, **options))
        later = asyncio.run(llm.achat(USER, GREEDY, **options))
    assert "".join(c.text for c in chunks) == whole.text == later.text
    assert "".join(c.reasoning for c in chunks) == whole.reasoning == later.reasoning
    assert tuple(i for c in chunks for i in c.token_ids) == whole.token_ids == later.token_ids
    assert chunks[-1].finish_reason == whole.finish_reason == later.finish_reason
    check_deltas([d for c in chunks for d in c.tool_calls], whole)
    for mine, theirs in zip(whole.tool_calls, later.tool_calls, strict=True):
        assert (mine.name, mine.arguments) == (theirs.name, theirs.arguments)
        assert mine.id != theirs.id
    return whole


def check_deltas(deltas: list[ToolCallDelta], whole: Completion) -> None:
    """The first of each index has id and name, the others arguments alone, which join to JSON."""
    arguments: list[str] = []
    for d in deltas:
        if d.index == len(arguments):
            assert d.id is not None
            assert d.name == whole.tool_calls[d.index].name
            arguments.append("")
        else:
            assert d.id is None
            assert d.name is None
        arguments[d.index] += d.arguments
    assert arguments == [c.arguments for c in whole.tool_calls]
    assert len({c.id for c in whole.tool_calls}) == len(arguments)
    for text in arguments:
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_two_parallel_calls_after_reasoning(tmp_path: Path, speculation: str) -> None:
    pieces = ["<think>", "Let ", "me see", "</think>", "\n\n", "I ", "look.", *CALL, *TIME]
    got = talk(scripted(tmp_path / "m.gguf", pieces), speculation, tools=TOOLS)
    assert (got.reasoning, got.text) == ("Let me see", "I look.")
    assert [c.name for c in got.tool_calls] == ["get_weather", "get_time"]
    assert json.loads(got.tool_calls[1].arguments) == {"city": "Oslo"}
    assert got.finish_reason is FinishReason.TOOL_CALLS
    assert len(got.token_ids) == len(pieces)


def test_choices_that_change_how_the_answer_is_read(tmp_path: Path) -> None:
    path = scripted(tmp_path / "m.gguf", [*CALL, *TIME])
    one = talk(path, tools=TOOLS, parallel_tool_calls=False)
    assert [c.name for c in one.tool_calls] == ["get_weather"]
    assert one.text == ""
    none = talk(path, tools=TOOLS, tool_choice="none")
    assert not none.tool_calls
    assert none.text == "".join([*CALL, *TIME])
    assert none.finish_reason is FinishReason.STOP
    assert talk(path, tool_choice="none").text == none.text
    others = talk(path, tools=[tool("other")])
    assert not others.tool_calls
    assert others.text == none.text


def test_a_call_cut_short_is_text_and_ends_with_length(tmp_path: Path) -> None:
    with LLM(scripted(tmp_path / "m.gguf", CALL)) as llm:
        got = llm.chat(USER, GREEDY, tools=TOOLS, max_tokens=3)
    assert got.finish_reason is FinishReason.LENGTH
    assert got.text == "".join(CALL[:3])
    assert not got.tool_calls


def test_log_probabilities_are_those_of_all_tokens(tmp_path: Path) -> None:
    pieces = ["<think>", "Hm", "</think>", "Hi"]
    with LLM(scripted(tmp_path / "m.gguf", pieces)) as llm:
        got = llm.chat(USER, GREEDY, logprobs=0)
    assert got.logprobs is not None
    assert [p.token_id for p in got.logprobs] == list(got.token_ids)
    assert (got.reasoning, got.text) == ("Hm", "Hi")


def test_reasoning_that_the_prompt_opened_and_that_never_ends(tmp_path: Path) -> None:
    opened = TEMPLATE + "<think>\n"
    path = scripted(tmp_path / "m.gguf", ["So", " it", " is"], opened)
    got = talk(path)
    assert (got.reasoning, got.text) == ("So it is", "")
    with LLM(path) as llm:
        cut = llm.chat(USER, GREEDY, max_tokens=2)
    assert (cut.reasoning, cut.finish_reason) == ("So it", FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("options", "reasoning"),
    [
        ({"reasoning_budget": 2}, "One two"),
        ({"reasoning_budget": 0}, ""),
        ({"reasoning_effort": "none"}, ""),
        ({"reasoning_budget": 99}, "One two three four five"),
    ],
)
@pytest.mark.parametrize("speculation", ["off", "ngram"])
def test_reasoning_has_a_budget(
    tmp_path: Path, options: dict[str, Any], reasoning: str, speculation: str
) -> None:
    model = scripted(
        tmp_path / "m.gguf",
        ["One", " two", " three", " four", " five", "</think>", "\n", "Hi"],
        "{# <think> </think> #}{{ messages[0].content }}<think>",
    )
    got = talk(model, speculation, **options)
    assert (got.reasoning, got.text) == (reasoning, "Hi")
    assert got.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tool_choice": {"name": "nobody"}}, "tool_choice"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"reasoning_budget": -1}, "reasoning_budget"),
        ({"reasoning_budget": 1.5}, "reasoning_budget"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        (
            {"tools": [tool("a", {"type": "object", "properties": {"x": {"$ref": "#/nowhere"}}})]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOLS[0], tool("b", {"type": "string"})]}, "tools[1].function.parameters"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].function.name"),
        ({"constraint": Constraint("gbnf", 'root ::= "a"')}, "constraint"),
    ],
)
def test_what_is_refused(tmp_path: Path, options: dict[str, Any], param: str) -> None:
    with LLM(scripted(tmp_path / "m.gguf", CALL)) as llm:
        with pytest.raises(RequestError) as e:
            llm.chat(USER, GREEDY, **{"tools": TOOLS, **options})
        assert e.value.param == param
        assert "\n" not in str(e.value)
        assert llm.chat(USER, GREEDY, tools=TOOLS).tool_calls


# -- a real model, whose template has no place for tools ---------------------------------------


@pytest.fixture(scope="module")
def smol() -> Iterator[LLM]:
    with LLM(smollm2(), threads=1) as llm:
        yield llm


SHORT = SamplingParams(temperature=0.8, seed=3, max_tokens=48)
ENUM = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}


def test_a_small_model_is_made_to_call(smol: LLM) -> None:
    tools = [tool("get_weather", WEATHER), tool("set_unit", ENUM)]
    schemas = {"get_weather": WEATHER, "set_unit": ENUM}
    for seed in range(3):
        got = smol.chat(
            USER, SHORT, tools=tools, tool_choice="required", parallel_tool_calls=False, seed=seed
        )
        assert len(got.tool_calls) == 1
        assert got.finish_reason is FinishReason.TOOL_CALLS
        assert got.text == ""
        jsonschema.validate(
            json.loads(got.tool_calls[0].arguments), schemas[got.tool_calls[0].name]
        )
    named = smol.chat(USER, SHORT, tools=tools, tool_choice={"name": "set_unit"})
    assert [c.name for c in named.tool_calls] == ["set_unit"]
    assert json.loads(named.tool_calls[0].arguments)["unit"] in ("C", "F")


def test_a_forced_call_may_be_cut_short(smol: LLM) -> None:
    got = smol.chat(USER, GREEDY, tools=TOOLS, tool_choice="required", max_tokens=1)
    assert got.finish_reason is FinishReason.LENGTH
    assert not got.tool_calls


def test_a_call_that_begins_follows_the_schema(smol: LLM) -> None:
    """The model is given the beginning, as if it had chosen to call."""
    said = {"role": "assistant", "content": "<tool_call>\n"}
    asked = ChatOptions(tools=[tool("set_unit", ENUM)])
    found = smol.conversation([*USER], asked)
    assert found.constraint is not None
    assert "<tool_call>" in found.constraint.source
    text = smol.generate(
        found.ids, SHORT, constraint=found.constraint, logit_bias=starting(smol, "<tool_call>")
    ).text
    assert said["content"].strip() in text
    body = text.split("<tool_call>", 1)[1].split("</tool_call>")[0]
    jsonschema.validate(json.loads(body)["arguments"], ENUM)


def starting(llm: LLM, text: str) -> dict[int, float]:
    """A bias towards the tokens of ``text``."""
    return dict.fromkeys(llm.tokenize(text, add_bos=False), 30.0)


def test_text_or_calls_where_both_are_constrained(smol: LLM) -> None:
    ok = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema = Constraint("json_schema", {**ok, "additionalProperties": False})
    got = smol.chat(USER, SHORT, tools=TOOLS, constraint=schema, parallel_tool_calls=False)
    assert got.tool_calls or set(json.loads(got.text)) == {"ok"}


def test_speculation_changes_nothing(smol: LLM) -> None:
    with LLM(smollm2(), threads=1, speculation="off") as plain:
        options: dict[str, Any] = {
            "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": True,
        }  # fmt: skip
        a = plain.chat(USER, SHORT, **options)
        chunks = list(smol.stream_chat(USER, SHORT, **options))
    assert tuple(i for c in chunks for i in c.token_ids) == a.token_ids
    deltas = [d for c in chunks for d in c.tool_calls]
    assert len({d.index for d in deltas}) == len(a.tool_calls) >= 2
    assert sum(1 for d in deltas if d.id) == len(a.tool_calls)
