"""The cases attention kernels are held to: heads that fill no block, groups that fill no tile,
windows and soft-caps, every storage of K and V.

A row is ``(n_heads, n_kv_heads, head_dim, window, softcap, n_rot, interleaved, normed)``.
"""

from __future__ import annotations

KV_TYPES = ("f16", "q8_0", "q4r")

ATTENTION: tuple[tuple[int, int, int, int, float, int, bool, bool], ...] = (
    (3, 1, 64, 0, 0.0, 64, False, False),
    (2, 2, 64, 70, 0.0, 32, True, True),
    (20, 1, 64, 300, 30.0, 0, False, False),  # a token's queries fill more than one tile
    (3, 1, 20, 0, 0.0, 20, False, True),  # most of a block of 32 is padding
    (2, 1, 80, 0, 0.0, 80, True, False),  # an odd number of blocks, which four warps share unevenly
    (4, 2, 128, 40, 0.0, 128, False, True),
    (4, 1, 256, 0, 50.0, 256, False, True),
)
