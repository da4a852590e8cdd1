"""Speed of attention alone on the cpu backend, by context and KV type.

    python benchmarks/attention.py --shape llama-1b --kv f16 q8_0 q4r
    python benchmarks/attention.py --context 512 8192 --threads 2 --layers 4

Prefill: GMAC/s of the last 512 tokens of a context, products that causality drops not counted.
Decode: microseconds a layer for one token, and GB/s of K and V read, beside the memory read rate
measured in the same run. Best of the rounds, since shared machines drift.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from _machine import machine_facts, read_rate

from edgerun.backends.base import PAGE_SIZE, Attention, Batch, KVLayer, Ops, RawTensor, Tensor
from edgerun.backends.cpu import CPUBackend
from edgerun.gguf import GGMLType

#: n_heads, n_kv_heads, head_dim
SHAPES = {
    "smollm2": (9, 3, 64),
    "gemma3-270m": (4, 1, 256),
    "llama-1b": (32, 8, 64),
    "llama-8b": (32, 8, 128),
}
_VOCAB = 64
_STEP = 512


class Model:
    """``n_layers`` attention layers on the same q, k and v; layers differ in their pages alone."""

    def __init__(self, backend: CPUBackend, shape: str, kv_type: str, layers: int, n_ctx: int):
        heads, n_kv, dim = SHAPES[shape]
        self.spec = Attention(heads, n_kv, dim, dim**-0.5)
        self.layers = layers
        self.kv_layers = [KVLayer(n_kv, dim)] * layers
        rng = np.random.default_rng(0)
        self._tables = [
            backend.upload(
                RawTensor(f"{shape}{i}", GGMLType.F32, t.shape, t.view(np.uint8)), "embedding"
            )
            for i, t in enumerate(
                rng.standard_normal((_VOCAB, n * dim), np.float32) for n in (heads, n_kv, n_kv)
            )
        ]
        head = rng.standard_normal((1, heads * dim), np.float32)
        self._head = backend.upload(
            RawTensor(f"{shape}head", GGMLType.F32, head.shape, head.view(np.uint8)), "matrix"
        )
        self.n_pages = -(-n_ctx // PAGE_SIZE)
        kv = backend.new_kv(self.kv_layers, self.n_pages, kv_type)
        self.program = backend.prepare(self._forward, kv, n_ctx)
        self.pages = rng.permutation(self.n_pages).tolist()

    def _forward(self, ops: Ops) -> Tensor:
        q, k, v = (ops.embed(t) for t in self._tables)
        x = q
        for layer in range(self.layers):
            x = ops.attention(x, k, v, layer, self.spec)
        return ops.logits(ops.outputs(x), self._head)

    def run(self, n_past: int, n: int) -> float:
        """Seconds of a step of ``n`` tokens."""
        ids = [(n_past + i) % _VOCAB for i in range(n)]
        batch = Batch.pack([(ids, n_past, self.pages, [])])
        start = time.perf_counter()
        self.program.run(batch)
        return time.perf_counter() - start


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--shape", nargs="+", default=["llama-1b"], choices=SHAPES)
    p.add_argument("--kv", nargs="+", default=["f16", "q8_0"], choices=CPUBackend.kv_types)
    p.add_argument("--context", nargs="+", type=int, default=[512, 2048, 8192, 16384])
    p.add_argument("--threads", type=int, help="default: physical cores")
    p.add_argument("--layers", type=int, default=8)
    p.add_argument("--rounds", type=int, default=5)
    args = p.parse_args()
    backend = CPUBackend(args.threads)
    print(", ".join(f"{k} {v}" for k, v in {**machine_facts(), **backend.describe()}.items()))
    print(f"memory read rate {max(read_rate(backend.threads) for _ in range(3)):.1f} GB/s")
    print(f"{'shape':<12} {'kv':<5} {'context':>7} {'prefill':>14} {'decode':>16} {'K and V':>11}")
    for shape in args.shape:
        for kv_type in args.kv:
            for n_ctx in args.context:
                model = Model(backend, shape, kv_type, args.layers, n_ctx)
                for at in range(0, n_ctx, _STEP):
                    model.run(at, min(_STEP, n_ctx - at))
                n = min(_STEP, n_ctx)
                long = min(model.run(n_ctx - n, n) for _ in range(args.rounds))
                short = min(model.run(n_ctx - 1, 1) for _ in range(2 * args.rounds))
                heads, _, dim = SHAPES[shape]
                seen = n * (n_ctx - n) + n * (n + 1) / 2
                macs = 2.0 * heads * dim * args.layers * seen
                size = sum(x.token_bytes(kv_type) for x in model.kv_layers) * n_ctx
                print(
                    f"{shape:<12} {kv_type:<5} {n_ctx:>7} {macs / long / 1e9:>7.1f} GMAC/s "
                    f"{short / args.layers * 1e6:>7.1f} us/layer {size / short / 1e9:>6.1f} GB/s"
                )
    backend.close()


if __name__ == "__main__":
    main()
