"""``edgerun serve``: models behind an address that the clients of other servers understand."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from edgerun.cli.options import (
    add_disk_option,
    add_model_options,
    add_speculation_options,
)
from edgerun.errors import EdgerunError, RequestError, printable

if TYPE_CHECKING:
    import argparse
    import socket
    from concurrent.futures import Future
    from pathlib import Path

    from fastapi import FastAPI

    from edgerun.cli import Subparsers
    from edgerun.llm import LLM
    from edgerun.server.options import ServerOptions
    from edgerun.server.registry import Registry
    from edgerun.server.sources import Sources

__all__ = ["add_parser", "run"]

DEFAULT_PORT = 8080

_EPILOG = """\
examples:
  edgerun serve                                    every model that was pulled
  edgerun serve -m qwen3-0.6b                      one model, loaded at once
  edgerun serve -m ~/models --ttl 600              a folder; unused models leave after 10 minutes
  edgerun serve --host 0.0.0.0 --api-key SECRET    for other machines, too

Clients take http://127.0.0.1:8080/v1 as their OpenAI base URL. A page to look at, and the API's
documentation, are at http://127.0.0.1:8080.
"""


def add_parser(subparsers: Subparsers) -> None:
    p = subparsers.add_parser(
        "serve",
        help="serve models over HTTP, for editors, agents and scripts",
        description="Serve models over HTTP with the APIs of OpenAI, Anthropic and llama.cpp.",
        epilog=_EPILOG,
    )
    add_model_options(p, many=True)
    g = p.add_argument_group("many models")
    g.add_argument(
        "--ttl", type=float, metavar="SECONDS", help="unload a model unused this long (default: no)"
    )
    g.add_argument(
        "--max-models", type=int, metavar="N", help="models loaded at once (default: what fits)"
    )
    g = p.add_argument_group("address")
    g.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: this machine only)"
    )
    g.add_argument(
        "--port", type=int, default=DEFAULT_PORT, metavar="N",
        help=f"0 = any free one (default: {DEFAULT_PORT})",
    )  # fmt: skip
    g.add_argument("--unix-socket", metavar="PATH", help="listen there instead")
    g.add_argument("--tls-cert", metavar="FILE", help="certificate chain, PEM: serve HTTPS")
    g.add_argument("--tls-key", metavar="FILE", help="its key, if that is in another file")
    _add_access(p)
    _add_operation(p)
    add_speculation_options(p)
    add_disk_option(p)


def _add_access(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("access")
    g.add_argument(
        "--api-key", action="append", default=[], metavar="KEY",
        help="let in only those who send it; repeatable, also $EDGERUN_API_KEY",
    )  # fmt: skip
    g.add_argument("--api-key-file", metavar="FILE", help="a file of keys, one a line")
    g.add_argument(
        "--allowed-host", action="append", default=[], metavar="NAME",
        help="a further name that clients know this server by; repeatable",
    )  # fmt: skip
    g.add_argument(
        "--cors-origin", action="append", default=[], metavar="ORIGIN",
        help="web pages that may use it besides this machine's: https://example.org; * = all",
    )  # fmt: skip


def _add_operation(p: argparse.ArgumentParser) -> None:
    g = p.add_argument_group("operation")
    g.add_argument(
        "--max-batch", type=int, default=16, metavar="N",
        help="answers a model computes at once; others wait (default: 16)",
    )  # fmt: skip
    g.add_argument(
        "--max-queue", type=int, metavar="N",
        help="answers that may wait; more are refused with 429 (default: any number)",
    )  # fmt: skip
    g.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="cut answers off that take longer"
    )
    g.add_argument(
        "--drain", type=float, default=30.0, metavar="SECONDS",
        help="time for running answers to end when it is stopped (default: 30)",
    )  # fmt: skip
    g.add_argument(
        "--max-body", type=int, default=32 << 20, metavar="BYTES",
        help="largest request taken (default: 32 MiB)",
    )  # fmt: skip
    g.add_argument("--log-json", action="store_true", help="log JSON lines")
    g.add_argument("--json", action="store_true", help="say what happens on stdout as JSON lines")
    g.add_argument("-q", "--quiet", action="store_true", help="log only what goes wrong")


def run(args: argparse.Namespace) -> int:
    began = time.perf_counter()
    _check(args)
    sock = _listen(args)  # first: whatever is wrong with it shows before anything is loaded
    try:
        secure = None
        if args.tls_cert is not None:
            from edgerun.server.sockets import tls

            secure = tls(args.tls_cert, args.tls_key)
        options = _options(args)
        first, sources = _sources(args)
        load = _Loader(args, first)
        _set_up_logs(args)
        say = _Speaker(args.json, _url(sock, secure is not None), began)
        say.listening()  # whoever connects now is answered once the rest is imported
        return _serve(args, sock, secure, sources, load, options, say)
    finally:
        sock.close()
        if args.unix_socket is not None:
            from edgerun.server.sockets import remove_unix

            remove_unix(args.unix_socket)


def _check(args: argparse.Namespace) -> None:
    from edgerun.requests import check_count

    check_count("max_batch", args.max_batch)
    check_count("max_models", args.max_models)
    if args.tls_key is not None and args.tls_cert is None:
        raise RequestError("--tls-key needs --tls-cert", param="tls_key")
    if not 0 <= args.port < 65536:
        raise RequestError(f"--port must be from 0 to 65535, not {args.port}", param="port")
    if not 0 <= args.drain < 1e9:
        raise RequestError(f"--drain must be a number of seconds, not {args.drain}", param="drain")
    if args.ttl is not None and not 0 < args.ttl < 1e9:
        raise RequestError(f"--ttl must be a number of seconds, not {args.ttl}", param="ttl")


def _listen(args: argparse.Namespace) -> socket.socket:
    from edgerun.server.sockets import listen, listen_unix

    if args.unix_socket is not None:
        return listen_unix(args.unix_socket)
    return listen(args.host, args.port)


def _url(sock: socket.socket, secure: bool) -> str:
    from edgerun.server.sockets import url_of

    return url_of(sock, secure=secure)


def _sources(args: argparse.Namespace) -> tuple[Path | None, Sources]:
    """What to serve, and the file to load at once: the first that was named."""
    from pathlib import Path

    from edgerun import catalog
    from edgerun.cli._progress import pull_progress
    from edgerun.loading import find
    from edgerun.server.sources import Sources

    named = args.model or []
    if not named and any(e.path is not None for e in catalog.list_models()):
        return None, Sources(pulled=True)
    models, folders = [], []
    for name in named or [catalog.DEFAULT_MODEL]:
        if Path(name).is_dir():
            folders.append(Path(name))
            continue
        with pull_progress(name) as pulling:
            models.append(find(name, progress=pulling))
    if args.draft is not None:
        if folders or len(models) != 1:
            raise RequestError("--draft goes with one model: name it with -m", param="draft")
        with pull_progress(args.draft) as pulling:
            find(args.draft, progress=pulling)
    sources = Sources(models, folders, pulled=not named)
    return next(iter(sources.files().values())) if models else None, sources


class _Loader:
    """Loads models for the registry; the first one from the moment this is made, while the server
    is still being imported."""

    def __init__(self, args: argparse.Namespace, first: Path | None) -> None:
        given = {k: v for k in ("speculation", "draft") if (v := getattr(args, k)) is not None}
        self._options: dict[str, Any] = {
            "backend": args.backend,
            "n_ctx": args.ctx,
            "threads": args.threads,
            "kv_type": args.kv,
            "kv_disk": "auto" if args.kv_disk is None else args.kv_disk,
            "max_batch": args.max_batch,
            "exact": args.exact,
            "gpu_layers": args.gpu_layers,
            **given,
        }
        self.first = first
        self._early: Future[LLM] | None = None
        if first is not None:
            from concurrent.futures import Future

            self._early = Future()
            # A daemon: whoever stops the command meanwhile does not wait for it.
            threading.Thread(target=self._begin, args=(first, self._early), daemon=True).start()

    def __call__(self, path: Path) -> LLM:
        early, self._early = self._early, None
        if early is not None and path == self.first:
            return early.result()
        return self._open(path)

    def _begin(self, path: Path, found: Future[LLM]) -> None:
        try:
            found.set_result(self._open(path))
        except BaseException as e:
            found.set_exception(e)

    def _open(self, path: Path) -> LLM:
        from edgerun.llm import LLM

        return LLM(path, **self._options)


def _options(args: argparse.Namespace) -> ServerOptions:
    from edgerun.server.options import ServerOptions

    return ServerOptions(
        host=args.host,
        unix_socket=args.unix_socket is not None,
        allowed_hosts=tuple(args.allowed_host),
        api_keys=_keys(args),
        cors_origins=tuple(args.cors_origin),
        max_body=args.max_body,
        max_queue=args.max_queue,
        places=args.max_batch,
        timeout=args.timeout,
    )


def _keys(args: argparse.Namespace) -> tuple[str, ...]:
    from pathlib import Path

    keys = [*args.api_key]
    if from_environment := os.environ.get("EDGERUN_API_KEY"):
        keys.append(from_environment)
    if args.api_key_file is not None:
        try:
            text = Path(args.api_key_file).read_text("utf-8")
        except (OSError, ValueError) as e:
            why = getattr(e, "strerror", None) or "it is not text"
            raise RequestError(
                f"--api-key-file {printable(args.api_key_file)} cannot be read: {why}",
                param="api_key_file",
            ) from None
        lines = [line.strip() for line in text.splitlines()]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise RequestError(
                f"--api-key-file {printable(args.api_key_file)} holds no key", param="api_key_file"
            )
        keys += found
    return tuple(keys)


def _set_up_logs(args: argparse.Namespace) -> None:
    import logging

    from edgerun.server.logs import JSONLines

    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S")
    handler.setFormatter(JSONLines() if args.log_json else plain)
    for name, level in (("edgerun", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(logging.WARNING if args.quiet else level)
        logger.propagate = False


def _serve(
    args: argparse.Namespace,
    sock: socket.socket,
    secure: Any,
    sources: Sources,
    load: _Loader,
    options: ServerOptions,
    say: _Speaker,
) -> int:
    import asyncio

    from edgerun.server.app import create_app
    from edgerun.server.registry import Registry
    from edgerun.server.run import Server
    from edgerun.server.security import is_loopback

    failure: list[EdgerunError] = []

    async def main() -> None:
        registry = Registry(sources, load, ttl=args.ttl, most=args.max_models)
        app = create_app(registry, options)
        app.state.ready = load.first is None
        server = Server(app, sock, drain=args.drain, secure=secure)
        tasks = [asyncio.create_task(_first(app, registry, say, load.first is not None))]

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and isinstance(e := task.exception(), EdgerunError):
                failure.append(e)
                server.should_exit = True

        tasks[0].add_done_callback(ended)
        await server.run_async()
        tasks[0].cancel()

    if not (options.api_keys or options.unix_socket or is_loopback(args.host)):
        import logging

        logging.getLogger("edgerun.server").warning(
            "warning: whoever reaches this machine can use this server: --api-key KEY closes it"
        )
    asyncio.run(main())
    if failure:
        raise failure[0]
    return 0


async def _first(app: FastAPI, registry: Registry, say: _Speaker, loads: bool) -> None:
    """Load what is to be loaded at once, and say that all is ready.

    Raises:
        EdgerunError: the only model there is cannot be loaded.
    """
    import asyncio
    import gc
    import logging

    names = list(await asyncio.to_thread(registry.sources.files))
    if loads:
        try:
            (await registry.acquire(None)).release()
        except EdgerunError as e:
            if len(names) == 1:
                raise
            logging.getLogger("edgerun.server").error(
                "%s cannot be loaded: %s", printable(names[0]), printable(e)
            )
    app.state.ready = True
    gc.freeze()  # what is there now stays: collections need not look at it
    gc.enable()
    say.ready(names)


class _Speaker:
    """What stdout hears: one line for people, or one JSON object for each thing that happens."""

    def __init__(self, as_json: bool, url: str, began: float) -> None:
        self._json, self._url, self._began = as_json, url, began

    def listening(self) -> None:
        if self._json:
            self._object("listening")

    def ready(self, names: list[str]) -> None:
        if self._json:
            self._object("ready", models=names)
            return
        shown = ", ".join(printable(n, 60) for n in names[:3]) or "no model yet,"
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        print(f"{shown}{more} at {self._url} (Ctrl-C stops it)", flush=True)

    def _object(self, event: str, **more: Any) -> None:
        from edgerun.cli.show import to_json

        seconds = round(time.perf_counter() - self._began, 3)
        print(to_json({"event": event, "url": self._url, "seconds": seconds, **more}), flush=True)
