"""What the chat remembers between runs: theme, model, sampling.

Whatever stands in the database was written by another version, or by hand: a value that is not what
it should be counts as never set, one by one.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Protocol

from edgerun.errors import RequestError
from edgerun.tui.screens import knobs
from edgerun.tui.screens.knobs import KNOBS, Settings

__all__ = ["Keeper", "Remembered"]


class Keeper(Protocol):
    """What this needs of :class:`~edgerun.tui.store.Store`."""

    def get(self, key: str, default: Any = None) -> Any: ...
    def set(self, key: str, value: Any) -> None: ...
    def set_part(self, key: str, part: str, value: Any) -> None: ...


class Remembered:
    """Settings by name, over a store; None or "" = never set.

    Making one reads all that is kept, which may wait for a disk: on a thread. After that nothing
    waits for anything.
    """

    def __init__(self, store: Keeper) -> None:
        self._store = store
        self._known = {key: store.get(key) for key in ("theme", "models", "sampling")}
        if not isinstance(self._known["models"], dict):
            self._known["models"] = {}

    @property
    def theme(self) -> str | None:
        """The name of a theme, which may be gone by now: see :func:`edgerun.tui.themes.choose`."""
        name = self._known["theme"]
        return name if isinstance(name, str) and name else None

    @theme.setter
    def theme(self, name: str) -> None:
        self._known["theme"] = name
        self._store.set("theme", name)

    def model(self, where: str = "") -> str | None:
        """The model that answered last: in this process, or behind the address ``where``."""
        name = self._known["models"].get(where)
        return name if isinstance(name, str) and name else None

    def set_model(self, name: str, where: str = "") -> None:
        self._known["models"][where] = name
        self._store.set_part("models", where, name)

    def sampling(self, base: Settings, given: Collection[str] = ()) -> Settings:
        """``base`` with what was set in the sampling panel, but for the knobs in ``given``, which
        the command line has set."""
        saved = self._known["sampling"]
        if not isinstance(saved, dict):
            return base
        for knob in KNOBS:
            value = saved.get(knob.name)
            if value is None or knob.name in given:
                continue
            try:
                base = knobs.put(knob, base, value)
            except RequestError:
                continue
        return base

    def set_sampling(self, settings: Settings) -> None:
        """Remember the knobs that are not at their default."""
        changed = [k for k in KNOBS if knobs.changed(k, settings)]
        self._known["sampling"] = {k.name: knobs.value(k, settings) for k in changed}
        self._store.set("sampling", self._known["sampling"])
