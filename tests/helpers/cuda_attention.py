"""Attention by the CUDA kernels, on the CPU: heads as the products leave them in, results out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerun.backends import cuda_attention as shapes
from edgerun.backends.base import PAGE_SIZE, Attention, Batch, Rope
from helpers import simt
from helpers.simt import KERNELS, Guarded

F32 = npt.NDArray[np.float32]
i32, i64, f32 = np.int32, np.int64, np.float32


class Heads:
    """Q, K and V of a batch, each behind others' columns in a row stride of its own."""

    def __init__(self, q: F32, k: F32, v: F32) -> None:
        self._kept: list[F32] = []
        self.offsets: list[int] = []
        self.lds: list[int] = []
        for i, x in enumerate((q, k, v)):
            data = np.full((len(x), x.shape[1] + 5 + 2 * i), np.nan, np.float32)
            data[:, 2 * i : 2 * i + x.shape[1]] = x
            self._kept.append(data)
            self.offsets.append(data.ctypes.data + 8 * i)
            self.lds.append(data.shape[1])


class CudaAttention:
    """One layer's K and V, and the launches of one attention."""

    def __init__(
        self,
        spec: Attention,
        kv_type: str,
        n_pages: int,
        *,
        rope: Rope | None = None,
        norms: tuple[F32, F32] | None = None,
        sinks: F32 | None = None,
        **build: Any,
    ) -> None:
        self.spec, self.kv_type, self._rope, self._norms = spec, kv_type, rope, norms
        self.sinks = sinks
        part = shapes.kv_part_bytes(kv_type, spec.n_kv_heads, spec.head_dim)
        self.page_bytes, self.k_off, self.v_off = 2 * part + 96, 32, 64 + part
        self.pool = Guarded((n_pages, self.page_bytes), np.uint8, fill=0)
        self._build = build  # arguments of simt.build; `sources` has text in place of a file's
        self._sources: dict[str, str] = build.pop("sources", {})
        self._only: tuple[str, ...] = build.pop("only", ())  # kernels of attention.cu to compile
        self._folder: Path = build.pop("folder", KERNELS)  # of kernels with a bug planted
        self.order = (0, 1)

    def _launch(self, file: str, name: str, grid: Any, block: Any, *args: Any) -> None:
        source = self._sources.get(file)
        names = instances(file, self.spec.head_dim)
        if self._only and file == "attention.cu":
            names = self._only
        if source is not None or "sanitizer" in self._build or self._folder != KERNELS:
            names = (name,)  # compiled for this launch
        module = simt.build(self._folder / file, names, source=source, **self._build)
        with simt.ordered(module, self.order):
            module.launch(name, grid, block, *args)

    def write(self, batch: Batch, heads: Heads, kvpos: npt.NDArray[np.int32]) -> Guarded:
        """``rope_kv``: K and V into their pages; returns the queries, halves [T, n_heads, DP]."""
        s, dp = self.spec, shapes.padded_head(self.spec.head_dim)
        queries = Guarded((batch.n_tokens, s.n_heads, dp), np.float16)
        turns, n_rot = None, 0
        if self._rope is not None:
            n_rot = self._rope.n_rot
            angles = np.maximum(kvpos, 0)[:, None] * self._rope.inv_freq.astype(np.float64)
            both = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) * self._rope.mscale
            turns = np.ascontiguousarray(both, np.float32)
        norm_q, norm_k = self._norms if self._norms is not None else (None, None)
        self._launch(
            "rope_kv.cu",
            shapes.rope_kv_name(self.kv_type),
            (batch.n_tokens, s.n_heads + s.n_kv_heads),
            dp,
            *(np.uint64(o) for o in heads.offsets),
            *(i32(ld) for ld in heads.lds),
            *(turns, norm_q, norm_k, f32(1e-5), f32(1e-6)),
            f32(shapes.query_scale(s.scale, s.softcap)[0]),
            queries.array,
            *self._pool_args(),
            *(batch.pages, i32(batch.pages.shape[1]), _row_of(batch), kvpos),
            *(i32(s.n_heads), i32(s.n_kv_heads), i32(s.head_dim), i32(n_rot)),
            i32(self._rope is not None and self._rope.interleaved),
        )
        queries.check()
        self.pool.check()
        return queries

    def _pool_args(self) -> tuple[Any, ...]:
        offsets = (self.page_bytes, self.k_off, self.v_off)
        return (self.pool.array, *(i64(o) for o in offsets))

    def attend(
        self, batch: Batch, queries: Guarded, tile: tuple[int, int], parts: bool, spare: int = 0
    ) -> F32:
        """``attention`` and what follows it: [T, n_heads * head_dim]; ``spare`` blocks too many."""
        s, n = self.spec, batch.n_tokens
        group = s.n_heads // s.n_kv_heads
        rows = range(batch.n_rows)
        news = np.diff(batch.row_start)
        tiles = shapes.query_tiles(batch.row_start.tolist(), group, tile)
        tiles = np.concatenate([tiles, np.full((spare, 2), -1, np.int32)])
        splits = max(shapes.n_splits(int(batch.n_past[r]), int(news[r]), s.window) for r in rows)
        splits += spare
        out = Guarded((n, s.n_heads * s.head_dim), np.float32)
        left = Guarded(shapes.part_floats(splits, n, s.n_heads, s.head_dim), np.float32)
        self._launch(
            "attention.cu",
            shapes.name(s.head_dim, self.kv_type, tile, parts),
            (len(tiles), s.n_kv_heads, splits if parts else 1),
            (32, 4, tile[1]),
            *(queries.array, *self._pool_args(), tiles, batch.row_start, batch.n_past),
            *(batch.pages, i32(batch.pages.shape[1]), i32(n), i32(s.n_heads), i32(s.n_kv_heads)),
            *(i32(s.head_dim), i32(s.window), f32(shapes.query_scale(s.scale, s.softcap)[1])),
            self.sinks,
            left.array if parts else out.array,
        )
        if parts:
            self._merge(batch, left, splits, out)
        if self.kv_type == "q4r":
            dp = shapes.padded_head(s.head_dim)
            args = (out.array, i32(s.head_dim))
            self._launch("rotate_heads.cu", "rotate_heads", (n, s.n_heads), dp, *args)
        left.check()
        out.check()
        return out.array

    def _merge(self, batch: Batch, left: Guarded, splits: int, out: Guarded) -> None:
        s = self.spec
        self._launch(
            "attention.cu",
            shapes.merge_name(s.head_dim),
            (batch.n_tokens, s.n_heads),
            shapes.padded_head(s.head_dim),
            *(left.array, _row_of(batch), places(batch), batch.n_past, i32(splits)),
            *(i32(batch.n_tokens), i32(s.n_heads), i32(s.head_dim), i32(s.window)),
            *(self.sinks, out.array),
        )

    def stored(self, page: int) -> tuple[F32, F32]:
        """K and V of a page as codes and scales give them: [PAGE, n_kv_heads, head_dim]."""
        s = self.spec
        part = shapes.kv_part_bytes(self.kv_type, s.n_kv_heads, s.head_dim)
        raw = self.pool.array[page]
        found = []
        for off, is_k in ((self.k_off, True), (self.v_off, False)):
            heads = raw[off : off + part].reshape(s.n_kv_heads, -1)
            found.append(np.stack([_decode(h, self.kv_type, s.head_dim, is_k) for h in heads], 1))
        return found[0], found[1]


def instances(file: str, head_dim: int) -> tuple[str, ...]:
    """What tests need of a kernel file: every way of working for heads of 64, else one or two."""
    if file == "rope_kv.cu":
        return tuple(shapes.rope_kv_name(t) for t in shapes.KV_CODES)
    if file == "rotate_heads.cu":
        return ()
    kernels = [
        shapes.name(head_dim, kv_type, tile, parts)
        for kv_type in shapes.KV_CODES
        for tile, parts in ways(head_dim)
    ]
    return (*kernels, shapes.merge_name(head_dim))


def ways(head_dim: int) -> list[tuple[tuple[int, int], bool]]:
    """Tiles of queries, and whether splits are blocks of their own: all give the same bits."""
    small, large = (1, 1), shapes.tile_shape(head_dim, 10**6)
    if head_dim == 64:
        return [(small, False), (small, True), (large, False), (large, True)]
    return [(large, False)] if head_dim in (20, 256) else [(small, True)]


def places(batch: Batch) -> npt.NDArray[np.int32]:
    """Each token's place in its sequence."""
    new = np.arange(batch.n_tokens) - np.repeat(batch.row_start[:-1], np.diff(batch.row_start))
    return (new + np.repeat(batch.n_past, np.diff(batch.row_start))).astype(np.int32)


def _row_of(batch: Batch) -> npt.NDArray[np.int32]:
    return np.repeat(np.arange(batch.n_rows), np.diff(batch.row_start)).astype(np.int32)


Q4_LEVELS = np.array(
    [-127, -101, -79, -62, -47, -33, -21, -9, 2, 14, 25, 37, 50, 65, 83, 107], np.float32
)


def _decode(raw: npt.NDArray[np.uint8], kv_type: str, head_dim: int, is_k: bool) -> F32:
    """One head's K or V of a page, [PAGE, head_dim], from the order kv.cuh describes."""
    dims = shapes.padded_head(head_dim)
    blocks = dims // 32
    n_codes = dims * PAGE_SIZE * {"f16": 16, "q8_0": 8, "q4r": 4}[kv_type] // 8
    codes, scales = raw[:n_codes], raw[n_codes:].view(np.float16).reshape(-1, PAGE_SIZE)
    values: npt.NDArray[Any]
    if kv_type == "q4r":
        values = np.stack([codes & 15, codes >> 4], axis=-1)
    else:
        values = codes.view(np.float16 if kv_type == "f16" else np.int8)
    if is_k:
        vector = {"f16": 1, "q8_0": 2 - blocks % 2, "q4r": 4 if blocks % 4 == 0 else 2 - blocks % 2}
        v = vector[kv_type]
        # [token][blocks / v][t][v][8] -> [token][blocks / v][v][t][8]
        found = values.reshape(PAGE_SIZE, blocks // v, 4, v, 8).transpose(0, 1, 3, 2, 4)
    elif kv_type == "q4r":  # [dims / 16][8][token][low or high]
        found = values.reshape(dims // 16, 8, PAGE_SIZE, 2).transpose(2, 0, 3, 1)
    else:
        found = values.reshape(dims, PAGE_SIZE).T
    x = found.reshape(PAGE_SIZE, blocks, 32)
    x = Q4_LEVELS[x] if kv_type == "q4r" else x.astype(np.float32)
    if kv_type != "f16":
        x = x * scales.T.astype(np.float32)[:, :, None]
    return np.ascontiguousarray(x.reshape(PAGE_SIZE, dims)[:, :head_dim])


def random_heads(spec: Attention, n: int, rng: np.random.Generator) -> tuple[F32, F32, F32]:
    """Q, K and V of ``n`` tokens; some keys are loud, which moves the running maximum."""
    shapes_ = [spec.n_heads, spec.n_kv_heads, spec.n_kv_heads]
    q, k, v = (rng.standard_normal((n, h * spec.head_dim), np.float32) for h in shapes_)
    k[:: max(1, n // 7)] *= 3
    return q, k, v


def page_table(rows: Sequence[int], rng: np.random.Generator) -> list[list[int]]:
    """Scattered pages for sequences of these lengths."""
    counts = [-(-n // PAGE_SIZE) for n in rows]
    ids = rng.permutation(sum(counts) + 2)
    return [[int(p) for p in ids[sum(counts[:i]) :][:c]] for i, c in enumerate(counts)]
