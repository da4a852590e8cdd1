"""How many answers may be asked for at a time."""

from __future__ import annotations

from collections.abc import Callable

from edgerun.server.errors import OverloadedError

__all__ = ["Queue"]


class Queue:
    """Counts the answers each model owes, and refuses more than may wait.

    ``places`` run at once, ``most`` more may wait; None = any number.
    """

    def __init__(self, places: int, most: int | None) -> None:
        self._limit = None if most is None else places + most
        self._owed: dict[str, int] = {}

    @property
    def owed(self) -> int:
        """Answers under way, of all models."""
        return sum(self._owed.values())

    def enter(self, model: str, n: int) -> Callable[[], None]:
        """Count ``n`` more answers; what takes them off again.

        Raises:
            OverloadedError: that is too many. A model that owes nothing takes any number.
        """
        owed = self._owed.get(model, 0)
        if self._limit is not None and owed and owed + n > self._limit:
            raise OverloadedError(owed, self._limit)
        self._owed[model] = owed + n

        def leave() -> None:
            self._owed[model] -= n
            if not self._owed[model]:
                del self._owed[model]

        return leave
