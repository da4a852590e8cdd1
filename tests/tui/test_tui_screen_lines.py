"""Text of list rows, and what the sampling panel reads and writes: no terminal needed."""

from __future__ import annotations

import math
import time

import pytest
from rich.cells import cell_len

from edgerun.chat import ChatOptions
from edgerun.core import SamplingParams
from edgerun.errors import RequestError
from edgerun.tui.screens import knobs
from edgerun.tui.screens.knobs import KNOBS
from edgerun.tui.screens.lines import ago, clean, fit, mark, matches, rate, shared, size
from edgerun.tui.settings import Remembered

PLAIN = (SamplingParams(), ChatOptions())
BY_NAME = {k.name: k for k in KNOBS}


@pytest.mark.parametrize(
    "text", ["abc", "日本語テキスト", "a日b本c", "e\u0301te\u0301", "👩‍🚀 go", ""]
)
@pytest.mark.parametrize("align", ["left", "right", "middle"])
@pytest.mark.parametrize("width", [0, 1, 2, 3, 5, 9, 12, 40])
def test_a_row_is_exactly_as_wide_as_asked(text: str, align: str, width: int) -> None:
    spans = fit([(text, "")], width, align)
    assert sum(cell_len(t) for t, _ in spans) == width
    joined = "".join(t for t, _ in spans)
    assert (text in joined) if cell_len(text) <= width else "…" in joined or not width


def test_the_middle_of_a_long_name_goes_first() -> None:
    name = "Some-Very-Long-Model-Name-With-Everything-Q4_K_M.gguf"
    (shown, _), *_ = fit([(name, "")], 24, "middle")
    assert shown.startswith("Some-Very")
    assert shown.endswith("K_M.gguf")
    assert cell_len(shown) == 24


@pytest.mark.parametrize(
    "raw", ["\x1b[2J", "\x9b2J", "\x1b]52;c;aGk=\x07", "a\u202eb", "\x00", "\r"]
)
def test_nothing_reaches_a_row_raw(raw: str) -> None:
    shown = clean(f"a{raw}b\nc")
    assert not set(shown) & set("\x1b\x9b\x07\x00\r\n\u202e")
    assert shown.endswith("c")


@pytest.mark.parametrize(
    ("room", "needs", "widths", "least", "sizes"),
    [
        (90, [24, 40], [-26, 0], 17, [24, 66]),  # all there is to say, and what is left
        (34, [24, 40], [-26, 0], 17, [17, 17]),  # at 40 cells: half for what the keys do
        (34, [24, 40], [-26, 0], 0, [24, 10]),
        (34, [24, 12], [-26, 0], 17, [22, 12]),  # which needs no more
        (18, [24, 40], [-26, 0], 17, [10, 8]),
        (60, [1, 28, 30, 7, 8], [1, -30, 0, -7, -8], 0, [1, 28, 16, 7, 8]),
        (20, [15, 8], [15, 0], 17, [15, 5]),  # fixed is fixed
    ],
)
def test_columns_share_what_room_there_is(
    room: int, needs: list[int], widths: list[int], least: int, sizes: list[int]
) -> None:
    assert shared(room, needs, widths, least) == sizes


def test_searched_words_are_marked_where_they_stand() -> None:
    assert matches("Straße, STRASSE", ["stra"]) == [(0, 4), (8, 12)]
    assert matches("aaaa", ["aa", "a"]) == [(0, 4)]
    assert matches("İstanbul bul", ["bul"]) == [(5, 8), (9, 12)]  # İ is longer in lower case
    assert mark("regex", ["ge"]) == [("re", ""), ("ge", "match"), ("x", "")]
    assert mark("plain", []) == [("plain", "")]


def test_sizes_times_and_dates_are_short() -> None:
    assert [size(n) for n in (None, 0, 98_362_432, 999_600_000, 4_920_000_000, 142 * 10**9)] == [
        "", "0 B", "98 MB", "1.0 GB", "4.9 GB", "142 GB",
    ]  # fmt: skip
    assert [rate(s) for s in (None, 0.2, 61, 600, 9000)] == ["", "1 s", "61 s", "10 min", "2 h"]
    noon = time.mktime((2026, 3, 9, 12, 0, 0, 0, 0, -1))
    day = 86400.0
    told = [ago(noon - d, noon) for d in (0, 11 * 3600, 13 * 3600, 3 * day, 20 * day, 400 * day)]
    assert told == ["12:00", "01:00", "yesterday", "Fri", "17 Feb", "2 Feb 2025"]
    assert ago(noon + 2 * day, noon) == "11 Mar 2026"
    assert ago(math.inf, noon) == ago(1e30, noon) == ""


@pytest.mark.parametrize("knob", KNOBS, ids=lambda k: k.name)
def test_what_is_shown_is_read_back(knob: knobs.Knob) -> None:
    for way in (1, 1, 1, -1, -1, -1, -1):
        settings = knobs.step(knob, PLAIN, way)
        again = knobs.put(knob, PLAIN, knobs.read(knob, knobs.shown(knob, settings)))
        assert again == settings
    up = knobs.step(knob, PLAIN, 1)
    assert up != PLAIN or knob.name == "top_p"
    assert knobs.reset(up) == PLAIN


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("temperature", "hot", "must be a number"),
        ("temperature", "nan", "must be a finite number"),
        ("temperature", "5000", "between -1.0 and 1000.0"),
        ("top_k", "1.5", "must be a whole number"),
        ("top_p", "1.2", "between 0.0 and 1.0"),
        ("max_tokens", "-1", "must be 0 or more"),
        ("seed", "99999999999999999999999", "between"),
        ("context_shift", "maybe", "on or off"),
        ("reasoning_effort", "extreme", "none, minimal, low"),
        ("reasoning_budget", "-5", "0 or more"),
        ("repeat_penalty", "", "must be a number, not nothing"),
        ("top_k", "\x1b[2J", "whole number, not '\\x1b[2j'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, text: str, says: str) -> None:
    knob = BY_NAME[name]
    with pytest.raises(RequestError) as e:
        knobs.put(knob, PLAIN, knobs.read(knob, text))
    assert says in str(e.value)
    assert name in str(e.value)
    assert e.value.param == name
    assert "\x1b" not in str(e.value)


def test_stepping_stops_at_the_ends() -> None:
    settings = PLAIN
    for _ in range(40):
        settings = knobs.step(BY_NAME["top_p"], settings, -1)
    assert settings[0].top_p == 0.0
    assert knobs.step(BY_NAME["max_tokens"], PLAIN, 1)[0].max_tokens == 256
    low = knobs.put(BY_NAME["max_tokens"], PLAIN, 10)
    assert knobs.step(BY_NAME["max_tokens"], low, -1)[0].max_tokens is None


class _Dict:
    def __init__(self, **values: object) -> None:
        self.values = dict(values)

    def get(self, key: str, default: object = None) -> object:
        return self.values.get(key, default)

    def set(self, key: str, value: object) -> None:
        self.values[key] = value

    def set_part(self, key: str, part: str, value: object) -> None:
        known = self.values.get(key)
        self.values[key] = {**(known if isinstance(known, dict) else {}), part: value}


def test_settings_are_remembered() -> None:
    store = _Dict()
    kept = Remembered(store)
    assert kept.theme is None
    assert kept.model() is None
    kept.theme = "edgerun-light"
    kept.set_model("smollm2-135m")
    kept.set_model("gpt-oss", "http://box:8080")
    kept.set_sampling((SamplingParams(temperature=0.2, seed=3), ChatOptions(reasoning_budget=9)))
    assert store.values["sampling"] == {"temperature": 0.2, "seed": 3, "reasoning_budget": 9}
    again = Remembered(store)
    assert again.theme == "edgerun-light"
    assert (again.model(), again.model("http://box:8080")) == ("smollm2-135m", "gpt-oss")
    asked = (SamplingParams(seed=11, top_k=3), ChatOptions())
    params, options = again.sampling(asked, {"seed", "top_k"})
    assert (params.temperature, params.seed, params.top_k) == (0.2, 11, 3)
    assert options.reasoning_budget == 9
    assert again.sampling(PLAIN, {"temperature"})[0].temperature == SamplingParams().temperature


def test_settings_that_make_no_sense_count_as_never_set() -> None:
    store = _Dict(
        theme=7, models="smollm2", sampling={
            "temperature": "hot", "top_k": True, "top_p": 0.5, "context_shift": "yes",
            "reasoning_effort": ["high"], "reasoning_budget": 1.5, "unknown": 1, "seed": {},
        },
    )  # fmt: skip
    kept = Remembered(store)
    assert kept.theme is None
    assert kept.model() is None
    assert kept.sampling(PLAIN) == (SamplingParams(top_p=0.5), ChatOptions())
    kept.set_model("other")
    assert kept.model() == "other"
    store.values["sampling"] = [1]
    assert Remembered(store).sampling(PLAIN) == PLAIN
