"""What is to be seen of the model and the turn, in words. No widget."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from edgerun.amounts import size_text
from edgerun.tui.status import Facts, count_text

if TYPE_CHECKING:
    from edgerun.core import Usage
    from edgerun.tui.conversation import Message
    from edgerun.tui.keeper import ModelKeeper
    from edgerun.tui.talk import Talk

__all__ = ["Counts", "facts", "in_context", "notice", "welcome"]


class Counts(Protocol):
    """``used``: tokens of the path shown, None = not known; ``estimate``: counted, not used.
    ``computed``: the model's count of tokens when the turn began."""

    used: int | None
    estimate: bool
    computed: int | None


def last_answer(talk: Talk) -> Message | None:
    """The last answer on the path. One that failed has no figures, and older ones are not its."""
    path = talk.conversation.path()
    return next((m for m in reversed(path) if m.role == "assistant"), None)


def in_context(talk: Talk, usage: Usage) -> int:
    """Tokens in the context after an answer: not all of it, if that was full meanwhile."""
    about, total = talk.keeper.about, usage.total_tokens
    if about is None or about.where or not about.n_ctx or total <= about.n_ctx:
        return total
    from edgerun.shifting import held

    return held(usage.prompt_tokens, usage.completion_tokens, about.n_ctx, usage.kept_tokens)


def facts(talk: Talk, keeper: ModelKeeper, counts: Counts) -> Facts:
    """The status line's."""
    about, turn = keeper.about, talk.turn
    live = keeper.partner.live()
    name = about.model if about else keeper.target or "default model"
    backend = ""
    if about is not None:
        backend = f"{about.backend} {about.where}".strip()
        if about.fallback:
            backend = f"{backend} (fallback)".strip()
    activity, share = _activity(talk, keeper, counts)
    used, estimate = counts.used, counts.estimate
    prefill = decode = None
    cached: int | None = None
    left_out = 0
    if turn is not None:
        decode = turn.speed
        if (known := turn.known) is not None:
            left_out = known.left_out
            usage = replace(known, completion_tokens=turn.tokens)
            used, estimate = in_context(talk, usage), False
    else:
        answer = last_answer(talk)
        if answer is not None and answer.timings is not None:
            prefill = answer.timings.prefill_per_second or None
            decode = answer.timings.decode_per_second or None
        if answer is not None and answer.usage is not None:
            cached, left_out = answer.usage.cached_tokens, answer.usage.left_out
    return Facts(
        model=name,
        backend=backend,
        activity=activity,
        alarm=keeper.state == "failed",
        share=share,
        used=used,
        n_ctx=about.n_ctx if about else None,
        estimate=estimate,
        live=turn is not None,
        prefill=prefill,
        decode=decode,
        cached=cached,
        acceptance=live.acceptance,
        memory=live.memory if about is not None else None,
        left_out=left_out,
        unsaved="" if talk.store.saving else "not saved",
    )


def _activity(talk: Talk, keeper: ModelKeeper, counts: Counts) -> tuple[str, float | None]:
    if keeper.state == "loading":
        return loading(keeper), keeper.share
    if keeper.state == "failed":
        return "no model", None
    turn = talk.turn
    if turn is None:
        return "", None
    if not turn.reading:
        return ("thinking" if _thinking(turn.message) else "writing"), None
    done = keeper.partner.live().computed
    prompt = turn.known.prompt_tokens if turn.known is not None else 0
    if done is None or counts.computed is None or not prompt:
        return "reading", None
    read = min(max(done - counts.computed, 0), prompt)
    return f"reading {count_text(prompt)} tokens", read / prompt


def _thinking(message: Message) -> bool:
    return bool(message.reasoning) and not message.text


def loading(keeper: ModelKeeper) -> str:
    """``pulling 43 %``, ``loading``."""
    verb = {"pull": "pulling", "load": "loading"}.get(keeper.stage, "starting")
    share = keeper.share
    text = f"{verb} {share:.0%}".replace("%", " %") if share is not None else verb
    speed = keeper.per_second
    return f"{text} · {size_text(int(speed), 2)}/s" if speed else text


def notice(keeper: ModelKeeper) -> tuple[str, bool]:
    """What lasts: a model that could not be loaded, and the way out."""
    if keeper.state != "failed":
        return "", False
    return f"{keeper.error} — enter tries again, ctrl+o picks a model", True


def welcome(keeper: ModelKeeper) -> tuple[str, ...]:
    """Lines about the model, where nothing has been said yet."""
    about = keeper.about
    if about is not None:
        size = f" · {size_text(about.size, 2)}" if about.size else ""
        room = f" · context {count_text(about.n_ctx)}" if about.n_ctx else ""
        lines = [f"{about.model}{size}{room}"]
        if about.where:
            lines.append(f"answers from {about.where}")
        if about.fallback:
            lines.append(f"run by another runtime: {about.fallback}")
        return tuple(lines)
    if keeper.state == "failed":
        return ("no model is there to answer",)
    name = keeper.target or "the default model"
    if keeper.stage == "pull":
        size = f" of {size_text(keeper.total, 2)}" if keeper.total else ""
        return (
            f"fetching {name}: {size_text(keeper.done, 2)}{size}, once",
            "write your question meanwhile; it is sent when the model is there",
        )
    return (f"loading {name}",)
