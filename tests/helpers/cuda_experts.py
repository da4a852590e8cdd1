"""Experts on the SIMT engine: the choice and its columns, products with them, the weighed sum; and
in numpy what a choice must be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgerun.backends import cuda_experts as ce
from edgerun.backends import cuda_weights as cw
from edgerun.backends.base import Experts
from edgerun.backends.cuda_lowered import Choice
from helpers import simt
from helpers.cuda_act import Digits
from helpers.cuda_linear import Matrix

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
i32, f32 = np.int32, np.float32

FILE = simt.KERNELS / "experts.cu"


@dataclass
class Columns:
    """Who has which expert: ``expert`` and ``column`` [T, n_used], ``token`` and ``live`` of each
    column, ``items`` of two lists, for blocks of so many ``tiles``."""

    expert: I32
    column: I32
    token: I32
    live: I32
    items: tuple[I32, I32]
    tiles: tuple[int, int]


def chosen(logits: F32, spec: Experts) -> tuple[I32, NDArray[np.float64]]:
    """Experts by rank and their shares, in float64."""
    r = np.where(np.isnan(logits), -np.inf, logits)
    expert = np.argsort(-r, axis=1, kind="stable")[:, : spec.n_used].astype(np.int32)
    x = logits.astype(np.float64)
    with np.errstate(invalid="ignore"):
        if spec.gating == "softmax":
            e = np.exp(x - x.max(axis=1, keepdims=True))
            share = np.take_along_axis(e / e.sum(axis=1, keepdims=True), expert, 1)
            if spec.normalize:
                share = share / share.sum(axis=1, keepdims=True)
        else:
            best = np.take_along_axis(x, expert, 1)
            e = np.exp(best - best[:, :1])
            share = e / e.sum(axis=1, keepdims=True) + 0 * x.sum(axis=1, keepdims=True)
    return expert, share * spec.scale


def columns(expert: I32, n_experts: int, tiles: tuple[int, int]) -> Columns:
    """The columns of a choice, one pair after another; -1 has none."""
    n, used = expert.shape
    choice = Choice(used, n_experts)
    n_columns = ce.n_columns(n, choice)
    token = np.full(n_columns, -1, np.int32)
    column = np.full((n, used), -1, np.int32)
    lists: tuple[list[list[int]], ...] = ([], [])
    at = 0
    for e in range(n_experts):
        pairs = np.argwhere(expert == e)
        for i, (t, rank) in enumerate(pairs):
            token[8 * at + i] = t
            column[t, rank] = 8 * at + i
        for items, step in zip(lists, tiles, strict=True):
            for first in range(0, len(pairs), 8 * step):
                items.append([e, at + first // 8, min(len(pairs) - first, 8 * step), 0])
        at += -(-len(pairs) // 8)
    assert 8 * at <= n_columns
    full = []
    for items, step in zip(lists, tiles, strict=True):
        most = ce.most_items(n, choice, 8 * step)
        assert len(items) <= most
        rest = [[-1, 0, 0, 0]] * (most - len(items))
        full.append(np.array(items + rest, np.int32).reshape(-1, 4))
    live = np.where(token >= 0, np.arange(n_columns), -1).astype(np.int32)
    return Columns(expert, column, token, live, (full[0], full[1]), tiles)


def route(
    m: simt.Module, logits: F32, spec: Experts, tiles: tuple[int, int] = (1, 2),
    kvpos: I32 | None = None,
) -> tuple[Columns, F32]:  # fmt: skip
    """What the kernels choose, and the shares."""
    n, k = len(logits), spec.n_used
    choice = Choice(k, spec.n_experts)
    n_columns, words = ce.n_columns(n, choice), ce.n_words(n)
    n_items = [ce.most_items(n, choice, 8 * t) for t in tiles]
    wide = np.full((n, spec.n_experts + 3), np.nan, np.float32)
    wide[:, : spec.n_experts] = logits

    def room(*shape: int, dtype: Any = np.int32) -> simt.Guarded:
        return simt.Guarded(shape, dtype, fill=0x5A)  # no number that a kernel might write

    expert, column = room(n, k), room(n, k)
    share = room(n, k, dtype=np.float32)
    mask, token, live = room(words, spec.n_experts), room(n_columns), room(n_columns)
    items = [room(count, 4) for count in n_items]
    counts = (
        *(x.array for x in (column, token, live, *items)), i32(n), i32(spec.n_experts), i32(k),
        i32(n_columns), i32(tiles[0]), i32(n_items[0]), i32(tiles[1]), i32(n_items[1]),
    )  # fmt: skip
    of_all = spec.gating == "softmax"
    m.launch(
        "route", words, ce.route_block(n), wide, i32(wide.shape[1]), kvpos, i32(of_all),
        i32(spec.normalize or not of_all), f32(spec.scale), expert.array, share.array, mask.array,
        *counts,
    )  # fmt: skip
    if words > 1:
        m.launch("place", words, 256, expert.array, mask.array, *counts)
    for x in (expert, column, share, mask, token, live, *items):
        x.check()
    found = Columns(expert.array, column.array, token.array, live.array,
                    (items[0].array, items[1].array), tiles)  # fmt: skip
    return found, share.array


def total(
    m: simt.Module, parts: F32, column: I32, share: F32, residual: F32 | None = None
) -> F32:  # fmt: skip
    """The weighed sums, [T, width]."""
    (n, k), width = column.shape, parts.shape[1]
    out = simt.Guarded((n, width), np.float32)
    grid = (n, -(-width // 1024))
    m.launch(
        "sum_experts", grid, 256, parts, i32(width), column, share, residual, i32(width),
        out.array, i32(width), i32(k), i32(width),
    )  # fmt: skip
    out.check()
    return out.array


class Stack:
    """Experts' matrices behind one another, of ``rows`` [n_experts, n, row bytes] and perhaps
    ``ups``, the other halves of pairs."""

    def __init__(self, m: simt.Module, t: int, rows: U8, k: int, ups: U8 | None = None) -> None:
        self.m, self.t, self.k, self.n = m, int(t), k, rows.shape[1]
        others = [None] * len(rows) if ups is None else list(ups)
        #: Each expert alone.
        self.experts = [Matrix(m, t, r, k, up) for r, up in zip(rows, others, strict=True)]
        self.tiles = self.experts[0].tiles
        whole = np.concatenate([e.data.array for e in self.experts])
        self.data = simt.Guarded(whole.shape, np.uint8)
        self.data.array[:] = whole

    def product(self, choice: Columns, n: int | None = None) -> ce.Product:
        """The kernel for ``n`` tokens, if not the choice's own number, cut for the choice."""
        tokens, used = choice.expert.shape
        experts = Choice(used, len(self.experts))
        found = ce.product(self.t, self.tiles, self.k, n or tokens, experts)
        grid = (found.shape.grid[0], ce.most_items(tokens, experts, 8 * found.tiles))
        return found._replace(shape=found.shape._replace(grid=grid))

    def run(
        self, x: F32, choice: Columns, bias: F32 | None = None, bias_up: F32 | None = None,
        epilogue: cw.Epilogue = cw.Epilogue.STORE, product: ce.Product | None = None,
    ) -> F32:  # fmt: skip
        """y [columns, n] for the tokens' ``x``; what is no column holds what it held before."""
        found = product or self.product(choice)
        items = choice.items[choice.tiles.index(found.tiles)]
        columns = np.where(choice.token[:, None] >= 0, x[choice.token], np.float32(np.nan))
        y = simt.Guarded((len(columns), self.n), np.float32)
        g, tail = found.shape, (i32(self.n), i32(self.n), i32(epilogue))
        front: tuple[Any, ...] = (items, bias, bias_up, y.array, i32(self.tiles))
        if cw.takes(self.t) == "f32":
            sizes = (i32(self.k), i32(self.k))
            self.m.launch(g.name, g.grid, g.block, self.data.array, columns, *front, *sizes, *tail)
        else:
            act = simt.Guarded(cw.act_bytes(self.k, len(columns)), np.uint8)
            act.array[:] = Digits(columns).packed()
            sizes = (i32(-(-self.k // 64)),)
            self.m.launch(
                g.name, g.grid, g.block, self.data.array, act.array, *front, *sizes, *tail
            )
        y.check()
        return y.array
