"""The n-gram drafter: what it finds, what it learns, what it survives."""

from __future__ import annotations

import random
import sys
from itertools import accumulate

import pytest
from helpers.paths import ROOT, shared

from edgerun.engine.draft_source import Account
from edgerun.engine.drafting import ForcedDrafter, NgramDrafter, StepCosts, share
from edgerun.engine.drafting.ngram import MOST


def fed(prompt, emitted=()):
    d = NgramDrafter()
    d.extend(prompt)
    for i in emitted:
        d.extend([i])
    return d


def said_after(text, ahead=()):
    """What may follow the text and ``ahead``, of equal say: the next of a count, if the newest
    three places with the same last four tokens count; else what followed the longest matches, the
    newest first, among the last 8 places with the same last two; else what last followed the last
    one."""
    whole = [*text, *ahead]
    places = [i for i in range(len(text) - 1, 1, -1) if text[i - 2 : i] == whole[-2:]][:8]
    same = {}
    for i in places:
        n = 0
        while n < min(i, 64) and text[i - 1 - n] == whole[-1 - n]:
            n += 1
        same[i] = n
    a, b, c = ([text[i] for i in places if same[i] >= 4] + [0, 0, 0])[:3]
    if a != b and a - b == b - c and 0 <= 2 * a - b <= max(text) and min(a, b, c):
        return [2 * a - b]
    if places:
        return [text[i] for i in places if same[i] == max(same.values())]
    return [text[i] for i in range(len(text) - 1, 0, -1) if text[i - 1] == whole[-1]][:1]


def test_first_token_is_what_most_of_the_longest_matches_say():
    rng = random.Random(5)
    asked = 0
    for trial in range(400):
        size = rng.choice((3, 12, 200))
        text = [1 + rng.randrange(size) for _ in range(rng.randrange(2, 60))]
        if trial % 2:  # repeats with errors
            text += [t if rng.random() < 0.9 else 1 + rng.randrange(size) for t in text]
        said = said_after(text)
        got = fed(text).draft(1).tokens
        assert got == ((max(said, key=said.count),) if said else ())
        asked += len(said) > 1
    assert asked > 25


def test_where_no_copy_leads_on_a_draft_is_matched_as_if_it_had_been_said():
    rng = random.Random(8)
    asked = 0
    for _ in range(4000):
        text = [1 + rng.randrange(9) for _ in range(rng.randrange(8, 30))]
        given = rng.choices(text, k=rng.randrange(3))
        got = fed(text).draft(5, given).tokens
        assert bool(got) == bool(said_after(text, given))
        for i, token in enumerate(got):
            said = said_after(text, [*given, *got[:i]])
            assert token == max(said, key=said.count)
            asked += len([*given, *got[:i]]) > 0 and len(said) > 1
    assert asked > 100


@pytest.mark.parametrize("step", [1, -1, 10])
def test_a_count_goes_on(step):
    def line(k):
        return [1, 2, 3, 4, 500 + step * k, 5, 6, 7]

    d = fed([900, *line(0), *line(1), *line(2), 1, 2])
    assert d.draft(3).tokens == (3, 4, 500 + 3 * step)
    for k in range(3, 6):
        d.extend(line(k)[2:5])
        d.extend([5, 6, 7, 1, 2])
    assert d.draft(3).tokens == (3, 4, 500 + 6 * step)
    assert d.draft(3).probs[2] > 0.8
    d.extend([3, 4, 777, 5, 6, 7, 1, 2])  # it does not
    assert d.draft(3).tokens[2] in (777, 500 + 5 * step)


def test_a_count_stays_among_the_ids_of_the_text():
    """Whatever is drafted is computed: it must be a token."""
    d = fed([t for k in range(3) for t in (1, 2, 3, 4, 500 + k)] + [1, 2, 3, 4])
    assert d.draft(1).tokens[0] in (500, 501, 502)
    d = fed([t for k in range(3) for t in (11, 12, 13, 14, 8 - 4 * k)] + [11, 12, 13, 14])
    assert d.draft(1).tokens[0] in (0, 4, 8)


def test_copy_is_drafted_to_its_end_and_grows_surer():
    text = list(range(100, 160))
    d = fed(text)
    d.extend(text[:1])
    unsure = d.draft(MOST)
    d.extend(text[1:20])
    sure = d.draft(MOST)
    assert sure.tokens == tuple(text[20 : 20 + MOST])
    assert all(0.0 < p < 1.0 for p in sure.probs)
    assert unsure.probs[0] < 0.5 < sure.probs[0]
    assert d.draft(3).tokens == sure.tokens[:3]
    assert d.draft(0).tokens == d.draft(-5).tokens == ()


def test_wrong_guesses_lower_the_odds():
    rng = random.Random(1)
    line = [1, 2, 3, 4]
    d = fed([t for _ in range(40) for t in (*line, rng.randrange(100, 9000))])
    d.extend(line)
    before = d.draft(1).probs[0]
    for _ in range(30):
        d.extend([rng.randrange(10_000, 90_000), *line])
    assert d.draft(1).probs[0] < 0.5 * before


def test_with_a_price_it_drafts_what_the_policy_would_verify():
    rng = random.Random(6)
    shorter = 0
    for _ in range(200):
        words = [rng.randrange(1000) for _ in range(40)]
        text = [t if rng.random() < 0.9 else rng.randrange(1000) for t in words * 4]
        steps = accumulate(rng.choice((0.0, 0.02, 0.1, 0.5)) for _ in range(40))
        costs = StepCosts({1: 1.0, **{i + 2: 1.0 + s for i, s in enumerate(steps)}}, learn=False)
        account = Account(bank=rng.uniform(0, 3))
        priced = NgramDrafter(costs, account)
        free = fed(text[:100], text[100:])
        priced.extend(text[:100])
        priced.extend(text[100:])
        whole = free.draft(MOST)._replace(account=account)
        got = priced.draft(MOST)
        n = share([whole], 1, costs)[0].length
        assert got.tokens == whole.tokens[:n]
        assert got.probs == whole.probs[:n]
        shorter += 0 < n < len(whole.tokens)
    assert shorter > 20


def test_rename_is_learned_from_its_first_place():
    """``old old2`` becomes ``new``: the third time it is drafted across the edit."""
    old, new = [900, 901], [77]
    parts = [list(range(10 * k, 10 * k + 9)) for k in range(1, 9)]
    source = [t for p in parts for t in (*p, *old)]
    target = [t for p in parts for t in (*p, *new)]
    d = fed(source)
    at = 2 * 10 + 5  # inside the third part; two edits were seen
    d.extend(target[:at])
    assert d.draft(MOST).tokens[:20] == tuple(target[at : at + 20])


def test_drafts_behind_given_tokens():
    text = list(range(100, 160))
    d = fed(text)
    d.extend(text[:10])
    assert d.draft(5, text[10:14]).tokens == tuple(text[14:19])
    assert d.draft(5, [7, 8, 9]).tokens == ()  # nothing continues these
    assert d.draft(5).tokens == tuple(text[10:15])  # asking leaves no trace


def test_any_ids_are_safe():
    rng = random.Random(9)
    wild = [0, 1, -1, -(2**31), 2**31 - 1, 2**30]
    for _ in range(300):
        d = NgramDrafter()
        d.extend([rng.choice(wild) for _ in range(rng.randrange(200))])
        for _ in range(rng.randrange(60)):
            draft = d.draft(rng.choice((0, 1, 31, 1000)), rng.choices(wild, k=rng.randrange(3)))
            assert len(draft.tokens) == len(draft.probs) <= MOST
            assert all(t in wild or 0 <= t < 2**31 for t in draft.tokens)
            d.extend(rng.choices(wild, k=rng.randrange(5)))


def test_empty_and_unprompted():
    d = NgramDrafter()
    assert d.draft(8).tokens == ()
    d.extend([])
    d.extend([5])
    d.extend([5, 5, 5])
    assert set(d.draft(8).tokens) == {5}


def test_same_text_same_drafts_however_it_came():
    rng = random.Random(2)
    prompt = [rng.randrange(50) for _ in range(300)]
    rest = [rng.choice(prompt) for _ in range(200)]
    one, other = fed(prompt, rest), NgramDrafter()
    other.extend(prompt)
    other.extend(rest)
    assert one.draft(MOST) == other.draft(MOST)


def test_memory_is_small_and_bounded():
    d = NgramDrafter()
    rng = random.Random(3)
    d.extend([rng.randrange(50_000) for _ in range(10_000)])
    d.extend(range(10_000))
    assert d.n_bytes < 2 * 0.2e6  # 20k tokens


def test_out_of_memory_is_silence():
    d = NgramDrafter(max_bytes=200_000)
    text = list(range(1000))
    d.extend(text)
    d.extend(text[:50])
    assert d.draft(4).tokens == (50, 51, 52, 53)
    for _ in range(40):
        d.extend(text)
        assert d.n_bytes < 200_000 + 10_000
    assert d.draft(4).tokens == ()
    d.extend([1, 2, 3])
    assert d.draft(4).tokens == ()
    assert NgramDrafter(max_bytes=0).draft(4).tokens == ()


class Forcing:
    """A constraint that forces tokens, and takes ``room`` of any."""

    def __init__(self, forced, room=100):
        self._forced, self._room = forced, room

    def forced(self, most):
        return self._forced()[:most]

    def fits(self, token_ids):
        return min(len(token_ids), self._room)


def test_forced_tokens_are_certain_and_guessed_behind():
    text = list(range(100, 160))
    script = {10: [110, 111, 112], 20: []}
    emitted = []
    d = ForcedDrafter(Forcing(lambda: script.get(len(emitted), [])), NgramDrafter())
    d.extend(text)
    for t in text[:10]:
        d.extend([t])
        emitted.append(t)
    draft = d.draft(8)
    assert draft.tokens == tuple(text[10:18])
    assert draft.probs[:3] == (1.0, 1.0, 1.0)
    assert draft.probs[3] < 1.0
    assert draft.origins == (("forced", 3), ("ngram", 5))
    assert d.draft(2).tokens == (110, 111)
    fewer = ForcedDrafter(Forcing(lambda: script.get(len(emitted), []), room=5), NgramDrafter())
    fewer.extend(text)
    fewer.extend(text[:10])
    assert fewer.draft(8).tokens == tuple(text[10:15])  # the rest of the guess is not allowed
    alone = ForcedDrafter(Forcing(lambda: [1, 2, 3]))
    alone.extend([9])
    assert alone.draft(2)[:3] == ((1, 2), (1.0, 1.0), (("forced", 2),))


def test_recorded_streams_reach_the_promised_speedups(monkeypatch):
    """229 texts of 20 kinds, on measured step costs of three machines."""
    folder = shared("prototypes", "speculation", "streams")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    replay = pytest.importorskip("_replay")
    results = replay.replay_all(folder)
    means = {name: replay.mean(r) for name, r in results.items()}
    least = {"cpu, large": 2.5, "cpu, small": 2.05, "gpu": 2.9}
    assert {n: m for n, m in means.items() if m < least[n]} == {}
    assert {n: replay.worst(r) for n, r in results.items() if replay.worst(r) < 0.97} == {}
    sys.modules.pop("_replay", None)
