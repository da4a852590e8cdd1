"""Attention, rope and rows under AddressSanitizer, UBSan and ThreadSanitizer: each GPU thread is a
thread to them. A minute or two, so only where ``EDGERUN_SANITIZE_CUDA=1`` asks for it."""

from __future__ import annotations

import os

import pytest
from helpers import simt

pytestmark = pytest.mark.skipif(
    os.environ.get("EDGERUN_SANITIZE_CUDA") != "1",
    reason="takes a minute or two: set EDGERUN_SANITIZE_CUDA=1",
)

_ATTENTION = """
import numpy as np
from edgerun.backends.base import Attention, Batch
from helpers.cuda_attention import CudaAttention, Heads, page_table, places, random_heads
rng = np.random.default_rng(0)
specs = Attention(2, 1, {dim}, 0.125, 0.0, 40), Attention(3, 1, 20, 1.0, 9.0)
for softcap, spec in enumerate(specs):
    pages = page_table([150, 3], rng)
    sinks = np.array([0.7, -0.4, 3], np.float32)[:spec.n_heads].copy()
    norms = tuple(np.ones((2, spec.head_dim), np.float32)) if softcap else None
    device = CudaAttention(spec, {kv!r}, sum(map(len, pages)) + 2, sinks=sinks, norms=norms,
                           sanitizer={san!r})
    for device.order in ((0, 1), (2, 1)):
        for n, past in ((9, 0), (141, 9)):
            batch = Batch.pack([([0] * n, past, pages[0], [0]), ([0] * 3, 0, pages[1], [0])])
            queries = device.write(batch, Heads(*random_heads(spec, n + 3, rng)), places(batch))
            device.attend(batch, queries, {tile!r}, {parts!r}, 1)
"""
_ROWS = """
import sys
import numpy as np
from edgerun.backends import cuda_kernels
from helpers import simt
from helpers.simt import KERNELS
i, f = np.int32, np.float32
rng = np.random.default_rng(0)
m = simt.build(KERNELS / "tokenwise.cu", ("tokenwise<1>",), sanitizer={san!r})
for k, group in ((96, 96), (576, 64)):
    x, y = rng.standard_normal((2, 3, k), f)
    w, wy, s = rng.standard_normal(group).astype(f), np.ones(k, f), np.empty((3, k), f)
    out = np.empty(-(-k // 64) * 1280, np.uint8)
    threads = cuda_kernels.tokenwise(k, True)[1]
    m.launch("tokenwise<1>", 3, threads, x, i(k), y, i(k), None, wy, f(1e-5), s, i(k), f(1), w,
             f(1e-5), i(group), out, i(k), i(k))
m = simt.build(KERNELS / "argmax.cu", sanitizer={san!r})
logits = rng.standard_normal((2, 700)).astype(f)
parts, best = np.empty((2, 1, 2), f), np.empty(2, i)
m.launch("argmax_part", (1, 2), 256, logits, i(700), i(700), f(30), parts)
m.launch("argmax", 2, 256, parts, i(1), best)
m = simt.build(KERNELS / "topk.cu", sanitizer={san!r})
parts = np.empty((2, 1, cuda_kernels.TOP, 2), i)
ids, values = np.empty((2, cuda_kernels.TOP), i), np.empty((2, cuda_kernels.TOP), f)
m.launch("topk_part", (1, 2), 256, logits, i(700), i(700), f(30), parts)
m.launch("topk", 2, 256, parts, i(1), logits, i(700), ids, values)
m = simt.build(KERNELS / "glu.cu", sanitizer={san!r})
m.launch("glu", 2, 64, logits[0], logits[1], logits[0], np.int64(700), i(3))
m = simt.build(KERNELS / "copy_page.cu", sanitizer={san!r})
pool = np.zeros((3, 1040), np.uint8)
m.launch("copy_page", 2, 32, pool, np.int64(1040), i(2), i(0))
"""
#: Storage, tile, whether splits are blocks, dimensions of a head.
_WAYS = {
    "f16": ("f16", (1, 1), True, 64),
    "q8_0": ("q8_0", (1, 1), True, 80),
    "q4r": ("q4r", (2, 2), False, 64),
    "long": ("q8_0", (1, 1), False, 512),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("san", ["asan", "tsan"])
@pytest.mark.parametrize("way", _WAYS)
def test_attention(san: str, way: str) -> None:
    kv, tile, parts, dim = _WAYS[way]
    _check(san, _ATTENTION.format(san=san, kv=kv, tile=tile, parts=parts, dim=dim))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("san", ["asan", "tsan"])
def test_rows(san: str) -> None:
    _check(san, _ROWS.format(san=san))


def _check(san: str, code: str) -> None:
    done = simt.sanitized(san, code, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr.strip(), done.stderr[-3000:]
