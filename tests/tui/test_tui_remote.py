"""Behind an address: edgerun's own server over a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from helpers import gguf_build as gb
from helpers.http import Endpoint
from helpers.tui import stopped_at

from edgerun.chat import ChatOptions
from edgerun.core import FinishReason, SamplingParams
from edgerun.errors import ContextLengthError, EdgerunError, ModelNotFoundError, RequestError
from edgerun.tui.conversation import Conversation
from edgerun.tui.remote import RemotePartner, base_of
from edgerun.tui.store import Store
from edgerun.tui.turn import Turn

HELLO = [{"role": "user", "content": "Hello"}]
PIECES = ["Hel", "lo", ", ", "wor", "ld"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    folder = tmp_path_factory.mktemp("models")
    models = {
        "scripted": gb.scripted_model(folder / "scripted.gguf", PIECES, vocab=[" "]),
        "random": gb.random_model(folder / "random.gguf", seed=3, n_ctx=8192),
        "small": gb.random_model(folder / "small.gguf", seed=4, n_ctx=64),
    }
    with Endpoint(models, api_keys=("secret",)) as endpoint:
        yield endpoint


def silent(stage: str, done: int, total: int | None) -> None:
    pass


def run(server: Endpoint, work: Callable[[RemotePartner], Awaitable[Any]], tail: str = "") -> Any:
    async def main() -> Any:
        partner = RemotePartner(server.url + tail, "secret")
        try:
            return await asyncio.wait_for(work(partner), 30)
        finally:
            await partner.close()

    return asyncio.run(main())


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_an_answer_comes_through(server: Endpoint, tail: str) -> None:
    async def work(partner: RemotePartner) -> None:
        about = await partner.load(None, silent)
        assert partner.about is about
        assert (about.model, about.backend, about.n_ctx) == ("scripted", "edgerun", 512)
        assert about.where == server.url
        assert about.size
        chunks = [c async for c in partner.answer(HELLO, SamplingParams(), ChatOptions())]
        assert "".join(c.text for c in chunks) == "Hello, world"
        last = chunks[-1]
        assert last.finish_reason is FinishReason.STOP
        assert [c.finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert last.usage is not None
        assert last.usage.completion_tokens == len(PIECES)
        assert last.usage.prompt_tokens == await partner.count_prompt(HELLO)
        assert last.timings is not None
        assert last.timings.decode_tokens == len(PIECES) - 1
        assert last.timings.prefill > 0
        assert partner.live().refused == ()

    run(server, work, tail)


def test_params_reach_the_model(server: Endpoint) -> None:
    async def work(partner: RemotePartner) -> None:
        await partner.load("random", silent)

        async def text(**more: Any) -> str:
            params = SamplingParams(max_tokens=12, ignore_eos=True, **more)
            chunks = [c async for c in partner.answer(HELLO, params, ChatOptions())]
            assert chunks[-1].finish_reason is FinishReason.LENGTH
            return "".join(c.text for c in chunks)

        greedy = await text(temperature=0)
        assert await text(temperature=0) == greedy
        assert await text(temperature=1.5, top_k=1, seed=3) == greedy
        assert await text(temperature=1.5, top_k=0, top_p=1, min_p=0, seed=3) != greedy
        whole = [
            m async for m in partner.answer(HELLO, SamplingParams(max_tokens=2), ChatOptions())
        ]
        assert whole[-1].usage is not None
        assert whole[-1].usage.completion_tokens == 2

    run(server, work)


def test_tokens_are_counted_there(server: Endpoint) -> None:
    async def work(partner: RemotePartner) -> None:
        assert await partner.count("x") is None
        await partner.load("scripted", silent)
        llm = await asyncio.to_thread(server.llm, "scripted")
        for said in ("Hello, world", "あ", ""):
            assert await partner.count(said) == len(llm.tokenize(said, add_bos=False))

    run(server, work)


def test_an_answer_is_gone_on_with(server: Endpoint) -> None:
    async def work(partner: RemotePartner) -> None:
        await partner.load("scripted", silent)
        store, c = Store(memory=True), Conversation()
        c.add("user", "Hello")
        c.add("assistant", "Hel", state="stopped")
        turn = Turn(c, partner, store, resume=c.head)
        async for _ in turn:
            pass
        # Its prompt ends with the answer so far; what it then says is scripted, too.
        assert turn.message.text == "Hel" + "Hello, world"
        assert turn.message.state == "done"
        store.close()

    run(server, work)


def test_a_stopped_answer_ends_the_work_there(server: Endpoint) -> None:
    async def work(partner: RemotePartner) -> None:
        await partner.load("random", silent)
        store, c = Store(memory=True), Conversation()
        c.add("user", "Hello")
        turn = Turn(c, partner, store, SamplingParams(ignore_eos=True))
        assert await stopped_at(turn, 3) < 5  # the model goes on for ever
        assert turn.message.state == "stopped"
        await asyncio.to_thread(server.settled, "random")
        store.close()

    run(server, work)


def test_a_full_context(server: Endpoint) -> None:
    async def work(partner: RemotePartner) -> None:
        await partner.load("small", silent)
        long = [{"role": "user", "content": "word " * 100}]
        with pytest.raises(ContextLengthError) as caught:
            _ = [c async for c in partner.answer(long, SamplingParams(), ChatOptions())]
        assert caught.value.n_ctx == 64
        assert caught.value.n_prompt_tokens > 64

    run(server, work)


def test_models_there_are_choices(server: Endpoint) -> None:
    async def work(partner: RemotePartner) -> None:
        found = {c.name: c for c in await partner.choices()}
        assert set(found) == {"scripted", "random", "small"}
        assert found["random"].n_ctx == 8192
        assert found["small"].source == "server"
        assert found["small"].size
        await partner.check("small")
        with pytest.raises(ModelNotFoundError, match="no model 'smal'; it has small"):
            await partner.check("smal")
        assert (await partner.load("SMALL", silent)).model == "small"
        with pytest.raises(ModelNotFoundError, match="no model 'smal'; it has small"):
            await partner.load("smal", silent)
        with pytest.raises(RequestError, match="fetched where it runs"):
            await partner.pull("x", silent)

    run(server, work)


@pytest.mark.parametrize("key", [None, "wrong"])
def test_without_the_key_it_says_how(server: Endpoint, key: str | None) -> None:
    async def main() -> None:
        partner = RemotePartner(server.url, key)
        for work in (partner.load(None, silent), partner.choices()):
            with pytest.raises(EdgerunError, match="--api-key") as caught:
                await work
            assert caught.value.code == "unauthorized"
            assert "\n" not in str(caught.value)
        await partner.close()

    asyncio.run(main())


def test_a_broken_request_is_the_servers_to_explain(server: Endpoint) -> None:
    async def work(partner: RemotePartner) -> None:
        await partner.load("scripted", silent)
        options = ChatOptions(template_args={"messages": 3})
        with pytest.raises(RequestError, match="messages"):
            _ = [c async for c in partner.answer(HELLO, SamplingParams(), options)]
        assert partner.live().refused == ()

    run(server, work)


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("localhost:8080", "http://localhost:8080/v1"),
        ("http://h", "http://h/v1"),
        ("https://h/api/v1/", "https://h/api/v1"),
        ("https://h/openai/v1/models", "https://h/openai/v1"),
        ("http://[::1]:1", "http://[::1]:1/v1"),
        (" http://h:1/v1/chat/completions ", "http://h:1/v1"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert base_of(url) == base


@pytest.mark.parametrize(
    "url", ["", "http://", "ftp://h", "http://h:99999", "a b", "http://h:x", "/v1"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(RequestError, match="not an address") as caught:
        RemotePartner(url)
    assert caught.value.param == "url"
