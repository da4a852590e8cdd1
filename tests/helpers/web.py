"""A file server whose manners a test can choose: ranges, validators, dropped connections."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["FileServer", "serve"]


@dataclass
class FileServer:
    """What is served, how, and what was asked for.

    ``cuts``: the next replies end after so many body bytes. ``statuses``: the next replies are
    these errors instead.
    """

    body: bytes
    etag: str | None = '"v1"'
    ranges: bool = True
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    announce_length: bool = True
    requests: list[dict[str, str]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve(server: FileServer) -> Iterator[FileServer]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.requests.append(dict(self.headers))
            if server.statuses:
                self._head(server.statuses.pop(0), {"Content-Length": "0"})
                return
            body, size = server.body, len(server.body)
            headers = {"ETag": server.etag} if server.etag else {}
            start, status = self._range(size), 200
            if start is not None and start >= size:
                self._head(416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
                return
            if start is not None:
                status, body = 206, body[start:]
                headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
            if server.announce_length:
                headers["Content-Length"] = str(len(body))
            self._head(status, headers)
            self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

        def _range(self, size: int) -> int | None:
            asked = self.headers.get("Range")
            validator = self.headers.get("If-Range")
            if not asked or not server.ranges or (validator and validator != server.etag):
                return None
            return int(asked.removeprefix("bytes=").split("-")[0])

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    server.url = f"http://127.0.0.1:{http.server_port}/model.gguf"
    try:
        yield server
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
