"""``edgerun pull``: fetch a model by name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgerun.cli import Subparsers

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "pull",
        help="fetch a model",
        description="Fetch a model into the store, unless it is already on this machine, and print "
        "where it lies. An interrupted pull goes on where it stopped.",
    )
    parser.add_argument(
        "model", help="a name that `edgerun list` shows, hf:OWNER/REPO/FILE.gguf, or https://..."
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    from edgerun import catalog
    from edgerun.cli._progress import pull_progress

    if args.quiet:
        found = catalog.pull(args.model)
    else:
        with pull_progress(args.model) as progress:
            found = catalog.pull(args.model, progress=progress)
    print(found.path)
    return 0
