#!/usr/bin/env python3
"""Make tests/fixtures/arch: one tiny random model per architecture variant, with golden logits.

The judge is Hugging Face transformers in float32. Each model gets weights large enough that every
part of it matters, is run by transformers over a fixed prompt, and written as GGUF by the gguf
package under the conventions of its converters (permuted q and k for llama, ``1 +`` folded into
Gemma's norms, fused tensors for Phi-3, experts' gates and ups apart). Nothing of edgerun is used
here. Of a model with experts such weights are taken that no token's choice of them is close.

    pip install torch transformers gguf
    python tests/dev/make_arch_fixtures.py [NAME ...]

NAME.gguf holds the model; NAME.npz holds ``ids`` int32 [n] and ``logits`` float32 [n, n_vocab],
and for the LongRoPE model ``ids_short``, ``logits_short`` for a context within the original one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers as hf
from arch_names import PAIRS, ROUTERS, expert_parts, gguf_name, is_matrix, permute, write_metadata
from arch_variants import N_VOCAB, Variant, variants

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "arch"


def randomize(model: Any, seed: int, half: bool) -> None:
    """Weights large enough that attention is peaked and every norm, bias and cap shows."""
    rng = torch.Generator().manual_seed(seed)
    routed = any(name.endswith(ROUTERS) for name, _ in model.named_parameters())

    def normal(p: Any, std: float) -> Any:
        return torch.randn(p.shape, generator=rng) * std

    for name, p in model.named_parameters():
        if "embed_tokens" in name or "lm_head" in name:
            # What experts weigh amplifies the noise of float32 sums: smaller logits there.
            value = normal(p, 0.4 if routed else 1.0)
        elif p.ndim == 3:  # experts; gpt-oss has them transposed
            n_in = p.shape[1 if model.config.model_type == "gpt_oss" else 2]
            value = normal(p, 0.5 * n_in**-0.5)
        elif name.endswith(ROUTERS):
            value = normal(p, 3 * p.shape[1] ** -0.5)
        elif p.ndim == 2 and "bias" not in name:
            # queries and keys larger: scores of a few units; YaRN's factor does that in gpt-oss
            peaked = 1.0 if model.config.model_type == "gpt_oss" else 1.6
            std = peaked if any(s in name for s in ("q_proj", "k_proj", "qkv_proj")) else 1.0
            value = normal(p, std * p.shape[1] ** -0.5)
        elif name.endswith(("bias", "sinks")):
            value = normal(p, 0.5 if name.endswith("bias") else 2.0)
        else:
            value = p.data.clone() + normal(p, 0.3)
        p.data.copy_(value.half().float() if half and is_matrix(name, p) else value)


def margin(model: Any, ids: Any) -> float:
    """How far the last expert chosen is from the next at least, in units of the router's logits;
    infinite where there are none."""
    found: list[float] = []

    def see(module: Any, inputs: Any, output: Any) -> None:
        top = output[0].reshape(-1, output[0].shape[-1]).sort(dim=-1, descending=True).values
        k = module.top_k
        found.append(float((top[:, k - 1] - top[:, k]).min()))

    routers = [m for n, m in model.named_modules() if f"{n}.weight".endswith(ROUTERS)]
    hooks = [m.register_forward_hook(see) for m in routers]
    with torch.no_grad():
        model(torch.tensor(ids)[None], use_cache=False)
    for h in hooks:
        h.remove()
    return min(found, default=float("inf"))


def make(name: str, v: Variant, seed: int) -> None:
    c = v.config
    model = hf.AutoModelForCausalLM.from_config(c, dtype=torch.float32).eval()
    c = model.config
    randomize(model, seed, v.half)
    head_dim = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads

    golden: dict[str, np.ndarray] = {}
    while True:
        rng = np.random.default_rng(seed)
        prompts = {suffix: rng.integers(3, N_VOCAB, n) for suffix, n in v.lengths.items()}
        if margin(model, prompts[""]) > 0.05:
            break
        seed += 1000
        randomize(model, seed, v.half)
    for suffix, ids in prompts.items():
        with torch.no_grad():
            out = model(torch.tensor(ids)[None], use_cache=False)
        golden["ids" + suffix] = ids.astype(np.int32)
        golden["logits" + suffix] = out.logits[0].numpy()
    np.savez_compressed(OUT / f"{name}.npz", **golden)

    w = gguf.GGUFWriter(OUT / f"{name}.gguf", v.arch)
    w.add_name(f"tiny random {name}")
    write_metadata(w, c, head_dim)
    if v.extra is not None:
        v.extra(w, model, c)
    for key, p in model.named_parameters():  # a tied head appears once
        data = p.detach().numpy()
        dtype = np.float16 if v.half and is_matrix(key, p) else np.float32
        if (parts := expert_parts(key, data, v.arch)) is not None:
            for target, part in parts.items():
                w.add_tensor(target, np.ascontiguousarray(part, dtype))
            continue
        target = gguf_name(key, v.arch)
        if v.arch in PAIRS and ".attn_q." in target:
            data = permute(data, c.num_attention_heads)
        if v.arch in PAIRS and ".attn_k." in target:
            data = permute(data, c.num_key_value_heads)
        if v.arch.startswith("gemma") and "norm" in target:
            data = data + 1
        w.add_tensor(target, data.astype(dtype))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    spread = golden["logits"].std(axis=-1).mean()
    size = sum((OUT / f"{name}.{e}").stat().st_size for e in ("gguf", "npz"))
    print(f"{name:14} {size // 1024:5} KiB, logits spread {spread:.2f}")


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("names", nargs="*", help="variants; default all")
    names = ap.parse_args().names
    OUT.mkdir(parents=True, exist_ok=True)
    known = variants()
    unknown = set(names) - set(known)
    if unknown:
        sys.exit(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    for seed, (name, v) in enumerate(known.items()):
        if not names or name in names:
            make(name, v, seed)


if __name__ == "__main__":
    main()
