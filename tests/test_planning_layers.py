"""How many layers a device gets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgerun.errors import OutOfMemoryError, RequestError
from edgerun.planning import Room, fits, plan
from edgerun.planning_layers import (
    Parts,
    Sizes,
    asked_layers,
    device_layers,
    fits_parts,
    plan_parts,
)

GB, MB = 1_000_000_000, 1_000_000
PAGE = 32
#: An 8B model in 4 bits: 32 layers of 130 MB, 4 kB of K and V a token in each.
BIG = Sizes((130 * MB,) * 32, (4096,) * 32, 300 * MB, 500 * MB)
WEIGHTS = sum(BIG.layers) + BIG.first + BIG.last
HOST = Room(32 * GB, 24 * GB, 0)


def card(free: float, total: float | None = None) -> Room:
    return Room(int((total or free) * GB), int(free * GB), WEIGHTS)


def layers(free: float, n_ctx: int | None = None, sizes: Sizes = BIG) -> int:
    return device_layers(sizes, card(free), 131_072, n_ctx, PAGE)


def test_a_model_that_fits_is_not_split() -> None:
    assert layers(24) == layers(8) == 32


def test_smaller_cards_get_fewer_layers() -> None:
    assert [layers(free) for free in (6, 4, 3, 2, 1)] == [31, 19, 13, 7, 1]
    assert layers(0.5) == 0


def test_a_longer_context_takes_the_place_of_layers() -> None:
    found = [layers(6, n_ctx) for n_ctx in (512, 4096, 16_384, 65_536, 131_072)]
    assert found == sorted(found, reverse=True)
    assert found[0] > found[-1] > 0


def test_short_models_need_no_room_for_4096_tokens() -> None:
    assert device_layers(BIG, card(4), 512, None, PAGE) > layers(4)


def test_what_the_parts_are() -> None:
    sizes = Sizes((10, 20, 30), (1, 2, 3), 100, 1000)
    parts = Parts.of(sizes, 2, Room(9, 8, 7), Room(6, 5, 0))
    assert parts == Parts(Room(9, 8, 1050), Room(6, 5, 110), 5, 1)


def test_the_context_suits_both() -> None:
    parts = Parts.of(BIG, 18, card(4), HOST)
    p = plan_parts(parts, 131_072, None, PAGE)
    device = plan(parts.device, parts.device_kv, 131_072, None, PAGE)
    assert (p.n_ctx, p.n_pages) == (device.n_ctx, device.n_pages)  # the scarce one decides
    assert p.n_ctx >= 4096
    assert p.kv_bytes == p.n_pages * PAGE * 32 * 4096
    small = Room(2 * GB, 3 * GB, 0)
    q = plan_parts(Parts.of(BIG, 28, card(24), small), 131_072, None, PAGE)
    assert q.n_ctx < plan_parts(Parts.of(BIG, 28, card(24), HOST), 131_072, None, PAGE).n_ctx
    asked = plan_parts(parts, 131_072, 6000, PAGE)
    assert asked.n_ctx == 6000


def test_no_memory_on_either_side() -> None:
    for device, host in ((card(1), HOST), (card(8), Room(GB, GB, 0))):
        with pytest.raises(OutOfMemoryError):
            plan_parts(Parts.of(BIG, 16, device, host), 131_072, None, PAGE)


def test_what_fits_is_what_is_planned() -> None:
    parts = Parts.of(BIG, 18, card(4), HOST)
    (fit,) = fits_parts({"f16": parts}, 131_072, PAGE)
    p = plan_parts(parts, 131_072, None, PAGE)
    assert (fit.n_ctx, fit.kv_bytes) == (p.n_ctx, p.kv_bytes)
    assert fit.token_bytes == 32 * 4096
    assert fit.n_ctx_most > fit.n_ctx
    assert plan_parts(parts, 131_072, fit.n_ctx_most, PAGE).n_ctx == fit.n_ctx_most
    with pytest.raises(OutOfMemoryError):
        plan_parts(parts, 131_072, fit.n_ctx_most + 1, PAGE)
    none = Parts.of(BIG, 18, card(1), HOST)
    assert fits_parts({"f16": none}, 131_072, PAGE)[0].n_ctx == 0


def test_layers_that_were_asked_for() -> None:
    assert [asked_layers(n, 28) for n in (0, 5, 28, 999)] == [0, 5, 28, 28]
    with pytest.raises(RequestError, match="gpu_layers must be at least 0, not -1") as e:
        asked_layers(-1, 28)
    assert e.value.param == "gpu_layers"


@given(
    sizes=st.lists(
        st.tuples(st.integers(MB, 300 * MB), st.integers(256, 32_768)), min_size=1, max_size=40
    ),
    ends=st.tuples(st.integers(0, GB), st.integers(0, GB)),
    free=st.integers(0, 12 * GB),
    n_ctx=st.none() | st.integers(1, 40_000),
)
def test_whatever_is_planned_fits(
    sizes: list[tuple[int, int]], ends: tuple[int, int], free: int, n_ctx: int | None
) -> None:
    model = Sizes(tuple(w for w, _ in sizes), tuple(k for _, k in sizes), *ends)
    weights = sum(model.layers) + sum(ends)
    device = Room(12 * GB, free, weights)
    n = device_layers(model, device, 32_768, n_ctx, PAGE)
    if n == len(sizes):
        plan(device, sum(model.kv), 32_768, n_ctx, PAGE)
        return
    if n == 0:
        return
    parts = Parts.of(model, n, device, HOST)
    p = plan_parts(parts, 32_768, n_ctx, PAGE)
    taken = parts.device.weights + p.n_pages * PAGE * parts.device_kv + device.margin
    assert taken <= free
    assert p.n_ctx >= 4096 if n_ctx is None else p.n_ctx == n_ctx
    if n + 1 < len(sizes):  # one more would not
        more = Parts.of(model, n + 1, device, HOST)
        wanted = -(-(n_ctx or 4096) // PAGE) * PAGE
        share = 2 if n_ctx is None else 1
        assert share * wanted * more.device_kv > more.device.for_kv
    assert [f.n_ctx for f in fits(parts.device, {"f16": parts.device_kv}, 32_768, PAGE)] != [0]
