"""Whole steps on a GPU, of models of real shapes that were never trained."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from _blocks import EXPERTS, SHAPES, quant_of
from _gpu_cases import Open, other_bits, verdict, weight
from _gpu_run import Case, Row
from _gpu_speed import copy_rate, seconds

from edgerun import arch
from edgerun.arch.base import ModelConfig
from edgerun.backends.base import Attention, Batch, Experts, RawTensor, Rope
from edgerun.backends.cuda import CudaBackend
from edgerun.errors import OutOfMemoryError
from edgerun.gguf import GGMLType


class Model:
    """A model of a shape with random weights; all layers are made of one layer's bytes."""

    def __init__(
        self, backend: CudaBackend, shape: str, quant: str, n_ctx: int, n_pages: int
    ) -> None:
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
        self.kv = backend.new_kv(family.kv_layers(self.config), max(n_pages, -(-512 // 32)))
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
        pages = -(-(n_past + n) // 32)
        of_row = [range(r * pages, (r + 1) * pages) for r in range(rows)]
        return Batch.pack([([7 + r] * n, n_past, of_row[r], [n - 1]) for r in range(rows)], best)

    def seconds(self, batch: Batch) -> tuple[float, float]:
        """Of a step as the engine takes it, and of what the device does in it."""
        whole = seconds(self.backend.device, lambda: self.program.run(batch))
        launches = self.program.launches(batch)
        graph = self.backend.device.capture(launches)
        return whole, seconds(self.backend.device, graph.replay)


def _sound(m: Model, shape: str) -> Row:
    """Whether logits are numbers, and a token behind 64 others has the bits of the last of 65."""
    prompt = np.array(m.program.run(m.batch(1, 0, 65)))
    decode = np.array(m.program.run(m.batch(1, 64)))
    bad = [] if np.isfinite(prompt).all() else ["a logit is not a number"]
    return verdict(f"{shape}: decode as a prompt", bad + other_bits(decode, prompt, "decode"))


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
    opened: Open, shapes: Sequence[tuple[str, str, float]], n_ctx: int = 4352,
    copied: int = 512 << 20,
) -> Iterator[Case]:  # fmt: skip
    """Models of ``(shape, mix of types, least bytes of free memory)``."""
    for shape, quant, least in shapes:
        yield shape, partial(_model, opened, shape, quant, least, n_ctx, copied)


def _model(
    opened: Open, shape: str, quant: str, least: float, n_ctx: int, copied: int
) -> Iterator[Row]:
    """Decode of 1 to 16 sequences, decode behind a long text, a prompt of 512 tokens."""
    backend = opened()
    free = backend.memory().free
    if free < least:
        raise OutOfMemoryError(f"{free / 1e9:.1f} GB are free, {least / 1e9:.1f} are needed")
    copy = copy_rate(backend.device, copied)
    steps = ((1, 64), (2, 64), (4, 64), (8, 64), (16, 64), (1, n_ctx - 256))
    m = Model(backend, shape, quant, n_ctx, max(-(-(p + 1) // 32) * r for r, p in steps))
    made = {"shape": shape, "quant": quant, "mb": m.nbytes / 1e6}
    yield {
        **made, "what": "load", "seconds": m.load_seconds,
        "gbs": m.nbytes / m.load_seconds / 1e9, "prepare_seconds": m.prepare_seconds,
        "copy_gbs": copy / 1e9,
    }  # fmt: skip
    yield _sound(m, shape)
    alone = None
    for rows, n_past in steps:
        whole, device = m.seconds(m.batch(rows, n_past))
        alone = alone or whole
        bound = (m.read_bytes(rows) + rows * n_past * m.kv.page_bytes / 32) / copy
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
