"""Nothing is left out: each kernel, type and way of attention has its rows, each file a planted
fault that is found."""

from __future__ import annotations

import re
from pathlib import Path

from helpers.simt import KERNELS
from kernels import test_cuda_attention, test_cuda_experts, test_cuda_linear
from kernels.cases_attention import ATTENTION, KV_TYPES
from kernels.test_cuda_experts_planted import CHOICES, PRODUCTS
from kernels.test_cuda_linear_planted import FAULTS as OF_PRODUCTS
from kernels.test_cuda_rows_planted import FAULTS as OF_ROWS

from edgerun.backends import cuda_attention, cuda_kernels
from edgerun.backends.cuda_weights import FLOAT_TYPES, LINEAR_TYPES

#: What only a GPU runs: instructions, of which tests/simt has twins. test_simt.py checks those.
_INSTRUCTIONS = {"ptx.cuh", "half_pair.cuh"}


def test_every_file_has_a_planted_fault() -> None:
    faulty = {f[1] for f in (*OF_PRODUCTS, *PRODUCTS, *OF_ROWS)}
    faulty |= {bug[0] for bug in test_cuda_attention.BUGS.values()}
    faulty |= {"experts.cu"} if CHOICES else set()
    # attention.cu's are planted in what it includes as well
    texts = (KERNELS / "attention_tile.cuh").read_text()
    if any(old in texts for _, old, _ in test_cuda_attention.BUGS.values()):
        faulty.add("attention_tile.cuh")
    files = {p.name for p in KERNELS.iterdir() if p.suffix in (".cu", ".cuh")}
    assert files - _INSTRUCTIONS == faulty


def test_every_kernel_is_launched_by_a_test() -> None:
    """By its name, or by a rule that makes it of the launch's shape."""
    folder = Path(__file__).parent
    texts = [p.read_text() for p in folder.glob("test_cuda_*.py")]
    texts += [p.read_text() for p in (folder.parent / "helpers").glob("cuda_*.py")]
    texts = [re.sub(r'"""(?:.|\n)*?"""|#.*', "", t) for t in texts]  # words do not launch
    ruled = {
        cuda_attention.name(64, "f16", (1, 1), False), cuda_attention.merge_name(64),
        cuda_attention.rope_kv_name("f16"), cuda_kernels.tokenwise(64, True)[0],
    }  # fmt: skip
    named = {k for k in cuda_kernels.FILES if any(re.search(rf'"{k}["<{{]', t) for t in texts)}
    assert named | {k.partition("<")[0] for k in ruled} == set(cuda_kernels.FILES)


def test_every_type_has_products_alone_and_with_experts() -> None:
    assert {int(t) for t, _, _ in test_cuda_linear.CASES} == set(LINEAR_TYPES)
    assert {int(t) for t, _, _ in test_cuda_experts.CASES} == set(LINEAR_TYPES)
    for t in LINEAR_TYPES:
        shapes = [(n, k) for u, n, k in test_cuda_linear.CASES if int(u) == t]
        assert any(n % 16 for n, _ in shapes)  # a tile that is not full
        if t in FLOAT_TYPES:
            assert any(k % 8 for _, k in shapes)
        else:
            assert any(k % 512 for _, k in shapes)  # a chunk of 256 without a neighbour


def test_every_way_of_attention_is_there() -> None:
    assert set(KV_TYPES) == set(cuda_attention.KV_CODES)
    heads, kv, dims, windows, caps, n_rot, interleaved, normed = zip(*ATTENTION, strict=True)
    assert any(h // k > 16 for h, k in zip(heads, kv, strict=True))  # more than a tile's queries
    assert any(d % 32 for d in dims)
    assert {-(-d // 32) % 2 for d in dims} == {0, 1}
    assert {0} < set(windows)
    assert max(windows) > cuda_attention.SPLIT
    assert {0.0} < set(caps)
    assert any(w and c for w, c in zip(windows, caps, strict=True))
    assert 0 in n_rot
    assert any(0 < r < d for r, d in zip(n_rot, dims, strict=True))
    assert set(interleaved) == set(normed) == {True, False}
    (sinks,) = test_cuda_attention.test_sinks_agree_with_the_reference.pytestmark
    assert {kv_type for _, kv_type in sinks.args[1]} == set(KV_TYPES)
    assert any(case[3] and case[4] for case, _ in sinks.args[1])
