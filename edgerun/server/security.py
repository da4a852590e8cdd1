"""Who may use an endpoint: names it answers to, keys that open it, web pages it trusts.

Plain functions of strings; :mod:`edgerun.server.gate` applies them.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from edgerun.server.options import ServerOptions

__all__ = ["Keys", "given_key", "host_allowed", "is_loopback", "origin_allowed", "split_host"]

#: Schemes of programs on this machine that show a page of their own; no website has them.
_APP_SCHEMES = frozenset({"app", "capacitor", "tauri", "vscode-file", "vscode-webview"})


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, is this machine to itself."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False


def split_host(value: str) -> str | None:
    """The name or address in a Host header, in lower case, without port, brackets or final dot;
    None if it is none."""
    if not value or any(c in value for c in "/\\?#@ \t"):
        return None
    try:
        parts = urlsplit(f"//{value}")
        parts.port  # noqa: B018 - raises where it is no number
    except ValueError:
        return None
    return parts.hostname.rstrip(".") if parts.hostname else None


def host_allowed(value: str | None, options: ServerOptions) -> bool:
    """Whether a request whose Host header is ``value`` may come in.

    A website can have its name resolve to 127.0.0.1, and its pages then talk to what listens there;
    the name in the Host header gives them away (DNS rebinding). Bound to another address, it
    matters only if ``allowed_hosts`` says so.
    """
    if options.unix_socket or not (is_loopback(options.host) or options.allowed_hosts):
        return True
    name = split_host(value) if value is not None else None
    if name is None:
        return False
    allowed = {h.lower().rstrip(".") for h in options.allowed_hosts}
    return is_loopback(name) or name == options.host.lower() or name in allowed or "*" in allowed


def origin_allowed(origin: str, host: str | None, options: ServerOptions) -> bool:
    """Whether a page from ``origin`` may use the endpoint: this machine's own, those it serves
    itself, and those of ``cors_origins``."""
    if "*" in options.cors_origins or origin.rstrip("/") in {
        o.rstrip("/") for o in options.cors_origins
    }:
        return True
    try:
        parts = urlsplit(origin)
        name = parts.hostname
    except ValueError:
        return False
    if parts.scheme in _APP_SCHEMES:
        return True
    if parts.scheme not in ("http", "https") or name is None:
        return False
    return is_loopback(name) or (host is not None and parts.netloc.lower() == host.lower())


def given_key(headers: Mapping[str, str]) -> str | None:
    """The key a request brings: ``Authorization: Bearer``, ``api-key`` or ``x-api-key``."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return headers.get("x-api-key") or headers.get("api-key")


class Keys:
    """API keys, kept as digests; none = every request is let in."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(k) for k in keys]

    def open_to(self, key: str | None) -> bool:
        """Whether ``key`` opens the endpoint. Takes the same time for each wrong one."""
        if not self._digests:
            return True
        given, found = _digest(key or ""), False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, given)
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
