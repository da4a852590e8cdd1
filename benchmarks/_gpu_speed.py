"""Speed on a GPU: copies, products, experts, attention. What is measured ran before as part of its
program, so that its inputs are what they are in use, and its kernels are loaded.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from _gpu_cases import Head, Mixed, Open, Product, weight
from _gpu_run import Case, Row

from edgerun.backends import cuda_experts
from edgerun.backends.base import Attention, Batch, Experts, KVLayer, Ops, RawTensor, Tensor
from edgerun.backends.cuda_device import Device, Launch
from edgerun.gguf import GGMLType

MIB = 1 << 20
#: Seconds of a round, and rounds of which the best counts.
LEAST, ROUNDS = 0.05, 3


def seconds(device: Device, act: Callable[[], Any]) -> float:
    """Of one ``act``, the best of some rounds that take :data:`LEAST` seconds each."""
    act()
    device.sync()
    n, best = 1, float("inf")
    rounds = 0
    while rounds < ROUNDS:
        start = time.perf_counter()
        for _ in range(n):
            act()
        device.sync()
        took = time.perf_counter() - start
        if took < LEAST:
            n = max(n + 1, int(n * LEAST * 1.2 / max(took, 1e-6)))
            continue
        best, rounds = min(best, took / n), rounds + 1
    return best


def copy_rate(device: Device, nbytes: int) -> float:
    """Bytes a second of a copy within the device, what is read and what is written counted."""
    a, b = device.alloc(nbytes), device.alloc(nbytes)
    device.zero(a, nbytes)
    took = seconds(device, lambda: device.copy(b, a, nbytes))
    device.free(a)
    device.free(b)
    return 2 * nbytes / took


def rates(opened: Open, nbytes: int = 512 * MIB) -> Iterator[Case]:
    """What the machine gives: copies, uploads, launches."""

    def act() -> Iterator[Row]:
        backend = opened()
        yield {**_copies(backend.device, nbytes), **_overheads(backend.device)}
        backend.close()

    yield "rates", act


def _copies(device: Device, nbytes: int) -> Row:
    copy = copy_rate(device, nbytes)
    a = device.alloc(nbytes)
    host = device.pinned(min(nbytes, 64 * MIB))
    up = seconds(device, lambda: device.upload(a, host))
    device.free(a)
    return {"copy_gbs": copy / 1e9, "upload_gbs": host.nbytes / up / 1e9}


def _overheads(device: Device) -> Row:
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
) -> Iterator[Case]:  # fmt: skip
    """Products with weights that no cache holds: copies of one matrix, one after another."""

    def act(kind: int) -> Iterator[Row]:
        backend = opened()
        w = weight(kind, rows, k)
        n = max(1, -(-spread // w.data.nbytes))
        several = [
            Product(backend, dataclasses.replace(w, key=f"{i}"), max(widths)) for i in range(n)
        ]
        alone = None
        for width in widths:
            for p in several:
                p.run(range(width))
            launches = [x for p in several for x in p.program.launches(p.batch(range(width)))]
            took = _replay(backend.device, launches, ("qmm", "qgemm", "fmm")) / n
            alone = alone or took
            yield {
                "type": GGMLType(kind).name, "rows": rows, "k": k, "tokens": width,
                "us": took * 1e6, "gbs": w.data.nbytes / took / 1e9,
                "tmacs": rows * k * width / took / 1e12, "times_one": took / alone,
            }  # fmt: skip
        backend.close()

    for kind in kinds:
        yield GGMLType(kind).name, partial(act, kind)


#: What a layer of experts launches, its router apart.
_OF_EXPERTS = ("route", "place", "tokenwise", "qmm_experts", "qgemm_experts", "fmm_experts", "sum")


def experts(
    opened: Open, kind: int, sizes: Sequence[tuple[int, int, int, int]], widths: Sequence[int],
    spread: int = 768 * MIB,
) -> Iterator[Case]:  # fmt: skip
    """Layers of experts that no cache holds; which kernel is the quicker one by tokens. ``gbs``
    counts the weights of those experts that the step's tokens chose."""

    def act(size: tuple[int, int, int, int]) -> Iterator[Row]:
        used, of, width, n_ff = size
        backend = opened()
        spec = Experts(of, used, n_ff, normalize=True)
        one = of * 3 * width * n_ff * 9 // 16  # bytes, or so
        layers = max(1, -(-spread // one))
        m = Mixed(backend, kind, spec, width, max(widths), layers)
        alone = None
        for n in widths:
            m.run(range(n))  # all layers are measured with the last one's choice
            for way in _WAYS if n > 16 else _WAYS[:1]:
                with _forced(way):
                    launches = m.program.launches(m.batch(range(n)))
                took = _replay(backend.device, launches, _OF_EXPERTS) / layers
                alone = alone or took
                chosen = _chosen(backend.device, launches, n * used)
                yield {
                    "experts": f"{used} of {of}", "width": width, "n_ff": n_ff, "tokens": n,
                    "way": way, "chosen": chosen, "us": took * 1e6,
                    "gbs": m.nbytes * chosen / of / took / 1e9,
                    "tmacs": n * used * 3 * width * n_ff / took / 1e12, "times_one": took / alone,
                }  # fmt: skip
        backend.close()

    for size in sizes:
        yield "-".join(map(str, size)), partial(act, size)


#: The rule's choice, and each kernel whatever the rule says.
_WAYS = ("rule", "qmm", "qgemm 32", "qgemm 64")


@contextmanager
def _forced(way: str) -> Iterator[None]:
    """Products with experts by one kernel, while they are planned."""
    kept = cuda_experts.FEW_COLUMNS, cuda_experts.MANY_COLUMNS
    never = 1e9
    forced = {"qmm": (never, never), "qgemm 32": (0, never), "qgemm 64": (0, 0)}
    cuda_experts.FEW_COLUMNS, cuda_experts.MANY_COLUMNS = forced.get(way, kept)
    try:
        yield
    finally:
        cuda_experts.FEW_COLUMNS, cuda_experts.MANY_COLUMNS = kept


def _chosen(device: Device, launches: Sequence[Launch], pairs: int) -> int:
    """Experts that somebody has, from the list that ``route`` left."""
    route = next(x for x in launches if x.name == "route")
    found = np.empty(pairs, np.int32)
    device.download(found, int(route.args[6]))
    return len(np.unique(found[found >= 0]))


def choices(opened: Open, sizes: Sequence[int], widths: Sequence[int]) -> Iterator[Case]:
    """What chooses from logits, alone; and steps of little else that bring over what it found, or
    the whole rows."""

    def act(n_vocab: int) -> Iterator[Row]:
        backend = opened()
        p = Head(backend, n_vocab, max(widths), 32)
        for n in widths:
            rows = p.batch(range(n))
            found: Row = {"vocab": n_vocab, "rows": n}
            for name, batch in (
                ("argmax", dataclasses.replace(rows, want_best=True)),
                ("topk", dataclasses.replace(rows, want_top=p.program.n_top)),
            ):
                step = seconds(backend.device, partial(p.program.run, batch))
                alone = _replay(backend.device, p.program.launches(batch), (name,))
                found |= {f"{name}_us": alone * 1e6, f"{name}_step_us": step * 1e6}
            whole = seconds(backend.device, partial(p.program.run, rows))
            yield {**found, "rows_step_us": whole * 1e6}
        backend.close()

    for n_vocab in sizes:
        yield f"{n_vocab}", partial(act, n_vocab)


def attention(
    opened: Open, contexts: Sequence[int], row_counts: Sequence[int],
    kv_types: Sequence[str], spec: Attention, layers: int = 8,
) -> Iterator[Case]:  # fmt: skip
    """Decode: each of ``rows`` sequences has one new token behind ``context`` others."""
    h, n_kv, d = spec.n_heads, spec.n_kv_heads, spec.head_dim

    def act(kv_type: str, context: int) -> Iterator[Row]:
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

        pages = -(-(context + 1) // 32)
        kv = backend.new_kv([KVLayer(n_kv, d)] * layers, pages * max(row_counts), kv_type)
        program = backend.prepare(forward, kv, context + 1)
        token = KVLayer(n_kv, d).token_bytes(kv_type)
        for rows in row_counts:
            of_row = [range(r * pages, (r + 1) * pages) for r in range(rows)]
            batch = Batch.pack([([r], context, of_row[r], [0]) for r in range(rows)])
            program.run(batch)
            took = _replay(backend.device, program.launches(batch), ("attention",)) / layers
            yield {
                "kv": kv_type, "context": context, "rows": rows, "us": took * 1e6,
                "gbs": rows * context * token / took / 1e9,
            }  # fmt: skip
        backend.close()

    for kv_type in kv_types:
        for context in contexts:
            yield f"{kv_type} {context}", partial(act, kv_type, context)
