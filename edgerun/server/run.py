"""The life of a server process: uvicorn, signals, the end of running answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Literal

import uvicorn

if TYPE_CHECKING:
    from types import FrameType

    from fastapi import FastAPI

__all__ = ["Server"]

log = logging.getLogger(__name__)

#: Seconds that the end may still take once it was asked for twice.
_LAST_WAIT = 2.0


class Server(uvicorn.Server):
    """One application on one socket.

    The first SIGINT or SIGTERM stops accepting; running answers may go on for ``drain`` seconds.
    The second one ends them at once, and two seconds later the process, if it is still there: a
    load cannot be stopped. Requests that wait for a model to load count as running.

    Args:
        app: what :func:`~edgerun.server.app.create_app` made.
        sock: listens already.
        drain: seconds.
        secure: TLS.
        started_up: called on the loop once requests are taken.
        http: which of uvicorn's parsers, ``h11`` or ``httptools``; ``auto`` = the second, which is
            faster, where it is installed.
    """

    def __init__(
        self,
        app: FastAPI,
        sock: socket.socket,
        *,
        drain: float = 30.0,
        secure: ssl.SSLContext | None = None,
        started_up: Callable[[], Any] | None = None,
        http: Literal["auto", "h11", "httptools"] = "auto",
    ) -> None:
        options = app.state.options
        self._app, self._sock, self._drain, self._started_up = app, sock, drain, started_up
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            http=http,
            ws="none",
            lifespan="on",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,
        )
        config.load()
        config.ssl = secure
        config.http_protocol_class = _patient(config.http_protocol_class, options.body_timeout)
        super().__init__(config)

    async def run_async(self) -> None:
        """Serve until a signal or ``should_exit``."""
        if self._started_up is not None:
            asyncio.get_running_loop().call_soon(self._when_started, self._started_up)
        await self.serve([self._sock])

    def _when_started(self, callback: Callable[[], Any]) -> None:
        if self.started:
            callback()
        elif not self.should_exit:
            asyncio.get_running_loop().call_later(0.005, self._when_started, callback)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        tasks, loop = self.server_state.tasks, asyncio.get_running_loop()
        ends = loop.time() + self._drain
        if tasks and self._drain:
            log.info("waiting for %d requests; once more to stop at once", len(tasks))
        while tasks and not self.force_exit and loop.time() < ends:
            await asyncio.wait(list(tasks), timeout=0.05)
        # It closes the models: what still runs ends with an error that its client can read.
        closing = asyncio.ensure_future(self.lifespan.shutdown())
        if tasks:
            log.warning("%d requests are cut off", len(tasks))
            await asyncio.wait(list(tasks), timeout=_LAST_WAIT)
        for task in list(tasks):
            task.cancel()
        for connection in list(self.server_state.connections):
            connection.transport.close()
        await closing

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and not self.force_exit:
            self.force_exit = True
            last = threading.Timer(_LAST_WAIT, os._exit, (130,))
            last.daemon = True
            last.start()
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises the signals once more at the end: a stop that was asked for is no error.
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def _patient(base: type[Any], seconds: float) -> type[Any]:
    """uvicorn's protocol ``base``, which closes a connection on which no whole request head arrives
    within ``seconds`` of its start, or of the connection's."""

    class Patient(base):  # type: ignore[misc]
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._look()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._look()

        def _idle(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _look(self) -> None:
            """Between requests a byte starts the clock, a whole head stops it."""
            if not self._idle():
                self._stop()
            elif self._timer is None:
                self._timer = self.loop.call_later(seconds, self._late)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _late(self) -> None:
            self._timer = None
            if self._idle() and not self.transport.is_closing():
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

    return Patient
