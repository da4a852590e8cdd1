"""The model that answers, from being asked for to being ready, or not. No widget."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from edgerun.errors import EdgerunError, printable
from edgerun.tui.partner import About, Partner

__all__ = ["ModelKeeper", "State"]

State: TypeAlias = Literal["none", "loading", "ready", "failed"]


class ModelKeeper:
    """Loads models, one at a time: who asks for another ends the load that is under way.

    Args:
        partner: who loads.
        changed: told of each change of what is below.

    Attributes:
        target: what was asked for last; None = the default model.
        stage, done, total: of a load: ``pull`` or ``load``, and bytes.
        error: what went wrong with the last load, one line; in state ``ready`` the model from
            before answers.
    """

    def __init__(self, partner: Partner, changed: Callable[[], None]) -> None:
        self.partner, self._changed = partner, changed
        self.state: State = "none"
        self.target: str | None = None
        self.error = ""
        self.stage, self.done, self.total = "", 0, None  # type: tuple[str, int, int | None]
        self._task: asyncio.Task[None] | None = None
        self._began, self._first = 0.0, 0

    @property
    def about(self) -> About | None:
        return self.partner.about if self.state == "ready" else None

    @property
    def ready(self) -> bool:
        return self.state == "ready"

    @property
    def share(self) -> float | None:
        """How much of the stage is done, 0 to 1; None = not known."""
        return min(self.done / self.total, 1.0) if self.total else None

    @property
    def per_second(self) -> float | None:
        """Bytes a second of a pull; None as long as that cannot be told."""
        seconds = time.monotonic() - self._began
        fetched = self.done - self._first
        return fetched / seconds if self.stage == "pull" and seconds > 1 and fetched > 0 else None

    def load(self, target: str | None) -> asyncio.Task[None]:
        """Begin; what happens is told by ``state``."""
        if self._task is not None:
            self._task.cancel()
        self.target, self.state, self.error = target, "loading", ""
        self.stage, self.done, self.total = "", 0, None
        self._task = asyncio.ensure_future(self._load(target, self._task))
        self._changed()
        return self._task

    def cancel(self) -> bool:
        """End a load; whether there was one."""
        if self.state != "loading" or self._task is None:
            return False
        self._task.cancel()
        return True

    async def _load(self, target: str | None, before: asyncio.Task[None] | None) -> None:
        me = asyncio.current_task()

        def progress(stage: str, done: int, total: int | None) -> None:
            if self._task is not me:
                return
            if stage != self.stage:
                self.stage, self._began, self._first = stage, time.monotonic(), done
            self.done, self.total = done, total
            self._changed()

        try:
            if before is not None:
                await asyncio.wait({before})
            await self.partner.load(target, progress)
        except asyncio.CancelledError:
            self._end(me, "failed", "the load was cancelled")
        except EdgerunError as e:
            self._end(me, "failed", printable(e, 600))
        except Exception as e:
            import logging

            logging.getLogger(__name__).exception("loading a model failed")
            self._end(me, "failed", printable(f"unexpected {type(e).__name__}: {e}", 600))
        else:
            self._end(me, "ready", "")

    def _end(self, task: asyncio.Task[None] | None, state: State, error: str) -> None:
        if self._task is task:
            if state == "failed" and self.partner.about is not None:
                state = "ready"  # the one before is still there
            self.state, self.error = state, error
            self._changed()
