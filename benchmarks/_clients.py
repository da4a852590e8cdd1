"""Clients that stream, or an engine that is asked the same without HTTP; run as a process.

``http URL MODEL N TOKENS SECONDS``, ``engine PATH THREADS N TOKENS SECONDS``: N clients, each
asking again as soon as it is answered, for SECONDS. One JSON line: tokens a second after a third of
the time, and seconds to the first token and from one to the next.
``drop URL MODEL N``: N streams, each left after its first event.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit


def prompt(i: int) -> str:
    """No two begin alike, and no model ends its answer soon."""
    return f"{i}. The long history of the town, in many chapters. First chapter: " * 2


@dataclass
class Seen:
    """When tokens arrived. Those before ``since`` warm up."""

    since: float
    tokens: int = 0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    def token(self, begun: float, last: float | None, n: int = 1) -> float:
        now = time.perf_counter()
        if now >= self.since:
            self.tokens += n
            if last is None:
                self.first.append(now - begun)
            else:
                self.gaps.append(now - last)
        return now

    def report(self, until: float) -> dict[str, object]:
        rate = self.tokens / (until - self.since)
        return {"rate": rate, "first": self.first, "gaps": self.gaps}


class Client:
    """One connection, kept alive; as little work a token as can be."""

    def __init__(self, url: str, model: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._model = model
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, text: str, tokens: int) -> asyncio.StreamReader:
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        body = json.dumps(
            {"model": self._model, "prompt": text, "max_tokens": tokens, "temperature": 0,
             "stream": True}
        ).encode()  # fmt: skip
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        assert self._reader is not None
        line = await self._reader.readline()
        if b" 200 " not in line:
            rest = await self._reader.read(2000)
            raise RuntimeError(f"{line.decode().strip()}: {rest[-300:].decode(errors='replace')}")
        while await self._reader.readline() != b"\r\n":
            pass
        return self._reader

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _has_text(line: bytes) -> bool:
    if not line.startswith(b"data: {"):
        return False
    choices = json.loads(line[6:]).get("choices")
    return bool(choices and choices[0].get("text"))


async def _client(url: str, model: str, i: int, tokens: int, until: float, seen: Seen) -> None:
    client, turn = Client(url, model), 0
    while time.perf_counter() < until:
        begun, last = time.perf_counter(), None
        reader = await client.ask(prompt(1000 * i + turn), tokens)
        turn += 1
        while True:
            line = await reader.readline()
            if line.startswith(b"data: [DONE]"):
                await reader.readuntil(b"0\r\n\r\n")
                break
            if not line:
                client.close()
                break
            if _has_text(line):
                last = seen.token(begun, last)
            if time.perf_counter() >= until:
                break
    client.close()


async def http(url: str, model: str, n: int, tokens: int, seconds: float) -> dict[str, object]:
    start = time.perf_counter()
    seen = Seen(start + seconds / 3)
    until = start + seconds
    await asyncio.gather(*(_client(url, model, i, tokens, until, seen) for i in range(n)))
    return seen.report(until)


async def drop(url: str, model: str, n: int) -> dict[str, object]:
    async def one(i: int) -> None:
        client = Client(url, model)
        reader = await client.ask(prompt(i), 1000)
        await reader.readline()
        client.close()

    for at in range(0, n, 20):
        await asyncio.gather(*(one(i) for i in range(at, min(n, at + 20))))
    return {"dropped": n}


def engine(path: str, threads: int, n: int, tokens: int, seconds: float) -> dict[str, object]:
    from edgerun import LLM

    with LLM(path, threads=threads, n_ctx=2048, speculation="off") as llm:
        start = time.perf_counter()
        seen, until = Seen(start + seconds / 3), start + seconds

        def client(i: int) -> None:
            turn = 0
            while time.perf_counter() < until:
                begun, last = time.perf_counter(), None
                stream = llm.stream(prompt(1000 * i + turn), max_tokens=tokens, temperature=0)
                turn += 1
                for chunk in stream:
                    if chunk.text:
                        last = seen.token(begun, last)
                    if time.perf_counter() >= until:
                        stream.close()
                        break

        clients = [threading.Thread(target=client, args=(i,)) for i in range(n)]
        for c in clients:
            c.start()
        for c in clients:
            c.join()
        return seen.report(until)


def main() -> None:
    what, *args = sys.argv[1:]
    if what == "http":
        url, model, n, tokens, seconds = args
        found = asyncio.run(http(url, model, int(n), int(tokens), float(seconds)))
    elif what == "drop":
        url, model, n = args
        found = asyncio.run(drop(url, model, int(n)))
    else:
        path, threads, n, tokens, seconds = args
        found = engine(path, int(threads), int(n), int(tokens), float(seconds))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
