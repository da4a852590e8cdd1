"""How an endpoint behaves."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from edgerun.errors import RequestError, printable

__all__ = ["ServerOptions"]

_HOST = re.compile(r"\*|[^\s/\\?#@:\[\]]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s/\\?#@]+/?")


@dataclass(frozen=True)
class ServerOptions:
    """Settings of the HTTP endpoint; those of models are the registry's.

    Attributes:
        host: the address it is bound to; decides which Host headers are trusted.
        unix_socket: it listens on a Unix socket, which no browser reaches: any Host will do.
        allowed_hosts: further names that clients may know it by.
        api_keys: any of them opens it; none = open.
        cors_origins: web origins besides this machine's whose pages may use it; ``*`` = all.
        max_body: bytes of a request's body.
        max_depth: nesting of a body's JSON.
        max_queue: requests that may wait for a place; None = any number.
        places: answers a model computes at once, as its ``max_batch``.
        timeout: seconds an answer may take; None = any time.
        body_timeout: seconds for a request's head, and then for its body, to arrive.
        comment_every: seconds of silence after which a stream gets a comment.
        log_json: the log's lines are JSON objects.

    Raises:
        RequestError: a number is out of range, or a name or an origin is none that a client sends.
    """

    host: str = "127.0.0.1"
    unix_socket: bool = False
    allowed_hosts: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    max_body: int = 32 << 20
    max_depth: int = 128
    max_queue: int | None = None
    places: int = 16
    timeout: float | None = None
    body_timeout: float = 30.0
    comment_every: float = 10.0
    log_json: bool = False

    def __post_init__(self) -> None:
        whole = (("max_body", self.max_body, 1), ("max_depth", self.max_depth, 1))
        for name, value, least in (*whole, ("max_queue", self.max_queue, 0)):
            if value is not None and value < least:
                raise RequestError(f"{name} must be at least {least}, not {value}", param=name)
        for name in ("timeout", "body_timeout", "comment_every"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < math.inf:
                raise RequestError(
                    f"{name} must be a number of seconds above 0, not {seconds}", param=name
                )
        if any(not key.strip() for key in self.api_keys):
            raise RequestError("an API key is empty", param="api_keys")
        for host in self.allowed_hosts:
            if not _HOST.fullmatch(host):
                raise RequestError(
                    f"allowed_host must be a name or an address, without scheme and port, not "
                    f"{printable(host)!r}",
                    param="allowed_host",
                )
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise RequestError(
                    f"cors_origin must be * or like https://example.org, not {printable(origin)!r}",
                    param="cors_origin",
                )
