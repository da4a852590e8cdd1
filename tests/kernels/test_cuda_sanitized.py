"""Attention, rope and rows under AddressSanitizer, UBSan and ThreadSanitizer: each GPU thread is a
thread to them. Minutes, so only where ``EDGERUN_SANITIZE_CUDA=1`` asks for it."""

from __future__ import annotations

import os

import pytest
from helpers import simt

pytestmark = pytest.mark.skipif(
    os.environ.get("EDGERUN_SANITIZE_CUDA") != "1",
    reason="takes minutes: set EDGERUN_SANITIZE_CUDA=1",
)

_ATTENTION = """
import sys
import numpy as np
from edgerun.backends.base import Attention, Batch
from helpers.cuda_attention import CudaAttention, Heads, page_table, places, random_heads
rng = np.random.default_rng(0)
spec = Attention(2, 1, 64, 0.125, 0.0, 40)
for kv, tile, parts in (("f16", (1, 1), True), ("q4r", (2, 2), False)):
    pages = page_table([150, 3], rng)
    device = CudaAttention(spec, kv, sum(map(len, pages)) + 2, sanitizer={san!r})
    for device.order in ((0, 1), (2, 1)):
        for n, past in ((9, 0), (141, 9)):
            batch = Batch.pack([([0] * n, past, pages[0], [0]), ([0] * 3, 0, pages[1], [0])])
            queries = device.write(batch, Heads(*random_heads(spec, n + 3, rng)), places(batch))
            device.attend(batch, queries, tile, parts, 1)
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
"""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("san", ["asan", "tsan"])
@pytest.mark.parametrize("code", [_ATTENTION, _ROWS], ids=["attention", "rows"])
def test_nothing_is_reported(san: str, code: str) -> None:
    done = simt.sanitized(san, code.format(san=san), timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    assert not done.stderr.strip(), done.stderr[-3000:]
