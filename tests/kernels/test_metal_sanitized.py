"""The Metal kernels under the sanitizers, at small sizes: no access past an array, none that is
misaligned, no overflow, no race; and what only a sanitizer finds is found.

One type's products by default; ``EDGERUN_SANITIZE=all`` runs every type, the tile for prompts,
attention, and the search for races.
"""

from __future__ import annotations

import os
import subprocess

import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from helpers import simt

from edgerun.backends import mlx_kernels as mk

ALL = os.environ.get("EDGERUN_SANITIZE") == "all"
TYPES = tuple(sorted(int(t) for t in mk.QUANTIZED)) if ALL else (int(T.Q6_K),)
_SIZES = {t: GGML_QUANT_SIZES[T(t)] for t in map(int, mk.QUANTIZED)}
_CODE = """
import numpy as np
from helpers.metal import Modules
from edgerun.backends import mlx_kernels as mk
from edgerun.backends.base import Attention
from edgerun.gguf import GGMLType
m, rng = Modules({san!r}, {fault!r}), np.random.default_rng(1)
for t in {types!r}:
    block, size = {sizes!r}[t]
    k = 2 * block
    w = rng.integers(0, 64, (5, k // block * size), dtype=np.uint8)  # finite as float16
    x = rng.standard_normal((3, k), dtype=np.float32)
    m.run(mk.launch_linear(w, GGMLType(t), x))
    if not {all!r}:
        print("done", t)
        continue
    m.run(mk.launch_experts(w[:4], GGMLType(t), x, np.array([1, 0, 1], np.int32), 2))
    m.run(mk.launch_gemm(w, GGMLType(t), x))
    m.run(mk.launch_all_rows(w, GGMLType(t), k, "float32"))
    print("done", t)
if {attention!r}:
    spec = Attention(2, 1, 36, 0.2, 0.0, 40)
    q = rng.standard_normal((2, 2, 36), dtype=np.float32)
    kv = [rng.integers(-9, 9, (3, 32, 1, 36), dtype=np.int8) for _ in range(2)]
    kv += [np.ones((3, 32, 1, 2), np.float16)] * 2
    table = (np.array([[2, 0, 1]], np.int32), np.zeros(2, np.int32), np.array([31, 70], np.int32))
    factors = np.array([0.2, 0.0, 1.0, -1.0], np.float32)
    whole = m.run(mk.launch_attention(q, kv, table, spec, factors))
    parts = m.run(mk.launch_attention(q, kv, table, spec, factors, 2))
    assert (m.run(mk.launch_merge(parts, table[2], factors, spec, "float32")) == whole).all()
    print("attention")
"""


asked = pytest.mark.skipif(not ALL, reason="EDGERUN_SANITIZE=all asks for it")


def sanitized(
    san: str, types: tuple[int, ...], attention: bool, fault: tuple[str, str] | None
) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mlx.core", reason="MLX is not installed")
    code = _CODE.format(
        san=san, types=types, sizes=_SIZES, attention=attention, fault=fault, all=ALL
    )
    return simt.sanitized(san, code, timeout=1200 if ALL else 150)


def test_addresses_and_arithmetic() -> None:
    done = sanitized("asan", TYPES, ALL, None)
    assert not done.stderr.strip(), done.stderr[:3000]
    rest = ["attention"] if ALL else []
    assert done.stdout.split() == [*(w for t in TYPES for w in ("done", str(t))), *rest]


@asked
def test_no_races() -> None:
    """Only the tile for prompts shares memory."""
    done = sanitized("tsan", TYPES, False, None)
    assert not done.stderr.strip(), done.stderr[:3000]
    assert done.stdout.startswith("done")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("min(token + t, tokens - 1)", "(token + t)"),
        pytest.param("min(row + r, n - 1)", "(row + r)", marks=asked),
    ],
    ids=["tokens", "rows"],
)
def test_a_read_past_the_end_is_found(old: str, new: str) -> None:
    """No number shows it."""
    done = sanitized("asan", (int(T.Q4_0),), False, (old, new))
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-3000:]
