"""The shapes attention's kernels work in: bytes of a page, tiles of queries, splits of a sequence.

Plain integers, shared by the backend and the tests of ``kernels_cuda/attention.cu``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgerun.backends.base import PAGE_SIZE

__all__ = [
    "KV_CODES",
    "MAX_HEAD_DIM",
    "SPLIT",
    "kv_part_bytes",
    "merge_name",
    "n_splits",
    "name",
    "padded_head",
    "part_floats",
    "query_scale",
    "query_tiles",
    "rope_kv_name",
    "tile_shape",
]

#: Dimensions of the longest head that attention takes.
MAX_HEAD_DIM = 512
#: Tokens in a split: attention.cu's SPLIT.
SPLIT = 256
#: kv.cuh's KvType.
KV_CODES = {"f16": 0, "q8_0": 1, "q4r": 2}
_BITS = {"f16": 16, "q8_0": 8, "q4r": 4}
#: ``attention`` reads this many rows of queries at a time.
_TILE = 16
_LOG2_E = 1 / math.log(2)


def padded_head(head_dim: int) -> int:
    """Dimensions of a head as stored: whole blocks of 32."""
    return -(-head_dim // 32) * 32


def kv_part_bytes(kv_type: str, n_kv_heads: int, head_dim: int) -> int:
    """Bytes of K (and of V) of one layer in one page."""
    dims = padded_head(head_dim)
    scales = 0 if kv_type == "f16" else dims // 32 * PAGE_SIZE * 2
    return n_kv_heads * (dims * PAGE_SIZE * _BITS[kv_type] // 8 + scales)


def query_scale(scale: float, softcap: float) -> tuple[float, float]:
    """What queries are multiplied by, and ``attention``'s softcap argument: scores come out as
    exponents of two."""
    if softcap > 0:
        return 2 * _LOG2_E * scale / softcap, softcap * _LOG2_E
    return scale * _LOG2_E, 0.0


def tile_shape(head_dim: int, most_queries: int) -> tuple[int, int]:
    """``(MT, GROUPS)`` for rows of at most this many queries (tokens times heads of a KV head):
    what a thread's registers and 48 KiB of shared memory hold."""
    if most_queries <= _TILE or head_dim > 256:
        return 1, 1
    return (2 if head_dim <= 128 else 1), 2


def query_tiles(
    row_start: Sequence[int], group: int, tile: tuple[int, int], n_tiles: int | None = None
) -> npt.NDArray[np.int32]:
    """Rows of the batch and first queries of the tiles, int32 [n_tiles, 2], padded with -1."""
    step = _TILE * tile[0] * tile[1]
    found = [
        (row, q)
        for row in range(len(row_start) - 1)
        for q in range(0, (row_start[row + 1] - row_start[row]) * group, step)
    ]
    tiles = np.full((len(found) if n_tiles is None else n_tiles, 2), -1, np.int32)
    tiles[: len(found)] = np.array(found, np.int32).reshape(-1, 2)
    return tiles


def n_splits(n_past: int, n: int, window: int) -> int:
    """Splits that ``n`` new tokens after ``n_past`` see any of."""
    first = (n_past - window + 1) // SPLIT if 0 < window <= n_past else 0
    return (n_past + max(n, 1) - 1) // SPLIT + 1 - first


def part_floats(splits: int, n_tokens: int, n_heads: int, head_dim: int) -> int:
    """Floats that the splits of a step leave for ``attention_merge``."""
    return splits * n_tokens * n_heads * (padded_head(head_dim) + 2)


def rope_kv_name(kv_type: str) -> str:
    """The kernel that writes K and V of this type."""
    return f"rope_kv<{KV_CODES[kv_type]}>"


def name(head_dim: int, kv_type: str, tile: tuple[int, int], parts: bool) -> str:
    """The attention kernel for these heads and this storage."""
    return (
        f"attention<{padded_head(head_dim)},{KV_CODES[kv_type]},{tile[0]},{tile[1]},{int(parts)}>"
    )


def merge_name(head_dim: int) -> str:
    """The kernel that folds what ``parts`` left."""
    return f"attention_merge<{padded_head(head_dim)}>"
