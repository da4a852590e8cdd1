"""The CUDA matrix products under the sanitizers, at small sizes: no access past an array, none that
is misaligned, no overflow, no race; and what only a sanitizer finds is found.

One type by default; ``EDGERUN_SANITIZE=all`` runs every type, in some minutes.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from helpers import simt
from kernels.test_cuda_linear_planted import planted

from edgerun.backends import cuda_weights as cw

ALL = os.environ.get("EDGERUN_SANITIZE") == "all"
TYPES = cw.LINEAR_TYPES if ALL else (int(T.Q5_1),)

_SIZES = {t: GGML_QUANT_SIZES[T(t)][1] for t in cw.LINEAR_TYPES}
_CODE = """
from pathlib import Path
import numpy as np
from helpers.cuda_linear import Matrix, compiled
from helpers.cuda_experts import FILE, Stack, columns, route, total
from helpers import simt
from edgerun.backends.base import Experts
from edgerun.backends import cuda_weights as cw
for t in {types!r}:
    m = compiled(t, {names!r}, sanitizer={san!r}, folder=Path({folder!r}))
    rng = np.random.default_rng(t)
    k = 768 if t in (10, 11, 12, 13, 14, 23) else 351 if t in cw.FLOAT_TYPES else 352
    size = {sizes!r}[t]  # of a block of 32 or 256, or of a float
    shape = (17, k // (1 if t in cw.FLOAT_TYPES else 256 if k == 768 else 32) * size)
    rows = [rng.integers(0, 64, shape, dtype=np.uint8) for _ in range(2)]  # finite as float16
    x = rng.standard_normal((20, k), dtype=np.float32)
    x[:, 32:64] *= 20
    if {fault!r}:
        Matrix(m, t, rows[0], k).run(x)
        continue
    plain, pair = Matrix(m, t, rows[0], k), Matrix(m, t, rows[0], k, rows[1])
    bias = np.ones(plain.tiles * 16, np.float32)
    for tokens in (1, 9, 20):
        plain.run(x[:tokens], bias, np.zeros((tokens, 17), np.float32))
    pair.run(x, epilogue=cw.Epilogue.GELU_MUL)
    plain.rows([0, -2, 17], named=[3, 16])
    stack = Stack(m, t, np.stack(rows), k, np.stack(rows[::-1]))
    expert = np.array([[1]] * 9 + [[0]] * 11, np.int32)
    few = stack.product(columns(expert, 2, (1, 1)), 16).tiles
    choice = columns(expert, 2, (few, 4))
    for product in (stack.product(choice, 16), stack.product(choice, 60)):
        biases = np.ones((2, 2, 17), np.float32)
        y = stack.run(x, choice, *biases, cw.Epilogue.SWIGLU_OAI, product)
    print("done", t)
if not {fault!r}:
    m = simt.build(FILE, sanitizer={san!r})
    for n in (20, 40):
        logits = rng.standard_normal((n, 40), dtype=np.float32)
        where = np.arange(n, dtype=np.int32) - 2
        found, share = route(m, logits, Experts(40, 3, 32), (1, 4), where)
        parts = np.ones((len(found.token), 8), np.float32)
        total(m, parts, found.column, share, np.ones((n, 8), np.float32))
"""


def code_for(
    types: tuple[int, ...], san: str, names: tuple[str, ...], folder: Path, fault: bool
) -> str:
    return _CODE.format(
        sizes=_SIZES, types=types, san=san, names=names, folder=str(folder), fault=fault
    )


@pytest.mark.parametrize("san", ["asan", "tsan"])
@pytest.mark.parametrize("t", TYPES, ids=lambda t: T(t).name)
def test_sanitizers_have_nothing_to_say(t: int, san: str) -> None:
    code = code_for((t,), san, (), simt.KERNELS, fault=False)
    done = simt.sanitized(san, code, timeout=250)
    assert not done.stderr.strip(), done.stderr[:3000]
    assert done.stdout.split() == ["done", str(t)]


def test_a_read_past_the_tokens_is_found() -> None:
    """Second digits of a column tile that does not exist: no number shows it."""
    folder = planted("dot.cuh", "min(n, x.tiles - 1) * x.second", "n * x.second")
    t = int(T.Q8_0)
    names = (f"qgemm<{t},{t},4>", f"repack<{t}>")
    code = code_for((t,), "asan", names, folder, fault=True)
    done = simt.sanitized("asan", code)
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-3000:]
