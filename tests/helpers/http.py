"""A real endpoint on a free port, over tiny models.

::

    with Endpoint({"tiny": path}, api_keys=("secret",)) as server:
        server.client.post("/v1/chat/completions", json={...})     # httpx
        server.openai().models.list()
        server.run(some_coroutine)                                 # on the server's own loop
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
import time
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import httpx

from edgerun.catalog import Resolved
from edgerun.llm import LLM
from edgerun.server.app import create_app
from edgerun.server.options import ServerOptions
from edgerun.server.registry import Registry
from edgerun.server.run import Server
from edgerun.server.sockets import listen, url_of
from edgerun.server.sources import Sources

if TYPE_CHECKING:
    import openai

T = TypeVar("T")


class Endpoint:
    """Serves ``models`` (name -> file) from a thread until the ``with`` block ends.

    ``llm`` are the models' options, everything else :class:`ServerOptions`. Attributes: ``url``,
    ``app``, ``registry``, ``client`` (httpx, 30 s), ``loop``.
    """

    def __init__(
        self,
        models: Mapping[str, Path],
        *,
        llm: Mapping[str, Any] | None = None,
        drain: float = 5.0,
        http: Literal["auto", "h11", "httptools"] = "auto",
        **options: Any,
    ) -> None:
        chosen = {"backend": "cpu", "threads": 1, "max_batch": options.get("places", 16)}
        chosen |= dict(llm or {})
        resolved = [Resolved(path, name) for name, path in models.items()]
        self._options, self._drain, self._http = ServerOptions(**options), drain, http
        self._load = lambda path: LLM(path, **chosen)
        self._sources = Sources(models=resolved)
        self._key = next(iter(self._options.api_keys), None)
        self._up: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._serve, name="endpoint", daemon=True)

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as e:
            if self._up.done():
                raise
            self._up.set_exception(e)

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.registry = Registry(self._sources, self._load)
        self.app = create_app(self.registry, self._options)
        sock = listen("127.0.0.1", 0)
        self.url = url_of(sock)
        self.server = Server(
            self.app,
            sock,
            drain=self._drain,
            started_up=lambda: self._up.set_result(None),
            http=self._http,
        )
        await self.server.run_async()

    def __enter__(self) -> Endpoint:
        self._thread.start()
        self._up.result(timeout=60)
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        self.client = httpx.Client(base_url=self.url, timeout=30, headers=headers, trust_env=False)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(timeout=30)
        assert not self._thread.is_alive(), "the server did not stop"

    def openai(self, **more: Any) -> openai.OpenAI:
        """OpenAI's own client; it retries nothing, so that tests see every error."""
        import openai

        more = {"base_url": f"{self.url}/v1", "api_key": self._key or "none"} | more
        return openai.OpenAI(**{"max_retries": 0, **more})

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=60)

    def llm(self, name: str | None = None) -> LLM:
        """The model served under ``name``, loaded."""

        async def acquired() -> LLM:
            with await self.registry.acquire(name) as lease:
                return lease.llm

        return self.run(acquired())

    def settled(self, name: str | None = None, seconds: float = 5.0) -> None:
        """Wait until the model has nothing left to do, no page is held and nobody is owed an
        answer."""
        llm, ends = self.llm(name), time.monotonic() + seconds
        while True:
            m, owed = llm.metrics(), self.app.state.queue.owed
            busy = {"running": m.running, "waiting": m.waiting, "pages": m.pages_used, "owed": owed}
            if not any(busy.values()):
                return
            assert time.monotonic() < ends, f"still busy: {busy}"
            time.sleep(0.005)

    def post(self, path: str, body: Any, **more: Any) -> Any:
        """The parsed JSON of a 200."""
        response = self.client.post(path, json=body, **more)
        assert response.status_code == 200, response.text
        return response.json()

    def events(self, path: str, body: Any, **more: Any) -> list[Any]:
        """The data of a stream's events, in order, parsed where it is JSON."""
        return [data for _, data in self.named_events(path, body, **more)]

    def named_events(self, path: str, body: Any, **more: Any) -> list[tuple[str | None, Any]]:
        """(``event:`` or None, data) of each event. Every line must be well formed."""
        out: list[tuple[str | None, Any]] = []
        with self.client.stream("POST", path, json=body, **more) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            text = response.read().decode("utf-8")
        name = None
        for line in text.split("\n"):
            if line.startswith("data: "):
                data = line[len("data: ") :]
                out.append((name, json.loads(data) if data.startswith("{") else data))
                name = None
            elif line.startswith("event: "):
                name = line[len("event: ") :]
            else:
                assert line == "" or line.startswith(":"), line
        return out

    def refused(self, path: str, body: Any, status: int = 400, **more: Any) -> dict[str, Any]:
        """The ``error`` of an answer that has ``status``."""
        response = self.client.post(path, json=body, **more)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        assert error["message"]
        assert "\n" not in error["message"]
        return error
