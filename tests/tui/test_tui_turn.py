"""One turn: from the question to its last state, whatever comes in between."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.tui import Endless, FakePartner, Gate, Think, call

from edgerun.chat import ChatOptions, ToolCall, ToolCallDelta
from edgerun.core import Chunk, FinishReason, SamplingParams, Usage
from edgerun.errors import ClosedError, ContextLengthError, RequestError
from edgerun.tui.conversation import Conversation
from edgerun.tui.partner import About
from edgerun.tui.store import Store
from edgerun.tui.turn import Turn


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store(memory=True)
    yield store
    store.close()


def asked(text: str = "why?") -> Conversation:
    c = Conversation()
    c.add("user", text)
    return c


async def shown(turn: Turn, then: Callable[[int], Any] = lambda n: None) -> str:
    out, n = "", 0
    async for chunk in turn:
        out += chunk.reasoning + chunk.text
        n += 1
        then(n)
    return out


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await asyncio.wait_for(work, 20)

    return asyncio.run(main())


def test_an_answer_is_shown_stored_and_done(store: Store) -> None:
    c = asked()
    partner = FakePartner([Think("let me "), Think("see"), "Be", "cause."], loaded=True)
    turn = Turn(c, partner, store, SamplingParams(temperature=0))
    assert run(shown(turn)) == "let me seeBecause."
    m = turn.message
    assert (m.text, m.reasoning, m.state, m.model) == ("Because.", "let me see", "done", "fake-1b")
    assert m.usage is not None
    assert m.usage.prompt_tokens == 1
    assert m.timings is not None
    assert m.timings.decode_per_second > 0
    assert store.open(c.id) == c
    messages, params, options = partner.asked[0]
    assert messages == [{"role": "user", "content": "why?"}]
    assert params.temperature == 0
    assert not options.continue_final


def test_what_is_shown_is_stored_before(store: Store) -> None:
    c = asked()

    async def main() -> None:
        turn = Turn(c, FakePartner([*"abcdefgh"], loaded=True), store)
        out = ""
        async for chunk in turn:
            out += chunk.text
            assert store.open(c.id).messages[turn.message.id].text.startswith(out)

    run(main())


def test_pieces_that_wait_are_merged(store: Store) -> None:
    async def main() -> int:
        turn = Turn(asked(), FakePartner(["x"] * 500, loaded=True), store)
        n, text = 0, ""
        async for chunk in turn:
            n, text = n + 1, text + chunk.text
            await asyncio.sleep(0.01)
        assert text == "x" * 500
        return n

    assert run(main()) < 250


def test_stop_keeps_what_came_and_ends_the_work(store: Store) -> None:
    c = asked()
    partner = FakePartner([Endless("on ")], loaded=True)
    turn = Turn(c, partner, store)
    text = run(shown(turn, lambda n: turn.stop() if n == 5 else None))
    m = turn.message
    assert m.state == "stopped"
    assert m.text == text
    assert len(text) >= 15
    assert (partner.running, partner.stopped) == (0, 1)
    assert m.usage is not None
    assert m.usage.completion_tokens == m.text.count("on")
    assert m.timings is not None
    assert m.timings.decode_per_second > 0
    assert m.timings.prefill_per_second == 0  # what of the prompt was cached was not said
    assert store.open(c.id).messages[m.id] == m


def test_stop_while_the_prompt_is_read(store: Store) -> None:
    async def main() -> None:
        gate = Gate()
        partner = FakePartner([gate, "never"], loaded=True)
        c = asked()
        turn = Turn(c, partner, store)
        reader = asyncio.create_task(shown(turn))
        await gate.reached.wait()
        assert turn.reading
        assert turn.known is not None
        assert turn.known.prompt_tokens == 1
        turn.stop()
        turn.stop()
        assert await reader == ""
        assert (turn.message.state, partner.running) == ("stopped", 0)
        assert not turn.reading
        c.add("user", "and now?")
        assert c.wire() == [{"role": "user", "content": "why?\n\nand now?"}]

    run(main())


def test_stop_before_it_began(store: Store) -> None:
    partner = FakePartner(loaded=True)
    turn = Turn(asked(), partner, store)
    turn.stop()
    assert run(shown(turn)) == ""
    assert turn.message.state == "stopped"
    assert partner.asked == []


class Stubborn(FakePartner):
    """Goes on for a while after it was told to stop, and says so."""

    async def answer(self, messages: Any, params: Any, options: Any) -> Any:
        yield Chunk("old ")
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.05)
        yield Chunk("late ")
        yield Chunk("later ", finish_reason=FinishReason.STOP)


def test_a_late_piece_of_a_stopped_turn_reaches_nobody(store: Store) -> None:
    async def main() -> None:
        c = asked()
        old = Turn(c, Stubborn(loaded=True), store)
        first = await shown(old, lambda n: old.stop())
        c.add("user", "next")
        new = Turn(c, FakePartner([*"new"], loaded=True), store)
        assert await shown(new) == "new"
        await asyncio.sleep(0.1)
        assert first == "old "
        assert (old.message.text, old.message.state) == ("old ", "stopped")
        assert new.message.text == "new"
        again = store.open(c.id)
        assert [m.text for m in again.path()] == ["why?", "old ", "next", "new"]

    run(main())


def test_two_turns_in_two_conversations_do_not_mix(store: Store) -> None:
    async def main() -> None:
        chats = [asked(), asked()]
        turns = [
            Turn(c, FakePartner([letter] * 200, loaded=True), store)
            for c, letter in zip(chats, "ab", strict=True)
        ]
        assert await asyncio.gather(*map(shown, turns)) == ["a" * 200, "b" * 200]

    run(main())


def test_leaving_the_loop_stops_the_turn(store: Store) -> None:
    async def main() -> None:
        partner = FakePartner([Endless()], loaded=True)
        turn = Turn(asked(), partner, store)
        chunks: AsyncIterator[Chunk] = aiter(turn)
        await anext(chunks)
        await chunks.aclose()  # type: ignore[attr-defined]
        assert (turn.message.state, partner.running) == ("stopped", 0)

    run(main())


def test_a_cancelled_reader_leaves_a_stopped_answer(store: Store) -> None:
    async def main() -> None:
        partner, c = FakePartner([Endless()], loaded=True), asked()
        turn = Turn(c, partner, store)
        reader = asyncio.create_task(shown(turn))
        await asyncio.sleep(0.03)
        reader.cancel()
        with suppress(asyncio.CancelledError):
            await reader
        assert reader.cancelled()
        assert (turn.message.state, partner.running) == ("stopped", 0)
        assert store.open(c.id).messages[turn.message.id] == turn.message

    run(main())


@pytest.mark.parametrize(
    ("error", "code", "note"),
    [
        (ClosedError("the LLM was closed"), "closed", "the LLM was closed"),
        (RuntimeError("a\nbug \x1b[2J"), "internal_error", r"unexpected RuntimeError: a bug \x1b"),
    ],
)
def test_an_error_ends_the_turn_and_keeps_what_came(
    store: Store, error: Exception, code: str, note: str
) -> None:
    c = asked()
    turn = Turn(c, FakePartner(["half ", error], loaded=True), store)
    assert run(shown(turn)) == "half "
    m = turn.message
    assert (m.text, m.state, m.code) == ("half ", "error", code)
    assert m.note.startswith(note)
    assert "\n" not in m.note
    assert store.open(c.id).messages[m.id] == m


@pytest.mark.parametrize(
    ("about", "larger"),
    [
        (About("m", n_ctx=4096, n_ctx_max=8192), ", --ctx N loads the model with up to 8192"),
        (About("m", n_ctx=4096, n_ctx_max=4096), ""),  # all that it was trained for
        (About("m", n_ctx=4096), ""),
        (About("m", n_ctx=4096, n_ctx_max=8192, where="http://x:1"), ""),  # not ours to load
    ],
)
def test_a_full_context_says_what_to_do(store: Store, about: About, larger: str) -> None:
    partner = FakePartner([ContextLengthError(5000, 4096)], about=about, loaded=True)
    turn = Turn(asked(), partner, store)
    run(shown(turn))
    assert turn.message.note == (
        "the conversation has 5000 tokens and the context holds 4096: "
        f"/undo takes the question back, /new starts afresh{larger}"
    )


@pytest.mark.parametrize(
    ("shift", "where", "system", "note"),
    [
        (False, "", "", "the conversation has 5000 tokens and the context holds 4096: /undo takes "
         "the question back, /new starts afresh; /set context_shift on, then /retry, leaves out "
         "the oldest messages"),
        (False, "http://x:1", "", "the conversation has 5000 tokens and the context holds 4096: "
         "/undo takes the question back, /new starts afresh"),
        (True, "http://x:1", "", "the conversation has 5000 tokens and the context holds 4096: "
         "/undo takes the question back, /new starts afresh"),
        (True, "", "", "the question has 5000 tokens and the context holds 4096: /undo takes the "
         "question back"),
        (True, "", "Be brief.", "the question and the system prompt have 5000 tokens and the "
         "context holds 4096: /undo takes the question back"),
    ],
)  # fmt: skip
def test_a_full_context_in_a_longer_chat(
    store: Store, shift: bool, where: str, system: str, note: str
) -> None:
    about = About("m", n_ctx=4096, where=where)
    partner = FakePartner([ContextLengthError(5000, 4096)], about=about, loaded=True)
    chat = asked()
    chat.system = system
    chat.add("assistant", "Yes.")
    chat.add("user", "And?")
    turn = Turn(chat, partner, store, SamplingParams(context_shift=shift))
    run(shown(turn))
    assert turn.message.note == note


@pytest.mark.parametrize(
    ("usage", "about", "most", "note"),
    [
        (Usage(9, 7), None, 7, "Cut short: max_tokens is 7. > or /continue goes on."),
        (Usage(9, 55), About("m", n_ctx=64, n_ctx_max=64), None,
         "Cut short: the context of 64 tokens is full. /new starts afresh; "
         "/set context_shift on, then /retry, drops the oldest and goes on."),
        (Usage(9, 55), About("m", n_ctx=64, n_ctx_max=128), None,
         "Cut short: the context of 64 tokens is full. /new starts afresh, --ctx N loads the model "
         "with up to 128; /set context_shift on, then /retry, drops the oldest and goes on."),
        (Usage(9, 55), About("m", n_ctx=64, where="http://x:1"), 99,
         "Cut short: the context of 64 tokens is full. /new starts afresh."),
        (Usage(9, 20), About("m", n_ctx=64), None, ""),  # a server's reasons are its own
    ],
)  # fmt: skip
def test_an_answer_that_is_cut_short_says_why(
    store: Store, usage: Usage, about: About | None, most: int | None, note: str
) -> None:
    script = ["so far", Chunk(finish_reason=FinishReason.LENGTH, usage=usage)]
    partner = FakePartner(script, about=about, loaded=True)
    turn = Turn(asked(), partner, store, SamplingParams(max_tokens=most))
    run(shown(turn))
    assert (turn.message.state, turn.message.note) == ("length", note)


def test_a_context_that_fills_up_ends_with_length(store: Store) -> None:
    script = ["so ", Chunk("far", finish_reason=FinishReason.LENGTH, usage=Usage(9, 2))]
    turn = Turn(asked(), FakePartner(script, loaded=True), store)
    assert run(shown(turn)) == "so far"
    assert (turn.message.text, turn.message.state) == ("so far", "length")


class Silent(FakePartner):
    async def answer(self, messages: Any, params: Any, options: Any) -> Any:
        yield Chunk("and th")


def test_an_answer_without_end_is_an_error(store: Store) -> None:
    turn = Turn(asked(), Silent(loaded=True), store)
    assert run(shown(turn)) == "and th"
    assert turn.message.state == "error"
    assert "broke off" in turn.message.note


def test_no_model_is_an_error_of_the_turn(store: Store) -> None:
    turn = Turn(asked(), FakePartner(), store)
    run(shown(turn))
    assert (turn.message.state, turn.message.code) == ("error", "closed")


def test_calls_are_put_together(store: Store) -> None:
    script = [
        call("look", '{"at"'),
        ToolCallDelta(0, ': "sky"}'),
        call("wait", "{}", index=1),
        Chunk(finish_reason=FinishReason.TOOL_CALLS),
    ]
    c = asked()
    turn = Turn(c, FakePartner(script, loaded=True), store)
    run(shown(turn))
    assert turn.message.calls == (
        ToolCall("call_0", "look", '{"at": "sky"}'),
        ToolCall("call_1", "wait", "{}"),
    )
    assert store.open(c.id).messages[turn.message.id].calls == turn.message.calls


def test_an_answer_is_gone_on_with(store: Store) -> None:
    c = asked()
    partner = FakePartner(["one ", Endless("two ")], ["three"], loaded=True)
    turn = Turn(c, partner, store)
    run(shown(turn, lambda n: turn.stop() if n >= 2 else None))
    before = turn.message.text
    more = Turn(c, partner, store, options=ChatOptions(reasoning_effort="low"), resume=c.head)
    assert more.message is turn.message
    assert more.message.state == "streaming"
    assert run(shown(more)) == "three"
    assert c.path()[-1].text == before + "three"
    assert c.path()[-1].state == "done"
    assert len(c.messages) == 2
    messages, _, options = partner.asked[1]
    assert messages[-1] == {"role": "assistant", "content": before}
    assert options == ChatOptions(reasoning_effort="low", continue_final=True)
    usage = turn.message.usage
    assert usage is not None
    assert usage.completion_tokens == turn.message.text.count(" ") + 1
    assert usage.prompt_tokens == 1  # "why?": the answer's beginning, sent along, counts once
    assert store.open(c.id) == c


def test_what_cannot_be_gone_on_with(store: Store) -> None:
    c = asked()
    partner = FakePartner([Think("hm"), Endless("")], loaded=True)
    with pytest.raises(RequestError, match="no text to go on with"):
        Turn(c, partner, store, resume=c.head)
    turn = Turn(c, partner, store)
    turn.stop()
    run(shown(turn))
    with pytest.raises(RequestError, match="no text to go on with"):
        Turn(c, partner, store, resume=turn.message.id)
    with pytest.raises(RequestError, match="no question"):
        Turn(c, partner, store)
    with pytest.raises(RequestError, match="no question"):
        Turn(Conversation(), partner, store)


def test_another_answer_goes_beside_the_first(store: Store) -> None:
    c = asked()
    partner = FakePartner("first", "second", loaded=True)
    first = Turn(c, partner, store)
    run(shown(first))
    c.retry(first.message.id)
    second = Turn(c, partner, store)
    run(shown(second))
    assert partner.asked[0] == partner.asked[1]
    assert c.siblings(second.message.id) == [first.message.id, second.message.id]
    assert [m.text for m in c.path()] == ["why?", "second"]


def test_speed_is_told_while_it_runs(store: Store) -> None:
    async def main() -> None:
        turn = Turn(asked(), FakePartner([Endless("x", 0.005)], loaded=True), store)
        assert turn.speed is None
        async for _ in turn:
            if turn.tokens == 20:
                assert turn.speed is not None
                assert 0 < turn.speed < 200
                turn.stop()

    run(main())


def test_nothing_heavy_is_imported_at_the_start() -> None:
    code = (
        "import sys, edgerun.tui.turn, edgerun.tui.store, edgerun.tui.local, edgerun.tui.remote\n"
        "edgerun.tui.local.LocalPartner(); edgerun.tui.remote.RemotePartner('h:1')\n"
        "heavy = {'numpy', 'edgerun.llm', 'httpx', 'sqlite3', 'psutil', 'edgerun.catalog'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(ROOT), check=True
    )
    assert out.stdout.strip() == "[]"
