"""What all actions stand on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edgerun.tui.conversation import Conversation
from edgerun.tui.partner import Choice

if TYPE_CHECKING:
    from edgerun.tui.app import ChatApp
    from edgerun.tui.screens.knobs import Settings
    from edgerun.tui.screens.panel import ListPanel
    from edgerun.tui.screens.pulls import Pulls
    from edgerun.tui.store import Store
    from edgerun.tui.talk import Talk

__all__ = ["Base", "filtered"]


class Base:
    """
    Attributes:
        used, estimate: tokens of the chat as shown, None = not known; counted, not used.
        computed: tokens that the model had computed when the turn began.
    """

    def __init__(self, app: ChatApp) -> None:
        self.app = app
        self.used: int | None = None
        self.estimate = False
        self.computed: int | None = None
        self._pulls: Pulls | None = None
        self._choices: list[Choice] = []
        self._counting = 0

    @property
    def talk(self) -> Talk:
        assert self.app.talk is not None
        return self.app.talk

    @property
    def store(self) -> Store:
        return self.talk.store

    @property
    def chat(self) -> Conversation:
        return self.talk.conversation

    def _now(self) -> Settings:
        return self.talk.params, self.talk.options

    def tell(self, text: str, *, bad: bool = False) -> None:
        self.app.tell(text, bad=bad)

    def recount(self) -> None:
        """The tokens of the chat as it is shown: what the model said, or a count."""
        raise NotImplementedError


def filtered(app: ChatApp, screen: ListPanel[Any], words: str) -> None:
    """Once ``screen`` is there, filter it."""

    def go() -> None:
        screen.filter.value = words
        screen.filter.cursor_position = len(words)

    if words:
        app.call_after_refresh(go)
