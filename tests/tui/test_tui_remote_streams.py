"""Behind an address: answers as other servers stream them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.foreign_server import answered, ask, delta, serve, text
from helpers.raw_server import answer
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerun.chat import ToolCallDelta
from edgerun.core import FinishReason, Timings, Usage
from edgerun.tui.openai_stream import Lines


def test_openai() -> None:
    usage = {
        "prompt_tokens": 9, "completion_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2}, "messages_left_out": 6,
    }  # fmt: skip
    chunks = answered(
        delta(role="assistant", content="", refusal=None),
        delta(content="Hi"),
        0.05,
        delta(content=" there"),
        delta("stop"),
        {"choices": [], "usage": usage},
    )
    assert text(chunks) == "Hi there"
    last = chunks[-1]
    assert last.usage == Usage(9, 12, 4, 2, left_out=6)
    assert last.finish_reason is FinishReason.STOP
    assert last.timings is not None
    assert 0.04 < last.timings.decode < 5
    assert (last.timings.prefill_tokens, last.timings.decode_tokens) == (5, 11)


def test_llama_server() -> None:
    timings = {"prompt_n": 20, "prompt_ms": 500.0, "predicted_n": 11, "predicted_ms": 2000.0}
    chunks = answered(
        delta(content=None, role="assistant"),
        delta(reasoning_content="think"),
        delta(content="a"),
        {**delta("length"), "timings": {**timings, "cache_n": 5}},
    )
    assert [c.reasoning for c in chunks if c.reasoning] == ["think"]
    last = chunks[-1]
    assert last.finish_reason is FinishReason.LENGTH
    assert last.usage == Usage(25, 11, 5)
    assert last.timings == Timings(0.0, 0.5, 2.0, 20, 10)


def test_ollama_vllm_and_openrouter_spell_reasoning_otherwise() -> None:
    chunks = answered(
        b": OPENROUTER PROCESSING\n\n",
        delta(role="assistant", content="", reasoning="because"),
        b": keep-alive\n\n:\n\n",
        delta(content="so"),
        {**delta("stop"), "usage": {"prompt_tokens": 3, "completion_tokens": 2}},
    )
    assert "".join(c.reasoning for c in chunks) == "because"
    assert text(chunks) == "so"
    assert chunks[-1].usage == Usage(3, 2)


@pytest.mark.parametrize("size", [1, 3, 100])
@pytest.mark.parametrize(
    ("said", "reasoning", "shown"),
    [
        ("<think>\nso <b>\n\nor</ not\n</think>\n\nYes </think>.", "so <b>\n\nor</ not",
         "Yes </think>."),
        ("\n<think></think>a", "", "a"),
        ("<think>never ends </thi", "never ends </thi", ""),
        ("a <think>b</think>", "", "a <think>b</think>"),
        ("<thin ice", "", "<thin ice"),
        ("<thi", "", "<thi"),
        ("  \n ", "", "  \n "),
    ],
)  # fmt: skip
def test_reasoning_that_is_left_in_the_text(
    size: int, said: str, reasoning: str, shown: str
) -> None:
    pieces = [said[i : i + size] for i in range(0, len(said), size)]
    chunks = answered(*[delta(content=p) for p in pieces], delta("stop"))
    assert "".join(c.reasoning for c in chunks) == reasoning
    assert text(chunks) == shown


def test_a_server_without_usage() -> None:
    chunks = answered(*[delta(content=str(i)) for i in range(5)], delta("stop"))
    assert chunks[-1].usage == Usage(0, 5)
    assert chunks[-1].timings is not None
    assert chunks[-1].timings.decode_tokens == 4


def test_content_in_parts_and_fields_that_are_null() -> None:
    chunks = answered(
        {"choices": [{"delta": {"content": [{"type": "text", "text": "a"}]}}], "usage": None},
        {"choices": [{"delta": None}]},
        {"choices": None},
        {"id": "x"},
        delta(content="b", tool_calls=None, reasoning=None),
        delta("eos"),
    )
    assert text(chunks) == "ab"
    assert chunks[-1].finish_reason is FinishReason.STOP


def test_done_ends_an_answer_without_a_reason() -> None:
    assert text(answered(delta(content="a"))) == "a"


def test_a_server_that_does_not_stream() -> None:
    body = {
        "choices": [
            {"message": {"content": "whole", "reasoning_content": "r"}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    chunks = serve(answer(body))(lambda p, s: ask(p))
    assert [(c.text, c.reasoning) for c in chunks] == [("whole", "r"), ("", "")]
    assert chunks[-1].usage == Usage(1, 2)


def test_calls_of_tools() -> None:
    def piece(**fields: Any) -> Any:
        return delta(tool_calls=[fields])

    chunks = answered(
        piece(index=0, id="c1", type="function", function={"name": "f", "arguments": ""}),
        piece(index=0, function={"arguments": '{"a"'}),
        piece(index=0, function={"arguments": ": 1}"}),
        piece(index=1, id="c2", function={"name": "g", "arguments": "{}"}),
        delta("tool_calls"),
    )
    assert [d for c in chunks for d in c.tool_calls] == [
        ToolCallDelta(0, "", "c1", "f"),
        ToolCallDelta(0, '{"a"'),
        ToolCallDelta(0, ": 1}"),
        ToolCallDelta(1, "{}", "c2", "g"),
    ]
    assert chunks[-1].finish_reason is FinishReason.TOOL_CALLS


def test_calls_without_index_or_with_arguments_as_an_object() -> None:
    chunks = answered(
        delta(tool_calls=[{"function": {"name": "f", "arguments": {"a": "ü"}}}, "junk"]),
        delta(tool_calls=[{"id": "z", "function": {"name": "g", "arguments": '{"b":'}}]),
        delta(tool_calls=[{"function": {"arguments": " 2}"}}]),
        delta("tool_calls"),
    )
    assert [d for c in chunks for d in c.tool_calls] == [
        ToolCallDelta(0, '{"a": "ü"}', "call_0", "f"),
        ToolCallDelta(1, '{"b":', "z", "g"),
        ToolCallDelta(1, " 2}"),
    ]


SEPARATORS = "a\u2028b\u2029c\x85d\x0be\x1cf"


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n"])
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_events_in_any_portions_with_any_line_ends(end: bytes, size: int) -> None:
    items = [{"n": i, "text": SEPARATORS + "é🎉"} for i in range(3)]
    raw = b"".join(
        b"data: " + json.dumps(i, ensure_ascii=False).replace("\x0b", "\\u000b").replace(
            "\x1c", "\\u001c").encode() + end for i in items
    )  # fmt: skip
    lines = Lines()
    out = [d for i in range(0, len(raw), size) for d in lines.feed(raw[i : i + size])]
    out += lines.end()
    assert [json.loads(d) for d in out] == items


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.integers(1, 9))
def test_events_do_not_depend_on_portions(raw: bytes, size: int) -> None:
    whole, parts = Lines(), Lines()
    expected = [*whole.feed(raw), *whole.end()]
    found = [d for i in range(0, len(raw), size) for d in parts.feed(raw[i : i + size])]
    assert [*found, *parts.end()] == expected


def test_data_over_several_lines_and_other_fields() -> None:
    lines = Lines()
    raw = b'event: x\nid: 3\nretry: 10\ndata: {"a":\ndata: 1}\n\ndata:2\n\nevent: end\n\n'
    assert list(lines.feed(raw)) == ['{"a":\n1}', "2"]
