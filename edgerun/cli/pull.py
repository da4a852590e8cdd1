"""``edgerun pull``: fetch a model by name."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from edgerun.cli import Subparsers

__all__ = ["add_parser", "pull_with_bar", "run"]


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "pull",
        help="fetch a model",
        description="Fetch a model into the store, unless it is already on this machine, and print "
        "where it lies. An interrupted pull goes on where it stopped.",
        epilog="""examples:
  edgerun pull qwen3-0.6b
  edgerun pull hf:OWNER/REPO/FILE.gguf
  model=$(edgerun pull -q smollm2-135m)            its path, for a script
""",
    )
    parser.add_argument(
        "model", help="a name that `edgerun list` shows, hf:OWNER/REPO/FILE.gguf, or https://..."
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    from edgerun import catalog

    print(catalog.pull(args.model).path if args.quiet else pull_with_bar(args.model))
    return 0


def pull_with_bar(model: str | None) -> Path:
    """The file of a model (``None`` = the default), fetched with a progress bar if it is absent."""
    from edgerun import catalog
    from edgerun.cli._progress import pull_progress

    name = model or catalog.DEFAULT_MODEL
    with pull_progress(name) as progress:
        return catalog.pull(name, progress=progress).path
