"""The Metal kernels, as MLX generates their source, under clang with Metal's address spaces: the
engine that runs them on the CPU knows only one."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.metal import generated, lint

from edgerun.backends import mlx_kernels as mk
from edgerun.backends.base import Attention
from edgerun.gguf import GGMLType


def launches() -> list[tuple[str, mk.Launch]]:
    """Every kernel and type, with arrays small enough to be ``constant`` where they may be so."""
    found = []
    for t in sorted(mk.QUANTIZED):
        k = t.block_size
        w, x = np.zeros((2, t.type_size), np.uint8), np.zeros((1, k), np.float16)
        found.append((f"gemv {t.name}", mk.launch_linear(w, t, x)))
        found.append((f"gemm {t.name}", mk.launch_gemm(w, t, x)))
        found.append((f"all_rows {t.name}", mk.launch_all_rows(w, t, k, "bfloat16")))
    ids = np.zeros(1, np.int32)
    found.append(("rows", mk.launch_rows(w, t, k, ids, "float32")))
    found.append(("gemv_experts", mk.launch_experts(w, t, x, ids, 2)))
    floats = np.zeros((3, 9), np.float32)
    found.append(
        ("gemv_float_experts", mk.launch_experts(floats, GGMLType.F32, floats[:1], ids, 3))
    )
    found.append(("gemv_float", mk.launch_linear(floats, GGMLType.F32, floats)))
    spec = Attention(2, 1, 20, 1.0, 30.0, 40)
    q, kv = np.zeros((1, 2, 20), np.float16), [np.zeros((2, 32, 1, 20), np.int8)] * 2
    kv += [np.zeros((2, 32, 1, 1), np.float16)] * 2
    table = (np.zeros((1, 1), np.int32), ids, ids)
    plain, sinks = np.zeros(2, np.float32), np.zeros(4, np.float32)
    for name, args in (("f16", [q.repeat(2, 0)] * 2), ("q8_0", kv)):
        for splits, factors in ((1, sinks), (2, plain)):
            launch = mk.launch_attention(q, args, table, spec, factors, splits)
            found.append((f"attention {name} {splits}", launch))
    parts = np.zeros((1, 2, 2, 22), np.float32)
    found.append(("merge", mk.launch_merge(parts, ids, sinks, spec, "float16")))
    return found


LAUNCHES = dict(launches())


@pytest.mark.parametrize("name", LAUNCHES)
def test_clang_has_nothing_to_say(name: str) -> None:
    assert lint(generated(LAUNCHES[name])) == []


#: A kernel, what stands there, the mistake, what clang says of it.
MISTAKES = {
    "an address space is lost": (
        "gemv Q6_K",
        "F::decode(rows[r]",
        "const uchar* lost = rows[r]; F::decode(rows[r]",
        "with an lvalue of type 'device uchar const *'",
    ),
    "a small array is taken for a device's": (
        "rows",
        "const int id = ids[at];",
        "const device int* all = ids; const int id = all[at];",
        "cannot initialize a variable of type 'device int const *'",
    ),
    "there is no double": ("gemv Q6_K", "float part =", "double part =", "double_is_not_in_Metal"),
    "an input is written": ("all_rows Q4_0", "const uint row", "w[0] = 0; uint row", "assignable"),
    "a name is not Metal's": ("attention f16 1", "precise::tanh", "tanhf", "tanhf"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake: str) -> None:
    name, old, new, says = MISTAKES[mistake]
    source = generated(LAUNCHES[name])
    assert old in source
    found = lint(source.replace(old, new))
    assert any(says in line for line in found), found
