"""What a GPU must get right before its speed is worth a word: products of every type, experts,
attention, every architecture's fixture, pages, the same bits for any step."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from _blocks import blocks
from _gpu_run import Case, Row

from edgerun.backends import cuda_experts
from edgerun.backends.base import (
    F32,
    Batch,
    Experts,
    ExpertWeights,
    Ops,
    RawTensor,
    Role,
    Tensor,
)
from edgerun.backends.cuda import CudaBackend
from edgerun.backends.cuda_lowered import Choice
from edgerun.backends.cuda_program import CudaProgram
from edgerun.backends.cuda_weights import FLOAT_TYPES, LINEAR_TYPES, matmul, repack, unpack_rows
from edgerun.gguf import GGMLType, dequantize, row_bytes

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "tests"))
from helpers.leading import top_of  # noqa: E402
from helpers.runner import Runner, check_pages  # noqa: E402

#: A backend of its own for each case, so that closing it frees the memory.
Open = Callable[[], CudaBackend]
#: Widths of a step around every change of kernels.
WIDTHS = (1, 3, 8, 9, 16, 17, 40, 64, 65, 100)


def verdict(case: str, bad: Sequence[str]) -> Row:
    """A row that says whether a case is right, and all that is wrong with it."""
    return {"case": case, "ok": not bad, **({"bad": "; ".join(bad)} if bad else {})}


def other_bits(found: npt.NDArray[Any], wanted: npt.NDArray[Any], what: str) -> list[str]:
    """What is wrong with results that must have the same bits: how many, and the first."""
    wrong = np.argwhere(found.view(np.uint32) != wanted.view(np.uint32))
    if not len(wrong):
        return []
    at = tuple(wrong[0].tolist())
    values = f"first {list(at)}: {found[at]} for {wanted[at]}"
    return [f"{what} have other bits in {len(wrong)} of {found.size} values, {values}"]


def product_kernels() -> list[str]:
    """Names of the kernels that products of any type need, to be compiled together."""
    names = []
    for kind in LINEAR_TYPES:
        names += [matmul(kind, kind, 1, 0, 256, n).name for n in (1, 16, 32, 64)]
        names += [repack(kind, 16, 256).name, unpack_rows(kind, 256, 1).name]
        for n in (1, 9, 100, 400):
            names.append(cuda_experts.product(kind, 1, 256, n, Choice(2, 8)).shape.name)
    return list(dict.fromkeys(names))


def compile_all(opened: Open, names: Sequence[str]) -> Iterator[Case]:
    """Kernels, some at a time: compiled once on a machine, so this may take minutes or nothing."""
    some = 2 * (os.cpu_count() or 1)

    def act(names: Sequence[str]) -> Iterator[Row]:
        backend = opened()
        start = time.perf_counter()
        backend.device.load(names)
        yield {"kernels": len(names), "seconds": time.perf_counter() - start}
        backend.close()

    for i in range(0, len(names), some):
        yield names[i], partial(act, names[i : i + some])


def weight(kind: int, rows: int, k: int, key: str = "w", seed: int = 0) -> RawTensor:
    """Random blocks of a type."""
    t = GGMLType(kind)
    rng = np.random.default_rng(seed)
    size = row_bytes(t, k)
    data = blocks(rng, t, rows * size // row_bytes(t, t.block_size)).reshape(rows, size)
    return RawTensor(f"{key}{kind}", kind, (rows, k), data)


class Prepared:
    """A program without attention over up to ``n_ids`` ids."""

    def __init__(self, backend: CudaBackend, forward: Callable[[Ops], Tensor], n_ids: int) -> None:
        self.n_ids = n_ids
        self._kv = backend.new_kv([], -(-n_ids // 32))
        self.program: CudaProgram = backend.prepare(forward, self._kv, n_ids)

    def batch(self, ids: range) -> Batch:
        return Batch.pack([(ids, 0, range(-(-len(ids) // 32)), range(len(ids)))])

    def run(self, ids: range) -> F32:
        return np.array(self.program.run(self.batch(ids)))


class Product(Prepared):
    """``table[ids] @ w.T`` as a program, over ``n_ids`` random rows."""

    def __init__(self, backend: CudaBackend, w: RawTensor, n_ids: int) -> None:
        rng = np.random.default_rng(1)
        self.table = rng.standard_normal((n_ids, w.shape[1]), np.float32)
        raw = RawTensor("table", GGMLType.F32, self.table.shape, self.table.view(np.uint8))
        table, matrix = backend.upload(raw, "embedding"), backend.upload(w, "matrix")

        def forward(ops: Ops) -> Tensor:
            return ops.logits(ops.outputs(ops.embed(table)), matrix)

        super().__init__(backend, forward, n_ids)


class Head(Prepared):
    """Logits of ``n_ids`` random rows over a vocabulary, every tenth of which repeats the one
    before it."""

    def __init__(self, backend: CudaBackend, n_vocab: int, n_ids: int, width: int = 64) -> None:
        rng = np.random.default_rng(3)
        head = rng.standard_normal((n_vocab, width), np.float32)
        head[9::10] = head[8 : 8 + 10 * len(head[9::10]) : 10]
        table = rng.standard_normal((n_ids, width), np.float32)
        found = [
            backend.upload(RawTensor(key, GGMLType.F32, x.shape, x.view(np.uint8)), role)
            for key, x, role in (("table", table, "embedding"), ("head", head, "matrix"))
        ]

        def forward(ops: Ops) -> Tensor:
            return ops.logits(ops.outputs(ops.embed(found[0])), found[1])

        super().__init__(backend, forward, n_ids)


class Mixed(Prepared):
    """``layers`` mixtures of experts, one behind another, over ``n_ids`` random rows."""

    def __init__(
        self, backend: CudaBackend, kind: int, spec: Experts, width: int, n_ids: int,
        layers: int = 1,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(1)
        n, ff = spec.n_experts, spec.n_ff
        self.spec = spec
        self.table = rng.standard_normal((n_ids, width), np.float32)
        self.router = rng.standard_normal((n, width), np.float32)
        shapes = {"gate": (n, ff, width), "up": (n, ff, width), "down": (n, width, ff)}
        self.raw = {
            role: dataclasses.replace(weight(kind, n * s[1], s[2], role, i), shape=s)
            for i, (role, s) in enumerate(shapes.items())
        }
        self.nbytes = sum(t.data.nbytes for t in self.raw.values())
        floats = {"table": self.table, "router": self.router}
        tensors: dict[str, tuple[RawTensor, Role]] = {
            k: (RawTensor(k, GGMLType.F32, v.shape, v.view(np.uint8)), "matrix")
            for k, v in floats.items()
        }
        roles: dict[str, Role] = {"gate": "gate", "up": "up", "down": "matrix"}
        for i in range(layers):
            for k, t in self.raw.items():
                tensors[f"{k}{i}"] = dataclasses.replace(t, key=f"{t.key}.{i}"), roles[k]
        found = backend.upload_all(tensors)

        def forward(ops: Ops) -> Tensor:
            x = ops.embed(found["table"])
            for i in range(layers):
                own = ExpertWeights(found["router"], *(found[f"{k}{i}"] for k in roles))
                x = ops.moe(x, own, spec)
            return ops.hidden(ops.outputs(x))

        super().__init__(backend, forward, n_ids)

    def expected(self) -> npt.NDArray[np.float64]:
        """Of one layer, in float64 over the decoded blocks."""
        w = {
            k: dequantize(t.data, GGMLType(t.type)).astype(np.float64).reshape(t.shape)
            for k, t in self.raw.items()
        }
        x, k = self.table.astype(np.float64), self.spec.n_used
        logits = x @ self.router.T.astype(np.float64)
        chosen = np.argsort(-logits, axis=1, kind="stable")[:, :k]
        share = np.exp(np.take_along_axis(logits, chosen, 1) - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        out = np.zeros_like(x)
        for t, rank in np.ndindex(chosen.shape):
            e = chosen[t, rank]
            g, u = w["gate"][e] @ x[t], w["up"][e] @ x[t]
            out[t] += share[t, rank] * (w["down"][e] @ (g / (1 + np.exp(-g)) * u))
        return out


def experts(
    opened: Open, kinds: Sequence[int], width: int = 256, n_ff: int = 256, n_ids: int = 400
) -> Iterator[Case]:
    """Experts of each type, and each width of a step against one."""

    def act(kind: int) -> Iterator[Row]:
        backend = opened()
        m = Mixed(backend, kind, Experts(8, 2, n_ff, normalize=True), width, n_ids)
        found, expected = m.run(range(n_ids)), m.expected()
        bad = _too_far(found, expected, 1e-4 if kind in FLOAT_TYPES else 2e-2)
        for n in (n for n in WIDTHS if n < n_ids):
            bad += other_bits(m.run(range(n)), found[:n], f"{n} tokens")
        yield verdict(f"experts {GGMLType(kind).name}", bad)
        backend.close()

    for kind in kinds:
        yield GGMLType(kind).name, partial(act, kind)


def products(
    opened: Open, kinds: Sequence[int], rows: int = 272, ks: tuple[int, ...] = (256, 1280)
) -> Iterator[Case]:
    """Each type against float64 over the decoded blocks, and each width of a step against one."""

    def act(kind: int, k: int) -> Iterator[Row]:
        backend = opened()
        w = weight(kind, rows, k)
        p = Product(backend, w, 150)
        values = dequantize(w.data, GGMLType(kind)).astype(np.float64)
        found = p.run(range(150))
        # activations are rounded to int8; float types multiply as they are
        most = 1e-5 if kind in FLOAT_TYPES else 6e-3
        bad = _too_far(found, p.table.astype(np.float64) @ values.reshape(rows, k).T, most)
        for n in WIDTHS:
            bad += other_bits(p.run(range(n)), found[:n], f"{n} tokens")
        yield verdict(f"product {GGMLType(kind).name} k {k}", bad)
        backend.close()

    for kind in kinds:
        for k in ks:
            yield f"{GGMLType(kind).name} k {k}", partial(act, kind, k)


def largest(opened: Open, sizes: Sequence[int] = (1000, 49152, 262208)) -> Iterator[Case]:
    """The largest logits of each row, in order, against sorting them on the host: heads of so many
    rows, some of them twice, so that logits are equal."""

    def act(n_vocab: int) -> Iterator[Row]:
        backend = opened()
        p = Head(backend, n_vocab, 70)
        bad = []
        for n in (1, 8, 70):
            ids = range(n)
            wanted = top_of(np.array(p.run(ids)), p.program.n_top)
            for _ in range(3):  # the second time it is recorded, then replayed
                p.program.run(dataclasses.replace(p.batch(ids), want_top=p.program.n_top))
                found = p.program.top
                assert found is not None
                bad += other_bits(found.ids, wanted.ids, f"ids of {n} rows")
                bad += other_bits(found.logits, wanted.logits, f"logits of {n} rows")
        yield verdict(f"largest of {n_vocab}", bad)
        backend.close()

    for n_vocab in sizes:
        yield f"{n_vocab}", partial(act, n_vocab)


def _too_far(found: F32, expected: npt.NDArray[Any], most: float) -> list[str]:
    error = float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))
    return [] if error < most else [f"error {error:.1e}"]


FOLDER = ROOT / "tests" / "fixtures" / "arch"


def architectures(opened: Open, names: Sequence[str] | None = None) -> Iterator[Case]:
    """The fixtures of tests/fixtures/arch against the logits of another implementation."""

    def act(name: str) -> Iterator[Row]:
        backend = opened()
        data = np.load(FOLDER / f"{name}.npz")
        ids, expected = data["ids"].tolist(), data["logits"]
        runner = Runner(FOLDER / f"{name}.gguf", backend, n_ctx=256)
        whole = runner.logits(ids)
        error = np.abs(whole - expected).max() / np.abs(expected).max()
        bad = [] if error < 2e-3 else [f"error {error:.1e}"]
        for chunk in (1, 7, 12):
            bad += other_bits(runner.logits(ids, chunk=chunk), whole, f"chunks of {chunk}")
        yield verdict(name, bad)
        backend.close()

    for path in sorted(FOLDER.glob("*.npz")):
        if names is None or path.stem in names:
            yield path.stem, partial(act, path.stem)


def pages(opened: Open, n: int = 900) -> Iterator[Case]:
    """Quantized K and V, copies of pages and swap, texts of several splits, steps ahead."""
    yield from ((f"pages of {t}", partial(_quantized, opened, t, e)) for t, e in _KV_ERRORS)
    yield "copies and swap", partial(_copies, opened)
    yield f"{n} tokens of context", partial(_long_text, opened, n)
    yield "steps ahead", partial(_ahead, opened)


_KV_ERRORS = (("q8_0", 0.02), ("q4r", 0.3))


def _quantized(opened: Open, kv_type: str, most: float) -> Iterator[Row]:
    backend = opened()
    data = np.load(FOLDER / "llama3.npz")
    runner = Runner(FOLDER / "llama3.gguf", backend, n_ctx=256, kv_type=kv_type)
    found = runner.logits(data["ids"].tolist(), chunk=5)
    yield verdict(f"pages of {kv_type}", _too_far(found, data["logits"], most))
    backend.close()


def _copies(opened: Open) -> Iterator[Row]:
    backend = opened()
    runner = Runner(FOLDER / "qwen3.gguf", backend, n_pages=8)
    check_pages(runner)
    kept = runner.kv.export_page(0)
    swap = runner.kv.swap_space()
    assert swap is not None
    swap.grow(2)
    swap.save(0, 1)
    runner.kv.import_page(0, bytes(len(kept)))
    swap.restore(1, 3)
    yield verdict("copies and swap", [] if runner.kv.export_page(3) == kept else ["a page changed"])
    backend.close()


def _long_text(opened: Open, n: int) -> Iterator[Row]:
    """Attention split over blocks against prompts, which do not split it."""
    backend = opened()
    runner = Runner(FOLDER / "llama.gguf", backend, n_ctx=1024, n_pages=64)
    ids = np.random.default_rng(2).integers(0, 200, n).tolist()
    whole = runner.logits(ids, start=n - 8, chunk=512)
    sequence = runner.begin()
    for start in range(0, n - 8, 400):
        runner.step([(sequence, ids[start : min(start + 400, n - 8)], [])])
    steps = np.array([runner.step([(sequence, [t], [0])])[0] for t in ids[n - 8 :]])
    yield verdict(f"{n} tokens of context", other_bits(steps, whole, "single tokens"))
    backend.close()


def _ahead(opened: Open, n: int = 30) -> Iterator[Row]:
    """Steps that begin with ids the host does not know yet, against steps waited for."""
    backend = opened()
    program = Runner(FOLDER / "llama.gguf", backend, n_ctx=256).program

    def step(token: int, past: int) -> Batch:
        return Batch.pack([([token], past, [0], [0])], want_best=True)

    waited, token = [], 5
    for i in range(n):
        program.run(step(token, i))
        assert program.best is not None
        token = int(program.best[0])
        waited.append(token)
    before, ahead = program.start(step(5, 0)), []
    for i in range(1, n):
        behind = program.start(step(-1, i), before)
        before.wait()
        ahead.append(int(before.best[0]))
        before = behind
    before.wait()
    ahead.append(int(before.best[0]))
    bad = [] if ahead == waited else [f"{ahead} instead of {waited}"]
    yield verdict("steps ahead", bad)
    backend.close()
