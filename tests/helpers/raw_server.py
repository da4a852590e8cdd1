"""A server that says exactly what a test tells it to, byte by byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeAlias

__all__ = ["Asked", "RawServer", "answer", "events", "refuse"]


class Asked:
    """A request that came: ``method``, ``path``, ``headers`` (lower case), ``body`` (JSON)."""

    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        self.method, self.path, _ = first.split(" ")
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        self.headers = {k.lower(): v.strip() for k, v in pairs}
        self.body: Any = json.loads(body) if body else None


#: Bytes, pauses in seconds, or "hold": nothing more until the reader is gone.
Reply: TypeAlias = "Sequence[bytes | float | str]"


def answer(
    body: Any, status: str = "200 OK", kind: str = "application/json", **headers: str
) -> Reply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    more = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in headers.items())
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(data)}\r\n{more}\r\n"
    return [head.encode() + data]


def refuse(status: int, body: Any, **headers: str) -> Reply:
    return answer(body, f"{status} Refused", **headers)


def events(*items: Any, done: bool = True) -> Reply:
    """A stream: dicts become data lines; bytes, pauses and "hold" go as they are."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    out: list[bytes | float | str] = [head]
    for item in items:
        raw = isinstance(item, (bytes, float, str))
        out.append(item if raw else f"data: {json.dumps(item)}\n\n".encode())
    return [*out, b"data: [DONE]\n\n"] if done else out


class RawServer:
    """On the loop that runs; ``reply`` makes of each request what is sent, then the connection
    closes. ``asked`` are the requests, ``left`` readers that went before the end."""

    def __init__(self, reply: Callable[[Asked], Reply]) -> None:
        self._reply = reply
        self.asked: list[Asked] = []
        self.left = 0

    async def __aenter__(self) -> RawServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            asked = Asked(head, b"")
            body = await reader.readexactly(int(asked.headers.get("content-length", 0)))
            asked = Asked(head, body)
            self.asked.append(asked)
            for item in self._reply(asked):
                if isinstance(item, bytes):
                    writer.write(item)
                    await writer.drain()
                elif isinstance(item, float):
                    await asyncio.sleep(item)
                else:
                    await reader.read()
                    self.left += 1
        except (ConnectionError, asyncio.IncompleteReadError):
            self.left += 1
        finally:
            writer.close()
