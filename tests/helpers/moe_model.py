"""Small models of experts with random weights, of any matrix type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun import arch
from edgerun.backends.base import Backend, Batch
from edgerun.gguf import GGUFFile
from helpers.gguf_build import (
    FIRST_PIECE_ID,
    GGML_F32,
    GGML_Q8_0,
    K_QUANTS,
    Tensor,
    k_quants,
    spm_vocab,
    tensor,
    write,
)
from helpers.runner import Runner, same_bits

PIECES = tuple(" etaoinshrdlu")
MXFP4 = 39


def mxfp4(name: str, rows: int, cols: int, rng: np.random.Generator) -> Tensor:
    """Random codes under scales that make weights of 0.05 or so."""
    blocks = rng.integers(0, 256, (rows, cols // 32, 17), dtype=np.uint8)
    blocks[..., 0] = rng.integers(120, 123, blocks.shape[:2])
    return Tensor(name, (rows, cols), blocks.tobytes(), MXFP4)


def matrix(name: str, shape: Sequence[int], kind: int, rng: np.random.Generator) -> Tensor:
    """Normal weights of 0.3 over the root of the columns, as far as ``kind`` can have them."""
    rows, cols = int(np.prod(shape[:-1])), shape[-1]
    if kind == MXFP4:
        made = mxfp4(name, rows, cols, rng)
    elif kind in K_QUANTS:
        made = k_quants(name, rows, cols, kind, rng)
    else:
        made = tensor(name, rng.normal(0, cols**-0.5, (rows, cols)), kind)
    return Tensor(name, tuple(shape), made.data, kind)


def moe_model(
    path: Path,
    arch: str = "qwen3moe",
    *,
    seed: int = 0,
    kind: int = GGML_F32,
    up: int | None = None,
    down: int | None = None,
    n_embd: int = 64,
    n_ff: int = 32,
    n_experts: int = 8,
    n_used: int = 3,
    n_layer: int = 2,
    n_head: int = 4,
    n_kv: int = 2,
    head_dim: int = 16,
    n_ctx: int = 512,
    extra: dict[str, Any] | None = None,
    spoil: dict[str, Any] | None = None,
) -> Path:
    """``arch`` is qwen3moe or gpt-oss. ``kind`` is the type of the experts, ``up`` and ``down``
    of those matrices if they have another; attention and router are F32. ``spoil`` maps names of
    F32 tensors to other values."""
    rng = np.random.default_rng(seed)
    oss = arch == "gpt-oss"
    n_vocab = FIRST_PIECE_ID + len(PIECES)
    n_vocab += -n_vocab % 32
    q, kv = n_head * head_dim, n_kv * head_dim
    made: list[Tensor] = []

    def add(name: str, *shape: int, type_: int = GGML_F32) -> None:
        if spoil is not None and name in spoil:
            made.append(tensor(name, np.broadcast_to(spoil[name], shape)))
        elif name.endswith("norm.weight"):
            made.append(tensor(name, rng.uniform(0.5, 1.5, shape)))
        elif name.endswith("bias") or "sinks" in name:
            made.append(tensor(name, rng.normal(0, 0.5, shape)))
        else:
            made.append(matrix(name, shape, type_, rng))

    add("token_embd.weight", n_vocab, n_embd)
    for i in range(n_layer):
        b = f"blk.{i}."
        for part, n_out, n_in in (
            ("attn_q", q, n_embd), ("attn_k", kv, n_embd), ("attn_v", kv, n_embd),
            ("attn_output", n_embd, q), ("ffn_gate_inp", n_experts, n_embd),
        ):  # fmt: skip
            add(f"{b}{part}.weight", n_out, n_in)
            if oss:
                add(f"{b}{part}.bias", n_out)
        for part, n_out, n_in in (
            ("gate", n_ff, n_embd), ("up", n_ff, n_embd), ("down", n_embd, n_ff),
        ):  # fmt: skip
            type_ = {"up": up, "down": down}.get(part)
            type_ = kind if type_ is None else type_
            add(f"{b}ffn_{part}_exps.weight", n_experts, n_out, n_in, type_=type_)
            if oss:
                add(f"{b}ffn_{part}_exps.bias", n_experts, n_out)
        add(b + "attn_norm.weight", n_embd)
        add(b + ("post_attention_norm.weight" if oss else "ffn_norm.weight"), n_embd)
        if oss:
            add(b + "attn_sinks.weight", n_head)
        else:
            add(b + "attn_q_norm.weight", head_dim)
            add(b + "attn_k_norm.weight", head_dim)
    add("output_norm.weight", n_embd)
    add("output.weight", n_vocab, n_embd)
    meta: dict[str, Any] = {
        "general.architecture": arch,
        "general.name": "tiny experts",
        f"{arch}.context_length": n_ctx,
        f"{arch}.embedding_length": n_embd,
        f"{arch}.block_count": n_layer,
        f"{arch}.feed_forward_length": n_ff,
        f"{arch}.expert_feed_forward_length": n_ff,
        f"{arch}.expert_count": n_experts,
        f"{arch}.expert_used_count": n_used,
        f"{arch}.attention.head_count": n_head,
        f"{arch}.attention.head_count_kv": n_kv,
        f"{arch}.attention.key_length": head_dim,
        f"{arch}.attention.value_length": head_dim,
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.attention.sliding_window": 32,
        f"{arch}.rope.freq_base": 10000.0,
    }
    if not oss:
        del meta[f"{arch}.attention.sliding_window"]
    return write(path, meta | spm_vocab(PIECES, pad_to=32) | (extra or {}), made)


def check_nan_stays_with_its_token(open_: Callable[..., Runner], path: Path, n: int) -> None:
    """In the router's logits and in an expert's input: ``n`` tokens alone answer nonsense."""
    rows: npt.NDArray[np.float32] = np.ones((288, 64), np.float32)
    rows *= np.linspace(-1, 1, 64, dtype=np.float32)
    rows += np.random.default_rng(3).normal(0, 0.3, rows.shape)
    rows[7] = np.nan
    moe_model(path, kind=GGML_Q8_0, spoil={"token_embd.weight": rows})
    runner = open_(path, n_ctx=64, n_pages=8)
    good, bad = [9] * n, [7] * n
    alone = np.array(runner.program.run(Batch.pack([(good, 0, [0], range(n))])))
    assert np.isfinite(alone).all()
    both = [(bad, 0, [1], range(n)), (good, 0, [2], range(n)), (bad, 0, [3], range(n))]
    found = np.array(runner.program.run(Batch.pack(both)))
    assert same_bits(found[n : 2 * n], alone)
    assert np.isnan(found[:n]).all()
    assert np.isnan(found[2 * n :]).all()


def check_each_row_is_told_of_once(path: Path, backend: Backend) -> None:
    """To whom the file's pages are given back: every row of every matrix, each once."""
    told: dict[str, list[int]] = {}
    with GGUFFile.open(path) as file:
        qwen = arch.get("qwen3moe")
        specs = qwen.tensors(arch.configure(qwen, file))
        raw = arch.raw_tensors("qwen3moe", specs, file)
        backend.upload_all(
            {n: (t, specs[n].role) for n, t in raw.items()},
            lambda t, start, stop: told.setdefault(t.key, []).extend(range(start, stop)),
        )
        backend.close()
        assert {t.key: list(range(len(t.data))) for t in raw.values()} == {
            key: sorted(rows) for key, rows in told.items()
        }
