"""What ended a text: which stop string, or the time it may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from helpers import gguf_build as gb

from edgerun import LLM, FinishReason, SamplingParams
from edgerun.errors import RequestError

PIECES = ["one", " two", "\n", "three", " four", "\n\n", "five"]
TEXT = "".join(PIECES)
GREEDY = SamplingParams(temperature=0)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = gb.scripted_model(tmp_path_factory.mktemp("m") / "lines.gguf", PIECES, vocab=[" "])
    with LLM(path, backend="cpu", threads=1) as model:
        yield model


@pytest.mark.parametrize(
    ("stop", "which"),
    [(["x", "three"], "three"), (["four", "e four"], "e four"), ([], None), (["zzz"], None)],
)
def test_the_stop_string_that_ended_the_text(llm: LLM, stop: list[str], which: str | None) -> None:
    out = llm.generate("Go", GREEDY, stop=stop)
    assert (out.stop_string, out.finish_reason) == (which, FinishReason.STOP)
    *before, last = llm.stream("Go", GREEDY, stop=stop)
    assert last.stop_string == which
    assert all(c.stop_string is None for c in before)


def test_a_text_cut_short_has_no_stop_string(llm: LLM) -> None:
    out = llm.generate("Go", GREEDY, stop=["three"], max_tokens=2)
    assert (out.stop_string, out.finish_reason) == (None, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("limit", "text", "reason"),
    [(None, TEXT, "stop"), (60.0, TEXT, "stop"), (0, "one two\n", "length")],
)
def test_a_time_limit_ends_the_text_at_a_line_break(
    llm: LLM, limit: float | None, text: str, reason: str
) -> None:
    out = llm.generate("Go", GREEDY, time_limit=limit)
    assert (out.text, str(out.finish_reason), out.stop_string) == (text, reason, None)
    # Exactly the tokens up to the break count, however many one step made.
    assert llm.detokenize(out.token_ids) == text


def test_a_time_limit_does_not_cut_a_line(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = gb.scripted_model(tmp_path_factory.mktemp("m") / "l.gguf", ["a", "b", "c"], vocab=[" "])
    with LLM(path, backend="cpu", threads=1) as model:
        out = model.generate("Go", GREEDY, time_limit=0)
    assert (out.text, out.finish_reason) == ("abc", FinishReason.STOP)


@pytest.mark.parametrize("limit", [-1, float("nan"), float("inf"), "3", True])
def test_bad_time_limits(limit: object) -> None:
    with pytest.raises(RequestError, match="time_limit"):
        SamplingParams(time_limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("prompt", ["Go", "", [1, 5, 6]])
def test_a_stream_knows_its_prompts_length_from_the_start(llm: LLM, prompt: str) -> None:
    async def first() -> tuple[int, int]:
        async with contextlib.aclosing(await llm.start(prompt, GREEDY)) as chunks:
            known = chunks.known.prompt_tokens
            usage = [c.usage async for c in chunks][-1]
        assert usage is not None
        return known, usage.prompt_tokens

    known, counted = asyncio.run(first())
    assert known == counted > 0
