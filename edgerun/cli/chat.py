"""``edgerun chat``: a conversation in the terminal; full screen, or line by line."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from edgerun.cli.options import (
    add_disk_option,
    add_model_options,
    add_sampling_options,
    add_speculation_options,
    given_params,
    refuse_model,
    sampling_params,
)
from edgerun.errors import RequestError, printable

if TYPE_CHECKING:
    import argparse
    import logging

    from edgerun.cli import Subparsers
    from edgerun.tui.app import ChatApp
    from edgerun.tui.partner import Partner

__all__ = ["add_parser", "run"]

_EPILOG = """\
examples:
  edgerun chat                              the last model, or the default one
  edgerun chat "Explain this error: ..."    asked at once
  edgerun chat -c                           go on with the latest chat
  edgerun chat --resume "tomato soup"       with the one that has these words
  edgerun chat -m qwen3-0.6b --temp 0.2
  edgerun chat --url http://localhost:11434 -m llama3.2     answers from a server

In the chat: F1 or /help lists all keys and commands, Ctrl-C stops an answer, Ctrl-D leaves.
Chats are kept in chats.db in the data folder; --no-save keeps nothing.
"""


def add_parser(subparsers: Subparsers) -> None:
    p = subparsers.add_parser(
        "chat",
        help="talk in the terminal",
        description="Talk to a model in the terminal.",
        epilog=_EPILOG,
    )
    p.add_argument("question", nargs="*", metavar="QUESTION", help="asked at once")
    p.add_argument("--system", metavar="TEXT", help="a system prompt")
    g = p.add_argument_group("chats")
    one = g.add_mutually_exclusive_group()
    one.add_argument(
        "-c", "--continue", dest="latest", action="store_true", help="go on with the latest chat"
    )
    one.add_argument("--resume", metavar="ID|TEXT", help="go on with another: its id, or words")
    g.add_argument("--no-save", action="store_true", help="keep nothing on disk")
    g = p.add_argument_group("server: answers from elsewhere")
    g.add_argument("--url", metavar="URL", help="an OpenAI-compatible endpoint")
    g.add_argument("--api-key", metavar="KEY", help="sent to it (default: $EDGERUN_API_KEY)")
    g = p.add_argument_group("terminal")
    g.add_argument(
        "--plain", action="store_true", help="line by line; so it is where there is no terminal"
    )
    g.add_argument("--theme", metavar="NAME", help="colours, e.g. edgerun-light; /theme lists them")
    add_model_options(p)
    add_sampling_options(p)
    add_speculation_options(p)
    add_disk_option(p)


def run(args: argparse.Namespace) -> int:
    # What is wrong with them is said before the screen changes.
    params = sampling_params(args) if given_params(args) else None
    if not args.url:
        refuse_model(args.question, args.model, "chat")
    if args.url:
        from edgerun.tui.remote import base_of

        base_of(args.url)
        _refuse_local_options(args)
    elif args.api_key:
        raise RequestError(
            "--api-key is for a server: give its address with --url", param="api_key"
        )
    if args.plain and args.theme is not None:
        raise RequestError("--theme is for the full screen, and --plain has none", param="theme")
    if args.plain or not _capable():
        from edgerun.cli import plain_chat

        return plain_chat.run(args)
    from edgerun.tui.app import ChatApp, Options

    options = Options(
        model=args.model,
        question=" ".join(args.question).strip(),
        resume="" if args.latest else args.resume,
        save=not args.no_save,
        system=args.system,
        theme=args.theme,
        params=params,
        given=frozenset(given_params(args)),
        where=args.url or "",
    )
    app = ChatApp(options, lambda: partner(args), _title())
    if args.theme is not None and args.theme not in app.available_themes:
        known = ", ".join(sorted(app.available_themes))
        raise RequestError(f"--theme {printable(args.theme)} is not known: {known}", param="theme")
    return _run_app(app)


def _capable() -> bool:
    """Whether this is a terminal that a full screen can be drawn on."""
    if os.environ.get("TERM", "") in ("dumb", "unknown"):
        return False
    return all(s is not None and s.isatty() for s in (sys.__stdin__, sys.__stdout__))


def _refuse_local_options(args: argparse.Namespace) -> None:
    """An option that would do nothing is an error.

    Raises:
        RequestError: names it.
    """
    local = {"backend": "auto", "ctx": None, "threads": None, "kv": None, "speculation": None,
             "draft": None, "kv_disk": None, "exact": False, "gpu_layers": None}  # fmt: skip
    for name, default in local.items():
        if getattr(args, name) != default:
            option = "--" + name.replace("_", "-")
            raise RequestError(f"{option} says how a model is run here; with --url none is")


def partner(args: argparse.Namespace) -> Partner:
    """Who answers: a server, or a model in this process."""
    if args.url:
        from edgerun.tui.remote import RemotePartner

        return RemotePartner(args.url, args.api_key or os.environ.get("EDGERUN_API_KEY"))
    from edgerun.tui.local import LocalPartner

    options = {k: v for k in ("speculation", "draft") if (v := getattr(args, k)) is not None}
    return LocalPartner(
        backend=args.backend,
        n_ctx=args.ctx,
        threads=args.threads,
        kv_type=args.kv,
        gpu_layers=args.gpu_layers,
        exact=args.exact,
        kv_disk=args.kv_disk or "auto",
        **options,
    )


def _title() -> str:
    from edgerun import __version__

    return f"edgerun {__version__}"


def _run_app(app: ChatApp) -> int:
    import asyncio
    import logging

    from edgerun.folders import data_dir

    log = data_dir() / "chat.log"
    handler = _log_to(log)

    async def main() -> None:
        await app.run_async()
        await app.finish()

    with _apart(log):
        asyncio.run(main())
    logging.getLogger("edgerun").removeHandler(handler)
    handler.close()
    status = _outcome(app, log)
    if app.keeper is not None and not app.keeper.partner.ended:
        # A long step of a large model is still being computed: nobody waits for it.
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(status)
    return status


def _outcome(app: ChatApp, log: Path) -> int:
    """The exit status, after what is to be said of a failure."""
    if app.failure is None:
        return app.return_code or 0
    name = type(app.failure).__name__
    print(
        f"error: the chat failed ({name}: {printable(app.failure)}); what was said is kept, "
        f"details are in {printable(log)}",
        file=sys.stderr,
    )
    return 1


def _log_to(path: Path) -> logging.Handler:
    """Warnings and failures go to a file, made when there is the first."""
    import logging

    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.setLevel(logging.WARNING)
    logging.getLogger("edgerun").addHandler(handler)
    return handler


@contextmanager
def _apart(log: Path) -> Iterator[None]:
    """Keep what libraries write to stderr off the screen, which is drawn through it: the screen
    gets a descriptor of its own."""
    before = sys.__stderr__
    try:
        if os.name != "posix" or before is None or not before.isatty():
            raise OSError
        screen = os.dup(2)
        with open(log, "ab") as f:
            os.dup2(f.fileno(), 2)
    except OSError:
        yield
        return
    drawn = open(screen, "w", encoding="utf-8", errors="replace")  # noqa: SIM115
    try:
        sys.__stderr__ = drawn  # type: ignore[misc]
        yield
    finally:
        sys.__stderr__ = before  # type: ignore[misc]
        os.dup2(screen, 2)
        drawn.close()
