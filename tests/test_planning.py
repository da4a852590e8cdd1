"""Memory in, context and pages out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.errors import OutOfMemoryError, RequestError
from edgerun.planning import MIB, Fit, Plan, Room, choose_kv_type, fits, plan, suits

GB = 1_000_000_000
PAGE = 32
KB = 24_000  # of a token: a model of 0.1 B


def room(free: int, weights: int = GB, total: int = 16 * GB) -> Room:
    return Room(total, free, weights)


def test_a_model_with_plenty_of_room_gets_four_contexts() -> None:
    assert plan(room(12 * GB), KB, 8192, None, PAGE) == Plan(8192, 1024, 1024 * PAGE * KB)


def test_the_context_is_as_trained_as_far_as_half_the_memory_reaches() -> None:
    left = 4 * GB - GB - room(0).margin
    p = plan(room(4 * GB), KB, 1_000_000, None, PAGE)
    assert left * 0.49 < p.kv_bytes <= left / 2
    assert p.n_ctx == p.n_pages * PAGE


def test_a_context_that_was_asked_for_may_take_it_all() -> None:
    most = fits(room(4 * GB), {"f16": KB}, 1_000_000, PAGE)[0].n_ctx_most
    left = 4 * GB - GB - room(0).margin
    assert left - PAGE * KB < most * KB <= left
    assert plan(room(4 * GB), KB, 1_000_000, most, PAGE) == Plan(most, most // PAGE, most * KB)
    with pytest.raises(OutOfMemoryError, match=f"1.00 GB and {most + 1} tokens of context"):
        plan(room(4 * GB), KB, 1_000_000, most + 1, PAGE)


def test_nothing_fits_and_the_message_says_what_is_missing() -> None:
    with pytest.raises(OutOfMemoryError) as e:
        plan(room(GB, weights=8 * GB), KB, 8192, None, PAGE)
    for part in ("weights take 8.00 GB", "512 tokens", "12.3 MB", "only 1.00 GB", "1.00 GB must"):
        assert part in str(e.value)
    assert fits(room(GB, weights=8 * GB), {"f16": KB}, 8192, PAGE) == [Fit("f16", KB, 0, 0, 0)]


def test_a_model_trained_on_less_than_the_least() -> None:
    assert plan(room(12 * GB), KB, 100, None, PAGE).n_ctx == 100


def test_smaller_kv_types_hold_more() -> None:
    found = fits(room(3 * GB), {"f32": 4 * KB, "f16": 2 * KB, "q8_0": KB}, 131_072, PAGE)
    contexts = [f.n_ctx for f in found]
    assert contexts == sorted(contexts)
    assert contexts[0] < contexts[2]
    assert found[0].to_dict()["kv_type"] == "f32"


@pytest.mark.parametrize(
    ("total", "margin"), [(64 * GB, 4 * GB), (2 * GB, 256 * MIB), (400_000_000, 100_000_000)]
)
def test_the_margin_suits_the_machine(total: int, margin: int) -> None:
    assert Room(total, total, 0).margin == margin


KINDS = ("f16", "f32", "q8_0", "q4r")
SMALL, LARGE = 1_999_999_999, 2_000_000_000


def test_four_bits_are_for_models_that_bear_them() -> None:
    for kind in KINDS:
        assert choose_kv_type(kind, KINDS, LARGE) == kind
        assert suits(kind, SMALL) == (kind != "q4r")
    assert choose_kv_type(None, KINDS, SMALL) == "f16"
    assert choose_kv_type("q4r:force", KINDS, SMALL) == "q4r"
    assert choose_kv_type("q4r:force", KINDS, LARGE) == "q4r"
    for n_params, words in ((SMALL, "2.00 billion"), (134_515_008, "135 million")):
        with pytest.raises(RequestError) as e:
            choose_kv_type("q4r", KINDS, n_params)
        for part in ("'q4r'", "below 2 billion", words, "--kv q8_0", "q4r:force"):
            assert part in str(e.value)
        assert e.value.param == "kv_type"


@pytest.mark.parametrize("asked", ["q9", "q8_0:force", "q4r:", "force", "", "Q4R"])
def test_unknown_kv_types_are_refused_with_the_known_ones(asked: str) -> None:
    with pytest.raises(RequestError, match=f"'{asked}' is not one of .*: f16, f32, q8_0, q4r$"):
        choose_kv_type(asked, KINDS, LARGE)
    with pytest.raises(RequestError, match=r"'q4r:force' is not one of this backend's: f16$"):
        choose_kv_type("q4r:force", ("f16",), LARGE)


@pytest.mark.parametrize("n_ctx", [0, -5])
def test_a_context_below_one(n_ctx: int) -> None:
    with pytest.raises(RequestError, match=f"n_ctx must be at least 1, not {n_ctx}"):
        plan(room(12 * GB), KB, 8192, n_ctx, PAGE)


@given(
    total=st.integers(0, 1 << 42),
    free=st.floats(0, 1),
    weights=st.integers(0, 1 << 40),
    token_bytes=st.integers(1, 1 << 22),
    trained=st.integers(1, 1 << 21),
    n_ctx=st.none() | st.integers(1, 1 << 21),
)
def test_whatever_is_planned_fits(
    total: int, free: float, weights: int, token_bytes: int, trained: int, n_ctx: int | None
) -> None:
    r = Room(total, int(total * free), weights)
    try:
        p = plan(r, token_bytes, trained, n_ctx, PAGE)
    except OutOfMemoryError:
        least = n_ctx or min(512, trained)
        assert -(-least // PAGE) * PAGE * token_bytes > r.for_kv
        return
    assert p.kv_bytes == p.n_pages * PAGE * token_bytes <= r.for_kv
    assert p.n_pages * PAGE >= p.n_ctx >= 1
    assert p.n_ctx == n_ctx if n_ctx else p.n_ctx <= trained
    assert p.n_pages <= 4 * -(-p.n_ctx // PAGE)
