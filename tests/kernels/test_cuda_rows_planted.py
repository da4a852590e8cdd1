"""Faults planted in the CUDA kernels beside the products: each is found by a check of
test_cuda_rows.py, test_cuda_topk.py, test_cuda_linear.py or test_cuda_attention.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from helpers import simt
from helpers.cuda_act import Digits
from helpers.cuda_attention import CudaAttention, Heads, page_table, places, random_heads
from helpers.cuda_linear import Matrix, compiled, module
from helpers.simt import KERNELS, ORDERS
from helpers.weights import gguf_rows
from kernels import test_cuda_rows as rows
from kernels import test_cuda_topk as topk
from kernels.test_cuda_attention import CLOSE
from kernels.test_cuda_linear import bits, check_values
from kernels.test_cuda_linear_planted import planted

from edgerun.backends.base import Attention, Batch, KVLayer
from edgerun.backends.reference import _NumpyOps
from edgerun.backends.reference_kv import ReferenceKV

Check = Callable[[Path], None]
_RNG = 5


def digits(folder: Path) -> None:
    """Of nine tokens, in every order of threads."""
    x = np.random.default_rng(_RNG).standard_normal((9, 1056), np.float32)
    x[:, ::37] *= 20
    for order in ORDERS:
        rows.assert_digits(rows.tokenwise(x, acts=True, order=order, folder=folder)[0], x)


def norms(folder: Path) -> None:
    """Of a sum that is kept, over the row and over heads."""
    rng = np.random.default_rng(_RNG)
    x, y = rng.standard_normal((2, 3, 576), np.float32)
    for width in (576, 64):
        w, wy = rng.standard_normal(width, np.float32), rng.standard_normal(576, np.float32)
        for order in ORDERS:
            more = {"y": y, "wy": wy, "keep_sum": True, "scale": 0.5, "w": w, "order": order}
            out, sums = rows.tokenwise(x, **more, folder=folder)
            np.testing.assert_allclose(sums, x + rows.rms_norm(y, wy, 1e-5), atol=1e-5)
            wanted = rows.rms_norm(0.5 * sums, w, 1e-6)
            np.testing.assert_allclose(out.array[:, :576], wanted, atol=2e-5)


def best(folder: Path) -> None:
    logits = np.stack(list(rows._rows_of_logits(np.random.default_rng(_RNG), 1025)))
    wanted = [int(b) for b in rows._best(logits)]
    for order in ORDERS:
        assert rows.best_of(logits, order=order, folder=folder) == wanted
    assert rows.best_of(logits[-6:], 30.0, folder=folder) == [-1] * 6


def leading(folder: Path) -> None:
    topk.check(np.stack(list(topk.rows(np.random.default_rng(_RNG), 700))), folder=folder)


def counts(folder: Path) -> None:
    row = np.random.default_rng(_RNG).standard_normal((1, 700), np.float32)
    for order in ORDERS:
        topk.check(row, order, folder)


def units(folder: Path) -> None:
    for act in ("silu", "gelu"):
        rows.check_units(act, np.random.default_rng(_RNG), folder)


def floats(folder: Path) -> None:
    """Products of halves with an odd k, and rows of them."""
    t, n, k = T.F16, 20, 771
    rng = np.random.default_rng(_RNG)
    packed = np.ascontiguousarray(gguf_rows(t, n, k, rng))
    weights = dequantize(packed, t).astype(np.float32)
    x = rng.standard_normal((9, k), dtype=np.float32)
    spoilt = x.copy()
    spoilt[1] = np.nan  # stands right behind the first token's values
    m = compiled(int(t), ("fmm<1>", "repack_float<1>", "unpack_float_rows<1>"), folder=folder)
    for order in ORDERS:
        with simt.ordered(m, order):
            w = Matrix(m, t, packed.view(np.uint8), k)
            check_values(t, weights, x, w.run(x))
            assert np.isfinite(w.run(spoilt)[[0, 2]]).all()
            assert (bits(w.rows([0, 9, 19])) == bits(weights[[0, 9, 19]])).all()


def embedding(folder: Path) -> None:
    """Rows of a type with halves of blocks, a minimum and four scales to a row."""
    for t, k in ((T.Q6_K, 256), (T.Q5_1, 96)):
        packed = np.ascontiguousarray(gguf_rows(t, 20, k, np.random.default_rng(_RNG)))
        weights = dequantize(packed, t).astype(np.float32)
        m = compiled(int(t), (f"repack<{int(t)}>", f"unpack_rows<{int(t)}>"), folder=folder)
        found = Matrix(m, t, packed.view(np.uint8), k).rows([0, 9, 19])
        assert (bits(found) == bits(weights[[0, 9, 19]])).all()


def lines(folder: Path) -> None:
    """Products with digits, whose lines a fault would mix up; numpy packs them otherwise."""
    t, k = T.Q4_1, 96
    packed = np.ascontiguousarray(gguf_rows(t, 17, k, np.random.default_rng(_RNG)))
    x = np.random.default_rng(_RNG).standard_normal((9, k), dtype=np.float32)
    out, _ = rows.tokenwise(x, acts=True, folder=folder)
    rows.assert_digits(out, x)
    assert np.isfinite(Matrix(module(int(t)), t, packed.view(np.uint8), k).run(x)).all()
    assert np.isfinite(Digits(x).values()).all()


def pages(kv_type: str) -> Check:
    def check(folder: Path) -> None:
        spec, rng = Attention(2, 1, 64, 0.125), np.random.default_rng(_RNG)
        tables = page_table([40], rng)
        device = CudaAttention(spec, kv_type, 4, folder=folder)
        reference = ReferenceKV([KVLayer(1, 64, 0)], 4, kv_type)
        q, k, v = random_heads(spec, 40, rng)
        batch = Batch.pack([([0] * 40, 0, tables[0], range(40))])
        queries = device.write(batch, Heads(q, k, v), places(batch))
        wanted = _NumpyOps(batch, reference).attention(q, k, v, 0, spec)
        np.testing.assert_allclose(device.attend(batch, queries, (1, 1), False), wanted, **CLOSE)

    return check


_BARRIER = "part[threadIdx.x / 32] = x;\n  __syncthreads();"
_ROUND = "room[side][d] = x;\n    __syncthreads();"
_SHARED = "room[threadIdx.x / 32] = mine;\n  __syncthreads();"
_COUNT = "room[side][warp] = of_warp;\n    __syncthreads();"

#: Name, file, what stands there, the fault, the check that finds it.
FAULTS: tuple[tuple[str, str, str, str, Check], ...] = (
    ("a sum before all have come", "tokenwise.cu", _BARRIER, _BARRIER.split("\n")[0], norms),
    ("a kept sum that is scaled", "tokenwise.cu", "plain.scale = 1.0f;", "", norms),
    ("heads normed as the first", "tokenwise.cu", "of_chunk[i / group *", "of_chunk[0 *", norms),
    ("the other half's sum", "tokenwise.cu", "half + other, other, d2", "half + other, half, d2",
     digits),
    ("all tokens in one column", "tokenwise.cu", "tile, token % 8)", "tile, 0)", digits),
    ("a bar twice as high", "tokenwise.cu", "3.0f * block_sum", "6.0f * block_sum", digits),
    ("lines of a pair mixed up", "act.cuh", "(token & 1) * 4, d)", "(token & 1) * 0, d)", lines),
    ("the last of equals", "argmax.cu", "b.id < a.id", "b.id > a.id", best),
    ("infinity hidden", "argmax.cu", "finite(x[j]) ? i : -1", "x[j] == x[j] ? i : -1", best),
    ("a best before all have come", "argmax.cu", _SHARED, _SHARED.split("\n")[0], best),
    ("a cap of the whole", "softcap.cuh", "tanhf(x / cap)", "tanhf(x)", topk.check_caps),
    ("a count before all have come", "topk.cu", _COUNT, _COUNT.split("\n")[0], counts),
    ("a count that others still read", "topk.cu", "side ^= 1;", "side ^= 0;", counts),
    ("one more of equals", "topk.cu", "(at_edge & before) < spare", "(at_edge & before) <= spare",
     leading),
    ("the last of equals first", "topk.cu", "mine && j < i", "mine && j > i", leading),
    ("zeros of two kinds", "topk.cu", "(x + 0.0f)", "(x)", leading),
    ("NaN below all", "topk.cu", "if (x != x) return ALL;", "if (x != x) return 0;", leading),
    ("infinity as a logit", "topk.cu", "other >= INFINITE", "other > INFINITE", leading),
    ("the first ones forgotten", "topk.cu", "if (at < n)", "if (at < 0)", topk.check_chunks),
    ("gate and up mixed up", "glu.cu", "gated(gate[i], up[i]", "gated(up[i], gate[i]", units),
    ("a page without its end", "copy_page.cu", "i < page_bytes;", "i < page_bytes - 16;",
     rows.check_copies),
    ("heads at padded places", "rotate_heads.cu", "blockIdx.y) * head_dim;",
     "blockIdx.y) * blockDim.x;", rows.check_turns),
    ("rounds that run ahead", "hadamard.cuh", _ROUND, _ROUND.split("\n")[0], rows.check_turns),
    ("parts before all have come", "fmm.cu", "  __syncthreads();\n  for", "  for", floats),
    ("what lies behind an odd k", "fmm.cu", "last_four(at, left - half)", "last_four(at, 4)",
     floats),
    ("rows mixed up", "repack_float.cu", "* 256 + r * 16", "* 256 + (r ^ 1) * 16", floats),
    ("rows of the upper half", "repack_float.cu", "(id & 15) * 16", "(id & 7) * 16", floats),
    ("halves with one scale", "rows.cu", "half_scale<Q>(chunk, 0, b, half)",
     "half_scale<Q>(chunk, 0, b, 0)", embedding),
    ("scales of the first blocks", "formats.cuh", "load_const<uint4>(chunk + 256 + row * 16)",
     "load_const<uint4>(chunk + row * 16)", embedding),
    ("one of two dimensions", "kv.cuh", "odd ? 0x4341 : 0x4240", "0x4240", pages("q4r")),
    ("scales of other tokens", "kv.cuh", "half_pair_mul(h[1], scales.y)",
     "half_pair_mul(h[1], scales.x)", pages("q8_0")),
)  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=[f[0].replace(" ", "_") for f in FAULTS])
def test_planted_faults_are_found(fault: tuple[str, str, str, str, Check]) -> None:
    _, file, old, new, check = fault
    with pytest.raises((AssertionError, simt.SimtError)):
        check(planted(file, old, new))


@pytest.mark.parametrize("check", {f[4]: None for f in FAULTS}, ids=lambda f: f.__qualname__)
def test_kernels_without_faults_pass_the_same_check(check: Check) -> None:
    check(KERNELS)
