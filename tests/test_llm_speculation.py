"""Speculation changes the speed of a text and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import gguf_build as gb
from helpers.models import smollm2

from edgerun import LLM, Completion, FinishReason, SamplingParams
from edgerun.engine.drafting import DraftModel, StepCosts
from edgerun.errors import RequestError

#: Width costs nothing: everything that may be right is drafted, and most of it is not.
FREE = {1: 1.0, 64: 1.01}


def speculating(path: Path, **options: object) -> LLM:
    """With the longest drafts there can be."""
    llm = LLM(path, backend="cpu", speculation="ngram", **options)  # type: ignore[arg-type]
    assert llm._speculation is not None
    llm._speculation.costs = StepCosts(FREE, learn=False)
    return llm


def drafted(llm: LLM, source: str = "ngram") -> tuple[int, int]:
    """Tokens drafted and accepted so far."""
    count = llm.metrics().drafts.get(source)
    return (count.drafted, count.accepted) if count else (0, 0)


def same(a: Completion, b: Completion) -> bool:
    return (a.token_ids, a.text, a.finish_reason, a.logprobs) == (
        b.token_ids, b.text, b.finish_reason, b.logprobs,
    )  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gb.random_model(tmp_path_factory.mktemp("m") / "random.gguf", seed=3)


@pytest.fixture(scope="module")
def plain(path: Path) -> Iterator[LLM]:
    with LLM(path, backend="cpu", threads=1, speculation="off") as llm:
        yield llm


@pytest.fixture(scope="module")
def fast(path: Path) -> Iterator[LLM]:
    with speculating(path, threads=1) as llm:
        yield llm


#: Few tokens to choose from, so that texts repeat.
FEW = {20: 60.0, 21: 60.0, 22: 59.0}

WAYS = {
    "greedy": SamplingParams(temperature=0, max_tokens=60, logit_bias=FEW),
    "sampled": SamplingParams(temperature=0.9, max_tokens=60, logit_bias=FEW, top_k=0),
    "default chain": SamplingParams(max_tokens=60, logit_bias=FEW),
    "logprobs": SamplingParams(temperature=0.9, max_tokens=60, logit_bias=FEW, logprobs=3),
    "penalties": SamplingParams(
        temperature=0.8, max_tokens=60, logit_bias=FEW, repeat_penalty=1.05, presence_penalty=0.2,
        frequency_penalty=0.01,
    ),
    "dry": SamplingParams(
        temperature=0.8, max_tokens=60, logit_bias=FEW, dry_multiplier=0.5, dry_allowed_length=4
    ),
    "mirostat": SamplingParams(max_tokens=60, logit_bias=FEW, mirostat=2),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_same_text_with_every_kind_of_sampling(plain: LLM, fast: LLM, way: str) -> None:
    rng = random.Random(way)
    before = drafted(fast)
    for seed in range(6):
        prompt = [rng.choice((20, 21, 22, 30)) for _ in range(rng.randrange(3, 40))] * 2
        params = WAYS[way]
        a = plain.generate(prompt, params, seed=seed, ignore_eos=True)
        b = fast.generate(prompt, params, seed=seed, ignore_eos=True)
        assert same(a, b)
    n, right = (after - b for after, b in zip(drafted(fast), before, strict=True))
    assert n > 30
    assert right > 10


def test_stop_string_inside_a_draft(plain: LLM, fast: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=60)
    ids = plain.generate([20, 21] * 8, params, ignore_eos=True)
    assert len(ids.text) > 20
    for stop in (ids.text[7:9], ids.text[15:18], ids.text[-3:]):
        for logprobs in (None, 2):
            got = [
                m.generate([20, 21] * 8, params, ignore_eos=True, stop=[stop], logprobs=logprobs)
                for m in (plain, fast)
            ]
            assert same(*got)
            assert got[1].finish_reason is FinishReason.STOP
            assert stop not in got[1].text


def test_end_of_generation_inside_a_draft(tmp_path: Path) -> None:
    """The prompt shows how the text goes on past the model's own end."""
    pieces = [f"p{i} " for i in range(12)]
    path = gb.scripted_model(tmp_path / "scripted.gguf", pieces, vocab=["Go "])
    said = list(range(gb.FIRST_PIECE_ID, gb.FIRST_PIECE_ID + 12))
    go = gb.FIRST_PIECE_ID + 12
    with LLM(path, speculation="off") as llm:
        assert llm.detokenize([*said, go]) == "".join(pieces) + "Go "
        prompt = [go, go, *said, go, go, *said, go, go]
        a = llm.generate(prompt, temperature=0)
    with speculating(path) as llm:
        b = llm.generate(prompt, temperature=0)
        assert drafted(llm)[1] > 3
    assert same(a, b)
    assert b.finish_reason is FinishReason.STOP
    assert b.text == "".join(pieces)


@pytest.mark.parametrize("n_ctx", [64, 70, 95])
def test_context_ends_in_a_draft(path: Path, n_ctx: int) -> None:
    out = []
    for speculation in ("off", "ngram"):
        with LLM(path, backend="cpu", n_ctx=n_ctx, threads=1, speculation=speculation) as llm:
            if llm._speculation is not None:
                llm._speculation.costs = StepCosts(FREE, learn=False)
            params = replace(WAYS["greedy"], max_tokens=None, ignore_eos=True, logprobs=2)
            out.append(llm.generate([20, 21] * 10, params))
            if llm._speculation is not None:
                assert drafted(llm)[1] > 10
    assert same(*out)
    assert out[1].finish_reason is FinishReason.LENGTH
    assert out[1].usage.total_tokens == n_ctx


def test_a_batch_drafts_for_each_and_says_the_same(plain: LLM, fast: LLM) -> None:
    rng = random.Random(4)
    jobs = []
    for seed in range(12):
        prompt = [rng.choice((20, 21, 22, 30)) for _ in range(rng.randrange(3, 50))]
        params = rng.choice(list(WAYS.values()))
        jobs.append((prompt, params, seed))
    streams = [fast.stream(p, q, seed=s, ignore_eos=True) for p, q, s in jobs]
    together = [tuple(i for c in chunks for i in c.token_ids) for chunks in streams]
    alone = [plain.generate(p, q, seed=s, ignore_eos=True).token_ids for p, q, s in jobs]
    assert together == alone


def test_several_answers_draft_each_for_itself(plain: LLM, fast: LLM) -> None:
    before = drafted(fast)[1]
    params = replace(WAYS["sampled"], n=3, seed=5, ignore_eos=True, logprobs=1)
    a, b = plain.generate([20, 21] * 9, params), fast.generate([20, 21] * 9, params)
    assert [(c.token_ids, c.logprobs) for c in a.choices] == [
        (c.token_ids, c.logprobs) for c in b.choices
    ]
    assert drafted(fast)[1] > before + 10


def test_context_shift_in_drafted_text(path: Path) -> None:
    said = []
    for speculation in ("off", "ngram"):
        with LLM(path, backend="cpu", n_ctx=64, threads=1, speculation=speculation) as llm:
            if llm._speculation is not None:
                llm._speculation.costs = StepCosts(FREE, learn=False)
            params = replace(WAYS["greedy"], max_tokens=150, context_shift=True, ignore_eos=True)
            said.append(llm.generate([20, 21] * 9, params).token_ids)
    assert len(said[0]) == 150
    assert said[0] == said[1]


def test_choices(path: Path) -> None:
    with LLM(path, backend="cpu") as llm:
        assert llm._speculation is not None
    with LLM(path, backend="reference") as llm:  # its bits depend on the step's width
        assert llm._speculation is None
    with LLM(path, backend="reference", speculation="ngram") as llm:
        assert llm._speculation is not None
    with pytest.raises(RequestError, match="auto, off, ngram, not 'often'"):
        LLM(path, speculation="often")
    with pytest.raises(RequestError, match="no use with speculation off"):
        LLM(path, speculation="off", draft=path)


# -- a second model ------------------------------------------------------------------------------


def test_a_model_drafting_for_itself_is_always_right(
    path: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DraftModel, "price", 0.01)  # in truth it costs as much as it could save
    with LLM(path, backend="cpu", threads=1, draft=path) as llm:
        assert llm._speculation is not None
        llm._speculation.costs = StepCosts(FREE, learn=False)
        rng = random.Random(8)
        for _ in range(4):
            prompt = [rng.randrange(3, 260) for _ in range(rng.randrange(1, 150))]
            a = plain.generate(prompt, temperature=0, max_tokens=50, ignore_eos=True)
            b = llm.generate(prompt, temperature=0, max_tokens=50, ignore_eos=True)
            assert same(a, b)
        n, right = drafted(llm, "model")
        assert right > 60
        assert right == n


def test_draft_model_follows_what_it_did_not_guess(
    path: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sampled text differs from greedy drafts now and then; many sequences share the model."""
    monkeypatch.setattr(DraftModel, "price", 0.01)
    params = SamplingParams(temperature=0.6, max_tokens=60)
    with LLM(path, backend="cpu", threads=1, draft=path) as llm:
        assert llm._speculation is not None
        llm._speculation.costs = StepCosts(FREE, learn=False)
        prompts = [[40 + i, 90, 91, 17] * 3 for i in range(6)]
        for _ in range(2):  # pages of the first round serve the second
            streams = [llm.stream(p, params, seed=i) for i, p in enumerate(prompts)]
            got = [tuple(i for c in s for i in c.token_ids) for s in streams]
            assert got == [
                plain.generate(p, params, seed=i).token_ids for i, p in enumerate(prompts)
            ]
        n, right = drafted(llm, "model")
        assert 0 < right < n


def test_draft_model_with_other_weights(
    path: Path, plain: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is hardly ever right, so it is soon asked no more; both models keep their own weights."""
    monkeypatch.setattr(DraftModel, "price", 0.2)
    other = gb.random_model(tmp_path / "other.gguf", seed=4)
    prompt = list(range(30, 70))
    with LLM(path, backend="cpu", threads=1, draft=other) as llm:
        assert llm._speculation is not None
        llm._speculation.costs = StepCosts(learn=False)
        got = llm.generate(prompt, temperature=0, max_tokens=100, ignore_eos=True)
        assert same(got, plain.generate(prompt, temperature=0, max_tokens=100, ignore_eos=True))
        assert drafted(llm, "model")[0] < 50


def test_draft_model_with_other_tokens_is_refused(path: Path, tmp_path: Path) -> None:
    other = gb.scripted_model(tmp_path / "other.gguf", ["a", "b"])
    with pytest.raises(RequestError, match=r"other\.gguf has other tokens than random\.gguf: 259"):
        LLM(path, backend="cpu", draft=other)


# -- a real model --------------------------------------------------------------------------------


REPETITIVE = [
    f"{what} {n}: " + f"{row}\n" * 4
    for n, what, row in [
        (1, "List", "one, two, three, four"),
        (2, "Log", "[INFO] started worker 7 in 12 ms"),
        (3, "CSV", "id,name,price,qty"),
        (4, "Code", "for i in range(10): print(i)"),
        (5, "JSON", '{"id": 1, "ok": true, "tags": ["a", "b"]},'),
        (6, "Poem", "the rain falls down, the rain falls down"),
        (7, "HTML", "<li><a href='#'>item</a></li>"),
        (8, "Math", "2 + 2 = 4; 4 + 4 = 8;"),
        (9, "Names", "Ann, Bob, Cid, Dan"),
        (10, "SQL", "INSERT INTO t VALUES (1, 'x');"),
    ]
]


def test_twenty_repetitive_prompts_say_the_same_on_a_real_model() -> None:
    path = smollm2()
    prompts = [*REPETITIVE, *(p.replace("\n", "; ") for p in REPETITIVE)]
    said = []
    for speculation in ("off", "auto"):
        with LLM(path, backend="cpu", threads=1, n_ctx=256, speculation=speculation) as llm:
            if llm._speculation is not None:
                llm._speculation.costs = StepCosts(learn=False)
            # One alone, then all together.
            alone = llm.generate(prompts[4], temperature=0, max_tokens=32)
            streams = [llm.stream(p, temperature=0, max_tokens=20) for p in prompts]
            together = [tuple(i for c in s for i in c.token_ids) for s in streams]
            said.append([alone.token_ids, *together])
            if speculation == "auto":
                n, right = drafted(llm)
                assert right > n / 2 > 10
    assert said[0] == said[1]


def test_a_real_model_drafting_for_itself_is_always_right(monkeypatch: pytest.MonkeyPatch) -> None:
    path = smollm2()
    monkeypatch.setattr(DraftModel, "price", 0.01)
    options = {"backend": "cpu", "threads": 1, "n_ctx": 256}
    prompt = "On the second day we walked up into the mountains, and"
    said = []
    for more in ({"speculation": "off"}, {"draft": path}):
        with LLM(path, **options, **more) as llm:  # type: ignore[arg-type]
            if llm._speculation is not None:
                llm._speculation.costs = StepCosts(FREE, learn=False)
            said.append(llm.generate(prompt, temperature=0, max_tokens=40).token_ids)
            n, right = drafted(llm, "model")
    assert said[0] == said[1]
    assert right == n > 20
