"""``/health`` and ``/metrics``, and the log's lines."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from typing import Any, cast

import pytest
from helpers.http import Endpoint

from edgerun.engine import Metrics
from edgerun.engine.metrics import SwapCount
from edgerun.errors import GenerationError
from edgerun.llm import LLM
from edgerun.server.health import Health
from edgerun.server.logs import JSONLines
from edgerun.server.metrics import ServerMetrics


class Engine:
    """What the health check sees of a model."""

    def __init__(self, **metrics: Any) -> None:
        self.now = metrics
        self.probes = 0
        self.answer: Exception | float | None = None

    def metrics(self) -> Metrics:
        return Metrics(**self.now)

    async def agenerate(self, prompt: str, params: Any) -> None:
        self.probes += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer is not None:
            await asyncio.sleep(self.answer)


def trouble(health: Health, engine: Engine) -> Any:
    return health.trouble({"m": cast(LLM, engine)})


def test_a_busy_model_must_make_steps() -> None:
    async def play() -> None:
        health, engine = Health(stuck_after=0.05), Engine(running=1, steps=7)
        assert await trouble(health, engine) is None
        await asyncio.sleep(0.1)
        found = await trouble(health, engine)
        assert "m has made no step" in found
        engine.now = {"running": 1, "steps": 8}
        assert await trouble(health, engine) is None
        assert engine.probes == 0  # it costs a busy model nothing

    asyncio.run(play())


def test_rest_is_not_a_standstill() -> None:
    async def play() -> None:
        health, engine = Health(stuck_after=0.05), Engine(steps=7)
        assert await trouble(health, engine) is None
        await asyncio.sleep(0.1)
        engine.now = {"waiting": 1, "steps": 7}  # just arrived
        assert await trouble(health, engine) is None

    asyncio.run(play())


def test_an_idle_model_gives_a_token_now_and_then() -> None:
    async def play() -> None:
        health, engine = Health(stuck_after=0.2, fresh=0.1), Engine()
        found = await asyncio.gather(*(trouble(health, engine) for _ in range(20)))
        assert found == [None] * 20
        assert engine.probes == 1
        await trouble(health, engine)
        assert engine.probes == 1
        await asyncio.sleep(0.15)
        engine.answer = GenerationError("not a number")
        assert "not a number" in await trouble(health, engine)
        engine.answer = 5.0
        assert "gave no token" in await trouble(health, engine)
        engine.answer = None
        assert await trouble(health, engine) is None

    asyncio.run(play())


def test_health(server: Endpoint) -> None:
    llm = server.llm("scripted")
    for _ in range(3):
        assert server.client.get("/health").json() == {"status": "ok"}
    assert llm.metrics().generated_tokens == 1
    server.app.state.ready = False
    try:
        loading = server.client.get("/health")
    finally:
        server.app.state.ready = True
    assert loading.status_code == 503
    assert loading.json()["error"]["message"] == "Loading model"


def test_a_model_that_computes_no_numbers_is_not_healthy(server: Endpoint) -> None:
    server.llm("broken")
    try:
        response = server.client.get("/v1/health")
    finally:
        for place in server.registry._places.values():  # the other tests want a healthy server
            if place.name == "broken":
                server.run(server.registry._drop([place]))
                break
    assert response.status_code == 503
    assert "broken" in response.json()["error"]["message"]


def test_metrics(server: Endpoint) -> None:
    server.post("/v1/completions", {"model": "scripted", "prompt": "Go", "max_tokens": 2})
    response = server.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert 'route="/v1/completions"' in response.text
    assert "ttft" in response.text or "time_to_first_token" in response.text


def test_swapped_pages_are_told() -> None:
    class Model:
        def __init__(self, swap: SwapCount | None) -> None:
            self.metrics = lambda: Metrics(swap=swap)

    models: Any = {"gpu": Model(SwapCount(pages_out=5, pages_in=3)), "cpu": Model(None)}
    text = ServerMetrics(lambda: models).text().decode()
    for line in ('out_total{model="gpu"} 5.0', 'in_total{model="gpu"} 3.0',
                 'out_total{model="cpu"} 0.0'):  # fmt: skip
        assert f"\nedgerun_pages_swapped_{line}\n" in text


@pytest.mark.parametrize(
    "sent",
    [b'Content-Length: 100\r\n\r\n{"a"', b"Transfer-Encoding: chunked\r\n\r\n4\r\n{", b""],
)
def test_a_body_cut_short_is_no_error_of_the_server(
    server: Endpoint, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    ends = time.monotonic() + 10
    with caplog.at_level(logging.INFO, logger="edgerun.server.requests"):
        with socket.create_connection((host, int(port)), timeout=10) as s:
            s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n")
            s.sendall(sent or b"Transfer-Encoding: chunked\r\n\r\nno length\r\n")
        while not caplog.records and time.monotonic() < ends:
            time.sleep(0.01)
    (fields,) = (r.fields for r in caplog.records if hasattr(r, "fields"))
    assert (fields["status"], fields["route"]) == (499, "/v1/completions")
    assert "before the body" in fields["error"]


def test_one_line_a_request(server: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    body = {"model": "scripted", "prompt": "Go", "temperature": 0, "max_tokens": 3, "stream": True}
    with caplog.at_level(logging.INFO, logger="edgerun.server.requests"):
        server.events("/v1/completions", body, headers={"x-request-id": "r1"})
        server.refused("/v1/completions", body | {"n": 0})
        server.client.get("/health")
        server.client.get("/no%0athing%1b[31m")
        ends = time.monotonic() + 5
        while len(caplog.records) < 3 and time.monotonic() < ends:
            time.sleep(0.005)  # a line may come after its client has read the last byte
    lines = [r for r in caplog.records if r.name == "edgerun.server.requests"]
    lines.sort(key=lambda r: r.fields["status"])  # type: ignore[attr-defined]
    assert len(lines) == 3
    fields = lines[0].fields  # type: ignore[attr-defined]
    assert fields["id"] == "r1"
    assert (fields["route"], fields["status"]) == ("/v1/completions", 200)
    assert (fields["completion_tokens"], fields["finish"]) == (3, "length")
    assert 0 < fields["ttft"] <= fields["seconds"]
    assert lines[1].fields["status"] == 400  # type: ignore[attr-defined]
    assert "n must be between" in lines[1].getMessage()
    assert all(r.getMessage().isprintable() for r in lines)
    parsed = json.loads(JSONLines().format(lines[0]))
    assert parsed["id"] == "r1"
    assert parsed["level"] == "info"
