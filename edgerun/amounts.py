"""Amounts in words, the same wherever a person reads them."""

from __future__ import annotations

__all__ = ["size_text"]


def size_text(n: int, digits: int = 3) -> str:
    """Bytes in powers of ten, as disks and catalogues count them: ``98.3 MB``, ``4.68 GB``.

    Args:
        n: bytes; fewer than 1000 are given one by one, ``999 B``.
        digits: figures of a larger number; those before the point stay in any case.
    """
    if n < 1000:
        return f"{n} B"
    for power, unit in enumerate(("kB", "MB", "GB", "TB"), 1):  # noqa: B007 (used after the loop)
        if n < 999.5 * 1000.0**power:
            break
    for decimals in range(digits - 1, -1, -1):
        text = f"{n / 1000.0**power:.{decimals}f}"
        if len(text) <= digits + 1:  # a point among them
            break
    return f"{text} {unit}"
