"""Streams and their ends: clients that leave, silence, time limits, queues, shutting down."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from helpers.http import Endpoint

from edgerun.core import Chunk
from edgerun.server.errors import OverloadedError
from edgerun.server.queue import Queue
from edgerun.server.sse import Event, encode, to_json

PATH = "/v1/completions"
ENDLESS = {"model": "random", "prompt": "a", "ignore_eos": True}


def raw(server: Endpoint, body: dict[str, Any]) -> socket.socket:
    """A request that was just sent, on a socket of its own."""
    host, port = server.url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    s = socket.create_connection((host, int(port)), timeout=30)
    s.sendall(
        b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
        % (PATH.encode(), len(data), data)
    )
    return s


def wait_until_running(server: Endpoint, name: str = "random", n: int = 1) -> None:
    llm, ends = server.llm(name), time.monotonic() + 10
    while llm.metrics().running < n:
        assert time.monotonic() < ends
        time.sleep(0.001)


# -- bytes ---------------------------------------------------------------------------------------


def test_events_on_the_wire() -> None:
    events = [Event({"a": "é\n\u2028"}), Event("[DONE]"), Event({"b": 1}, "named")]
    assert encode(events) == (
        'data: {"a":"é\\n\u2028"}\n\ndata: [DONE]\n\nevent: named\ndata: {"b":1}\n\n'.encode()
    )
    assert to_json({"x": "\ud800"}) == b'{"x":"?"}'
    with pytest.raises(ValueError, match="JSON"):
        to_json(float("nan"))


def test_every_data_line_is_one_json_object(server: Endpoint) -> None:
    body = {**ENDLESS, "temperature": 3.0, "max_tokens": 200, "stream": True, "seed": 1}
    with server.client.stream("POST", PATH, json=body) as response:
        lines = response.read().split(b"\n")
    assert lines.count(b"data: [DONE]") == 1
    for line in lines:
        assert line == b"" or line.startswith(b"data: ")
        if line[6:] not in (b"", b"[DONE]"):
            json.loads(line[6:].decode("utf-8"))


# -- clients that leave --------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_during_a_long_prompt(server: Endpoint, stream: bool) -> None:
    prompt = [40 + i % 7 for i in range(7000)]
    s = raw(server, {**ENDLESS, "prompt": prompt, "stream": stream})
    wait_until_running(server)
    done = server.llm("random").metrics().finished
    s.close()
    server.settled("random", seconds=2)
    assert server.llm("random").metrics().finished["abort"] == done["abort"] + 1


def test_two_hundred_clients_that_leave(server: Endpoint) -> None:
    def tasks() -> int:
        async def count() -> int:
            return len(asyncio.all_tasks())

        return server.run(count())

    def pages() -> tuple[int, int]:
        m = server.llm("random").metrics()
        return m.pages_total, m.pages_used

    server.settled("random")
    before = tasks(), pages()
    for i in range(200):
        s = raw(server, {**ENDLESS, "stream": i % 2 == 0})
        if i % 4 == 0:
            s.recv(1)  # its answer has begun
        elif i % 4 == 1:
            wait_until_running(server)
        s.close()
    server.settled("random")
    ends = time.monotonic() + 5
    while tasks() > before[0] and time.monotonic() < ends:
        time.sleep(0.01)
    assert (tasks(), pages()) == before
    began = time.perf_counter()
    server.post(PATH, {**ENDLESS, "max_tokens": 1})
    assert time.perf_counter() - began < 1


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_leaving_whichever_parser_there_is(models: dict[str, Path], http: Any) -> None:
    if http == "httptools":
        pytest.importorskip("httptools")
    with Endpoint({"random": models["random"]}, http=http, body_timeout=0.3) as server:
        for stream in (False, True):
            s = raw(server, {**ENDLESS, "stream": stream})
            wait_until_running(server)
            s.close()
            server.settled(seconds=2)
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as s:
            s.sendall(b"GET /hea")  # and never the rest
            assert s.recv(100) == b""
        with socket.create_connection((host, int(port)), timeout=10) as s:
            s.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
            got = b""
            while b'"object":"list"' not in got:
                got += s.recv(65536)
            s.sendall(b"GET /hea")
            assert s.recv(100) == b""
        assert server.events(PATH, {**ENDLESS, "max_tokens": 2, "stream": True})[-1] == "[DONE]"


def test_a_client_that_leaves_hurts_no_other(server: Endpoint) -> None:
    body = {**ENDLESS, "seed": 4, "max_tokens": 150}
    alone = server.post(PATH, body)["choices"][0]["text"]
    got: list[str] = []
    other = threading.Thread(
        target=lambda: got.append(server.post(PATH, body)["choices"][0]["text"])
    )
    others = [raw(server, {**ENDLESS, "stream": True}) for _ in range(3)]
    other.start()
    for s in others:
        s.recv(1)
        s.close()
    other.join(timeout=30)
    assert got == [alone]


# -- silence, and too much of it -----------------------------------------------------------------


def slowly(server: Endpoint, name: str, seconds: float, patch: pytest.MonkeyPatch) -> None:
    """Have the model's first chunk come ``seconds`` late."""
    llm = server.llm(name)
    start = llm.start

    class Late:
        def __init__(self, chunks: Any) -> None:
            self._chunks, self.close = chunks, chunks.close
            self.known = chunks.known

        async def __aiter__(self) -> AsyncIterator[Chunk]:
            await asyncio.sleep(seconds)
            async for chunk in self._chunks:
                yield chunk

    async def late(*args: Any, **kwargs: Any) -> Late:
        return Late(await start(*args, **kwargs))

    patch.setattr(llm, "start", late)


def test_comments_keep_a_silent_stream_alive(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Endpoint({"scripted": models["scripted"]}, comment_every=0.05) as server:
        slowly(server, "scripted", 0.4, monkeypatch)
        began = time.perf_counter()
        with server.client.stream("POST", PATH, json={"prompt": "Go", "stream": True}) as response:
            assert time.perf_counter() - began < 0.35  # the head comes at once
            text = response.read()
        assert 3 <= text.count(b": keep-alive\n\n") <= 9
        assert text.endswith(b"data: [DONE]\n\n")
        with server.openai() as client:  # which skips them
            parts = client.completions.create(
                model="scripted", prompt="Go", stream=True, temperature=0
            )
            assert "".join(p.choices[0].text for p in parts).startswith("Hello")


def test_time_limit(models: dict[str, Path]) -> None:
    with Endpoint({"random": models["random"]}, timeout=0.25) as server:
        server.llm()
        error = server.refused(PATH, ENDLESS, 504)
        assert error["code"] == "timeout"
        events = server.events(PATH, {**ENDLESS, "stream": True})
        assert len(events) > 1
        assert events[-1]["error"]["code"] == "timeout"
        server.settled()
        assert server.post(PATH, {**ENDLESS, "max_tokens": 1})


# -- more than there is room for -----------------------------------------------------------------


def test_queue_counts() -> None:
    queue = Queue(2, 1)
    leave = [queue.enter("m", 1) for _ in range(3)]
    with pytest.raises(OverloadedError) as e:
        queue.enter("m", 1)
    assert e.value.retry_after >= 1
    queue.enter("other", 1)()
    leave[0]()
    queue.enter("m", 1)()
    for end in leave[1:]:
        end()
    assert queue.owed == 0
    queue.enter("m", 50)()  # more than fits, but nobody is before it
    assert Queue(1, None).enter("m", 10_000)


def test_a_full_queue_is_429(models: dict[str, Path]) -> None:
    with Endpoint({"random": models["random"]}, places=1, max_queue=0) as server:
        with server.client.stream("POST", PATH, json={**ENDLESS, "stream": True}) as first:
            parts = first.iter_raw()
            next(parts)
            for stream in (False, True):
                response = server.client.post(PATH, json={**ENDLESS, "stream": stream})
                assert response.status_code == 429
                assert int(response.headers["retry-after"]) >= 1
                assert response.json()["error"]["code"] == "queue_full"
        server.settled()
        assert server.post(PATH, {**ENDLESS, "max_tokens": 1})


# -- the end -------------------------------------------------------------------------------------


def test_shutting_down_lets_answers_end(models: dict[str, Path]) -> None:
    with Endpoint({"random": models["random"]}, drain=20) as server:
        body = {**ENDLESS, "stream": True, "max_tokens": 150}
        with server.client.stream("POST", PATH, json=body) as response:
            parts = response.iter_raw()
            text = next(parts)
            server.server.should_exit = True
            time.sleep(0.3)
            with pytest.raises(httpx.ConnectError):
                httpx.get(f"{server.url}/health", trust_env=False)
            text += b"".join(parts)
    assert text.endswith(b"data: [DONE]\n\n")


def test_shutting_down_cuts_off_what_does_not_end(models: dict[str, Path]) -> None:
    with Endpoint({"random": models["random"]}, drain=0.1) as server:
        whole: list[httpx.Response] = []
        waits = threading.Thread(
            target=lambda: whole.append(httpx.post(server.url + PATH, json=ENDLESS, timeout=30))
        )
        waits.start()
        with server.client.stream("POST", PATH, json={**ENDLESS, "stream": True}) as response:
            parts = response.iter_raw()
            text = next(parts)
            wait_until_running(server, n=2)
            server.server.should_exit = True
            text += b"".join(parts)
        waits.join(timeout=30)
    last = json.loads(text.strip().split(b"\n")[-1].removeprefix(b"data: "))
    assert last["error"]["code"] == "closed"
    assert whole[0].status_code == 503
    assert whole[0].json()["error"]["code"] == "closed"
