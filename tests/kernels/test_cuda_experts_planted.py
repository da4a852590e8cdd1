"""Faults planted in CUDA's experts: each is found by a check of test_cuda_experts.py."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from helpers import simt
from helpers.cuda_experts import FILE, Stack, chosen, columns, route, total
from helpers.cuda_linear import compiled
from kernels.test_cuda_experts import EXPERT, MANY, N_EXPERTS, case, router, spec
from kernels.test_cuda_linear_planted import planted

from edgerun.backends import cuda_weights as cw

_BARRIER = "if (thread < 32) place_experts(p, word, thread, first);\n  __syncthreads();"
_ROOM = "has[e] = 0;\n  __syncthreads();"

#: Name, what stands in experts.cu, the fault.
CHOICES = (
    ("the last of equals", "b.id < a.id", "b.id != NOBODY && (a.id == NOBODY || b.id > a.id)"),
    ("an expert twice", "taken |= 1u <<", "taken |= 0u <<"),
    ("NaN that was not chosen", "total != total", "false"),
    ("padding has experts", "is_padding ? -1 : mine.id", "mine.id"),
    ("own word counted before", "if (w < word) earlier", "if (w <= word) earlier"),
    ("items too long", "min(count - 8 * j * step, 8 * step)", "8 * step"),
    ("columns left as they were", "int c = at * 8 + count;", "int c = at * 8 + count + 1;"),
    ("no barrier before columns", _BARRIER, _BARRIER[: _BARRIER.index(";") + 1]),
    ("no barrier before masks", _ROOM, "has[e] = 0;"),
)
#: Of products: name, file, what stands there, the fault, tokens that ask for the kernel.
PRODUCTS = (
    ("first expert's weights", "qmm.cu", "static_cast<size_t>(item.expert) * tiles", "0", 16),
    ("first expert's weights", "qgemm.cu", "static_cast<size_t>(item.expert) * tiles", "0", 40),
    ("own columns twice", "qmm.cu", "item.columns > 8 ? stride : 0", "0", 16),
    ("first expert's bias", "experts.cuh", "bias ? bias + own", "bias ? bias", 16),
    ("gate's bias twice", "epilogue.cuh", "out.bias_up, row, up", "out.bias, row, up", 16),
    ("limits of up left out", "gated.cuh", "up > 7.f ? 7.f : up < -7.f ? -7.f : up", "up", 16),
)  # fmt: skip


def choices_are_sound(m: simt.Module) -> bool:
    """One word of tokens and several; where padding is and where not; in every order of threads.
    Shared memory starts as zeros, so that what is read too early is an index all the same."""
    kvpos = np.arange(70, dtype=np.int32)
    kvpos[3::9] = -1
    for experts, n in (
        (spec(40, 3, normalize=True, scale=0.5), 70),
        (spec(9, 3, gating="chosen"), 20),
    ):
        logits = router(n, experts.n_experts)
        expert, shares = chosen(logits, experts)
        expert[kvpos[:n] < 0] = -1
        wanted = columns(expert, experts.n_experts, (1, 2))
        for order in simt.ORDERS:
            m.order(*order, poison=False)
            found, share = route(m, logits, experts, (1, 2), kvpos[:n])
            parts = [(getattr(found, k), getattr(wanted, k)) for k in ("expert", "column", "token")]
            parts += [(found.live, wanted.live), *zip(found.items, wanted.items, strict=True)]
            if not all(np.array_equal(a, b) for a, b in parts):
                return False
            if not np.allclose(share, shares, atol=1e-6, equal_nan=True):
                return False
    return True


@pytest.mark.parametrize("fault", CHOICES, ids=[f[0].replace(" ", "_") for f in CHOICES])
def test_faults_of_choices_are_found(fault: tuple[str, str, str]) -> None:
    _, old, new = fault
    path = planted("experts.cu", old, new) / "experts.cu"
    try:
        sound = choices_are_sound(simt.build(path, optimize="-O0"))
    except (simt.SimtError, AssertionError):
        return  # e.g. written beside what it was given
    assert not sound


def test_choices_without_faults_pass_the_same_check() -> None:
    assert choices_are_sound(simt.build(FILE))


def test_a_sum_from_the_last_rank_on_is_found() -> None:
    old = "int rank = 0; rank < n_used; ++rank) {\n    const size_t pair"
    new = "int rank = n_used - 1; rank >= 0; --rank) {\n    const size_t pair"
    rng = np.random.default_rng(2)
    parts = rng.standard_normal((40, 64), dtype=np.float32)
    column = rng.permutation(40)[:15].reshape(5, 3).astype(np.int32)
    share = rng.random((5, 3), dtype=np.float32)
    wrong = simt.build(planted("experts.cu", old, new) / "experts.cu", optimize="-O0")
    found = [total(m, parts, column, share) for m in (simt.build(FILE), wrong)]
    assert (found[0] != found[1]).any()
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@functools.cache
def units(folder: Path, kernel: str) -> np.ndarray | None:
    """Gate and up with their biases, by the kernel for this many tokens; None if it went wrong."""
    t, (n, k) = T.Q8_0, (17, 352)
    rows, x = case(t, n, k)
    m = compiled(int(t), (kernel, "repack<8>"), folder=folder)
    stack = Stack(m, t, rows, k, np.ascontiguousarray(rows[::-1]))
    choice = columns(EXPERT, N_EXPERTS, (2, 4))
    biases = np.random.default_rng(5).normal(0, 9, (2, N_EXPERTS, n)).astype(np.float32)
    product = next(p for p in (stack.product(choice, 16), stack.product(choice, MANY))
                   if p.shape.name == kernel)  # fmt: skip
    try:
        return stack.run(x, choice, *biases, cw.Epilogue.SWIGLU_OAI, product)
    except (simt.SimtError, AssertionError):
        return None


@pytest.mark.parametrize("fault", PRODUCTS, ids=[f[0].replace(" ", "_") for f in PRODUCTS])
def test_faults_of_products_are_found(fault: tuple[str, str, str, str, int]) -> None:
    _, file, old, new, tokens = fault
    kernel = "qmm_experts<8,2>" if tokens == 16 else "qgemm_experts<8,4>"
    sound, wrong = units(simt.KERNELS, kernel), units(planted(file, old, new), kernel)
    assert sound is not None
    assert wrong is None or (sound.view(np.uint32) != wrong.view(np.uint32)).any()
