"""Conversations longer than the context, with ``context_shift``: the oldest turns stay at home."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import gguf_build as gb
from hypothesis import given
from hypothesis import strategies as st

from edgerun import LLM, SamplingParams
from edgerun.engine import Sequence as EngineSequence
from edgerun.errors import ContextLengthError
from edgerun.shifting import cuts, held, most_tokens, turns
from edgerun.text.messages import ROLES

N_CTX = 512
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('the system prompt comes first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</>\n{% endfor %}<assistant>"
)
SYSTEM = {"role": "system", "content": "to the letter"}
GREEDY = SamplingParams(temperature=0, ignore_eos=True, max_tokens=20)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = tmp_path_factory.mktemp("shift") / "m.gguf"
    extra = {"tokenizer.chat_template": TEMPLATE}
    with LLM(gb.random_model(path, seed=5, n_ctx=N_CTX, extra=extra), threads=1) as llm:
        yield llm


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def spoken(n_turns: int, size: int = 20) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for i in range(n_turns):
        said += [user(f"q{i} " + "e" * size), assistant(f"a{i} " + "t" * size)]
    return said


def without(messages: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    head = [m for m in messages[:1] if m["role"] == "system"]
    return [*head, *messages[len(head) + n :]]


def test_a_chat_that_goes_on_all_day(llm: LLM) -> None:
    """Each prompt is exactly the system prompt and the last turns; where they begin changes rarely,
    and meanwhile all but the new question comes from the cache."""
    said: list[dict[str, Any]] = [SYSTEM]
    begins: list[int] = []
    for i in range(40):
        said.append(user(f"question {i} " + "e" * (i % 7)))
        before = llm.metrics()
        got = llm.chat(said, GREEDY, context_shift=True)
        begin = got.usage.left_out
        sent = without(said, begin)
        assert sent[1]["role"] == "user"
        assert got.usage.prompt_tokens == len(llm.apply_template(sent)) <= N_CTX - 20
        assert begin == 0 or len(llm.apply_template(said)) > N_CTX - 20
        if begins and begin == begins[-1]:
            new = len(llm.apply_template(said[-2:]))
            page = llm.model.kv.page_size
            assert got.usage.cached_tokens >= got.usage.prompt_tokens - new - page
        assert llm.metrics().prompt_tokens - before.prompt_tokens == got.usage.prompt_tokens
        if begin and begin != begins[-1]:  # a page of the answer may be of another text's cache
            assert got.token_ids == llm.chat(sent, GREEDY).token_ids
            assert got.usage.prompt_tokens < N_CTX * 0.75  # much is free again
        begins.append(begin)
        said.append(assistant(got.text))
    assert begins == sorted(begins)
    assert begins[0] == 0
    assert begins[-1] > 30
    assert len(set(begins)) <= 2 + len(llm.apply_template(said)) // (N_CTX // 4)


def test_streams_say_it_too(llm: LLM) -> None:
    said = [SYSTEM, *spoken(12), user("and")]
    whole = llm.chat(said, GREEDY, context_shift=True)
    assert whole.usage.left_out > 0
    last = list(llm.stream_chat(said, GREEDY, context_shift=True))[-1]
    assert last.usage is not None
    assert last.usage.left_out == whole.usage.left_out

    async def later() -> None:
        begun = await llm.start_chat(said, GREEDY, context_shift=True)
        assert begun.known == replace(whole.usage, completion_tokens=0, cached_tokens=0)
        await begun.aclose()

    asyncio.run(later())
    two = llm.chat(said, GREEDY, context_shift=True, n=2)
    assert two.total_usage.left_out == whole.usage.left_out


def test_without_it_the_prompt_is_refused(llm: LLM) -> None:
    said = [SYSTEM, *spoken(12), user("and")]
    n = len(llm.apply_template(said))
    with pytest.raises(ContextLengthError) as e:
        llm.chat(said, GREEDY)
    assert (e.value.n_prompt_tokens, e.value.n_ctx) == (n, N_CTX)


def test_a_question_too_long_by_itself_is_refused_with_its_own_size(llm: LLM) -> None:
    said = [SYSTEM, *spoken(12), user("x" * 700)]
    n = len(llm.apply_template([SYSTEM, said[-1]]))
    with pytest.raises(ContextLengthError) as e:
        llm.chat(said, GREEDY, context_shift=True)
    assert (e.value.n_prompt_tokens, e.value.n_ctx) == (n, N_CTX)


def test_a_long_question_goes_alone_rather_than_not_at_all(llm: LLM) -> None:
    said = [SYSTEM, *spoken(12), user("x" * 440)]
    got = llm.chat(said, GREEDY, context_shift=True, max_tokens=60)
    assert got.usage.left_out == 24
    assert got.usage.prompt_tokens == len(llm.apply_template([SYSTEM, said[-1]]))


def test_of_a_short_and_a_long_turn_only_the_short_one_goes(llm: LLM) -> None:
    long = [user("e" * 150), assistant("t" * 150)]
    said = [SYSTEM, *spoken(2, 30), *long, user("e" * 20)]
    assert len(llm.apply_template(said)) > N_CTX
    got = llm.chat(said, GREEDY, context_shift=True)
    assert 2 <= got.usage.left_out <= 4
    assert got.usage.prompt_tokens == len(llm.apply_template(without(said, got.usage.left_out)))


def test_a_prompt_to_be_kept_whole_leaves_half_of_the_context(llm: LLM) -> None:
    said = [SYSTEM, *spoken(12), user("and")]
    got = llm.chat(said, GREEDY, context_shift=True, n_keep=-1)
    assert got.usage.prompt_tokens <= N_CTX // 2


def test_of_questions_in_a_row_the_last_ones_go(llm: LLM) -> None:
    """They stay together while they fit; nothing else can be left out where nobody has answered."""
    row = [user(f"q{i} " + "e" * 120) for i in range(5)]
    for said in ([SYSTEM, *row], [SYSTEM, *spoken(3), *row]):
        got = llm.chat(said, GREEDY, context_shift=True)
        n = got.usage.left_out
        assert got.usage.prompt_tokens == len(llm.apply_template(without(said, n)))
        assert got.usage.prompt_tokens + 160 > N_CTX  # one more would not fit
        assert len(said) - 1 - n in (2, 3)
    few = [SYSTEM, *spoken(12), *row[:2]]
    assert llm.chat(few, GREEDY, context_shift=True).usage.left_out <= 24


def test_an_answer_that_is_gone_on_with_stays_with_its_question(llm: LLM) -> None:
    said = [SYSTEM, *spoken(12), user("and"), assistant("so it")]
    got = llm.chat(said, GREEDY, context_shift=True, continue_final=True)
    sent = without(said, got.usage.left_out)
    assert sent[1]["role"] == "user"
    assert sent[-2:] == said[-2:]
    assert got.usage.prompt_tokens == len(llm.apply_template(sent, continue_final=True))


@pytest.mark.parametrize(
    ("n_keep", "kept"),
    [
        (None, "<system>to the letter</>\n<user>"),  # what any of its conversations begins with
        (0, ""),
        (5, None),
    ],
)
def test_an_answer_that_outgrows_the_context_keeps_the_system_prompt(
    llm: LLM, n_keep: int | None, kept: str | None
) -> None:
    """Prompt after prompt, by hand, from the kept tokens and the newer half of the others."""
    said = [SYSTEM, user("q " + "e" * 30)]
    want = 2 * N_CTX
    got = llm.chat(said, GREEDY, max_tokens=want, context_shift=True, n_keep=n_keep)
    text, out = llm.apply_template(said), []
    # The start token always stays.
    keep = text[: n_keep or 0] if kept is None else llm.tokenize(kept, special=True)
    assert text[: len(keep)] == keep
    assert keep[0] == llm.model.tokenizer.bos_id
    while len(out) < want:
        room = min(N_CTX - len(text), want - len(out))
        part = llm.generate(text, GREEDY, max_tokens=room).token_ids
        out += part
        text += part
        if len(text) == N_CTX:
            del text[len(keep) : len(keep) + (N_CTX - len(keep)) // 2]
    assert got.token_ids == tuple(out)
    assert got.usage.kept_tokens == len(keep)
    assert got.usage.prompt_tokens + want > 2 * N_CTX


def test_without_a_system_prompt_the_start_is_kept(llm: LLM) -> None:
    """Of a text, the token that every text of the model's begins with."""
    got = llm.generate("e" * 40, GREEDY, context_shift=True)
    assert got.usage.kept_tokens == 1
    bare = llm.tokenize("e" * 40, add_bos=False)
    assert llm.generate(bare, GREEDY, context_shift=True).usage.kept_tokens == 0
    assert llm.generate("e" * 40, GREEDY).usage.kept_tokens == 0  # nothing is to be dropped


def test_a_system_prompt_of_almost_the_context_lets_the_answer_go_on(llm: LLM) -> None:
    said = [{"role": "system", "content": "e" * (N_CTX - 80)}, user("so")]
    assert len(llm.apply_template(said)) > N_CTX * 3 // 4
    got = llm.chat(said, GREEDY, max_tokens=300, context_shift=True)
    assert got.usage.kept_tokens == N_CTX * 3 // 4
    assert len(got.token_ids) == 300


def test_a_template_that_wants_more_of_a_conversation_keeps_the_start(tmp_path: Path) -> None:
    picky = (
        "{% if messages | length < 3 %}{{ raise_exception('more') }}{% endif %}"
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    extra = {"tokenizer.chat_template": picky}
    said = [SYSTEM, user("a"), assistant("b"), user("c")]
    with LLM(gb.random_model(tmp_path / "m.gguf", n_ctx=128, extra=extra), threads=1) as llm:
        got = llm.chat(said, GREEDY, max_tokens=200, context_shift=True)
        assert got.usage.kept_tokens == 1


def test_few_texts_are_rendered(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    said = [SYSTEM, *spoken(200), user("and")]
    rendered: list[int] = []
    conversation = llm.conversation

    def counted(messages: Any, *args: Any) -> Any:
        rendered.append(len(messages))
        return conversation(messages, *args)

    monkeypatch.setattr(llm, "conversation", counted)
    llm.chat(said, GREEDY, context_shift=True)
    assert len(rendered) <= 5  # all, the least, and steps around the end
    assert sum(rendered[1:]) < 50


@pytest.mark.parametrize(
    ("roles", "begins"),
    [
        ("su", [1]),
        ("suaua", [1, 3]),
        ("suatatauau", [1, 7, 9]),  # calls and results belong to their question
        ("uuauua", [0, 3]),
        ("auaua", [0, 3]),  # a greeting goes with the first question
        ("suasua", [1, 4]),
        ("aaa", [0]),
        ("ss", []),
    ],
)
def test_turns(roles: str, begins: list[int]) -> None:
    names = {r[0]: r for r in ROLES if r != "developer"}
    assert turns([names[r] for r in roles]) == begins


@given(st.lists(st.integers(1, 300), min_size=2, max_size=40), st.integers(1, 600))
def test_cuts(sizes: list[int], space: int) -> None:
    coarse, fine = cuts(sizes, space)
    both = [*coarse, *fine]
    assert both == sorted(set(both))
    assert all(1 <= n < len(sizes) for n in both)
    assert all(sum(sizes[n:]) <= space for n in both)
    # Every number of turns that could do is there, or a step before it is.
    least = next((n for n in range(1, len(sizes)) if sum(sizes[n:]) <= space), None)
    assert (least is None or least == len(sizes) - 1) or both
    # A turn more moves no step: it only makes some too small.
    assert set(cuts([*sizes, 300], space)[0]) <= {*coarse, len(sizes) - 1}


@given(st.integers(1, 63), st.integers(0, 300), st.integers(-1, 32))
def test_what_is_held_after_shifts(prompt: int, generated: int, n_keep: int) -> None:
    n_ctx = 64
    kept = prompt if n_keep < 0 else min(n_keep, prompt)
    ids = [0] * prompt
    s = EngineSequence(ids, SamplingParams(), None, None, 1, n_ctx=n_ctx)  # type: ignore[arg-type]
    s.n_keep = kept
    for _ in range(generated):
        if len(s.ids) >= n_ctx:
            s.shift()
        s.ids.append(1)
    assert held(prompt, generated, n_ctx, kept) == len(s.ids)


def test_room_for_the_answer() -> None:
    def most(n_ctx: int, **more: Any) -> int:
        return most_tokens(n_ctx, SamplingParams(**more))

    assert most(128) == 96
    assert most(32768) == 32768 - 2048
    assert most(8192, max_tokens=100) == 8092
    assert most(8192, max_tokens=0) == 8191
    assert most(8192, n_keep=-1) == 4096
    assert most(1) == 0
