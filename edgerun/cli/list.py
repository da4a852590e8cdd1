"""``edgerun list``: the models by name, what they need, and which are here."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from edgerun.amounts import size_text

if TYPE_CHECKING:
    from edgerun.catalog import Entry
    from edgerun.cli import Subparsers

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "list",
        help="show the models that can be named",
        description="Show the models that can be named, their size, the memory they need at a "
        "context of 4096 tokens (an estimate), and where they lie if they are here.",
        epilog="""examples:
  edgerun list
  edgerun list --json
""",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, sizes in bytes")


def run(args: argparse.Namespace) -> int:
    from edgerun import catalog

    entries = catalog.list_models()
    if args.json:
        import json

        print(json.dumps([_plain(e) for e in entries], indent=1))
        return 0
    rows = [["NAME", "SIZE", "NEEDS", "CONTEXT", "HERE", "NOTES"], *map(_row, entries)]
    widths = [max(len(r[i]) for r in rows) for i in range(5)]
    for name, *cells, notes in rows:
        padded = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  ".join([name.ljust(widths[0]), *padded, notes]).rstrip())
    return 0


def _runs_on(entry: Entry) -> str | None:
    """The name of what runs the model here; None if nothing does, for want of llama.cpp."""
    if not entry.spec or not entry.spec.arch:
        return "edgerun"
    from edgerun.loading import runs_on

    return runs_on(entry.spec.arch)


def _remark(entry: Entry) -> str:
    """What there is to say of who runs it."""
    runs_on = _runs_on(entry)
    if runs_on == "edgerun":
        return ""
    if runs_on is not None:
        return "FALLBACK: RUNS ON LLAMA.CPP; "
    from edgerun.backends.llama_cpp_library import INSTALL

    return f"NEEDS A FALLBACK, LLAMA.CPP: {INSTALL}; "


def _row(entry: Entry) -> list[str]:
    from edgerun.errors import printable

    spec = entry.spec
    here = "pulled" if entry.stored else "in place" if entry.path else ""
    if not here and entry.partial:
        here = "partly"
    return [
        printable(entry.name),
        _size(spec.size if spec else None),
        _size(spec.memory() if spec else None),
        f"{spec.context // 1024}k" if spec and spec.context else "",
        here,
        _remark(entry) + (printable(spec.notes) if spec else ""),
    ]


def _size(n: int | None) -> str:
    return "" if n is None else size_text(n)


def _plain(entry: Entry) -> dict[str, Any]:
    spec = entry.spec
    return {
        "name": entry.name,
        "path": str(entry.path) if entry.path else None,
        "stored": entry.stored,
        "partial_bytes": entry.partial,
        "size": spec.size if spec else None,
        "memory_4k": spec.memory() if spec else None,
        "context": spec.context if spec else None,
        "runs": _runs_on(entry) is not None,
        "runs_on": _runs_on(entry),
        "sources": list(spec.sources) if spec else [],
        "license": spec.license if spec else "",
        "notes": spec.notes if spec else "",
    }
