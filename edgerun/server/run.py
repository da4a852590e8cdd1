"""Sockets, and the life of a server process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from edgerun.errors import RequestError, printable

if TYPE_CHECKING:
    from types import FrameType

    from fastapi import FastAPI

__all__ = ["Server", "listen", "listen_unix", "tls", "url_of"]

log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens on ``host``; port 0 = any free one.

    Raises:
        RequestError: it cannot be had; says why and what to do.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as e:
        raise RequestError(
            f"--host {printable(host)} is no name or address of this machine: {e.strerror}",
            param="host",
        ) from None
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would let two servers share the port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6 and address[0] == "::":
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(address)
        sock.listen(2048)
    except OSError as e:
        sock.close()
        raise _cannot_listen(e, host, port) from None
    sock.setblocking(False)
    return sock


def _cannot_listen(e: OSError, host: str, port: int) -> RequestError:
    at = f"port {port} on {printable(host)}"
    if e.errno == errno.EADDRINUSE:
        what = f"{at} is in use, perhaps by another edgerun: choose one with --port, or 0 for any"
    elif e.errno in (errno.EACCES, errno.EPERM):
        what = f"{at} needs more rights than you have: choose one above 1023 with --port"
    elif e.errno == errno.EADDRNOTAVAIL:
        what = f"--host {printable(host)} is no address of this machine; 0.0.0.0 is all of them"
    else:
        what = f"{at} cannot be opened: {e.strerror}"
    return RequestError(what, param="port")


def listen_unix(path: str) -> socket.socket:
    """A Unix socket at ``path``, for its owner only. One that nobody listens on is replaced.

    Raises:
        RequestError: it cannot be had.
    """
    if not hasattr(socket, "AF_UNIX"):
        raise RequestError("this system has no Unix sockets: use --port", param="unix_socket")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        before = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(before)
        sock.listen(2048)
    except OSError as e:
        sock.close()
        why = e.strerror or str(e)
        if e.errno == errno.EADDRINUSE:
            why = "something is there already"
        raise RequestError(
            f"--unix-socket {printable(path)} cannot be opened: {why}", param="unix_socket"
        ) from None
    sock.setblocking(False)
    return sock


def _remove_stale(path: str) -> None:
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def tls(cert: str, key: str | None) -> ssl.SSLContext:
    """What serves TLS with a certificate chain and its key, PEM files.

    Raises:
        RequestError: they cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Without a password it would ask for one on the terminal.
        context.load_cert_chain(cert, key, password="")
    except (OSError, ValueError) as e:  # SSLError is an OSError
        files = printable(cert) if key is None else f"{printable(cert)} and {printable(key)}"
        raise RequestError(
            f"--tls-cert: {files} cannot be used: {printable(e.strerror or e)}", param="tls_cert"
        ) from None
    return context


def url_of(sock: socket.socket, *, secure: bool = False) -> str:
    """Where clients on this machine reach ``sock``."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """One application on one socket.

    The first SIGINT or SIGTERM stops accepting; running answers may go on for ``drain`` seconds.
    The second one ends them at once. Requests that wait for a model to load count as running.

    Args:
        app: what :func:`~edgerun.server.app.create_app` made.
        sock: listens already.
        drain: seconds.
        secure: TLS.
        started_up: called on the loop once requests are taken.
    """

    def __init__(
        self,
        app: FastAPI,
        sock: socket.socket,
        *,
        drain: float = 30.0,
        secure: ssl.SSLContext | None = None,
        started_up: Callable[[], Any] | None = None,
    ) -> None:
        options = app.state.options
        self._app, self._sock, self._drain, self._started_up = app, sock, drain, started_up
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
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
        tasks = self.server_state.tasks
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._drain
        if tasks and self._drain:
            log.info("waiting for %d requests; once more to stop at once", len(tasks))
        while tasks and not self.force_exit and loop.time() < ends:
            await asyncio.wait(list(tasks), timeout=0.05)
        if tasks:
            log.warning("%d requests are cut off", len(tasks))
            for task in list(tasks):
                task.cancel()
            await asyncio.wait(list(tasks), timeout=5)
        for connection in list(self.server_state.connections):
            connection.transport.close()
        await self.lifespan.shutdown()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn raises the signals once more at the end: a stop that was asked for is no error.
        with super().capture_signals():
            yield
            self._captured_signals.clear()


def _patient(base: type[Any], seconds: float) -> type[Any]:
    """uvicorn's protocol ``base``, which closes connections that send no whole request head within
    ``seconds`` of being made."""

    class Patient(base):  # type: ignore[misc]
        _waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self._waiting = self.loop.call_later(seconds, self._late)

        def _late(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
            super().connection_lost(exc)

    return Patient
