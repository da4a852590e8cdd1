"""How many tokens a step may compute so that it takes no longer than it should."""

from __future__ import annotations

from collections import deque
from statistics import median

__all__ = ["StepCost"]

_KEPT = 9  # measurements of one width
_FRESH = 256  # steps after which a width that was not seen again is forgotten


class StepCost:
    """Learns what a step costs, as ``seconds = fixed + each * tokens``.

    Widths are sorted into classes, a factor of two wide. Each keeps its last few measurements, and
    their median stands for it: one step that the machine was busy with something else does not
    count. The line goes through the medians of the classes, each weighing the same, by least
    squares of the relative error; it never falls with the width. Old classes are forgotten: a
    step costs more as contexts grow.
    """

    def __init__(self) -> None:
        self._classes: dict[int, deque[tuple[int, float]]] = {}
        self._seen: dict[int, int] = {}
        self._n = 0
        self._line: tuple[float, float] | None = None

    @property
    def n(self) -> int:
        """Steps measured."""
        return self._n

    def add(self, tokens: int, seconds: float) -> None:
        """Note one step of ``tokens`` >= 1 tokens."""
        key = tokens.bit_length()
        self._n += 1
        self._classes.setdefault(key, deque(maxlen=_KEPT)).append((tokens, seconds))
        self._seen[key] = self._n
        self._line = None

    def seconds(self, tokens: int) -> float | None:
        """What a step of ``tokens`` tokens is expected to take; None before any was seen."""
        line = self._fit()
        return None if line is None else line[0] + line[1] * tokens

    def within(self, seconds: float) -> int | None:
        """The most tokens that are expected to take at most ``seconds``; None if unknown.

        A step may always take half as long again as its fixed part: on a slow machine that alone
        may be longer than ``seconds``, and tokens must get in. Widths far beyond any that was
        measured are not promised: at most twice the widest.
        """
        line = self._fit()
        if line is None:
            return None
        fixed, each = line
        widest = max(t for points in self._classes.values() for t, _ in points)
        room = max(seconds - fixed, fixed / 2)
        return 2 * widest if each * 2 * widest <= room else int(room / each)

    def _fit(self) -> tuple[float, float] | None:
        if self._line is None and self._n:
            for key in [k for k, n in self._seen.items() if self._n - n > _FRESH]:
                del self._classes[key], self._seen[key]
            points = [
                (median(t for t, _ in c), median(s for _, s in c)) for c in self._classes.values()
            ]
            self._line = _line(points)
        return self._line


def _line(points: list[tuple[float, float]]) -> tuple[float, float]:
    """``fixed`` and ``each``, neither negative, of the line that is least wrong in proportion."""
    # Weights 1/y^2 make the errors relative: short steps matter as much as long ones.
    w = [1.0 / max(y, 1e-9) ** 2 for _, y in points]
    total = sum(w)
    mx = sum(wi * x for wi, (x, _) in zip(w, points, strict=True)) / total
    my = sum(wi * y for wi, (_, y) in zip(w, points, strict=True)) / total
    sxx = sum(wi * (x - mx) ** 2 for wi, (x, _) in zip(w, points, strict=True))
    sxy = sum(wi * (x - mx) * (y - my) for wi, (x, y) in zip(w, points, strict=True))
    each = max(0.0, sxy / sxx) if sxx > 0 else 0.0
    if sxx == 0 or my - each * mx < 0:  # one width, or a line through zero fits better
        each = sum(wi * x * y for wi, (x, y) in zip(w, points, strict=True)) / sum(
            wi * x * x for wi, (x, _) in zip(w, points, strict=True)
        )
        return 0.0, each
    return my - each * mx, each
