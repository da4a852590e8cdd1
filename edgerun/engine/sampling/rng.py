"""Counter-based random numbers: what is drawn depends on the seed and the token's position alone.

Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC'11). There is no state to carry, so a request draws the same numbers whatever else is in the
batch, whether drafts were verified or not, and after a pause.
"""

from __future__ import annotations

__all__ = ["draws", "philox4x32"]

_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_U32 = 0xFFFFFFFF


def philox4x32(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> tuple[int, int, int, int]:
    """Four random 32-bit words for a 128-bit counter and a 64-bit key, each in 32-bit words."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & _U32, (a >> 32) ^ c3 ^ k1, a & _U32
        k0, k1 = (k0 + _W0) & _U32, (k1 + _W1) & _U32
    return c0, c1, c2, c3


def draws(seed: int, position: int, stream: int = 0) -> tuple[float, float]:
    """Two independent uniform numbers in [0, 1), 53 bits each, for one emitted token.

    The first picks the token; the second is the coin XTC flips. Seeds are taken modulo 2**64,
    so negative ones are distinct from the positive ones.

    Args:
        seed: the request's.
        position: how many tokens the request emitted before this one.
        stream: which of a request's samples; each draws numbers of its own.
    """
    a, b, c, d = philox4x32(
        (position & _U32, (position >> 32) & _U32, stream & _U32, 0),
        (seed & _U32, (seed >> 32) & _U32),
    )
    scale = 2.0**-53
    return ((a >> 5) << 26 | b >> 6) * scale, ((c >> 5) << 26 | d >> 6) * scale
