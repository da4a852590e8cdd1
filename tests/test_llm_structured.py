"""Constrained texts: valid at any temperature, whatever the speculation, and at their end."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from helpers import gguf_build as gb
from helpers.models import gemma3, smollm2
from helpers.schemas import random_schema

from edgerun import LLM, Completion, Constraint, FinishReason
from edgerun.engine.drafting import StepCosts
from edgerun.engine.metrics import DraftCount
from edgerun.errors import RequestError

#: Width costs nothing: all that may be right is drafted.
FREE = {1: 1.0, 64: 1.01}
#: What closes a JSON value, made likelier: else random texts do not end.
PIECES = (*" etaoinshrdlu", '"', '": "', '",', "}", "]", "12", "true", '{"', '\\"', '"}')
CLOSING = {gb.FIRST_BYTE_ID + ord(c): 6.0 for c in '"}]'}


def schema(s: Any, **options: Any) -> Constraint:
    return Constraint("json_schema", s, **options)


def lists_in_defs_move_up(s: dict[str, Any]) -> dict[str, Any]:
    """References are to the root: its $defs hold the innermost ones."""
    found: dict[str, Any] = {}

    def collect(v: Any) -> None:
        if isinstance(v, dict):
            found.update(v.pop("$defs", {}))
            for x in v.values():
                collect(x)
        elif isinstance(v, list):
            for x in v:
                collect(x)

    collect(s)
    collect(list(found.values()))
    return {**s, "$defs": found} if found else s


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("m")
    return gb.random_model(folder / "random.gguf", seed=5, pieces=PIECES, n_ctx=1024)


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[LLM]:
    with LLM(path, backend="cpu", threads=1, speculation="off") as llm:
        yield llm


@pytest.fixture(scope="module")
def fast(path: Path) -> Iterator[LLM]:
    with LLM(path, backend="cpu", threads=1, speculation="ngram") as llm:
        assert llm._speculation is not None
        llm._speculation.costs = StepCosts(FREE, learn=False)
        yield llm


def refused(s: dict[str, Any], error: RequestError) -> bool:
    """Whether a random schema may be refused: nothing matches it, or its parts cannot be told
    apart."""
    return any(w in str(error) for w in ("nsatisfiable", "disjoint", "only supported when"))


def test_300_random_schemas_at_temperature_2(fast: LLM) -> None:
    rng = random.Random(7)
    done, impossible = 0, 0
    jobs: list[tuple[dict[str, Any], Any]] = []
    while done < 300 or jobs:
        while done < 300 and len(jobs) < 16:
            s = lists_in_defs_move_up(random_schema(rng))
            jsonschema.Draft202012Validator.check_schema(s)
            try:
                chunks = fast.stream(
                    "go", constraint=schema(s), temperature=2.0, seed=done, max_tokens=150,
                    logit_bias=CLOSING, top_k=0,
                )  # fmt: skip
            except RequestError as e:
                if not refused(s, e):
                    raise
                impossible += 1
                continue
            done += 1
            jobs.append((s, chunks))
        s, chunks = jobs.pop(0)
        parts = list(chunks)
        text = "".join(c.text for c in parts)
        if parts[-1].finish_reason is FinishReason.STOP:
            jsonschema.validate(json.loads(text), s, jsonschema.Draft202012Validator)
        else:
            assert parts[-1].finish_reason is FinishReason.LENGTH
    finished = fast.metrics().finished
    assert finished["error"] == 0
    assert finished["stop"] > 240  # the others were cut at max_tokens
    assert impossible < 60


def same(a: Completion, b: Completion) -> bool:
    return (a.token_ids, a.text, a.finish_reason, a.logprobs) == (
        b.token_ids, b.text, b.finish_reason, b.logprobs,
    )  # fmt: skip


RECORD = {
    "type": "object",
    "properties": {
        "identifier": {"type": "integer", "minimum": 0, "maximum": 99999},
        "classification": {"enum": ["confidential", "confirmed", "public"]},
        "remarks": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
    },
    "required": ["identifier", "classification", "remarks"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "way",
    [
        {"temperature": 0.0},
        {"temperature": 2.0},
        {"temperature": 1.0, "logprobs": 3},
        {"temperature": 0.0, "logprobs": 0},
        {"temperature": 1.5, "repeat_penalty": 1.3, "presence_penalty": 1.0, "dry_multiplier": 0.8},
        {"temperature": 1.5, "mirostat": 2},
        {"temperature": 2.0, "n": 3},
        {"temperature": 2.0, "stop": ["remarks", "t"]},
        {"temperature": 2.0, "max_tokens": 20},
        {"temperature": 2.0, "ignore_eos": True},
        {"temperature": 2.0, "max_tokens": 1500, "context_shift": True},
    ],
    ids=str,
)
def test_speculation_changes_nothing(plain: LLM, fast: LLM, way: dict[str, Any]) -> None:
    before = fast.metrics().drafts.get("forced", DraftCount(0, 0))
    for seed in range(3):
        options = {"max_tokens": 200, **way, "seed": seed, "constraint": schema(RECORD)}
        a = plain.generate("The record: ", **options)
        b = fast.generate("The record: ", **options)
        assert all(map(same, a.choices, b.choices))
        for c in b.choices:
            if c.finish_reason is FinishReason.STOP and "stop" not in way:
                jsonschema.validate(json.loads(c.text), RECORD)
    after = fast.metrics().drafts["forced"]
    drafted, accepted = after.drafted - before.drafted, after.accepted - before.accepted
    assert drafted > 0
    assert accepted == drafted or "stop" in way  # they are forced


def test_a_batch_of_constraints_says_what_each_says_alone(fast: LLM, plain: LLM) -> None:
    jobs = [
        (schema(RECORD), 1), (Constraint("regex", "(ab|c){3,9}"), 2), (None, 3),
        (Constraint("json_object"), 4), (Constraint("lark", 'start: "yes" | "no"'), 5),
        (Constraint("gbnf", 'root ::= ("x" | "yz"){2,5}'), 6), (schema(RECORD), 7), (None, 8),
    ]  # fmt: skip
    options = {"temperature": 2.0, "max_tokens": 60, "logit_bias": CLOSING}
    streams = [fast.stream("go", constraint=c, seed=s, **options) for c, s in jobs]
    together = ["".join(c.text for c in stream) for stream in streams]
    alone = [plain.generate("go", constraint=c, seed=s, **options).text for c, s in jobs]
    assert together == alone
    assert re.fullmatch("(ab|c){3,9}", together[1])
    assert together[4] in ("yes", "no")
    assert re.fullmatch("(x|yz){2,5}", together[5])


def test_logprobs_are_the_models_own(plain: LLM) -> None:
    got = plain.generate(
        "go", constraint=Constraint("regex", "[0-9]{8}"), temperature=0, logprobs=5
    )
    assert got.logprobs is not None
    ids = plain.tokenize("go")
    for token in got.logprobs:
        free = plain.generate(ids, temperature=0, logprobs=300, max_tokens=1)
        assert free.logprobs is not None
        everything = {t.token_id: t.logprob for t in free.logprobs[0].top}
        assert everything[token.token_id] == pytest.approx(token.logprob, abs=1e-5)
        assert [t.token_id for t in token.top] == list(everything)[:5]
        ids.append(token.token_id)


@pytest.mark.parametrize("greedy", [True, False])
def test_it_ends_with_stop_at_the_last_brace_and_not_before(fast: LLM, greedy: bool) -> None:
    """Whitespace is bounded, keys keep the schema's order, ``stop`` means complete."""
    keys = ["zebra", "apple", "mango"]
    s = {
        "type": "object",
        "properties": {k: {"type": "integer", "maximum": 99, "minimum": 0} for k in keys},
        "required": sorted(keys),
        "additionalProperties": False,
    }
    spaces = {gb.FIRST_BYTE_ID + ord(c): 50.0 for c in " \n\t\r"} | {gb.FIRST_PIECE_ID: 50.0}
    for seed in range(5):
        got = fast.generate(
            "go", constraint=schema(s), temperature=0 if greedy else 2.0, seed=seed,
            logit_bias=spaces, max_tokens=700,
        )  # fmt: skip
        assert got.finish_reason is FinishReason.STOP  # though whitespace always wins
        assert got.text.endswith("}")
        assert list(json.loads(got.text)) == keys
        cut = fast.generate("go", constraint=schema(s), max_tokens=9, temperature=0)
        assert cut.finish_reason is FinishReason.LENGTH


def test_an_emoji_that_only_bytes_spell(plain: LLM, fast: LLM) -> None:
    for llm in (plain, fast):
        for temperature in (0.0, 2.0):
            got = llm.generate("go", constraint=schema({"enum": ["😀"]}), temperature=temperature)
            assert (got.text, got.finish_reason) == ('"😀"', FinishReason.STOP)
    assert len(got.token_ids) >= 4 + 2


@pytest.mark.parametrize(
    ("s", "good"),
    [
        ({"type": "string", "pattern": "\\S", "maxLength": 20}, lambda v: v.strip()),
        ({"type": "string", "pattern": r"^\d+$", "maxLength": 20}, lambda v: v.isdecimal()),
        ({"type": "object", "properties": {}, "maxProperties": 1}, lambda v: len(v) < 2),
        ({"type": "string", "maxLength": 10_000}, lambda v: len(v) <= 10_000),
        ({"type": "string", "minLength": 30}, lambda v: len(v) >= 30),
    ],
    ids=["pattern", "digits", "no-properties", "long", "least"],
)
def test_patterns_and_lengths_hold(fast: LLM, s: dict[str, Any], good: Any) -> None:
    complete = 0
    for seed in range(6):
        got = fast.generate(
            "go", constraint=schema(s), temperature=2.0, seed=seed, max_tokens=120,
            logit_bias=CLOSING, top_k=0,
        )  # fmt: skip
        if got.finish_reason is FinishReason.STOP:
            complete += 1
            assert good(json.loads(got.text))
            jsonschema.validate(json.loads(got.text), s)
    assert complete > 2


def test_leading_spaces_are_what_the_grammar_says(plain: LLM) -> None:
    """This vocabulary drops one space at the start of a text; a constrained text has it."""
    for text in (" e", "  e", "e", " "):
        c = Constraint("regex", re.escape(text))
        assert plain.generate("go", constraint=c, temperature=1.0).text == text


def test_a_full_context_is_a_clean_length(path: Path) -> None:
    for speculation in ("off", "ngram"):
        with LLM(path, backend="cpu", threads=1, n_ctx=64, speculation=speculation) as llm:
            got = llm.generate("go", constraint=schema(RECORD), temperature=2.0, seed=3)
            assert got.finish_reason is FinishReason.LENGTH
            assert got.usage.total_tokens == 64


def test_bad_constraints_are_refused_and_others_go_on(fast: LLM) -> None:
    deep = '{"items":' * 10_000 + "true" + "}" * 10_000
    field = "response_format.json_schema.schema"
    running = fast.stream("go", max_tokens=100, ignore_eos=True, temperature=0)
    for constraint, word in (
        (schema(deep, param=field), "nested"),
        (schema({"type": "array", "uniqueItems": True}, param=field), "uniqueItems"),
        (schema({"type": "sting"}, param=field), "type"),
        (schema({"type": "string", "pattern": "(?=x)"}, param=field), "look-around"),
        (Constraint("regex", "(a", param=field), "unclosed"),
        (Constraint("regex", "(a{1000}){1000}", param=field), "repeats"),
        (Constraint("lark", "start: nothing", param=field), "nothing"),
        (Constraint("gbnf", "root = 1", param=field), "::="),
    ):
        with pytest.raises(RequestError, match=re.escape(word)) as e:
            fast.generate("go", constraint=constraint)
        assert e.value.param == field
        assert field in str(e.value)
        assert "\n" not in str(e.value)
    assert sum(len(c.token_ids) for c in running) == 100


def test_a_dead_end_fails_its_request_alone(plain: LLM) -> None:
    """All that could follow is banned."""
    banned = {i: float("-inf") for i in range(3, 259) if i != gb.FIRST_BYTE_ID + ord("0")}
    other = plain.stream("go", max_tokens=50, ignore_eos=True, temperature=0)
    with pytest.raises(Exception, match="no token can be sampled"):
        plain.generate("go", constraint=Constraint("regex", "0000q"), logit_bias=banned)
    assert sum(len(c.token_ids) for c in other) == 50


def test_a_model_without_an_end_token_ends_where_nothing_can_follow(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eos_token_id": 0}  # the unknown token: never sampled by a grammar
    path = gb.random_model(tmp_path / "m.gguf", seed=2, extra=extra)
    with LLM(path, backend="cpu", threads=1) as llm:
        for ignore_eos in (False, True):
            got = llm.generate(
                "go", constraint=Constraint("regex", "a{2,6}"), ignore_eos=ignore_eos, temperature=1
            )
            assert got.finish_reason is FinishReason.STOP
            assert re.fullmatch("a{2,6}", got.text)
            assert len(got.text) == 6 or not ignore_eos


def test_coroutines(fast: LLM) -> None:
    async def run() -> list[Completion]:
        c = schema(RECORD)
        return list(
            await asyncio.gather(
                *(fast.agenerate("go", constraint=c, seed=s, max_tokens=30) for s in range(4))
            )
        )

    texts = [c.text for c in asyncio.run(run())]
    again = [
        fast.generate("go", constraint=schema(RECORD), seed=s, max_tokens=30) for s in range(4)
    ]
    assert texts == [c.text for c in again]


def test_cancelled_in_the_middle(fast: LLM) -> None:
    stream = fast.stream("go", constraint=Constraint("regex", "a+"), ignore_eos=True)
    next(stream)
    stream.close()
    got = fast.generate("go", constraint=Constraint("regex", "a{3}"), temperature=0)
    assert got.text == "aaa"


@pytest.mark.parametrize("model", [smollm2, gemma3])
def test_real_models(model: Any) -> None:
    s = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
            "mood": {"enum": ["😀", "sad"]},
        },
        "required": ["name", "born", "mood"],
        "additionalProperties": False,
    }
    with LLM(model(), backend="cpu", n_ctx=512, speculation="ngram") as llm:
        assert llm._speculation is not None
        llm._speculation.costs = StepCosts(FREE, learn=False)  # not those of a busy machine
        prompt, options = "Ada Lovelace as JSON:\n", {"constraint": schema(s), "max_tokens": 60}
        made = [llm.generate(prompt, temperature=t, seed=1, **options) for t in (0.0, 2.0)]
        llm._speculation = None
        made += [llm.generate(prompt, temperature=t, seed=1, **options) for t in (0.0, 2.0)]
        forced = llm.metrics().drafts["forced"]
        assert forced.accepted == forced.drafted > 0  # how many is n-grams' doing, too
    assert [c.token_ids for c in made[:2]] == [c.token_ids for c in made[2:]]
    for c in made:
        assert c.finish_reason is FinishReason.STOP
        jsonschema.validate(json.loads(c.text), s)
