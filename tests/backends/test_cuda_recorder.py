"""What a forward pass becomes on the cuda backend: pure policy, no device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers.paths import FIXTURES

from edgerun import arch
from edgerun.arch.base import Architecture, ModelConfig
from edgerun.backends.base import Attention, Rope, without_head
from edgerun.backends.cuda_recorder import (
    TILE,
    Attend,
    Lowered,
    Matmul,
    Matrix,
    Mixture,
    Op,
    Prologue,
    Vector,
    WriteKV,
    _Lowering,
    lower,
)
from edgerun.backends.recorder import Recorder
from edgerun.gguf import GGUFFile

F32, Q4_K, Q6_K, F16, BF16, MXFP4 = 0, 12, 14, 1, 30, 39
Types = Callable[[str], int]


def weights(
    family: Architecture, config: ModelConfig, present: Mapping[str, object], types: Types
) -> dict[str, Any]:
    """Handles of a model that was never loaded."""
    handles: dict[str, Any] = {}
    at = 1 << 20
    for name, spec in family.tensors(config).items():
        if spec.optional and spec.name not in present:
            continue
        if spec.role == "vector":
            handles[name] = Vector(at, math.prod(spec.used_shape))
        else:
            kind = types(name)
            takes: Any = "f32" if kind in (F32, F16, BF16) else "acts"
            n_out, n_in = spec.used_shape[-2:]
            handles[name] = Matrix(at, n_out, n_in, kind, 16 * n_in, takes)
            if spec.role == "up":
                gate = handles[name.replace("ffn_up", "ffn_gate")]
                if gate.type == kind:
                    gate.twin, handles[name].twin = handles[name], gate
        at += 1 << 16
    return handles


@dataclass
class Case:
    lowered: Lowered
    config: ModelConfig


def lowered(
    name: str, types: Types = lambda _: Q4_K, headless: bool = False, shared: bool = True
) -> Case:
    with GGUFFile.open(FIXTURES / "arch" / f"{name}.gguf") as file:
        family = arch.get(file.get_str("general.architecture"))
        config = arch.configure(family, file, 64)
        handles = weights(family, config, file.tensors, types)
    forward = family.bind(handles, config)
    recorder = Recorder()
    (without_head(forward) if headless else forward)(recorder)
    make = lower if shared else lambda r: _Lowering().run(r.nodes)
    return Case(make(recorder), config)


def names(ops: list[Op]) -> list[str]:
    """``Prologue`` by what it does, ``Matmul`` by its epilogue."""
    said = []
    for op in ops:
        if isinstance(op, Matmul):
            said.append(f"{len(op.weights)} {op.epilogue}")
        elif isinstance(op, Prologue):
            parts = ["gather"] if op.gather else []
            parts += ["sum"] if op.y is not None else []
            parts += ["norm"] if op.norm else []
            parts += ["acts"] if op.acts else []
            said.append(" ".join(parts))
        else:
            said.append(type(op).__name__)
    return said


PLAIN = [
    "norm acts", "3 store", "WriteKV", "Attend", "acts", "1 add", "norm acts", "2 silu", "acts",
    "1 add",
]  # fmt: skip
#: Norms behind attention and feed-forward are part of the sum that the next norm reads.
POST = [
    "norm acts", "3 store", "WriteKV", "Attend", "acts", "1 store", "sum norm acts", "2 gelu",
    "acts", "1 store",
]  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "phi3", "mistral"])
def test_a_dense_layer_is_ten_ops(name: str) -> None:
    case = lowered(name)
    found = names(case.lowered.ops)
    assert found[:21] == ["Embed", *PLAIN, *PLAIN] or case.config.n_layers < 3
    assert found[:11] == ["Embed", *PLAIN]
    assert found[-2:] == ["norm acts", "1 store"]


@pytest.mark.parametrize("name", ["gemma2", "gemma3"])
def test_post_norms_add_no_op(name: str) -> None:
    case = lowered(name)
    found = names(case.lowered.ops)
    post = ["sum norm acts", *POST[1:]]
    assert found[:21] == ["Embed", *POST, *post]
    assert found[-2:] == ["norm acts", "1 store"]
    assert case.lowered.softcap == case.config.final_softcap


def test_experts_and_the_sum_they_go_into_are_one_op() -> None:
    def types(name: str) -> int:
        return F32 if "gate_inp" in name else MXFP4

    found = names(lowered("qwen3moe", types).lowered.ops)
    # The router reads floats, and so do the columns that are made for experts.
    assert found[1:10] == [*PLAIN[:6], "norm", "1 store", "Mixture"]
    ops = lowered("gpt_oss", types).lowered.ops
    mixtures = [op for op in ops if isinstance(op, Mixture)]
    assert all(op.residual and op.digits and not op.ups for op in mixtures)
    assert [op.gathered for op in mixtures] == [False] * (len(mixtures) - 1) + [True]
    sunk = [op for op in ops if isinstance(op, Attend)]
    assert all(op.sinks is not None for op in sunk)
    scaled = lowered("granitemoe", types).lowered.ops  # a factor comes between
    assert all(op.residual is None for op in scaled if isinstance(op, Mixture))


def test_head_norms_and_biases_are_parts_of_what_is_there() -> None:
    qwen3 = lowered("qwen3").lowered.ops
    written = [op for op in qwen3 if isinstance(op, WriteKV)]
    assert all(op.q_norm and op.k_norm and op.rope == 0 for op in written)
    qwen2 = [op for op in lowered("qwen2").lowered.ops if isinstance(op, Matmul)]
    with_bias = [op for op in qwen2 if any(op.biases)]
    assert {len(op.weights) for op in with_bias} == {3}
    assert all(all(op.biases) for op in with_bias)


def test_the_last_layer_goes_on_with_the_outputs_only() -> None:
    ops = lowered("llama").lowered.ops
    last = max(i for i, op in enumerate(ops) if isinstance(op, Attend))
    behind = ops[last + 1 :]
    assert all(op.gathered for op in behind)
    assert not any(op.gathered for op in ops[: last + 1])
    gathers = [op for op in behind if isinstance(op, Prologue) and op.gather]
    # the residual stream, and attention's results on their way into the matrix
    assert [(op.out is not None, op.acts is not None) for op in gathers] == [
        (True, False),
        (False, True),
    ]


def test_two_ropes_are_told_apart() -> None:
    case = lowered("gemma3").lowered
    used = [op.rope for op in case.ops if isinstance(op, WriteKV)]
    assert len(case.ropes) == 2
    assert used == [0, 0, 0, 0, 0, 1, 0]


def mixed(name: str) -> int:
    return Q6_K if name.endswith(("attn_v", "ffn_down", "output")) else Q4_K


def floats(name: str) -> int:
    return F16 if name.endswith(("attn_q", "ffn_up", "output")) else Q4_K


def all_bf16(name: str) -> int:
    return BF16


@pytest.mark.parametrize("types", [mixed, floats, all_bf16])
@pytest.mark.parametrize(
    "name", ["llama", "gemma3", "qwen2", "phi3", "qwen3moe", "gpt_oss", "granitemoe"]
)
@pytest.mark.parametrize("headless", [False, True])
def test_what_is_read_was_written_and_nothing_else_overwrote_it(
    name: str, types: Types, headless: bool
) -> None:
    """Each op reads what the same op wrote as where no two values share a buffer."""
    p = lowered(name, types, headless).lowered
    own = lowered(name, types, headless, shared=False).lowered
    assert len(own.buffers) > len(p.buffers)
    assert names(own.ops) == names(p.ops)
    wrote: dict[int, int] = {}
    holds: dict[int, int] = {}  # buffer -> op that wrote it last
    for i, (op, twin) in enumerate(zip(p.ops, own.ops, strict=True)):
        reads = {f: getattr(op, f, None) for f in READS}
        writes = {f: getattr(op, f, None) for f in WRITES}
        for f, ref in reads.items():
            if ref is not None:
                assert ref.buffer in holds, f"op {i} reads {f} before it was written"
                assert ref.at % TILE == 0
                assert holds[ref.buffer] == wrote[getattr(twin, f).buffer]
        for f in WRITES:
            if getattr(twin, f, None) is not None:
                wrote[getattr(twin, f).buffer] = i
        taken = {ref.buffer for ref in reads.values() if ref is not None}
        given = {ref.buffer for ref in writes.values() if ref is not None}
        assert not taken & given, f"op {i} writes what it reads"
        for b in given:
            holds[b] = i
            assert p.buffers[b].gathered == op.gathered
        if isinstance(op, Matmul):
            assert p.buffers[op.x.buffer].acts == (op.weights[0].takes == "acts")
            assert len({w.takes for w in op.weights}) == 1
            widths = sum(-(-w.n_out // TILE) * TILE for w in op.weights[:-1])
            last = op.weights[-1].n_out
            if op.epilogue in ("store", "add"):
                assert op.out.at + widths + last <= p.buffers[op.out.buffer].width
    result = p.buffers[p.result.buffer]
    assert result.gathered
    assert not result.acts


READS = ("x", "y", "q", "k", "v", "gate", "up", "residual", "logits")
WRITES = ("out", "sum", "acts", "choice", "columns", "units", "ups", "digits", "parts")


def test_matrices_of_floats_and_codes_share_one_prologue() -> None:
    ops = lowered("llama", floats).lowered.ops
    first = ops[1]
    assert isinstance(first, Prologue)
    assert first.out is not None
    assert first.acts is not None
    products = [op for op in ops[:5] if isinstance(op, Matmul)]
    assert [len(op.weights) for op in products] == [1, 2]  # q; k and v
    assert products[0].out.buffer == products[1].out.buffer
    assert Counter(names(ops))["Glu"] == lowered("llama").config.n_layers


def test_one_row_of_buffers_serves_all_layers() -> None:
    """Buffers do not grow with the number of layers."""
    gemma, llama = lowered("gemma3"), lowered("llama")
    assert gemma.config.n_layers == 7
    assert len(gemma.lowered.buffers) <= 18
    assert len(llama.lowered.buffers) <= 18


def test_q_and_k_must_turn_alike() -> None:
    r = Recorder()
    m = Matrix(0, 32, 32, Q4_K, 512)
    x = r.embed(m)
    q, k, v = r.linear(x, m, m, m)
    ropes = [Rope(np.ones(4, np.float32), False) for _ in range(2)]
    q, k = r.rope(q, 8, ropes[0]), r.rope(k, 8, ropes[1])
    r.logits(r.outputs(r.attention(q, k, v, 0, Attention(4, 4, 8, 1.0))), m)
    with pytest.raises(ValueError, match="same rope"):
        lower(r)


def test_a_forward_pass_must_end() -> None:
    r = Recorder()
    r.embed(Matrix(0, 32, 32, Q4_K, 512))
    with pytest.raises(ValueError, match="must end"):
        lower(r)
