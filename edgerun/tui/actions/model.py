"""What is done with models, and how they are asked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from edgerun.errors import EdgerunError, RequestError, printable
from edgerun.tui.actions.base import Base
from edgerun.tui.sight import in_context
from edgerun.tui.text import one_line

if TYPE_CHECKING:
    from edgerun.tui.screens.knobs import Knob, Settings
    from edgerun.tui.screens.pulls import Pull, Pulls

__all__ = ["EFFORTS", "ModelActions"]

EFFORTS = ("auto", "none", "minimal", "low", "medium", "high")
_SHORT = {"temp": "temperature", "t": "temperature", "n": "max_tokens", "max": "max_tokens",
          "rep": "repeat_penalty", "think": "reasoning_effort"}  # fmt: skip


class ModelActions(Base):
    """Commands of the group "Model"."""

    def do_model(self, rest: str) -> None:
        if rest:
            self.change_model(rest)
            return
        from edgerun.tui.screens.models import ModelScreen

        keeper = self.talk.keeper
        current = keeper.about.model if keeper.about else ""
        self.app.push_screen(
            ModelScreen(keeper.partner.choices, self.pulls, current),
            lambda target: self.change_model(target) if target else None,
        )

    def change_model(self, target: str) -> None:
        """Once the turn, which is stopped, has ended. A name that means nothing stops none."""
        if self.talk.busy:
            self.app.run_worker(self._change_model(target), group="model", exclusive=True)
        else:  # then loading says so
            self.talk.keeper.load(target)

    async def _change_model(self, target: str) -> None:
        keeper = self.talk.keeper

        def go() -> None:
            keeper.load(target)

        try:
            await keeper.partner.check(target)
        except EdgerunError as e:
            self.tell(printable(e, 400), bad=True)
        else:
            self.talk.when_stopped(go)

    @property
    def pulls(self) -> Pulls:
        """The downloads beside the chat."""
        if self._pulls is None:
            from edgerun.tui.screens.pulls import Pulls

            self._pulls = Pulls(self.talk.keeper.partner.pull, self._pulled)
        return self._pulls

    @property
    def pulling(self) -> bool:
        return self._pulls is not None and bool(self._pulls.running)

    def _pulled(self, pull: Pull) -> None:
        if pull.state == "done":
            self.tell(f"{one_line(pull.name)} is here: /model {one_line(pull.target)} uses it")
        elif pull.state == "failed":
            named = "" if pull.name in pull.error else f"{one_line(pull.name)}: "
            self.tell(named + pull.error, bad=True)
        self.app.stage.show_state()

    async def close(self) -> None:
        """End the downloads."""
        if self._pulls is not None:
            await self._pulls.close()

    def do_pull(self, rest: str) -> None:
        self.pulls.start(rest, rest)
        self.tell(f"fetching {printable(rest, 80)}; the chat goes on")

    def do_set(self, rest: str) -> None:
        from edgerun.tui.screens import knobs

        if rest:
            name, _, value = rest.replace("=", " ", 1).partition(" ")
            knob = _knob(name)
            if not value.strip():
                self.tell(f"{knob.name} is {knobs.shown(knob, self._now())}: {knob.help}")
                return
            now = knobs.put(knob, self._now(), knobs.read(knob, value.strip()))
            self._set(now)
            self.tell(f"{knob.name} is {knobs.shown(knob, now)}, from the next answer on")
            return
        from edgerun.tui.screens.sampling import SamplingScreen

        self.app.push_screen(SamplingScreen(self._now(), self._set))

    def _set(self, settings: Settings) -> None:
        shifted = self.talk.params.context_shift
        self.talk.params, self.talk.options = settings
        if self.talk.params.context_shift is not shifted and not self.talk.busy:
            self.recount()
        if self.app.remembered is not None:
            self.app.remembered.set_sampling(settings)

    def do_think(self, rest: str) -> None:
        self.do_set(f"reasoning_effort {rest}".strip())

    def do_system(self, rest: str) -> None:
        if rest:
            self._system("" if rest in ("-", "none") else rest)
            return
        self.app.run_worker(self._pick_system(), group="presets", exclusive=True)

    async def _pick_system(self) -> None:
        from edgerun.tui.screens.presets import PresetScreen

        known = await asyncio.to_thread(self.store.presets)
        self.app.push_screen(
            PresetScreen(self.store, known, self.chat.system),
            lambda preset: self._system(preset.text) if preset else None,
        )

    def _system(self, text: str) -> None:
        self.chat.system = text
        if self.chat.messages:
            self.store.save(self.chat)
        self.recount()
        self.tell("system prompt set, from the next answer on" if text else "no system prompt")

    def do_stats(self, rest: str) -> None:
        self._panel("Figures", "stats")

    def do_tokens(self, rest: str) -> None:
        self._panel("Context", "tokens")

    def _panel(self, title: str, what: str) -> None:
        from edgerun.tui import figures

        self.app.run_worker(figures.show(self.app, title, what), group="figures", exclusive=True)

    def recount(self) -> None:
        """The tokens of the chat as it is shown: what the model said, or a count."""
        path = self.chat.path()
        self.computed = self.talk.keeper.partner.live().computed
        last = path[-1] if path else None
        usage = last.usage if last is not None and last.role == "assistant" else None
        if usage is not None and usage.prompt_tokens:  # a server may not have come to say it
            used = in_context(self.talk, usage)
            self.used, self.estimate = used, False
            return
        self.used, self.estimate = None, True
        self._counting += 1
        if (path or self.chat.system) and self.talk.keeper.ready:
            self.app.run_worker(self._count(self._counting), group="count", exclusive=True)

    async def _count(self, number: int) -> None:
        used = await self.talk.keeper.partner.count_prompt(self.chat.wire(), self.talk.params)
        if number == self._counting and self.estimate:
            self.used = used
            self.app.stage.show_state()


def _knob(name: str) -> Knob:
    from edgerun.tui.screens.knobs import KNOBS

    wanted = _SHORT.get(name, name).replace("-", "_").lower()
    hits = [k for k in KNOBS if k.name == wanted] or [
        k for k in KNOBS if k.name.replace("_", "").startswith(wanted.replace("_", ""))
    ]
    if len(hits) != 1:
        known = ", ".join(k.name for k in KNOBS)
        raise RequestError(f"no setting {printable(name, 40)!r}: {known}")
    return hits[0]
