"""Each architecture on the reference backend against transformers' logits in float32.

Fixtures: tests/dev/make_arch_fixtures.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from helpers.paths import FIXTURES
from helpers.runner import Runner, Tokens

from edgerun import arch
from edgerun.backends.reference import ReferenceBackend

# Logits are up to 40: 1e-4 is a few units in the last place of float32 sums.
TOLERANCE = 1e-4

NAMES = sorted(p.stem for p in (FIXTURES / "arch").glob("*.npz"))


def load(name: str, n_ctx: int = 256, kv_type: str | None = None) -> Runner:
    path: Path = FIXTURES / "arch" / f"{name}.gguf"
    return Runner(path, ReferenceBackend(), n_ctx=n_ctx, kv_type=kv_type)


def golden(name: str, suffix: str = "") -> tuple[list[int], npt.NDArray[np.float32]]:
    data = np.load(FIXTURES / "arch" / f"{name}.npz")
    return data["ids" + suffix].tolist(), data["logits" + suffix]


def test_every_architecture_has_a_fixture() -> None:
    tested = {load(n).config.arch for n in NAMES}
    assert tested == set(arch.supported())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk", [512, 7, 1])
def test_logits(name: str, chunk: int) -> None:
    ids, expected = golden(name)
    np.testing.assert_allclose(
        load(name).logits(ids, chunk=chunk), expected, atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("name", NAMES)
def test_f16_kv_is_close(name: str) -> None:
    ids, expected = golden(name)
    found = load(name, kv_type="f16").logits(ids)
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()
    assert np.abs(found - expected).max() > 0  # the pages really are f16


def test_longrope_uses_short_factors_within_the_original_context() -> None:
    ids, expected = golden("phi3_long", "_short")
    found = load("phi3_long", n_ctx=16).logits(ids)
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)
    assert np.abs(load("phi3_long", n_ctx=17).logits(ids) - expected).max() > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_a_batch_do_not_mix(name: str) -> None:
    """Three sequences take turns as chunks and decodes of unlike length, pages interleaved."""
    ids, expected = golden(name)
    runner = load(name)
    alone = {k: runner.logits(ids[k:]) for k in (0, 3, 10)}
    np.testing.assert_allclose(alone[0], expected, atol=TOLERANCE, rtol=0)
    rows: dict[int, Tokens] = {k: runner.begin() for k in alone}
    for sizes in ((5, 1, 9), (1, 11, 1), (20, 7, 2), (6, 1, 19)):
        todo = [
            (k, s, ids[k + s.n_past : k + s.n_past + n])
            for (k, s), n in zip(rows.items(), sizes, strict=True)
        ]
        starts = [s.n_past for _, s, _ in todo]
        logits = runner.step([(s, new, range(len(new))) for _, s, new in todo])
        at = 0
        for (k, _, new), start in zip(todo, starts, strict=True):
            found = logits[at : at + len(new)]
            at += len(new)
            np.testing.assert_allclose(
                found, alone[k][start : start + len(new)], atol=TOLERANCE, rtol=0
            )


@pytest.mark.parametrize("name", NAMES)
def test_only_asked_for_outputs(name: str) -> None:
    ids, expected = golden(name)
    runner = load(name)
    s, t = runner.begin(), runner.begin()
    found = runner.step([(s, ids, [0, 40]), (t, ids[:9], [])])
    np.testing.assert_allclose(found, expected[[0, 40]], atol=TOLERANCE, rtol=0)


def test_tied_and_fused_tensors_keep_the_files_bytes() -> None:
    runner = load("phi3")
    family = arch.get("phi3")
    raw = arch.raw_tensors("phi3", family.tensors(runner.config), runner.file)
    parts = [raw[f"blk.1.attn_{p}"] for p in "qkv"]
    assert len({t.key for t in parts}) == 3
    whole = runner.file.rows("blk.1.attn_qkv.weight")
    np.testing.assert_array_equal(np.concatenate([t.data for t in parts]), whole)
    assert all(np.shares_memory(t.data, whole) for t in parts)
    assert [t.shape for t in parts] == [(32, 32), (16, 32), (16, 32)]

    tied = load("qwen3")
    raw = arch.raw_tensors("qwen3", arch.get("qwen3").tensors(tied.config), tied.file)
    assert raw["output"].key == raw["token_embd"].key


def test_kv_layers_name_each_layers_window() -> None:
    config = load("gemma3").config
    layers = arch.get("gemma3").kv_layers(config)
    assert [layer.window for layer in layers] == [10, 10, 10, 10, 10, 0, 10]
    assert {(layer.n_kv_heads, layer.head_dim) for layer in layers} == {(2, 16)}
    # A window that the context never outgrows is none.
    assert {a.window for a in load("mistral", n_ctx=12).config.attention} == {0}
    assert {a.window for a in load("mistral", n_ctx=13).config.attention} == {12}
