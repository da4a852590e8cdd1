"""Listening sockets and TLS, with errors that say what to do. Light: nothing else is imported."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
from pathlib import Path

from edgerun.errors import RequestError, printable

__all__ = ["listen", "listen_unix", "remove_unix", "tls", "url_of"]


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


def remove_unix(path: str) -> None:
    """Take away the file that :func:`listen_unix` made."""
    with contextlib.suppress(OSError):
        if Path(path).is_socket():
            os.unlink(path)


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
        why = getattr(e, "strerror", None) or e
        raise RequestError(
            f"--tls-cert: {files} cannot be used: {printable(why)}", param="tls_cert"
        ) from None
    return context


def url_of(sock: socket.socket, *, secure: bool = False) -> str:
    """Where clients on this machine reach ``sock``."""
    if sock.family == getattr(socket, "AF_UNIX", None):
        return f"unix:{sock.getsockname()}"
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{'https' if secure else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
