"""What a GPU must get right before its speed is worth a word: products of every type, every
architecture's fixture, quantized pages, the same bits for any step."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from _blocks import blocks

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
from helpers.runner import Runner  # noqa: E402

#: What was tried, and what is wrong with it; None = nothing.
Verdict = tuple[str, str | None]


def product_kernels() -> list[str]:
    """Names of the kernels that products of any type need, to be compiled together."""
    names = []
    for kind in LINEAR_TYPES:
        names += [matmul(kind, kind, 1, 0, 256, n).name for n in (1, 16, 32, 64)]
        names += [repack(kind, 16, 256).name, unpack_rows(kind, 256, 1).name]
        for n in (1, 9, 40, 400):
            names.append(cuda_experts.product(kind, 1, 256, n, Choice(2, 8)).shape.name)
    return list(dict.fromkeys(names))


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
    backend: CudaBackend, width: int = 256, n_ff: int = 256, n_ids: int = 400
) -> Iterator[Verdict]:
    """Experts of each type, and each width of a step against one."""
    spec = Experts(8, 2, n_ff, normalize=True)
    for kind in LINEAR_TYPES:
        m = Mixed(backend, kind, spec, width, n_ids)
        found, expected = m.run(range(n_ids)), m.expected()
        error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
        bad = None if error < (1e-4 if kind in FLOAT_TYPES else 2e-2) else f"error {error:.1e}"
        for n in (1, 3, 8, 9, 16, 17, 40, 64, 65, 100):
            if n < n_ids and not np.array_equal(
                m.run(range(n)).view(np.uint32), found[:n].view(np.uint32)
            ):
                bad = f"{n} tokens have other bits than {n_ids}"
        yield f"experts {GGMLType(kind).name}", bad


def products(
    backend: CudaBackend, rows: int = 272, ks: tuple[int, ...] = (256, 1280)
) -> Iterator[Verdict]:
    """Each type against float64 over the decoded blocks, and each width of a step against one."""
    for kind in LINEAR_TYPES:
        for k in ks:
            w = weight(kind, rows, k)
            p = Product(backend, w, 150)
            values = dequantize(w.data, GGMLType(kind)).astype(np.float64)
            expected = p.table.astype(np.float64) @ values.reshape(rows, k).T
            found = p.run(range(150))
            error = np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2))
            # activations are rounded to int8; float types multiply as they are
            bad = None if error < (1e-5 if kind in FLOAT_TYPES else 6e-3) else f"error {error:.1e}"
            for n in (1, 3, 8, 9, 16, 17, 40, 64, 65, 100):
                if not np.array_equal(p.run(range(n)).view(np.uint32), found[:n].view(np.uint32)):
                    bad = f"{n} tokens have other bits than 150"
            yield f"product {GGMLType(kind).name} k {k}", bad


def architectures(backend: CudaBackend, names: list[str] | None = None) -> Iterator[Verdict]:
    """The fixtures of tests/fixtures/arch against the logits of another implementation."""
    folder = ROOT / "tests" / "fixtures" / "arch"
    for path in sorted(folder.glob("*.npz")):
        if names is not None and path.stem not in names:
            continue
        data = np.load(path)
        ids, expected = data["ids"].tolist(), data["logits"]
        runner = Runner(path.with_suffix(".gguf"), backend, n_ctx=256)
        whole = runner.logits(ids)
        error = np.abs(whole - expected).max() / np.abs(expected).max()
        bad = None if error < 2e-3 else f"error {error:.1e}"
        for chunk in (1, 7, 12):
            if not np.array_equal(
                whole.view(np.uint32), runner.logits(ids, chunk=chunk).view(np.uint32)
            ):
                bad = f"chunks of {chunk} have other bits than the whole"
        yield f"architecture {path.stem}", bad
    for kv_type, most in (("q8_0", 0.02), ("q4r", 0.3)):
        data = np.load(folder / "llama3.npz")
        runner = Runner(folder / "llama3.gguf", backend, n_ctx=256, kv_type=kv_type)
        found = runner.logits(data["ids"].tolist(), chunk=5)
        error = np.sqrt(np.mean((found - data["logits"]) ** 2) / np.mean(data["logits"] ** 2))
        yield f"pages of {kv_type}", None if error < most else f"error {error:.1e}"


def long_texts(backend: CudaBackend, n: int = 900) -> Iterator[Verdict]:
    """Attention split over blocks against prompts, which do not split it."""
    folder = ROOT / "tests" / "fixtures" / "arch"
    runner = Runner(folder / "llama.gguf", backend, n_ctx=1024, n_pages=64)
    ids = np.random.default_rng(2).integers(0, 200, n).tolist()
    whole = runner.logits(ids, start=n - 8, chunk=512)
    sequence = runner.begin()
    for start in range(0, n - 8, 400):
        runner.step([(sequence, ids[start : min(start + 400, n - 8)], [])])
    steps = [runner.step([(sequence, [t], [0])])[0] for t in ids[n - 8 :]]
    same = np.array_equal(whole.view(np.uint32), np.array(steps).view(np.uint32))
    yield f"{n} tokens of context", None if same else "decode has other bits than a prompt"
