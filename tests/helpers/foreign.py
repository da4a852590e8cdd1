"""Tiny models of architectures that edgerun does not run itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from edgerun.gguf import GGUFFile
from helpers.gguf_build import (
    FIRST_PIECE_ID,
    Tensor,
    random_model,
    spm_vocab,
    tensor,
    write,
)

PIECES = tuple(" etaoinshrdlu")


def vocab() -> dict[str, Any]:
    """The tokenizer that all of them have."""
    return spm_vocab(PIECES, pad_to=32)


def internlm2(path: Path, seed: int = 0) -> Path:
    """The same function as ``random_model(arch="llama", seed=seed)``, under another name."""
    return random_model(path, "internlm2", seed=seed)


def experts(path: Path, dense: Path, n: int = 2) -> Path:
    """A llama with ``n`` experts a layer, each the feed-forward layer of ``dense``. Their weights
    add up to one, so it computes what ``dense`` does, whatever the router says."""
    rng = np.random.default_rng(5)
    with GGUFFile.open(dense) as file:
        meta = {k: file.metadata[k] for k in file.metadata if k.startswith("llama.")}
        raw = {k: np.array(file.rows(k)).view(np.float32) for k in file.tensors}
        shapes = {k: t.shape for k, t in file.tensors.items()}
    tensors: list[Tensor] = []
    for name, values in raw.items():
        values = values.reshape(shapes[name])
        if ".ffn_" in name and "norm" not in name:
            name, values = name.replace(".weight", "_exps.weight"), np.stack([values] * n)
        tensors.append(tensor(name, values))
    n_layer, width = meta["llama.block_count"], meta["llama.embedding_length"]
    tensors += [
        tensor(f"blk.{i}.ffn_gate_inp.weight", rng.normal(0, 1, (n, width))) for i in range(n_layer)
    ]
    meta |= {"llama.expert_count": n, "llama.expert_used_count": n}
    head = {"general.architecture": "llama"} | vocab()
    return write(path, head | meta, tensors)


def mamba(path: Path, n_embd: int = 32, n_layer: int = 2) -> Path:
    """A recurrent model: its state cannot be cut back."""
    rng = np.random.default_rng(3)
    inner, state, conv, rank = 2 * n_embd, 8, 4, 4
    n_vocab = FIRST_PIECE_ID + len(PIECES)
    n_vocab += -n_vocab % 32

    def matrix(name: str, *shape: int, std: float = 0.3) -> Tensor:
        return tensor(name, rng.normal(0, std, shape))

    tensors = [
        matrix("token_embd.weight", n_vocab, n_embd),
        tensor("output_norm.weight", [1.0] * n_embd),
    ]
    for i in range(n_layer):
        p = f"blk.{i}."
        tensors += [
            tensor(p + "attn_norm.weight", [1.0] * n_embd),
            matrix(p + "ssm_in.weight", 2 * inner, n_embd),
            matrix(p + "ssm_conv1d.weight", inner, conv),
            matrix(p + "ssm_conv1d.bias", inner),
            matrix(p + "ssm_x.weight", rank + 2 * state, inner),
            matrix(p + "ssm_dt.weight", inner, rank),
            matrix(p + "ssm_dt.bias", inner),
            tensor(p + "ssm_a", -np.exp(rng.normal(0, 0.3, (inner, state)))),
            matrix(p + "ssm_d", inner),
            matrix(p + "ssm_out.weight", n_embd, inner),
        ]
    meta = {
        "general.architecture": "mamba",
        "mamba.context_length": 256,
        "mamba.embedding_length": n_embd,
        "mamba.feed_forward_length": 0,
        "mamba.block_count": n_layer,
        "mamba.attention.head_count": 0,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
        "mamba.ssm.conv_kernel": conv,
        "mamba.ssm.inner_size": inner,
        "mamba.ssm.state_size": state,
        "mamba.ssm.time_step_rank": rank,
    }
    return write(path, meta | vocab(), tensors)
