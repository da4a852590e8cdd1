"""A chat that outgrows the context of a model in this process, with context shift and without."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from helpers import gguf_build as gb
from helpers.tui_app import Driver, chat, play

from edgerun.llm import LLM
from edgerun.tui.local import LocalPartner

N_CTX = 128
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)
SAYS = ["I", " say", " so", "."]


def gauge(d: Driver) -> int:
    found = re.search(r"(\d+)/128", d.status)
    assert found is not None, d.status
    return int(found[1])


def test_the_oldest_messages_are_left_out_and_the_chat_goes_on(tmp_path: Path) -> None:
    extra = {"tokenizer.chat_template": TEMPLATE}
    model = gb.scripted_model(tmp_path / "m.gguf", SAYS, n_ctx=N_CTX, extra=extra)
    with LLM(model, backend="cpu", threads=1) as llm:

        async def go() -> None:
            partner: Any = LocalPartner(backend="cpu", threads=1)
            async with chat(partner=partner, model=str(model), size=(140, 30)) as d:
                await d.idle()
                await d.say("/system brief")
                for i in range(5):
                    await d.say(f"question {i} " + "e" * 15)
                    if d.path[-1].state == "error":
                        break
                assert d.path[-1].code == "context_length_exceeded"
                assert "/set context_shift on, then /retry" in d.path[-1].note
                await d.say("/set context_shift on")
                await d.until(lambda: "/128" in d.status and gauge(d) < N_CTX)
                await d.say("/retry")
                for i in range(5, 9):
                    await d.say(f"question {i} " + "e" * 15)
                path = d.path
                assert path[-1].text == "I say so."
                assert path[-1].state == "done"
                # Nothing is gone from the chat, and what the line says is what was sent.
                assert next(m.text for m in path if m.role == "user").startswith("question 0")
                usage = path[-1].usage
                assert usage is not None
                assert usage.left_out > 0
                wire = d.app.talk.conversation.wire()[:-1]
                sent = [wire[0], *wire[1 + usage.left_out :]]
                assert (sent[0]["role"], sent[1]["role"]) == ("system", "user")
                assert usage.prompt_tokens == len(llm.apply_template(sent))
                assert f" {usage.left_out} messages left out" in d.status
                assert gauge(d) == usage.total_tokens < N_CTX

        play(go)


def test_answers_longer_than_the_context(tmp_path: Path) -> None:
    extra = {"tokenizer.chat_template": TEMPLATE}
    endless = {":": "I", "I": " say", " say": " so", " so": "I"}
    model = gb.scripted_model(tmp_path / "m.gguf", endless, n_ctx=N_CTX, extra=extra)

    async def go() -> None:
        partner: Any = LocalPartner(backend="cpu", threads=1)
        async with chat(partner=partner, model=str(model), size=(140, 30)) as d:
            await d.idle()
            await d.say("/set context_shift on")
            await d.say("/set max_tokens 300")
            for i in range(3):
                await d.say(f"question {i}")
                usage = d.path[-1].usage
                assert d.path[-1].note.startswith("Cut short: max_tokens is 300")
                assert usage is not None
                assert usage.completion_tokens == 300
                assert usage.prompt_tokens < N_CTX // 2
                assert usage.left_out == 2 * i  # such an answer fits into no prompt
                assert N_CTX // 2 <= gauge(d) <= N_CTX  # what half of it was dropped from
                assert ("left out" in d.status) == (i > 0)

    play(go)
