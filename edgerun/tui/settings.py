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


class Remembered:
    """Settings by name, over a store; None or "" = never set."""

    def __init__(self, store: Keeper) -> None:
        self._store = store

    def _text(self, key: str) -> str:
        value = self._store.get(key)
        return value if isinstance(value, str) else ""

    @property
    def theme(self) -> str | None:
        """The name of a theme, which may be gone by now: see :func:`edgerun.tui.themes.choose`."""
        return self._text("theme") or None

    @theme.setter
    def theme(self, name: str) -> None:
        self._store.set("theme", name)

    def model(self, where: str = "") -> str | None:
        """The model that answered last: in this process, or behind the address ``where``."""
        known = self._store.get("models")
        name = known.get(where) if isinstance(known, dict) else None
        return name if isinstance(name, str) and name else None

    def set_model(self, name: str, where: str = "") -> None:
        known = self._store.get("models")
        self._store.set("models", {**(known if isinstance(known, dict) else {}), where: name})

    def sampling(self, base: Settings, given: Collection[str] = ()) -> Settings:
        """``base`` with what was set in the sampling panel, but for the knobs in ``given``, which
        the command line has set."""
        saved = self._store.get("sampling")
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
        self._store.set("sampling", {k.name: knobs.value(k, settings) for k in changed})
