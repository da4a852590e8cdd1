"""Faults planted in the CUDA matrix products: each is found by a check of test_cuda_linear.py, or
needs a sanitizer and is found by that."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType as T
from helpers import simt
from helpers.cuda_act import Digits
from helpers.cuda_linear import Matrix, compiled, module
from helpers.cuda_oracle import product
from helpers.weights import gguf_rows
from numpy.typing import NDArray

_FMA = "o[i] = __fmaf_rn(sum[i], __fmul_rn(w.s[i >> 1], i & 1 ? d.y : d.x), o[i]);"
_TWO = "o[i] = __fadd_rn(__fmul_rn(sum[i], __fmul_rn(w.s[i >> 1], i & 1 ? d.y : d.x)), o[i]);"
_SECOND = "min(n, x.tiles - 1) * x.second_stride + at + 8 * j"
_OF_ONE = "min(n, x.tiles - 1) * x.second_stride + t * 16 + 8 * j"
_WALK = "chunk += parts_of(chunks());"

#: Name, file, what stands there, the fault, type, k, tokens.
FAULTS = (
    ("no barrier before the sum", "qmm.cu", "  __syncthreads();\n", "", T.Q4_K, 768, 3),
    ("parts dealt last first", "qmm.cu", "int i = warp;", "int i = W - 1 - warp;", T.Q4_K, 768, 3),
    ("an fma in two", "dot.cuh", _FMA, _TWO, T.Q8_0, 96, 3),
    ("second digits left out", "dot.cuh", "if (flags == 0) return", "return", T.Q8_0, 576, 3),
    ("one token's second digits", "dot.cuh", _SECOND, _OF_ONE, T.Q8_0, 576, 3),
    ("signed codes", "dot.cuh", "imma_16832<has_min<Q>()>", "imma_16832<false>", T.Q4_K, 256, 3),
    ("one scale for halves", "dot.cuh", "[1] * r1[i]", "[0] * r1[i]", T.Q6_K, 256, 3),
    ("a minimum too many", "dot.cuh", "__fsub_rn(all, last)", "all", T.Q2_K, 256, 3),
    ("zero point forgotten", "repack.cu", "return v ^ 8;", "return v;", T.Q4_0, 96, 3),
    ("rows of a pair mixed up", "repack.cu", "8 + (r & 7)", "8 + (r & 3)", T.Q4_0, 96, 0),
    ("copies not awaited", "qgemm.cu", "wait<STAGES - 2>", "wait<STAGES - 1>", T.Q8_0, 576, 20),
    ("no barrier of stages", "qgemm.cu", "    __syncthreads();\n", "", T.Q8_0, 576, 20),
    ("groups in a wrong order", "qgemm.cu", _WALK, "++chunk;", T.Q8_0, 2368, 20),
)  # fmt: skip


def planted(file: str, old: str, new: str) -> Path:
    """A folder with the kernels, one of them changed."""
    sources = [p for p in sorted(simt.KERNELS.iterdir()) if p.suffix in (".cu", ".cuh")]
    texts = {p.name: p.read_text() for p in sources}
    assert old in texts[file], f"{file} no longer holds what the fault replaces: {old}"
    texts[file] = texts[file].replace(old, new)
    folder = simt.CACHE / f"planted-{simt.digest(*texts.values())}"
    if not folder.exists():
        part = Path(tempfile.mkdtemp(dir=simt.CACHE))
        for name, text in texts.items():
            (part / name).write_text(text)
        part.rename(folder)
    return folder


def names_for(t: T, tokens: int) -> tuple[str, ...]:
    """Only the kernels that a fault's run launches: a compile is most of a test's time."""
    i = int(t)
    run = f"qgemm<{i},{i},4>" if tokens > 16 else f"qmm<{i},{i},1>"
    return (run, f"repack<{i}>")


def inputs(t: T, k: int, tokens: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    rng = np.random.default_rng(k)
    x = rng.standard_normal((tokens, k), dtype=np.float32)
    x[:, 32:64] *= np.float32(20)
    return np.ascontiguousarray(gguf_rows(t, 20, k, rng)).view(np.uint8), x


def is_sound(m: simt.Module, t: T, k: int, tokens: int) -> bool:
    """Whether the kernels give numpy's bits, in every order of threads; 0 tokens: of a pair."""
    rows, x = inputs(t, k, tokens or 3)
    up = None if tokens else np.ascontiguousarray(rows[::-1])
    want = product(t, rows if up is None else np.concatenate([rows[:8], up[:8]]), Digits(x))
    for order in simt.ORDERS:
        with simt.ordered(m, order):
            y = Matrix(m, t, rows, k, up).run(x)[:, : want.shape[1]]
            if (y.view(np.uint32) != want.view(np.uint32)).any():
                return False
    return True


@pytest.mark.parametrize("fault", FAULTS, ids=[f[0].replace(" ", "_") for f in FAULTS])
def test_planted_faults_are_found(fault: tuple[str, str, str, str, T, int, int]) -> None:
    _, file, old, new, t, k, tokens = fault
    folder = planted(file, old, new)
    m = compiled(int(t), names_for(t, tokens), folder=folder)
    assert not is_sound(m, t, k, tokens)


@pytest.mark.parametrize("t_k_tokens", sorted({f[4:] for f in FAULTS}), ids=str)
def test_kernels_without_faults_pass_the_same_check(t_k_tokens: tuple[T, int, int]) -> None:
    t, k, tokens = t_k_tokens
    assert is_sound(module(int(t)), t, k, tokens)
