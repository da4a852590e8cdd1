"""Behind an address: how other servers fail, what they refuse, and what they say of themselves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from helpers.foreign_server import HELLO, MODELS, ask, delta, serve, silent, text
from helpers.raw_server import Asked, RawServer, Reply, answer, events, refuse

from edgerun.chat import ChatOptions
from edgerun.core import SamplingParams
from edgerun.errors import (
    BackendError,
    BackendUnavailableError,
    ClosedError,
    ContextLengthError,
    EdgerunError,
    GenerationError,
    ModelNotFoundError,
    RequestError,
)
from edgerun.tui import remote
from edgerun.tui.remote import RemotePartner


def fails(*replies: Reply, error: type[EdgerunError], match: str, **options: Any) -> EdgerunError:
    async def work(partner: RemotePartner, server: RawServer) -> EdgerunError:
        with pytest.raises(error, match=match) as caught:
            await ask(partner)
        said = str(caught.value)
        assert "\n" not in said
        assert "\x1b" not in said
        return caught.value

    found: EdgerunError = serve(*replies, **options)(work)
    return found


@pytest.mark.parametrize(
    ("status", "body", "error", "match"),
    [
        (401, {"error": {"message": "Incorrect API key"}}, RequestError, "Incorrect.*--api-key"),
        (403, b"Forbidden\x1b[2J", RequestError, "--api-key"),
        (404, {"error": {"message": "model 'm' not found"}}, ModelNotFoundError, "no model 'm'"),
        (404, {"object": "error", "message": "The model `m` does not exist."},
         ModelNotFoundError, "does not exist"),
        (404, b"<html>nginx</html>", BackendUnavailableError, "is this the address"),
        (405, b"", BackendUnavailableError, "is this the address"),
        (429, {"error": {"message": "Rate limit reached"}}, BackendError, "Rate limit.*ask again"),
        (500, {"error": "llama runner process has terminated"}, BackendError, "runner process"),
        (503, {"error": {"message": "Loading model"}}, BackendUnavailableError, "Loading model"),
        (502, b"<html>bad gateway</html>", BackendUnavailableError, "not ready"),
        (400, {"detail": "no such template"}, RequestError, "no such template"),
        (422, {"detail": [{"loc": ["body", "messages"], "msg": "too short"}]}, RequestError,
         "body.messages: too short"),
        (400, [{"error": {"message": "in a list"}}], RequestError, "in a list"),
        (400, b"", RequestError, "without a reason"),
        (308, b"", BackendUnavailableError, "moved"),
    ],
)  # fmt: skip
def test_refusals(status: int, body: Any, error: type[EdgerunError], match: str) -> None:
    fails(refuse(status, body), error=error, match=match)


def test_how_long_to_wait() -> None:
    error = fails(
        refuse(429, {"error": {"message": "slow down"}}, retry_after="12"),
        error=BackendError,
        match="in 12 s",
    )
    assert error.code == "rate_limited"


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"code": "context_length_exceeded", "message": "This model's maximum ..."}},
        {"error": {"code": 400, "type": "exceed_context_size_error", "message": "the request "
                   "exceeds the available context size", "n_prompt_tokens": 9000, "n_ctx": 4096}},
        {"object": "error", "message": "This model's maximum context length is 2048 tokens."},
        {"error": "input length exceeds the context window"},
    ],
)  # fmt: skip
def test_a_prompt_that_is_too_long(body: Any) -> None:
    error = fails(refuse(400, body), error=RequestError, match=".")
    assert error.code == ContextLengthError.code
    if "n_ctx" in str(body):
        assert isinstance(error, ContextLengthError)
        assert (error.n_prompt_tokens, error.n_ctx) == (9000, 4096)


@pytest.mark.parametrize(
    "event",
    [
        {"error": {"message": "out of memory"}},
        {"error": "out of memory"},
        {"object": "error", "message": "out of memory"},
        b'event: error\ndata: {"error": {"message": "out of memory"}}\n\n',
    ],
)
def test_an_error_within_the_stream(event: Any) -> None:
    fails(events(delta(content="a"), event), error=GenerationError, match="out of memory")


def test_a_filter_is_no_end_of_its_own() -> None:
    fails(events(delta("content_filter", content="a")), error=GenerationError, match="filter")


def test_junk_is_an_error() -> None:
    fails(events(b"data: {nonsense\n\n"), error=GenerationError, match="not JSON")
    fails(events(b"data: 17\n\n"), error=GenerationError, match="17")


def test_an_answer_that_breaks_off() -> None:
    fails(events(delta(content="a"), done=False), error=BackendUnavailableError, match="broke off")
    cut = [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\nda"]
    fails(cut, error=BackendUnavailableError, match="broke the connection")
    fails([b"garbage\r\n\r\n"], error=BackendUnavailableError, match="broke the connection")
    fails([], error=BackendUnavailableError, match="broke the connection")


def test_no_server() -> None:
    async def main(url: str, match: str) -> None:
        partner = RemotePartner(url)
        with pytest.raises(BackendUnavailableError, match=match):
            await partner.load(None, silent)
        await partner.close()

    asyncio.run(main("127.0.0.1:1", "is the server running there"))
    asyncio.run(main("http://no-such-host.invalid", "cannot be found"))


def test_a_server_that_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "_LONG", 0.2)
    fails(events(delta(content="a"), "hold"), error=BackendUnavailableError, match="long time")


@pytest.mark.parametrize(
    ("models", "error", "match"),
    [
        (answer(b"<html>hi</html>", kind="text/html"), BackendUnavailableError, "is this the addr"),
        (refuse(404, b"<html></html>"), BackendUnavailableError, "is this the address"),
        (answer({"object": "list", "data": []}), ModelNotFoundError, "has no model"),
        (refuse(500, {"error": "x"}), BackendError, "failed"),
        (answer(17), ModelNotFoundError, "has no model"),
    ],
)
def test_lists_that_are_none(models: Any, error: type[EdgerunError], match: str) -> None:
    fails(answer({}), error=error, match=match, models=models)


NEEDED = {"model", "messages", "stream"}


def picky(refusal: Callable[[set[str]], Any], accepted: set[str]) -> Callable[[Asked], Reply]:
    def reply(asked: Asked) -> Reply:
        extra = set(asked.body) - accepted
        if extra:
            return refuse(400, refusal(extra))
        return events(delta(content="ok"), delta("stop"))

    return reply


@pytest.mark.parametrize(
    "refusal",
    [
        lambda extra: {"error": {"message": f"Unrecognized request argument: {min(extra)}"}},
        lambda extra: {"error": {"message": "Unsupported parameter", "param": min(extra)}},
        lambda extra: {"detail": [{"loc": ["body", k], "msg": "Extra inputs are not permitted"}
                                  for k in sorted(extra)]},
        lambda extra: {"error": {"message": f"property '{max(extra)}' is unsupported"}},
    ],
)  # fmt: skip
def test_what_a_server_refuses_is_left_out(refusal: Callable[[set[str]], Any]) -> None:
    accepted = NEEDED | {"temperature", "top_p", "max_tokens"}

    async def work(partner: RemotePartner, server: RawServer) -> None:
        assert text(await ask(partner, top_k=5, max_tokens=9)) == "ok"
        n = len(server.asked)
        assert set(partner.live().refused) == {"top_k", "stream_options"}
        assert text(await ask(partner, top_k=7, max_tokens=9, temperature=0.3)) == "ok"
        assert len(server.asked) == n + 1  # it is remembered
        assert server.asked[-1].body["temperature"] == 0.3
        assert server.asked[-1].body["max_tokens"] == 9

    serve(picky(refusal, accepted))(work)


def test_openais_newer_models() -> None:
    def reply(asked: Asked) -> Reply:
        if "max_tokens" in asked.body:
            said = (
                "Unsupported parameter: 'max_tokens' is not supported with this model. "
                "Use 'max_completion_tokens' instead."
            )
            return refuse(400, {"error": {"message": said, "param": "max_tokens"}})
        if asked.body.get("temperature", 1) != 1:
            said = "Unsupported value: 'temperature' does not support 0.8 with this model."
            return refuse(400, {"error": {"message": said, "param": "temperature"}})
        assert asked.body["max_completion_tokens"] == 9
        return events(delta(content="ok"), delta("stop"))

    async def work(partner: RemotePartner, server: RawServer) -> None:
        assert text(await ask(partner, max_tokens=9)) == "ok"
        assert set(partner.live().refused) == {"max_tokens", "temperature"}

    serve(reply)(work)


def test_a_wrong_value_is_not_hidden() -> None:
    said = {"error": {"message": "temperature must be between 0 and 2, not 5"}}

    async def work(partner: RemotePartner, server: RawServer) -> None:
        with pytest.raises(RequestError, match="between 0 and 2"):
            await ask(partner, temperature=5)
        assert partner.live().refused == ()
        assert len([a for a in server.asked if a.method == "POST"]) == 1

    serve(refuse(400, said))(work)


def test_tries_come_to_an_end() -> None:
    def reply(asked: Asked) -> Reply:
        name = max(set(asked.body) - NEEDED, default="messages")
        return refuse(400, {"error": {"message": f"unknown field {name}"}})

    async def work(partner: RemotePartner, server: RawServer) -> None:
        with pytest.raises(RequestError, match="unknown field"):
            await ask(partner, top_k=5, min_p=0.1, seed=3, stop=["x"])
        assert len([a for a in server.asked if a.method == "POST"]) <= 4

    serve(reply)(work)


def test_a_server_that_cannot_go_on_with_an_answer() -> None:
    def reply(asked: Asked) -> Reply:
        if "continue_final_message" in asked.body:
            said = "Unrecognized request argument supplied: continue_final_message"
            return refuse(400, {"error": {"message": said}})
        return events(delta(content="something else"), delta("stop"))

    async def work(partner: RemotePartner, server: RawServer) -> None:
        for _ in range(2):
            with pytest.raises(RequestError, match="cannot go on") as caught:
                await ask(partner, ChatOptions(continue_final=True))
            assert caught.value.code == "cannot_continue"
        assert text(await ask(partner)) == "something else"

    serve(reply)(work)


def test_what_is_sent() -> None:
    async def work(partner: RemotePartner, server: RawServer) -> None:
        options = ChatOptions(reasoning_effort="low", template_args={"x": 1})
        await ask(partner, options, min_p=0.2, stop=["a"], logit_bias={3: -1.0}, seed=7)
        asked = server.asked[-1]
        assert asked.headers["authorization"] == "Bearer k"
        assert asked.body == {
            "model": "m", "messages": HELLO, "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.8, "top_p": 0.95, "min_p": 0.2, "stop": ["a"], "seed": 7,
            "logit_bias": {"3": -1.0}, "reasoning_effort": "low",
            "chat_template_kwargs": {"x": 1},
        }  # fmt: skip

    serve(events(delta("stop")), key="k")(work)


@pytest.mark.parametrize(
    ("entry", "wanted", "n_ctx", "backend"),
    [
        ({"id": "a", "max_model_len": 4096, "owned_by": "vllm"}, "a", 4096, "vLLM"),
        ({"id": "a:latest", "owned_by": "library"}, "a", None, "Ollama"),
        ({"id": "a", "context_length": 131072}, None, 131072, ""),
        ({"id": "a", "meta": {"n_ctx_train": 9}, "owned_by": "llamacpp"}, "A", None, "llama.cpp"),
        ({"name": "a"}, "a", None, ""),
    ],
)
def test_what_is_known_of_a_model(
    entry: dict[str, Any], wanted: str | None, n_ctx: int | None, backend: str
) -> None:
    async def work(partner: RemotePartner, server: RawServer) -> None:
        about = await partner.load(wanted, silent)
        assert about.n_ctx == n_ctx
        assert about.backend == backend
        assert about.where == server.url

    serve(answer({}), models={"data": [entry]})(work)


def test_llama_servers_context() -> None:
    def reply(asked: Asked) -> Reply:
        if asked.path == "/props":
            return answer({"default_generation_settings": {"n_ctx": 2048}})
        return answer(MODELS)

    async def main() -> None:
        async with RawServer(reply) as server:
            partner = RemotePartner(server.url)
            assert (await partner.load(None, silent)).n_ctx == 2048
            await partner.close()

    asyncio.run(main())


def test_the_one_that_is_loaded_comes_first_and_a_list_may_be_missing() -> None:
    async def first(partner: RemotePartner, server: RawServer) -> None:
        assert (await partner.load(None, silent)).model == "b"

    serve(answer({}), models={"data": [{"id": "a"}, {"id": "b", "state": "loaded"}]})(first)

    async def named(partner: RemotePartner, server: RawServer) -> None:
        assert (await partner.load("mine", silent)).model == "mine"
        with pytest.raises(ModelNotFoundError, match="name one"):
            await partner.load(None, silent)

    serve(answer({}), models=refuse(404, {"error": {"message": "none"}}))(named)


def test_an_api_below_another_path() -> None:
    def reply(asked: Asked) -> Reply:
        return answer(MODELS) if asked.path == "/proxy/v1/models" else refuse(404, {"error": "x"})

    async def main() -> None:
        async with RawServer(reply) as server:
            partner = RemotePartner(server.url + "/proxy")
            assert (await partner.load(None, silent)).model == "m"
            await partner.close()

    asyncio.run(main())


def test_leaving_an_answer_closes_the_connection() -> None:
    async def work(partner: RemotePartner, server: RawServer) -> None:
        await partner.load(None, silent)
        chunks = partner.answer(HELLO, SamplingParams(), ChatOptions())
        assert (await anext(chunks)).text == "a"
        began = time.perf_counter()
        await chunks.aclose()
        while not server.left:
            await asyncio.sleep(0.01)
        assert time.perf_counter() - began < 5

    serve(events(delta(content="a"), "hold"))(work)


@pytest.mark.parametrize("reply", [events(delta(content="a"), "hold"), ["hold"]])
def test_closing_ends_what_runs(reply: Reply) -> None:
    async def work(partner: RemotePartner, server: RawServer) -> None:
        await partner.load(None, silent)
        running = asyncio.create_task(ask(partner))
        await asyncio.sleep(0.1)
        began = time.perf_counter()
        await partner.close()
        assert time.perf_counter() - began < 5
        await asyncio.wait({running}, timeout=1)
        if running.done():
            assert isinstance(running.exception(), ClosedError)
        running.cancel()
        with pytest.raises(ClosedError):
            await partner.load(None, silent)
        with pytest.raises(ClosedError):
            await ask(partner)

    serve(reply)(work)
