"""Panels of figures: how fast the answers were, and what fills the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edgerun.amounts import size_text
from edgerun.tui.conversation import Message
from edgerun.tui.screens.help import HelpScreen, Section
from edgerun.tui.status import count_text, left_out
from edgerun.tui.text import fit, one_line

if TYPE_CHECKING:
    from edgerun.tui.app import ChatApp
    from edgerun.tui.talk import Talk

__all__ = ["Figures", "show", "stats", "tokens"]


class Figures(HelpScreen):
    """A list of figures, filtered as one types."""

    PLACEHOLDER = "filter"

    def __init__(self, title: str, sections: Sequence[Section]) -> None:
        self.NAME = title
        super().__init__(sections)

    def empty(self, words: list[str]) -> str:
        return "no such figure" if words else "nothing has been said yet"


async def show(app: ChatApp, title: str, what: str) -> None:
    """Open the panel ``what``: "stats" or "tokens"."""
    assert app.talk is not None
    made = stats(app.talk) if what == "stats" else await tokens(app.talk)
    app.push_screen(Figures(title, [s for s in made if s.rows]))


def stats(talk: Talk) -> list[Section]:
    """Of the model, this process, and each answer."""
    keeper = talk.keeper
    about, live = keeper.about, keeper.partner.live()
    model: list[tuple[str, str]] = []

    def add(rows: list[tuple[str, str]], name: str, value: Any, text: str) -> None:
        if value not in (None, "", 0):
            rows.append((name, text))

    if about is not None:
        add(model, "model", about.model, about.model)
        add(model, "backend", about.backend, about.backend)
        add(model, "other runtime", about.fallback, str(about.fallback))
        add(model, "address", about.where, about.where)
        add(model, "size", about.size, size_text(about.size or 0, 2))
        add(model, "context", about.n_ctx, f"{about.n_ctx} tokens")
    add(model, "memory", live.memory, size_text(live.memory or 0, 2))
    if live.acceptance is not None:
        model.append(("drafts", f"{live.acceptance:.0%} of guessed tokens were right"))
    add(model, "cached", live.cached, f"{live.cached} tokens of context kept for what comes next")
    answers = [m for m in talk.conversation.path() if m.role == "assistant"]
    return [
        Section("Model", model),
        Section("Answers, newest first", [answer_row(m) for m in reversed(answers)]),
    ]


def answer_row(m: Message) -> tuple[str, str]:
    """What is known of one answer."""
    t, u = m.timings, m.usage
    said = []
    if u is not None:
        if u.prompt_tokens:
            said.append(f"{u.prompt_tokens} in")
        if u.cached_tokens:
            said.append(f"{u.cached_tokens} cached")
        if u.left_out:
            said.append(left_out(u.left_out))
        said.append(f"{u.completion_tokens} out")
        if u.reasoning_tokens:
            said.append(f"{u.reasoning_tokens} of them thinking")
    if t is not None:
        if t.prefill_per_second:
            said.append(f"read {t.prefill_per_second:.1f} t/s")
        if t.decode_per_second:
            said.append(f"wrote {t.decode_per_second:.1f} t/s")
        said.append(f"first word after {t.queued + t.prefill:.2f} s")
    if m.state != "done":
        said.append(m.state)
    return fit(one_line(m.text) or "(empty)", 24), " · ".join(said)


async def tokens(talk: Talk) -> list[Section]:
    """What fills the context."""
    partner, c = talk.keeper.partner, talk.conversation
    n_ctx = talk.keeper.about.n_ctx if talk.keeper.about else None
    sent, whole = c.wire(), None
    if talk.keeper.ready and sent:
        whole = await partner.count_prompt(sent, talk.params)
    total = []
    if whole is not None:
        share = f", {whole / n_ctx:.0%} of {count_text(n_ctx)}" if n_ctx else ""
        total.append(("in all", f"{whole} tokens as the model reads them{share}"))
        if n_ctx:
            total.append(("left", f"{max(n_ctx - whole, 0)} tokens for questions and answers"))
    rows = []
    if c.system:
        rows.append(("system prompt", await _size(talk, c.system)))
    for m in c.path():
        rows.append((f"{m.role}", f"{await _size(talk, m.text)}   {fit(one_line(m.text), 60)}"))
        rows += [
            ("  file", f"{await _size(talk, a.text)}   {one_line(a.path)}") for a in m.attachments
        ]
    return [Section("Context", total), Section("Messages", rows)]


async def _size(talk: Talk, text: str) -> str:
    n = await talk.keeper.partner.count(text) if talk.keeper.ready else None
    return f"{n:>6} tokens" if n is not None else f"{len(text):>6} characters"
