"""Answers that later requests may go on from. They live in memory, as long as the server."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Kept", "ResponseStore"]

_MOST = 1024
_MOST_BYTES = 128 << 20


@dataclass(frozen=True)
class Kept:
    """An answer, and all items that led to it: those of earlier requests, too.

    ``size`` in bytes, about.
    """

    response: Mapping[str, Any]
    items: Sequence[Mapping[str, Any]]
    size: int

    @property
    def conversation(self) -> list[Mapping[str, Any]]:
        """What a next request goes on from."""
        return [*self.items, *self.response["output"]]


class ResponseStore:
    """The last answers by id, longest unused out first. Lives on one event loop.

    Bounded by number and by size: an answer counts with the whole conversation before it, though
    it shares most of that with others.
    """

    def __init__(self, most: int = _MOST, most_bytes: int = _MOST_BYTES) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._items: dict[str, Mapping[str, Any]] = {}
        self.size = 0

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, response: Mapping[str, Any], items: Sequence[Mapping[str, Any]]) -> None:
        """Keep an answer; one that is too large alone is not kept."""
        size = len(json.dumps([response, items], ensure_ascii=False, default=str)) * 2
        if size > self._most_bytes:
            return
        self._kept[response["id"]] = Kept(response, items, size)
        self.size += size
        self._items.update((item["id"], item) for item in response["output"])
        while len(self._kept) > self._most or self.size > self._most_bytes:
            self.delete(next(iter(self._kept)))

    def get(self, response_id: str) -> Kept | None:
        """An answer that is kept."""
        if response_id in self._kept:
            self._kept.move_to_end(response_id)
        return self._kept.get(response_id)

    def item(self, item_id: str) -> Mapping[str, Any] | None:
        """An item of the output of an answer that is kept."""
        return self._items.get(item_id)

    def delete(self, response_id: str) -> bool:
        """Forget an answer; whether there was one."""
        kept = self._kept.pop(response_id, None)
        if kept is None:
            return False
        self.size -= kept.size
        for item in kept.response["output"]:
            self._items.pop(item["id"], None)
        return True
