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

_ENCODING = "PYTHONIOENCODING"

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
        command = subparsers.choices[name]
        command.set_defaults(run=module.run, parser=command)
    return parser


def _refuse_command(word: str) -> NoReturn:
    """Exits with a usage error."""
    parser = build_parser()
    said = f"there is no command '{printable(word, 60)}'"
    if word.lower().endswith(".gguf"):
        parser.error(f'{said}: a model goes after -m, as in edgerun run -m {word} "Hello"')
    parser.error(f"{said}{_close(word, COMMANDS)}")


def _refuse_words(args: argparse.Namespace, unknown: Sequence[str]) -> NoReturn:
    """Exits with a usage error for what the parser could not place: of options and their values
    the options alone."""
    parser: argparse.ArgumentParser = getattr(args, "parser", None) or build_parser()
    known = [o for action in parser._actions for o in action.option_strings]
    options = [w.partition("=")[0] for w in unknown if w[:1] == "-" and len(w) > 1]
    if options:
        parser.error(f"there is no option {options[0]}{_close(options[0], known)}")
    hint = ""
    if "--model" in known and args.model is None:
        hint = f": did you mean -m {unknown[0]}?"
    parser.error(f"'{unknown[0]}' has no place here{hint}")


def _close(word: str, known: Sequence[str]) -> str:
    import difflib

    found = difflib.get_close_matches(word.lower(), known, n=1)
    return f": did you mean {found[0]}?" if found else ""


def _dispatch(argv: Sequence[str]) -> int:
    only = argv[0] if argv and argv[0] in COMMANDS else None
    if argv and only is None and argv[0][:1] != "-":
        _refuse_command(argv[0])
    parser = build_parser(only)
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        _refuse_words(args, unknown)
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
    _open_streams(sys.platform)
    if argv is None:
        _calm_blas()
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


def _calm_blas() -> None:
    """Have the threads of numpy's OpenBLAS sleep as soon as they have no work.

    By default each spins for a tenth of a second after numpy is imported, on a core that the start
    could use; only the reference backend has work for them at all."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")  # 2^4 cycles, the least it takes


def _open_streams(platform: str) -> None:
    """None of the three is None: a closed one, as after ``>&-``, reads and writes nothing. And a
    terminal that cannot show a character does not end the program."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            if name != "stdin":
                stream.reconfigure(errors="replace")
            if platform == "win32" and not stream.isatty() and not os.environ.get(_ENCODING):
                # Python's choice for pipes and files there is a code page of 256 characters.
                stream.reconfigure(encoding="utf-8", newline=None if name == "stdin" else "\n")


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
