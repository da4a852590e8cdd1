"""The status line and the words about a model: pure functions of what is known."""

from __future__ import annotations

import asyncio

import pytest
from helpers.tui import FakePartner, Gate

from edgerun.errors import DownloadError
from edgerun.tui.composer.box import fitting
from edgerun.tui.keeper import ModelKeeper
from edgerun.tui.partner import About
from edgerun.tui.sight import loading, notice, welcome
from edgerun.tui.status import Facts, count_text, parts, places

ALL = Facts(
    model="qwen3-0.6b",
    backend="cpu avx2",
    used=1000,
    n_ctx=4096,
    prefill=512.34,
    decode=31.4159,
    cached=640,
    acceptance=0.456,
    memory=1_540_000_000,
)


def text(facts: Facts, cells: int = 200) -> str:
    return " · ".join(p.text for p in places(parts(facts), cells))


def test_all_of_it() -> None:
    assert text(ALL) == (
        "qwen3-0.6b · cpu avx2 · ━━······ 1000/4096 · 31.4 t/s · read 512 t/s · 640 cached · "
        "drafts 46% · 1.5 GB"
    )


def test_what_is_not_known_is_not_shown() -> None:
    assert text(Facts()) == ""
    assert text(Facts(model="m", used=12)) == "m · 12 tokens"
    assert text(Facts(model="m", used=0, n_ctx=8192)) == "m · ········ 0/8192"
    assert text(Facts(cached=0, memory=None, acceptance=0.0)) == "drafts 0%"


@pytest.mark.parametrize(
    ("cells", "line"),
    [
        (88, "qwen3-0.6b · cpu avx2 · ━━······ 1000/4096 · 31.4 t/s · read 512 t/s · 640 cached"),
        (80, "qwen3-0.6b · ━━······ 1000/4096 · 31.4 t/s · read 512 t/s · 640 cached"),
        (60, "qwen3-0.6b · ━━······ 1000/4096 · 31.4 t/s · read 512 t/s"),
        (45, "qwen3-0.6b · ━━······ 1000/4096 · 31.4 t/s"),
        (32, "qwen3-0.6b · ━━······ 1000/4096"),
        (12, "qwen3-0.6b"),
        (6, "qwen3…"),
    ],
)  # fmt: skip
def test_narrow_screens_leave_out_the_least_important(cells: int, line: str) -> None:
    assert text(ALL, cells) == line


def test_what_happens_now_stands_first_and_stays() -> None:
    now = ALL._replace(activity="loading 43 %", share=0.43)
    assert text(now).startswith("loading 43 % ━━━╸···· · qwen3-0.6b")
    assert text(now, 22) == "loading 43 % ━━━╸····"
    failed = now._replace(activity="no model", alarm=True, share=None)
    assert parts(failed)[0].style == "alarm"


@pytest.mark.parametrize(
    ("used", "style"), [(0, "text"), (3071, "text"), (3072, "full"), (3769, "brim"), (9999, "brim")]
)
def test_the_gauge_warns(used: int, style: str) -> None:
    (gauge,) = [p for p in parts(ALL._replace(used=used)) if "4096" in p.text]
    assert gauge.style == style
    assert len(gauge.text.split()[0]) == 8


def test_an_estimate_is_marked() -> None:
    assert "~1000/4096" in text(ALL._replace(estimate=True))


def test_messages_left_out_stand_by_the_gauge() -> None:
    assert "1000/4096 · 1 message left out · 31.4 t/s" in text(ALL._replace(left_out=1))
    assert "1000/4096 · 12 messages left out · " in text(ALL._replace(left_out=12))
    assert "left out" not in text(ALL)


def test_nothing_of_a_server_reaches_the_terminal_raw() -> None:
    from edgerun.tui.status import StatusLine

    line = StatusLine()
    line.facts = Facts(model="a\x1b[2Jb\u202ec\nd")
    assert line._parts()[0].text == "a\ufffd[2Jb\ufffdc d"


def test_numbers() -> None:
    assert [count_text(n) for n in (0, 9999, 10_000, 99_949, 123_456)] == [
        "0", "9999", "10.0k", "99.9k", "123k",
    ]  # fmt: skip


def test_hints_are_whole() -> None:
    hints = ("Ask anything", "/ commands", "@ files")
    assert fitting(hints, 80) == "Ask anything   / commands   @ files"
    assert fitting(hints, 30) == "Ask anything   / commands"
    assert fitting(hints, 5) == "Ask anything"


# -- the model's keeper -----------------------------------------------------------------------


def test_a_first_run_in_words() -> None:
    async def go() -> None:
        gate = Gate()
        partner = FakePartner(about=About("smol", "cpu", 8192, size=98_000_000))
        partner.load_script[None] = [
            ("pull", 0, 98_000_000),
            ("pull", 49_000_000, 98_000_000),
            gate,
        ]
        seen = []
        keeper = ModelKeeper(partner, lambda: seen.append(loading(keeper)))
        task = keeper.load(None)
        assert welcome(keeper) == ("loading the default model",)
        await gate.reached.wait()
        assert welcome(keeper)[0] == "fetching the default model: 49 MB of 98 MB, once"
        assert seen == ["starting", "pulling 0 %", "pulling 50 %"]
        assert keeper.share == 0.5
        gate.open()
        await task
        assert keeper.ready
        assert welcome(keeper) == ("smol · 98 MB · context 8192",)
        assert notice(keeper) == ("", False)

    asyncio.run(go())


def test_a_load_that_fails_and_one_that_is_overtaken() -> None:
    async def go() -> None:
        partner = FakePartner()
        gate = Gate()
        partner.load_script = {"bad": [DownloadError("the\x1b net is gone")], "slow": [gate]}
        keeper = ModelKeeper(partner, lambda: None)
        await keeper.load("bad")
        assert keeper.state == "failed"
        text, bad = notice(keeper)
        assert bad
        assert text.startswith("the\\x1b net is gone — ")
        slow = keeper.load("slow")
        await gate.reached.wait()
        await keeper.load("good")
        assert keeper.about is not None
        assert keeper.about.model == "good"
        assert slow.done()
        # What was loaded before goes on answering when another model cannot be found.
        partner.load_script["gone"] = [DownloadError("no such model")]
        before = partner.about

        async def failing(model: object, progress: object) -> About:
            raise DownloadError("no such model")

        partner.load = failing  # type: ignore[method-assign]
        await keeper.load("gone")
        assert (keeper.state, keeper.error) == ("ready", "no such model")
        assert keeper.about is before
        assert not keeper.cancel()

    asyncio.run(go())


def test_a_load_is_cancelled() -> None:
    async def go() -> None:
        partner = FakePartner()
        gate = Gate()
        partner.load_script["slow"] = [gate]
        keeper = ModelKeeper(partner, lambda: None)
        task = keeper.load("slow")
        await gate.reached.wait()
        assert keeper.cancel()
        await task
        assert (keeper.state, keeper.error) == ("failed", "the load was cancelled")

    asyncio.run(go())
