"""Answers come apart the same however they are cut: reasoning, text, calls in every format."""

# ruff: noqa: E501  markup as models write it

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from helpers.reading import TOOLS, Answer, cuts, read

from edgerun.text.answer.formats import FORMATS
from edgerun.text.answer.reader import AnswerReader, AnswerShape
from edgerun.text.answer.reasoning import ReasoningTags
from edgerun.text.answer.tools import Tools, as_json

THINK = ReasoningTags("<think>", "</think>")
ROME: tuple[str, Any] = ("get_weather", {"city": "Rome", "days": 3})
QUOTE: tuple[str, Any] = ("get_time", {"city": 'a"b'})
BOTH = (ROME, QUOTE)
A, B = '{"city": "Rome", "days": 3}', '{"city": "a\\"b"}'
NA, NB = f'{{"name": "get_weather", "arguments": {A}}}', f'{{"name": "get_time", "arguments": {B}}}'


def shape_of(name: str, **more: Any) -> AnswerShape:
    if name == "harmony":
        return AnswerShape(harmony=True, tools=Tools(TOOLS), **more)
    return AnswerShape(format=FORMATS[name], tools=Tools(TOOLS), **more)


def check(shape: AnswerShape, text: str, want: Answer, every: bool = True) -> None:
    assert read(shape, [text]) == want
    for parts in cuts(text, random.Random(text), every=every):
        assert read(shape, parts) == want, parts


# -- calls, one format after the other -------------------------------------------------------------

XML = "<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>"
XML_B = '<function=get_time>\n<parameter=city>\na"b\n</parameter>\n</function>'
INVOKE = '<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n<invoke name="get_time">\n<parameter name="city">a"b</parameter>\n</invoke>'
GLM = '<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>get_time\n<arg_key>city</arg_key>\n<arg_value>a"b</arg_value>\n</tool_call>'
COMMENTARY = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}"

CALLS = [
    ("hermes", f"<tool_call>\n{NA}\n</tool_call>\n<tool_call>\n{NB}\n</tool_call>"),
    ("hermes", f"<tool_call>{NA}</tool_call><tool_call>{NB}</tool_call>"),
    ("hermes", f"<tool_call>\n[{NA}, {NB}]\n</tool_call>"),
    ("hermes", f'<tool_call>{{"arguments": {A}, "name": "get_weather"}}\n{NB}'),
    ("generic", f"{NA}\n{NB}"),
    ("generic", f"```json\n[{NA}, {NB}]\n```"),
    ("generic", f"<tool_call>\n{NA}\n</tool_call>\n<tool_call>\n{NB}"),
    ("llama3", f"{NA.replace('arguments', 'parameters')}; {NB.replace('arguments', 'parameters')}"),
    ("llama3", f'<|python_tag|>{{"type": "function", "function": {NA}}}; {NB}'),
    ("llama3", f"<function=get_weather>{A}</function><function=get_time>{B}</function>"),
    ("mistral", f"[TOOL_CALLS][{NA}, {NB}]"),
    ("mistral", f'[TOOL_CALLS] [{NA[:-1]}, "id": "abcdefghi"}}, {NB}]'),
    ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{A}[TOOL_CALLS]get_time[CALL_ID]x1[ARGS]{B}"),
    ("nemotron", f"<TOOLCALL>[{NA}, {NB}]</TOOLCALL>"),
    ("granite", f"<|tool_call|>[{NA}, {NB}]"),
    ("tool_calls", f"<tool_calls>[{NA}, {NB}]</tool_calls>"),
    ("tool_calls", f"<tool_calls>\n{NA}\n{NB}\n</tool_calls>"),
    ("firefunction", f" functools[{NA}, {NB}]"),
    (
        "cohere",
        f'<|START_ACTION|>[\n {{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {A}}},'
        f'\n {{"tool_call_id": "1", "tool_name": "get_time", "parameters": {B}}}\n]<|END_ACTION|>',
    ),
    (
        "command_r",
        f'Action: ```json\n[{{"tool_name": "get_weather", "parameters": {A}}}, '
        f'{{"tool_name": "get_time", "parameters": {B}}}]\n```',
    ),
    ("apertus", f'<|tools_prefix|>[{{"get_weather": {A}}}, {{"get_time": {B}}}]<|tools_suffix|>'),
    ("functionary", f"get_weather\n{A}>>>get_time\n{B}"),
    (
        "deepseek",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{A}<｜tool▁call▁end｜>"
        f"<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{B}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "deepseek",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        f"{A}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n"
        f"{B}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    (
        "kimi",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        f"<|tool_call_argument_begin|>{A}<|tool_call_end|><|tool_call_begin|>functions.get_time:1"
        f"<|tool_call_argument_begin|>{B}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "solar",
        f"<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>get_weather<|tool_call:args|>{A}"
        "<|tool_call:end|><|tool_call:begin|>a2<|tool_call:name|>get_time<|tool_call:args|>"
        f"{B}<|tool_call:end|>",
    ),
    ("qwen3_coder", f"<tool_call>\n{XML}\n</tool_call>\n<tool_call>\n{XML_B}\n</tool_call>"),
    ("qwen3_coder", f"{XML}\n</tool_call>\n<tool_call>\n{NB}\n</tool_call>"),
    ("seed", f"<seed:tool_call>\n{XML}\n</seed:tool_call>\n<seed:tool_call>\n{XML_B}"),
    ("minimax", f"<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>"),
    (
        "deepseek_dsml",
        "<｜DSML｜function_calls>\n"
        + INVOKE.replace("</", "</｜DSML｜").replace("<i", "<｜DSML｜i").replace("<p", "<｜DSML｜p")
        .replace('"city"', '"city" string="true"').replace('"days"', '"days" string="false"')
        + "\n</｜DSML｜function_calls>",
    ),
    (
        "minicpm",
        '<function name="get_weather"><param name="city">Rome</param><param name="days">3</param>'
        '</function>\n<function name="get_time"><param name="city">a"b</param></function>',
    ),
    ("glm", GLM),
    ("glm", GLM.replace("\n", "")),
    (
        "hunyuan",
        "<tool_calls:opensource>\n"
        + GLM.replace(">", ":opensource>").replace("get_weather", "get_weather<tool_sep:opensource>")
        .replace("get_time", "get_time<tool_sep:opensource>")
        + "\n</tool_calls:opensource>",
    ),
    ("lfm2", "<|tool_call_start|>[get_weather(city='Rome', days=3), get_time(city='a\"b')]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>[get_weather('Rome', 3), get_time(city=\"a\\\"b\")]"),
    ("tool_code", "```tool_code\nget_weather(city='Rome', days=3)\nget_time(city='a\"b')\n```"),
    (
        "gemma4",
        '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>'
        '<|tool_call>call:get_time{city:<|"|>a"b<|"|>}<tool_call|>',
    ),
    (
        "function_gemma",
        "<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}<end_function_call>"
        '<start_function_call>call:get_time{city:<escape>a"b<escape>}<end_function_call>',
    ),
    (
        "harmony",
        COMMENTARY.format("get_weather", A)
        + "<|call|><|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>"
        + B,
    ),
]  # fmt: skip


#: Those that text can stand around: with an end, and a mark at the start.
MARKED = [
    c for c in CALLS if c[0] in FORMATS and not FORMATS[c[0]].bare and not c[1].endswith(")]")
]


@pytest.mark.parametrize(("name", "text"), CALLS)
def test_two_calls(name: str, text: str) -> None:
    check(shape_of(name), text, Answer(calls=BOTH))


@pytest.mark.parametrize(("name", "text"), CALLS)
def test_calls_that_are_sure_come_as_they_are_written(name: str, text: str) -> None:
    form = FORMATS.get(name)
    sure = ("", *form.marks) if form else ("",)
    check(shape_of(name, sure=sure), text, Answer(calls=BOTH), every=False)


@pytest.mark.parametrize(("name", "text"), CALLS)
def test_only_tools_that_were_offered_are_called(name: str, text: str) -> None:
    nobody = replace(shape_of(name), tools=Tools([{"function": {"name": "other"}}]))
    got = read(nobody, [text])
    assert not got.calls
    assert "Rome" in got.text
    for parts in cuts(text, random.Random(1), 4):
        assert read(nobody, parts) == got


@pytest.mark.parametrize(("name", "text"), CALLS)
def test_one_call_at_most(name: str, text: str) -> None:
    check(shape_of(name, most_calls=1), text, Answer(calls=(ROME,)), every=False)


@pytest.mark.parametrize(("name", "text"), MARKED)
def test_text_around_calls_stays(name: str, text: str) -> None:
    text = f"I look.\n{text}\n\nThat is all. "
    check(shape_of(name), text, Answer("I look.\n\nThat is all. ", calls=BOTH), every=False)


@pytest.mark.parametrize(("name", "text"), CALLS)
def test_a_call_cut_anywhere_is_text_or_a_call_and_never_an_error(name: str, text: str) -> None:
    for i in range(0, len(text), 7):
        got = read(shape_of(name), [text[:i]])
        assert got == read(shape_of(name), list(text[:i]))
        assert len(got.calls) <= 2
        assert i == 0 or got.calls or got.text or name == "harmony"


BAD = [
    ("hermes", '<tool_call>\n{"name": "get_weather", "arguments": {"city": }}\n</tool_call>'),
    ("hermes", '<tool_call>\n{"name": "nobody", "arguments": {}}\n</tool_call>'),
    ("hermes", "<tool_call> is what Qwen writes."),
    ("generic", '{"city": "Rome"}'),
    ("generic", '{"name": "get_weather", "arguments": "[1]"}'),
    ("generic", "```json\n[1, 2]\n```"),
    ("llama3", '{"a": [1, {"b": 2}]}'),
    ("mistral", "[TOOL_CALLS]nobody[ARGS]{}"),
    ("qwen3_coder", "<tool_call>\n<function=nobody>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=get_time>\n<parameter=city>\nRome"),
    ("glm", "<tool_call>get_time\n<arg_key>city</arg_key>\n</tool_call>"),
    ("lfm2", "<|tool_call_start|>[get_time(city=open('x'))]<|tool_call_end|>"),
    ("lfm2", f"<|tool_call_start|>{'[' * 5000}<|tool_call_end|>"),
    ("gemma4", "<|tool_call>call:get_time{city:Rome}<tool_call|>"),
    ("hermes", '<tool_call>{"name": "get_time", "arguments": ' + '{"a":' * 500 + "1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text"), BAD)
def test_a_malformed_call_is_text(name: str, text: str) -> None:
    want = Answer(text)
    assert read(shape_of(name), [text]) == want
    for parts in cuts(text[:300], random.Random(2), 6):
        assert read(shape_of(name), [*parts, text[300:]]) == want


def test_a_malformed_call_does_not_take_others_with_it() -> None:
    bad = '<tool_call>\n{"name": "nobody"}\n</tool_call>'
    good = f"<tool_call>\n{NA}\n</tool_call>"
    check(shape_of("hermes"), f"{bad}\n{good}", Answer(bad, calls=(ROME,)))
    check(shape_of("hermes"), f"{good}\n{bad}", Answer(bad, calls=(ROME,)))
    check(shape_of("mistral"), f"[TOOL_CALLS][{NA}, {{1}}]", Answer(", {1}]", calls=(ROME,)))


@pytest.mark.parametrize(
    ("written", "want"),
    [
        ('{"city": "a\nb\tc"}', {"city": "a\nb\tc"}),
        (r'{"city": "\d+ \u00e9 \ud83d\ude00 \u12"}', {"city": r"\d+ é 😀 \u12"}),
        ('"{\\"city\\": \\"Rome\\"}"', {"city": "Rome"}),
        ("null", {}),
        ('""', {}),
        ('{"x": [1, -2.5e3, true, null, {"y": []}], "z": {}}',
         {"x": [1, -2500.0, True, None, {"y": []}], "z": {}}),
    ],
)  # fmt: skip
def test_arguments_as_models_write_them(written: str, want: Any) -> None:
    text = f'<tool_call>{{"name": "get_time", "arguments": {written}}}</tool_call>'
    check(shape_of("hermes"), text, Answer(calls=(("get_time", want),)))


def test_a_call_without_arguments() -> None:
    text = '<tool_call>{"name": "get_time"}</tool_call>'
    check(shape_of("hermes"), text, Answer(calls=(("get_time", {}),)))


def test_arguments_stream_while_they_are_written() -> None:
    text = f"<tool_call>\n{NA}\n</tool_call>"
    reader = AnswerReader(shape_of("hermes", sure=("<tool_call>",)))
    deltas = [p.call for c in text for p in reader.feed(c) if p.call]
    assert len(deltas) > 20
    assert "".join(d.arguments for d in deltas) == A
    cut = AnswerReader(shape_of("hermes", sure=("<tool_call>",)))
    pieces = cut.feed(text[:60]) + cut.finish()
    assert [p.call.name for p in pieces if p.call] == ["get_weather"]
    assert not any(p.text for p in pieces)
    assert cut.calls == 0


@pytest.mark.parametrize(
    ("raw", "schema", "want"),
    [
        ("3", {"type": "integer"}, "3"),
        ("3", {"type": "string"}, '"3"'),
        ("3", None, "3"),
        ("Rome", None, '"Rome"'),
        ("x", {"type": "integer"}, '"x"'),
        ("null", {"type": ["string", "null"]}, "null"),
        ("3", {"anyOf": [{"type": "string"}, {"type": "null"}]}, '"3"'),
        ("[1]", {"type": "array"}, "[1]"),
        ("true", {"enum": [True, "true"]}, "true"),
    ],
)
def test_bare_parameters_become_json(raw: str, schema: Any, want: str) -> None:
    assert as_json(raw, schema) == want


# -- reasoning ---------------------------------------------------------------------------------

OPEN, NOT_OPEN = AnswerShape(tags=(THINK,), opened=THINK), AnswerShape(tags=(THINK,))


@pytest.mark.parametrize(
    ("shape", "text", "want"),
    [
        (OPEN, "Let me see.\n</think>\n\nRome.", Answer("Rome.", "Let me see.")),
        (OPEN, "Let me", Answer("", "Let me")),
        (OPEN, "a < b </thin k>", Answer("", "a < b </thin k>")),
        (OPEN, "</think>Hi", Answer("Hi")),
        (OPEN, "one</think>two <think>three</think>", Answer("two <think>three</think>", "one")),
        (NOT_OPEN, "<think>\nLet me\n\nsee\n</think>\n\nRome. ", Answer("Rome. ", "Let me\n\nsee")),
        (NOT_OPEN, "\n <think>x</think>y", Answer("y", "x")),
        (NOT_OPEN, "<think>never closed", Answer("", "never closed")),
        (NOT_OPEN, " <thin", Answer(" <thin")),
        (NOT_OPEN, "The tag `<think>` opens, </think> closes.",
         Answer("The tag `<think>` opens, </think> closes.")),
        (NOT_OPEN, "  plain \n", Answer("  plain \n")),
        (AnswerShape(), "<think>x</think>", Answer("<think>x</think>")),
    ],
)  # fmt: skip
def test_reasoning(shape: AnswerShape, text: str, want: Answer) -> None:
    check(shape, text, want)


def test_reasoning_then_calls() -> None:
    shape = replace(shape_of("hermes"), tags=(THINK,))
    text = f"<think>\nA <tool_call> it is.\n</think>\n\nSure.\n<tool_call>\n{NA}\n</tool_call>\n"
    check(shape, text, Answer("Sure.", "A <tool_call> it is.", (ROME,)))
    bare = replace(shape_of("generic"), tags=(THINK,), opened=THINK)
    check(bare, f"Hm.</think>\n{NA}", Answer("", "Hm.", (ROME,)))


HARMONY = [
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Rome.",
     Answer("Rome.", "Hm.")),
    ("<|channel|>analysis<|message|>Hm", Answer("", "Hm")),
    ("<|channel|>final<|message|>Rome.\n", Answer("Rome.\n")),
    ("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
     "I look.<|end|><|start|>assistant" + COMMENTARY.format("get_weather", A),
     Answer("I look.", "Hm.", (ROME,))),
    ("Rome.", Answer("Rome.")),
    (COMMENTARY.format("nobody", A), Answer(COMMENTARY.format("nobody", A))),
]  # fmt: skip


@pytest.mark.parametrize(("text", "want"), HARMONY)
def test_harmony(text: str, want: Answer) -> None:
    check(shape_of("harmony"), text, want)


def test_harmony_goes_on_with_a_message_that_was_begun() -> None:
    shape = shape_of("harmony", begun="<|channel|>final<|message|>Ro")
    check(shape, "me.", Answer("me."))
