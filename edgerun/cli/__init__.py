"""The command line: one command a module, on argparse (typer costs 60-90 ms more per start).

Convention for a command ``edgerun NAME``: a module ``edgerun/cli/NAME.py``, listed in
:data:`COMMANDS`, that exposes

* ``add_parser(subparsers: Subparsers) -> None``: calls
  ``subparsers.add_parser("NAME", help=..., description=..., epilog=...)`` and declares arguments;
* ``run(args: argparse.Namespace) -> int``: does the work and returns the exit status.

Only the module of the command that was asked for is imported, and its heavy imports (numpy, rich,
edgerun.llm, ...) stand inside ``run``, so that a command starts fast. Answers go to stdout,
everything else to stderr. :func:`main` turns an :class:`~edgerun.errors.EdgerunError`, and what
the system refuses, into one ``error: ...`` line and status 1, Ctrl-C into status 130, a closed pipe
into a quiet 141, and usage errors exit with 2; a command catches none of these.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import gc
import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from edgerun import __version__
from edgerun.errors import EdgerunError, printable, why

if TYPE_CHECKING:
    from typing import TypeAlias

    Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"

__all__ = ["COMMANDS", "main"]

#: Every command, in the order the help shows them; each is a module of this package.
COMMANDS = ("run", "chat", "serve", "pull", "list", "rm", "show", "bench", "perplexity", "doctor")

_EPILOG = """\
examples:
  edgerun run "Write a haiku about rain"        the default model, pulled on first use
  edgerun run -m ./model.gguf "Hello"           a file, used where it lies
  edgerun list                                  models by name, and which are here
  edgerun pull qwen3-0.6b                       fetch one by name
"""


class _Help(argparse.HelpFormatter):
    """Fills paragraphs, and leaves texts of several lines, such as examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class _Parser(argparse.ArgumentParser):
    """argparse's, whose errors are one line: the usage of ``run`` alone would fill a screen."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Help)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {printable(message, limit=2000)}; see {self.prog} --help\n")


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole parser, or, for speed, one that knows the command ``only``."""
    parser = _Parser(
        prog="edgerun",
        description="Run language models on the machine you own.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"edgerun {__version__}")
    # argparse forgets the commands' own indent: a long metavar makes room for the longest one.
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND [ARGS]", title="commands")
    for name in COMMANDS if only is None else (only,):
        module = importlib.import_module(f"{__name__}.{name}")
        module.add_parser(subparsers)
        subparsers.choices[name].set_defaults(run=module.run)
    return parser


def _dispatch(argv: Sequence[str]) -> int:
    only = argv[0] if argv and argv[0] in COMMANDS else None
    parser = build_parser(only)
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    status: int = args.run(args)
    sys.stdout.flush()
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status.

    Without ``argv`` it is the ``edgerun`` program: it takes the process's arguments, and ends it.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character must not end the program.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    # While things are imported and loaded, all that a collection finds is there to stay; open_llm
    # turns it on again.
    collects = gc.isenabled()
    gc.disable()
    try:
        status = _status(sys.argv[1:] if argv is None else argv)
        if argv is None:
            _leave(status)
        return status
    finally:
        if collects:
            gc.unfreeze()
            gc.enable()


def _status(argv: Sequence[str]) -> int:
    try:
        return _dispatch(argv)
    except EdgerunError as e:
        print(f"error: {printable(e, limit=2000)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 141
    except OSError as e:
        what = "" if e.filename is None else f"{printable(e.filename)}: "
        if e.filename is None and e.errno in (errno.ENOSPC, errno.EIO, errno.EFBIG):
            _drop_output()
            what = "the output cannot be written: "
        with contextlib.suppress(OSError):
            print(f"error: {what}{why(e)}", file=sys.stderr)
        return 1


def _drop_output() -> None:
    """Python flushes stdout once more at exit; let that go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(status: int) -> None:
    """End the process, if nothing speaks against it, without taking its objects apart one by one:
    with a model's vocabulary that takes a tenth of a short run."""
    others = [t for t in threading.enumerate() if t is not threading.main_thread()]
    if sys.gettrace() or sys.getprofile() or not all(t.daemon for t in others):
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except (OSError, ValueError):  # Python's own exit says so
        return
    atexit._run_exitfuncs()
    os._exit(status)
