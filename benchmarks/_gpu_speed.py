"""Speed on a GPU: copies, products, attention, whole steps of models that were never trained."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from _blocks import EXPERTS, SHAPES, quant_of
from _gpu_cases import Mixed, Product, weight

from edgerun import arch
from edgerun.arch.base import ModelConfig
from edgerun.backends.base import (
    Attention,
    Batch,
    Experts,
    KVLayer,
    Ops,
    RawTensor,
    Rope,
    Tensor,
)
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.cuda_device import Device, Launch
from edgerun.gguf import GGMLType

Row = dict[str, Any]
#: A backend of its own for each part, so that closing it frees the memory.
Open = Callable[[], CudaBackend]
MIB = 1 << 20


def seconds(device: Device, act: Callable[[], Any], least: float = 0.05) -> float:
    """Of one ``act``, the best of three rounds that take ``least`` seconds each."""
    act()
    device.sync()
    n, best = 1, float("inf")
    rounds = 0
    while rounds < 3:
        start = time.perf_counter()
        for _ in range(n):
            act()
        device.sync()
        took = time.perf_counter() - start
        if took < least:
            n = max(n + 1, int(n * least * 1.2 / max(took, 1e-6)))
            continue
        best, rounds = min(best, took / n), rounds + 1
    return best


def copies(device: Device, nbytes: int = 512 * MIB) -> Row:
    """GB/s of a copy within the device, what is read and what is written counted."""
    a, b = device.alloc(nbytes), device.alloc(nbytes)
    took = seconds(device, lambda: device.copy(b, a, nbytes))
    host = device.pinned(min(nbytes, 64 * MIB))
    up = seconds(device, lambda: device.upload(a, host))
    device.free(a)
    device.free(b)
    return {"copy_gbs": 2 * nbytes / took / 1e9, "upload_gbs": host.nbytes / up / 1e9}


def overheads(device: Device) -> Row:
    """Microseconds of a kernel that does next to nothing: launched, and in a graph of 1000."""
    memory = device.alloc(256)
    args = (np.uint64(memory),) * 3
    one = Launch("glu", device.kernel("glu"), (1, 1, 1), (32, 1, 1),
                 (*args, np.int64(1), np.int32(1)))  # fmt: skip
    launched = seconds(device, lambda: device.launch(one))
    graph = device.capture([one] * 1000)
    in_graph = seconds(device, graph.replay) / 1000
    device.free(memory)
    return {"launch_us": launched * 1e6, "graph_us": in_graph * 1e6}


def _replay(device: Device, launches: Sequence[Launch], names: tuple[str, ...]) -> float:
    """Seconds of the launches of these kernels alone, together."""
    found = [x for x in launches if x.name.startswith(names)]
    assert found, [x.name for x in launches]
    return seconds(device, device.capture(found).replay)


def products(
    opened: Open, kinds: Sequence[int], widths: Sequence[int], rows: int, k: int,
    spread: int = 768 * MIB,
) -> Iterator[Row]:  # fmt: skip
    """Products with weights that no cache holds: copies of one matrix, one after another."""
    for kind in kinds:
        backend = opened()
        w = weight(kind, rows, k)
        n = max(1, -(-spread // w.data.nbytes))
        several = [
            Product(backend, dataclasses.replace(w, key=f"{i}"), max(widths)) for i in range(n)
        ]
        alone = None
        for width in widths:
            launches = [x for p in several for x in p.program.launches(p.batch(range(width)))]
            took = _replay(backend.device, launches, ("qmm", "qgemm", "fmm")) / n
            alone = alone or took
            yield {
                "type": GGMLType(kind).name, "rows": rows, "k": k, "tokens": width,
                "us": took * 1e6, "gbs": w.data.nbytes / took / 1e9,
                "tmacs": rows * k * width / took / 1e12, "times_one": took / alone,
            }  # fmt: skip
        backend.close()


#: What a layer of experts launches, its router apart.
_OF_EXPERTS = ("route", "place", "tokenwise", "qmm_experts", "qgemm_experts", "fmm_experts", "sum")


def experts(
    opened: Open, kind: int, sizes: Sequence[tuple[int, int, int, int]], widths: Sequence[int],
    spread: int = 768 * MIB,
) -> Iterator[Row]:  # fmt: skip
    """Layers of experts that no cache holds. ``gbs`` counts the weights of as many experts as the
    step's tokens can choose."""
    for used, of, width, n_ff in sizes:
        backend = opened()
        spec = Experts(of, used, n_ff, normalize=True)
        one = of * 3 * width * n_ff * 9 // 16  # bytes, or so
        layers = max(1, -(-spread // one))
        m = Mixed(backend, kind, spec, width, max(widths), layers)
        alone = None
        for n in widths:
            launches = m.program.launches(m.batch(range(n)))
            took = _replay(backend.device, launches, _OF_EXPERTS) / layers
            alone = alone or took
            chosen = min(n * used, of)
            yield {
                "experts": f"{used} of {of}", "width": width, "n_ff": n_ff, "tokens": n,
                "us": took * 1e6, "gbs": m.nbytes * chosen / of / took / 1e9,
                "tmacs": n * used * 3 * width * n_ff / took / 1e12, "times_one": took / alone,
            }  # fmt: skip
        backend.close()


def attention(
    opened: Open, contexts: Sequence[int], row_counts: Sequence[int],
    kv_types: Sequence[str], spec: Attention, layers: int = 8,
) -> Iterator[Row]:  # fmt: skip
    """Decode: each of ``rows`` sequences has one new token behind ``context`` others."""
    h, n_kv, d = spec.n_heads, spec.n_kv_heads, spec.head_dim
    backend = opened()
    tables = []
    for i, n in enumerate((h, n_kv, n_kv)):
        values = np.random.default_rng(i).standard_normal((16, n * d), np.float32)
        raw = RawTensor(f"t{i}", GGMLType.F32, values.shape, values.view(np.uint8))
        tables.append(backend.upload(raw, "embedding"))

    def forward(ops: Ops) -> Tensor:
        for i in range(layers):
            q, key, v = (ops.embed(t) for t in tables)
            x = ops.attention(q, key, v, i, spec)
        return ops.hidden(ops.outputs(x))

    for kv_type in kv_types:
        for context in contexts:
            pages = -(-(context + 1) // 32)
            kv = backend.new_kv([KVLayer(n_kv, d)] * layers, pages * max(row_counts), kv_type)
            program = backend.prepare(forward, kv, context + 1)
            token = KVLayer(n_kv, d).token_bytes(kv_type)
            for rows in row_counts:
                of_row = [range(r * pages, (r + 1) * pages) for r in range(rows)]
                batch = Batch.pack([([r], context, of_row[r], [0]) for r in range(rows)])
                took = _replay(backend.device, program.launches(batch), ("attention",)) / layers
                yield {
                    "kv": kv_type, "context": context, "rows": rows, "us": took * 1e6,
                    "gbs": rows * context * token / took / 1e9,
                }  # fmt: skip
    backend.close()


class Model:
    """A model of a shape with random weights; all layers are made of one layer's bytes."""

    def __init__(self, backend: CudaBackend, shape: str, quant: str, n_ctx: int, rows: int) -> None:
        self.backend = backend
        self.config = config(shape, n_ctx)
        family = arch.get(self.config.arch)
        tied = SHAPES[shape][-1]
        host: dict[tuple[int, ...], RawTensor] = {}
        tensors = {}
        for name, spec in family.tensors(self.config).items():
            if spec.optional or (tied and name == "output"):
                continue
            tensors[name] = (_tensor(name, spec.used_shape, quant, self.config, host), spec.role)
        if tied:
            tensors["output"] = (tensors["token_embd"][0], "matrix")
        self.nbytes = sum({t.key: t.data.nbytes for t, _ in tensors.values()}.values())
        start = time.perf_counter()
        weights = backend.upload_all(tensors)
        backend.device.sync()
        self.load_seconds = time.perf_counter() - start
        # what a token of decode reads: not the embedding, of which it reads a row
        embedding = 0 if tied else tensors["token_embd"][0].data.nbytes
        self._read_bytes = self.nbytes - embedding
        self._expert_bytes = sum(t.data.nbytes for t, _ in tensors.values() if len(t.shape) == 3)
        self.pages = -(-n_ctx // 32)
        self.kv = backend.new_kv(family.kv_layers(self.config), self.pages * rows)
        start = time.perf_counter()
        self.program = backend.prepare(family.bind(weights, self.config), self.kv, n_ctx)
        self.prepare_seconds = time.perf_counter() - start

    def read_bytes(self, rows: int) -> float:
        """Bytes of weights that a step of so many tokens reads, of as many experts as they can
        choose."""
        e = self.config.experts
        left = 1 - min(1.0, rows * e.n_used / e.n_experts) if e else 0.0
        return self._read_bytes - left * self._expert_bytes

    def batch(self, rows: int, n_past: int, n: int = 1, best: bool = True) -> Batch:
        of_row = [range(r * self.pages, (r + 1) * self.pages) for r in range(rows)]
        return Batch.pack([([7 + r] * n, n_past, of_row[r], [n - 1]) for r in range(rows)], best)

    def seconds(self, batch: Batch) -> tuple[float, float]:
        """Of a step as the engine takes it, and of what the device does in it."""
        whole = seconds(self.backend.device, lambda: self.program.run(batch))
        launches = self.program.launches(batch)
        graph = self.backend.device.capture(launches)
        return whole, seconds(self.backend.device, graph.replay)


def _tensor(
    name: str, shape: tuple[int, ...], quant: str, c: ModelConfig,
    host: dict[tuple[int, ...], RawTensor],
) -> RawTensor:  # fmt: skip
    if len(shape) == 1:
        ones = np.ones(shape, np.float32)
        return RawTensor(name, GGMLType.F32, shape, ones.view(np.uint8).reshape(1, -1))
    part = name.split(".")
    layer = int(part[1]) if part[0] == "blk" else None
    kind = int(quant_of(quant, part[-1].removesuffix("_exps"), layer, c.n_layers, shape[-1]))
    if part[-1] == "ffn_gate_inp":
        kind = int(GGMLType.F32)
    key = (kind, *shape)
    if key not in host:
        rows = weight(kind, int(np.prod(shape[:-1])), shape[-1])
        host[key] = dataclasses.replace(rows, shape=shape)
    return dataclasses.replace(host[key], key=name)


def config(shape: str, n_ctx: int) -> ModelConfig:
    """The configuration of one of the shapes: llamas, or mixtures of experts."""
    _, d, ff, layers, heads, kv, hd, vocab, _ = SHAPES[shape]
    rope = Rope((5e5 ** (-np.arange(0, hd, 2) / hd)).astype(np.float32), False)
    spec = Attention(heads, kv, hd, hd**-0.5)
    of, used = EXPERTS.get(shape, (0, 0))
    mixture = Experts(of, used, ff, normalize=True) if of else None
    return ModelConfig(
        arch="qwen3moe" if of else "llama", experts=mixture, n_layers=layers, n_embd=d,
        n_heads=heads, n_kv_heads=kv, head_dim=hd, n_ff=ff, n_vocab=vocab, n_ctx_train=n_ctx,
        n_ctx=n_ctx, eps=1e-5,
        attention=(spec,) * layers, ropes=(rope,) * layers,
    )  # fmt: skip


def models(
    opened: Open, shape: str, quant: str, copy_gbs: float, n_ctx: int = 4352
) -> Iterator[Row]:
    """Decode of 1 to 16 sequences, decode behind a long text, a prompt of 512 tokens."""
    backend = opened()
    m = Model(backend, shape, quant, n_ctx, 16)
    made = {"shape": shape, "quant": quant, "mb": m.nbytes / 1e6}
    yield {
        **made, "what": "load", "seconds": m.load_seconds,
        "gbs": m.nbytes / m.load_seconds / 1e9, "prepare_seconds": m.prepare_seconds,
    }  # fmt: skip
    alone = None
    for rows, n_past in ((1, 64), (2, 64), (4, 64), (8, 64), (16, 64), (1, n_ctx - 256)):
        whole, device = m.seconds(m.batch(rows, n_past))
        alone = alone or whole
        bound = (m.read_bytes(rows) + rows * n_past * m.kv.page_bytes / 32) / copy_gbs / 1e9
        yield {
            **made, "what": "decode", "rows": rows, "context": n_past, "ms": whole * 1e3,
            "device_ms": device * 1e3, "tokens_s": rows / whole, "times_one": whole / alone,
            "of_copy": bound / whole, "device_of_copy": bound / device,
        }  # fmt: skip
    n = min(512, n_ctx - 1)
    whole, device = m.seconds(m.batch(1, 0, n))
    yield {**made, "what": "prompt", "tokens": n, "ms": whole * 1e3, "device_ms": device * 1e3,
           "tokens_s": n / whole}  # fmt: skip
    backend.close()
